// gate_up_swiglu_batch: out = g * sigmoid(g) * u with g = x gate^T and u = x up^T, for 9 to 2,048
// rows of x (batched decode, prompts).
//
//   x         (T, K) f16, aligned to 16; PERMUTED as output.h says
//   gate, up  (N, K) of FORMAT_0, packed (packed.h)
//   out       (T, N) f16, kept finite; permuted if `permutes` is not 0
//   partials, arrivals  as for matmul_batch.hip
//
// Threads: a block takes its share of the steps of all bands, which have kRows / 2 rows, the same
// ones of gate and of up (batch_rows.h). A wave has kWaveRows / 2 rows of gate and the same ones of
// up. Grid: of batch_parts.h.
// Limits: as for matmul_batch.hip; N a multiple of 128 if `permutes` is not 0.
// Launched by rocmforge/gpu/ops/matmul_batch.py.
#include "batch_rows.h"
#include "swiglu.h"

struct GateUpBatchArgs {
    Batch batch;
    PackedMatrix gate, up;
    f16* out;
    int rows, permutes;
};

// Computes a part of a band.
DEVICE void run(const GateUpBatchArgs& a, const Part& part, u32x4* lds) {
    constexpr int kOwn = kWaveRows / 2;
    const int first = static_cast<int>(part.band * (kRows / 2) + wave() % ROW_WAVES * kOwn);
    const Lines from = gated_lines(a.gate, a.up, first);
    Sums sums;
    const Neighbours tokens = {a.batch.tokens};
    if (!compute<FORMAT_0>(a.batch, part, tokens, from, a.rows, sums, lds)) return;
    sums.each_gated(TOKENS, [&](int m, int n, float gate, float up) {
        const int row = first + m, token = first_token() + n;
        const uint32_t place = a.permutes ? permuted(row) : row;
        const uint32_t at = static_cast<uint32_t>(token) * static_cast<uint32_t>(a.rows) + place;
        const f16 result = to_finite_f16(swiglu(gate, up));
        if (row < a.rows && token < a.batch.tokens) a.out[at] = result;
    });
}

KERNEL_RESIDENT(gate_up_swiglu_batch, GateUpBatchArgs, kThreads, BLOCKS) {
    ROCMFORGE_BATCH_LDS(lds);
    each_part(a.batch, [&](const Part& part) { run(a, part, lds); });
}
