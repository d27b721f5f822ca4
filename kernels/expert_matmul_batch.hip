// expert_matmul_batch: out[t][i] = x[t][i] W^T + bias with the matrix W of expert experts[t][i],
// for prompts, on the matrix units.
//
//   x       (T, k, K) f16, aligned to 16; PERMUTED as output.h says
//   W       (E * N, K) of FORMAT_0, packed (packed.h): the experts one below the other
//   bias    (E * N,) float, or null
//   out     (T, k, N) float
//   order, groups  of group_experts.hip, with groups of up to TOKENS jobs
//
// Threads: a block takes kRows rows of one expert for the jobs of a group (expert_groups.h,
// batch_rows.h). Grid (ceil(N / kRows), groups). Limits: K a multiple of 32.
// Launched by rocmforge/gpu/ops/experts_batch.py.
#include "expert_groups.h"

struct ExpertMatmulBatchArgs {
    const f16* x;
    PackedMatrix weight;
    const float* bias;
    float* out;
    int columns;
    ExpertGroups experts;
};

KERNEL_RESIDENT(expert_matmul_batch, ExpertMatmulBatchArgs, kThreads, BLOCKS) {
    ROCMFORGE_BATCH_LDS(lds);
    SHARED Group::InLds job_lds;
    await_earlier();
    const Group group(a.experts, &job_lds);
    if (group.count == 0) return;
    const int own = static_cast<int>(block_x() * kRows + wave() % ROW_WAVES * kWaveRows);
    const int first = group.expert * a.experts.rows + own;
    const Lines from = lines_of(a.weight, first);
    Sums sums;
    if (!compute_group(a.x, a.columns, a.experts, group, from, sums, lds)) return;
    const int last_row = a.experts.rows - 1 - own;
    if (a.bias != nullptr) {  // sums past the last row are not stored
        const float* const bias = a.bias + first;
        sums.each(group.count, [&](int row, int, float& y) { y += bias[minimum(row, last_row)]; });
    }
    sums.each(group.count, [&](int row, int token, float& y) {
        const u64 to = static_cast<u64>(group.job(token)) * a.experts.rows + own + row;
        if (row <= last_row && token < group.count) a.out[to] = y;
    });
}
