// matmul_f16: out[t][n] = sum over k of x[t][k] * w[n][k], + bias[n]: a GEMM for prompts (prefill)
// on the matrix units (tile.h), of weights that are f16 in memory (unpack.hip); sums are float. Up
// to three matrices share x and a launch. gate_up_swiglu_f16: out = g * sigmoid(g) * u with g = x
// w^T and u = x up^T.
//
//   x       (T, K) f16, aligned to 16
//   w, up   (N, K) f16, aligned to 16, as `codes`; up is for gate_up_swiglu_f16 only
//   bias    (N,) float, or null; for matmul_f16 only
//   out     (T, N): kStore writes float, kAdd adds to float, kHalves writes f16 that is kept
//           finite, as gate_up_swiglu_f16 always does
//
// Threads: as prompt_tile.h says. While the waves multiply a step in LDS, the next STAGES - 1 steps
// are on their way to LDS, or with two STAGES into registers (Transfer of device.h). A wave loads
// what it multiplies 16 columns ahead of it, past the barrier between two steps too, so that the
// matrix units need not wait for LDS.
// On Hopper (warpgroup.h) a warpgroup multiplies 64 tokens with all rows of the block. Its products
// run on while it passes the barrier: so two steps in LDS are in use, and STAGES - 2 on their way.
// The tile has to be one of WAVE_TOKENS 16, WAVE_ROWS 128 or 256, GROUPS 2 and at least four
// STAGES. Limits: T, N and K at least 1, K a multiple of 8. Rows past the end are computed from the
// data of the last one and not stored; tokens and columns past the end are zero. A block takes 64 *
// STAGES * GROUPS * (TILE_TOKENS + TILE_ROWS) bytes of LDS; more than two STAGES on CUDA only,
// which keeps registers for BLOCKS blocks at a time. Launched by rocmforge/gpu/ops/matmul_f16.py.
#include "products.h"
#include "prompt_tile.h"
#include "warpgroup.h"

#if !defined(BLOCKS)
#error "BLOCKS has to be passed by the build"
#endif

constexpr int kWPieces = TILE_ROWS * kEights / kThreads;
static_assert(kWPieces * kThreads == TILE_ROWS * kEights, "weights divide among the threads");
static_assert(STAGES >= 2, "one to be multiplied, one on its way");

// A thread's share of a step on its way from memory to LDS.
template <bool kGated>
struct Copies {
    Transfer x[kXPieces], w[kWPieces];

    DEVICE void start(const Args& a, int step, Stage& stage) {
        UNROLL
        for (int i = 0; i < kXPieces; ++i) {
            const int token = first_token() + own(i) / kEights;
            const int limit = token < a.tokens ? a.columns : 0;
            start(x[i], to(stage.x, i), a, a.x, limit > 0 ? token : 0, column(step, i), limit);
        }
        UNROLL
        for (int i = 0; i < kWPieces; ++i) {
            const WeightRow<kGated> from(a, own(i) / kEights);
            const uint8_t* codes = from.up ? a.up.codes : a.w.codes;
            start(w[i], to(stage.w, i), a, reinterpret_cast<const f16*>(codes), from.row,
                  column(step, i), a.columns);
        }
        Transfer::batch_started();
    }
    // Waits for all steps but the last STAGES - 2 that were started; `stage` is of the last that
    // is waited for.
    DEVICE void arrive(Stage& stage) {
        Transfer::wait<STAGES - 2>();
        UNROLL
        for (int i = 0; i < kXPieces; ++i) x[i].land(to(stage.x, i));
        UNROLL
        for (int i = 0; i < kWPieces; ++i) w[i].land(to(stage.w, i));
    }

  private:
    static DEVICE int own(int i) { return static_cast<int>(thread_x() % kThreads) + i * kThreads; }
    static DEVICE int column(int step, int i) { return step * kStep + own(i) % kEights * 8; }
    static DEVICE u32x4* to(f16* lds, int i) {
        return reinterpret_cast<u32x4*>(lds + place(own(i) / kEights, own(i) % kEights));
    }
    // Columns from `limit` on become zero.
    static DEVICE void start(Transfer& piece, u32x4* to, const Args& a, const f16* matrix, int row,
                             int column, int limit) {
        const bool present = column < limit;
        const uint32_t at = row * (a.columns / 8) + (present ? column / 8 : 0);
        piece.start(to, matrix + static_cast<u64>(at) * 8, present);
    }
};

#if defined(ROCMFORGE_WARPGROUP)
static_assert(WAVE_TOKENS == 16 && TILE_ROWS == WAVE_ROWS && GROUPS == 2 && STAGES >= 4);
static_assert(TILE_TOKENS % 64 == 0 && sizeof(Stage) % 1024 == 0);

template <bool kGated>
DEVICE void compute(const Args& a, Stage* stages) {
    Accumulators sums;
    const int steps = (a.columns + kStep - 1) / kStep;
    // Past the last step zeros come, so that no copy is conditional.
    Copies<kGated> copies;
    UNROLL
    for (int i = 0; i < STAGES - 2; ++i) copies.start(a, i, stages[i]);
    int now = 0, filled = STAGES - 2;
    for (int step = 0; step < steps; ++step) {
        Transfer::wait<STAGES - 3>();
        lds_for_warpgroup();
        block_sync();
        // Every wave has waited for the products of step - 2, whose stage this was.
        copies.start(a, step + STAGES - 2, stages[filled]);
        const u64 x = swizzled_operand(stages[now].x) + sums.token / 64 * 64 * kEights;
        const u64 w = swizzled_operand(stages[now].w);
        registers_for_warpgroup();
        UNROLL
        for (int k = 0; k < kEights; k += 2) warpgroup_mma(sums.tiles[0], x + k, w + k);
        warpgroup_started();
        warpgroup_wait<1>();
        now = now + 1 == STAGES ? 0 : now + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    }
    warpgroup_wait<0>();
    hold_sums(sums.tiles[0]);
    Transfer::wait<0>();  // for the zeros, too: the outputs go through where they lie
    block_sync();
    sums.finish<kGated>(a, stages);
}
#else
// What a wave multiplies: 16 columns of its tokens and of its rows.
struct Operands {
    TileA x[kTilesDown];
    TileB w[kTilesAcross];

    DEVICE void load(const Accumulators& sums, const Stage& stage, int k) {
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) sums.load(x[i], stage, i, k);
        UNROLL
        for (int j = 0; j < kTilesAcross; ++j) sums.load(w[j], stage, j, k);
    }
    DEVICE void multiply(Accumulators& sums) const {
        UNROLL
        for (int j = 0; j < kTilesAcross; ++j) {
            UNROLL
            for (int i = 0; i < kTilesDown; ++i) sums.tiles[i][j].mma(x[i], w[j]);
        }
    }
};

template <bool kGated>
DEVICE void compute(const Args& a, Stage* stages) {
    Accumulators sums;
    const int steps = (a.columns + kStep - 1) / kStep;
    // Past the last step zeros come, so that no copy is conditional.
    Copies<kGated> copies;
    UNROLL
    for (int i = 0; i < STAGES - 1; ++i) copies.start(a, i, stages[i]);
    copies.arrive(stages[0]);
    block_sync();
    Operands ahead[2];
    ahead[0].load(sums, stages[0], 0);
    int now = 0, filled = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        const int next = now + 1 == STAGES ? 0 : now + 1;
        UNROLL
        for (int k = 0; k < kEights; k += 2) {
            if (k + 2 < kEights) {
                ahead[(k / 2 + 1) % 2].load(sums, stages[now], k + 2);
            } else {
                copies.arrive(stages[next]);
                block_sync();
                ahead[(k / 2 + 1) % 2].load(sums, stages[next], 0);
            }
            // All waves have loaded the last of what was here, before the last barrier.
            if (k == 0) copies.start(a, step + STAGES - 1, stages[filled]);
            ahead[k / 2 % 2].multiply(sums);
        }
        sums.settle();
        filled = now, now = next;
    }
    Transfer::wait<0>();  // for the zeros, too: the outputs go through where they lie
    block_sync();
    sums.finish<kGated>(a, stages);
}

#endif

struct SeveralArgs {
    Products products;  // `out` is as Args says
    const f16* x;
    int tokens, columns, result, added_from, added_to;
};

KERNEL_RESIDENT(matmul_f16, SeveralArgs, kThreads, BLOCKS) {
    SHARED_BY_LAUNCH(Stage, stages, STAGES);
    await_earlier();
    const int at = product_of(a.products, static_cast<int>(block_y()));
    const Product& p = a.products.of[at];
    Args own = {};
    own.x = a.x, own.w = p.matrix, own.bias = p.bias, own.out = p.out;
    own.tokens = a.tokens, own.rows = a.products.rows[at], own.columns = a.columns;
    own.result = a.result, own.added_from = a.added_from, own.added_to = a.added_to;
    own.first_block = at == 0 ? 0 : a.products.ends[at - 1];
    compute<false>(own, stages);
}

KERNEL_RESIDENT(gate_up_swiglu_f16, Args, kThreads, BLOCKS) {
    SHARED_BY_LAUNCH(Stage, stages, STAGES);
    await_earlier();
    compute<true>(a, stages);
}
