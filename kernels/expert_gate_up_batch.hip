// expert_gate_up_batch: out[t][i] = the activation (swiglu.h) of x[t] gate^T + gate_bias and x[t]
// up^T + up_bias, with the matrices of expert experts[t][i], for prompts, on the matrix units.
//
//   x              (T, K) f16, aligned to 16; PERMUTED as output.h says
//   gate, up       (E * N, K) of FORMAT_0, packed (packed.h): the experts one below the other
//   gate_bias, up_bias  (E * N,) float, or null
//   out            (T, k, N) float, or f16 that is kept finite, permuted or not, as `dtype` says
//   order, groups  of group_experts.hip, with groups of up to TOKENS jobs
//
// Threads: a block takes kRows / 2 rows, the same ones of gate and of up, of one expert for the
// jobs of a group (expert_groups.h, batch_rows.h). Grid (ceil(N / (kRows / 2)), groups).
// Limits: K a multiple of 32. Launched by rocmforge/gpu/ops/experts_batch.py.
#include "expert_groups.h"
#include "swiglu.h"

struct ExpertGateUpBatchArgs {
    const f16* x;
    PackedMatrix gate, up;
    const float* gate_bias;
    const float* up_bias;
    void* out;
    int activation, columns, dtype;
    ExpertGroups experts;
};

KERNEL_RESIDENT(expert_gate_up_batch, ExpertGateUpBatchArgs, kThreads, BLOCKS) {
    SHARED u32x4 lds[kLds];
    await_earlier();
    const Group group(a.experts);
    if (group.count == 0) return;
    constexpr int kOwn = kWaveRows / 2;
    const int own = static_cast<int>(block_x() * (kRows / 2) + wave() % ROW_WAVES * kOwn);
    const int first = group.expert * a.experts.rows + own;
    const Lines from = gated_lines(a.gate, a.up, first);
    Sums sums;
    if (!compute_group(a.x, a.columns, a.experts, group, from, sums, lds)) return;
    sums.each_gated([&](int m, int token, float gate, float up) {
        if (own + m >= a.experts.rows || token >= group.count) return;
        if (a.gate_bias) gate += a.gate_bias[first + m];
        if (a.up_bias) up += a.up_bias[first + m];
        const u64 to = static_cast<u64>(group.jobs[token]) * a.experts.rows + own + m;
        const float result = gated(a.activation, gate, up);
        if (a.dtype == static_cast<int>(Dtype::F32)) {
            static_cast<float*>(a.out)[to] = result;
        } else {
            const u64 at = a.dtype == static_cast<int>(Dtype::Permuted) ? permuted(to) : to;
            static_cast<f16*>(a.out)[at] = to_finite_f16(result);
        }
    });
}
