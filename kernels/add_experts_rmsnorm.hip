// add_experts_rmsnorm: x[t] += the sum over i of shares[t][i] * parts[t][i] (add_experts.h), and
// the RMSNorm of x but for a factor of each row, which the readers multiply by (row_scale.h).
//
//   norm     (K,) float, aligned to 16
//   normed   (T, K) Q8: x * norm, aligned to 16
//   squares  (T, K / 32) float: the sums of x^2 of each group of 32 columns
//
// Threads: four neighbouring columns each. Grid (ceil(K / (4 * THREADS)), T).
// Limits: K a multiple of 32.
// Launched by rocmforge/gpu/ops/experts.py.
#include "add_experts.h"

struct AddExpertsRmsnormArgs {
    AddExperts add;
    const float* norm;
    Output normed;
    float* squares;
};

KERNEL_AHEAD(add_experts_rmsnorm, AddExpertsRmsnormArgs, THREADS) {
    const int column = own_column();
    const bool present = column < a.add.columns;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, norm[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (present) load_floats(a.norm + column, norm);
    await_earlier();
    const u64 token = block_y(), at = token * a.add.columns + column;
    if (present) {
        a.add.sum(token, column, sum);
        store_floats(a.add.x + at, sum);
    }
    float own = 0.0f, scaled[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
        own += sum[i] * sum[i];
        scaled[i] = sum[i] * norm[i];
    }
    const float squares = wave_sum<kGroup / 4>(own);
    if (present && column % kGroup == 0) a.squares[at / kGroup] = squares;
    store_as<Dtype::Q8>(a.normed, at, scaled, present);
}
