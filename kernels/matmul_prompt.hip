// matmul_prompt: out[t][n] = sum over k of x[t][k] * w[n][k], + bias[n]: a GEMM for prompts
// (prefill) on the matrix units (tile.h). Weights become f16 on their way into LDS; sums are float.
// gate_up_swiglu_prompt: out = g * sigmoid(g) * u with g = x w^T and u = x up^T.
//
//   x       (T, K) f16, aligned to 16
//   w, up   (N, K) of FORMAT, packed (packed.h); up is for gate_up_swiglu_prompt only
//   bias    (N,) float, or null; for matmul_prompt only
//   out     (T, N): kStore writes float, kAdd adds to float, kHalves writes f16 that is kept
//           finite, as gate_up_swiglu_prompt always does
//
// Threads: as prompt_tile.h says. While the waves multiply a step in LDS, the next DEPTH steps are
// on their way into registers. With two STAGES, LDS holds two steps, and a step needs one barrier
// instead of two.
// Limits: T, N and K at least 1. Tokens and rows past the end are computed from the data of the
// last one and not stored; columns past the end have weights of zero. A block takes 64 * STAGES *
// GROUPS * (TILE_TOKENS + TILE_ROWS) bytes of LDS.
// Launched by rocmforge/gpu/ops/matmul_prompt.py.
#include "prompt_tile.h"

#if !defined(FORMAT) || !defined(DEPTH) || !defined(ALIGNED)
#error "FORMAT, DEPTH and ALIGNED have to be passed by the build"
#endif

using Weights = Packed<FORMAT>;

constexpr int kRowUnits = kStep / Weights::kColumns;
constexpr int kUnits =
    TILE_ROWS * kRowUnits / kThreads;  // of weights that a thread loads in a step
static_assert(kUnits * kThreads == TILE_ROWS * kRowUnits, "weights divide among the threads");

template <bool kGated>
DEVICE PackedMatrix matrix_of(const Args& a, const WeightRow<kGated>& from) {
    if constexpr (!kGated) return a.w;
    return {from.up ? a.up.codes : a.w.codes, from.up ? a.up.high : a.w.high,
            from.up ? a.up.scales : a.w.scales, from.up ? a.up.supers : a.w.supers};
}

// Eight activations. Past the end of a row they are any of the row's: weights are zero there.
DEVICE u32x4 load_x(const Args& a, int token, int column) {
    if constexpr (!ALIGNED) {
        const PackedMatrix x = {reinterpret_cast<const uint8_t*>(a.x), nullptr, nullptr, nullptr};
        return Packed<F16>::load_row(x, token, a.columns, column);
    } else {
        return load<u32x4>(a.x + static_cast<u64>(token) * a.columns +
                           minimum(column, a.columns - 8));
    }
}

// One unit of weights, zeros past the end of a row. There is no branch, because one would split the
// loop's body for the compiler's scheduler.
template <class Weights, bool kGated>
DEVICE typename Weights::Unit load_w(const Args& a, const WeightRow<kGated>& from, int column) {
    const PackedMatrix matrix = matrix_of(a, from);
    if constexpr (Weights::kDense && !ALIGNED) {
        return Weights::load_row(matrix, from.row, a.columns, column);
    } else {
        const int units = a.columns / Weights::kColumns;
        const int unit = minimum(column / Weights::kColumns, units - 1);
        auto loaded = Weights::load(matrix, static_cast<u64>(from.row) * units + unit);
        const uint32_t inside = column < a.columns ? 0xffffffffu : 0;
        if constexpr (Weights::kDense) {
            loaded.x &= inside, loaded.y &= inside, loaded.z &= inside, loaded.w &= inside;
        } else if constexpr (!Weights::kHasSupers) {  // with supers, rows are whole steps
            loaded.scale &= inside;
        }
        return loaded;
    }
}

// A thread's share of a step on its way from memory to LDS.
template <bool kGated>
struct Loads {
    u32x4 x[kXPieces];
    Weights::Unit w[kUnits];

    DEVICE void fetch(const Args& a, int step) {
        UNROLL
        for (int i = 0; i < kUnits; ++i) {
            const int unit = thread_x() + i * kThreads;
            const WeightRow<kGated> from(a, unit / kRowUnits);
            w[i] = load_w<Weights>(a, from, step * kStep + unit % kRowUnits * Weights::kColumns);
        }
        UNROLL
        for (int i = 0; i < kXPieces; ++i) {
            const int unit = thread_x() + i * kThreads;
            const int token = minimum(first_token() + unit / kEights, a.tokens - 1);
            x[i] = load_x(a, token, step * kStep + unit % kEights * 8);
        }
    }

    DEVICE void store(Stage& stage) const {
        UNROLL
        for (int i = 0; i < kXPieces; ++i) {
            const int unit = thread_x() + i * kThreads;
            *reinterpret_cast<u32x4*>(stage.x + place(unit / kEights, unit % kEights)) = x[i];
        }
        UNROLL
        for (int i = 0; i < kUnits; ++i) {
            const int unit = thread_x() + i * kThreads, row = unit / kRowUnits;
            const int column = unit % kRowUnits * Weights::kColumns;
            uint32_t pairs[Weights::kColumns / 2];
            PackedHalves<FORMAT>::pairs(w[i], pairs);
            if constexpr (Weights::kColumns == 4) {
                *reinterpret_cast<u32x2*>(stage.w + place(row, column / 8) + column % 8) = {
                    pairs[0], pairs[1]};
            } else {
                UNROLL
                for (int j = 0; j < Weights::kColumns / 8; ++j) {
                    *reinterpret_cast<u32x4*>(stage.w + place(row, column / 8 + j)) = {
                        pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]};
                }
            }
        }
    }
};

DEVICE void multiply(Accumulators& sums, const Stage& stage) {
    UNROLL
    for (int k = 0; k < kEights; k += 2) {
        TileA x[kTilesDown];
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) sums.load(x[i], stage, i, k);
        UNROLL
        for (int j = 0; j < kTilesAcross; ++j) {
            TileB w;
            sums.load(w, stage, j, k);
            UNROLL
            for (int i = 0; i < kTilesDown; ++i) sums.tiles[i][j].mma(x[i], w);
        }
    }
    sums.settle();
}

template <bool kGated>
DEVICE void compute(const Args& a, Stage (&stages)[STAGES]) {
    Accumulators sums;
    // Past the last step the last one is loaded again, and not used, so that no load is
    // conditional.
    const int last = (a.columns - 1) / kStep;
    Loads<kGated> loads[DEPTH];
    UNROLL
    for (int i = 0; i < DEPTH; ++i) loads[i].fetch(a, minimum(i, last));
    loads[0].store(stages[0]);
    for (int first = 0; first <= last; first += DEPTH) {
        UNROLL
        for (int i = 0; i < DEPTH; ++i) {
            const int step = first + i;
            if (step > last) break;
            loads[i].fetch(a, minimum(step + DEPTH, last));
            block_sync();
            multiply(sums, stages[step % STAGES]);
            if constexpr (STAGES == 1) block_sync();
            loads[(i + 1) % DEPTH].store(stages[(step + 1) % STAGES]);
        }
    }
    block_sync();
    sums.finish<kGated>(a, stages);
}

KERNEL(matmul_prompt, Args, kThreads) {
    SHARED Stage stages[STAGES];
    compute<false>(a, stages);
}

KERNEL(gate_up_swiglu_prompt, Args, kThreads) {
    SHARED Stage stages[STAGES];
    compute<true>(a, stages);
}
