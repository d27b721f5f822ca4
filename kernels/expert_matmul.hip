// expert_matmul: out[t][i] = x[t][i] W^T + bias with the matrix W of expert experts[t][i].
//
//   x        (T, k, K) or (T, K): Q8 for quantized weights, float for dense ones, aligned to 16
//   W        (E * N, K) of FORMAT_0, packed (packed.h): the experts one below the other
//   bias     (E * N,) float, or null
//   experts  (T, k) int, each below E
//   out      (T, k, N) float
//
// Threads: a block takes kPassRows rows of one expert for one token, or for several tokens where
// GATHER is 1 (experts.h, dot_rows.h).
// Limits: K whole blocks of the format; TOKENS 1 where GATHER is 0.
// Launched by rocmforge/gpu/ops/experts.py.
#define EXPERTS
#include "experts.h"

struct ExpertMatmulArgs {
    PackedMatrix weight;
    const float* bias;
    float* out;
    Experts experts;
    Batch batch;
};

KERNEL_AHEAD(expert_matmul, ExpertMatmulArgs, kThreads) {
    SHARED u32x4 lds[Activations<FORMAT_0>::kLds];
    await_earlier();
    const Jobs jobs(a.experts, a.batch);
    if (jobs.batch.tokens == 0) return;
    const OwnProduct own;
    const int row = jobs.first + own.row;
    const PackedMatrix matrices[1] = {a.weight};
    const auto begin = [] {};
    const auto finish = [&](int, const float (&products)[1]) {
        if (!own.writes || own.token >= jobs.batch.tokens || row >= jobs.end) return;
        a.out[jobs.at(a.experts, own.token, row)] = products[0] + (a.bias ? a.bias[row] : 0.0f);
    };
    dot_rows<FORMAT_0, 1, 1>(matrices, jobs.first, jobs.end, jobs.batch, lds, begin, finish);
}
