// add_experts: x[t] += or = the sum over i of shares[t][i] * parts[t][i].
//
//   parts   (T, k, K) float, aligned to 16
//   shares  (T, k) float
//   x       (T, K) float, aligned to 16
//
// Threads: four neighbouring columns each. Grid (ceil(K / (4 * THREADS)), T).
// Limits: K a multiple of 4.
// Launched by rocmforge/gpu/ops/experts.py.
#include "output.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

struct AddExpertsArgs {
    const float* parts;
    const float* shares;
    float* x;
    int chosen, columns;
    int accumulate;
};

KERNEL(add_experts, AddExpertsArgs, THREADS) {
    const int column = 4 * static_cast<int>(block_x() * THREADS + thread_x());
    if (column >= a.columns) return;
    const u64 token = block_y();
    float sum[4] = {};
    float* const to = a.x + token * a.columns + column;
    if (a.accumulate) load_floats(to, sum);
    for (int i = 0; i < a.chosen; ++i) {
        const u64 part = token * a.chosen + i;
        float four[4];
        load_floats(a.parts + part * a.columns + column, four);
        UNROLL
        for (int j = 0; j < 4; ++j) sum[j] += a.shares[part] * four[j];
    }
    store_floats(to, sum);
}
