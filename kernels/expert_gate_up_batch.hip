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

// Makes gate the activation of gate and up.
struct Activate {
    Sums& sums;
    int tokens;
    template <Activation kActivation>
    DEVICE void run() const {
        sums.each_gated(
            tokens, [](int, int, float& gate, float up) { gate = gated<kActivation>(gate, up); });
    }
};

KERNEL_RESIDENT(expert_gate_up_batch, ExpertGateUpBatchArgs, kThreads, BLOCKS) {
    ROCMFORGE_BATCH_LDS(lds);
    SHARED Group::InLds job_lds;
    await_earlier();
    const Group group(a.experts, &job_lds);
    if (group.count == 0) return;
    constexpr int kOwn = kWaveRows / 2;
    const int own = static_cast<int>(block_x() * (kRows / 2) + wave() % ROW_WAVES * kOwn);
    const int first = group.expert * a.experts.rows + own;
    const Lines from = gated_lines(a.gate, a.up, first);
    Sums sums;
    if (!compute_group(a.x, a.columns, a.experts, group, from, sums, lds)) return;
    // Sums past the last row are not stored.
    const int last_row = a.experts.rows - 1 - own;
    if (a.gate_bias != nullptr) {
        const float* const bias = a.gate_bias + first;
        sums.each_gated(group.count, [&](int m, int, float& gate, float&) {
            gate += bias[minimum(m, last_row)];
        });
    }
    if (a.up_bias != nullptr) {
        const float* const bias = a.up_bias + first;
        sums.each_gated(group.count,
                        [&](int m, int, float&, float& up) { up += bias[minimum(m, last_row)]; });
    }
    with_activation(a.activation, Activate{sums, group.count});
    const bool floats = a.dtype == static_cast<int>(Dtype::F32);
    const bool permutes = a.dtype == static_cast<int>(Dtype::Permuted);
    sums.each_gated(group.count, [&](int m, int token, float result, float) {
        const u64 line = static_cast<u64>(group.job(token)) * a.experts.rows;
        const u64 to = line + (permutes ? permuted(own + m) : own + m);
        if (m > last_row || token >= group.count) return;
        if (floats) {
            static_cast<float*>(a.out)[to] = result;
        } else {
            static_cast<f16*>(a.out)[to] = to_finite_f16(result);
        }
    });
}
