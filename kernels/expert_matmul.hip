// expert_matmul: out[t][i] = x[t][i] W^T + bias with the matrix W of expert experts[t][i].
//
//   x        (T, k, K) or (T, K): Q8 for quantized weights, float for dense ones, aligned to 16
//   W        (E * N, K) of FORMAT_0, packed (packed.h): the experts one below the other
//   bias     (E * N,) float, or null
//   experts  (T, k) int, each below E
//   out      (T, k, N) float
//
// Where GATHER is 0, the first weights are loaded before the wait for earlier launches. So experts
// must not be written by the launch in front of this one, but by one before that.
//
// Threads: a block takes kGroupRows rows of one expert for one token, or for several tokens where
// GATHER is 1 (experts.h, dot_rows.h). The products meet in LDS, where the threads finish them.
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

KERNEL_RESIDENT(expert_matmul, ExpertMatmulArgs, kThreads, BLOCKS) {
    SHARED u32x4 lds[kRowsLds<FORMAT_0>];
    SHARED float results[TOKENS][kGroupRows];
    SHARED Addends bias;
    if constexpr (GATHER) await_earlier();
    const Jobs jobs(a.experts, a.batch);
    if (jobs.batch.tokens == 0) return;
    const OwnProduct own;
    Addends::Held held;
    const auto begin = [&] {
        bias.start(held, a.bias, jobs);
        if constexpr (!GATHER) await_earlier();
    };
    const auto finish = [&](int first, const float (&products)[1]) {
        if (own.writes) results[own.token][first - jobs.first + own.row] = products[0];
    };
    const PackedMatrix matrices[1] = {a.weight};
    dot_rows<FORMAT_0, 1, kGroupPasses>(matrices, jobs.first, jobs.end, jobs.batch, lds, begin,
                                        finish);
    bias.arrive(held);
    block_sync();
    UNROLL
    for (int i = 0; i < kOutputs; ++i) {
        const JobOutput to = jobs.output(i);
        if (to.present) a.out[jobs.at(a.experts, to)] = results[to.token][to.at] + bias.lds[to.at];
    }
}
