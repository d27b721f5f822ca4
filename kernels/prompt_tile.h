// Tiles of the prompts' GEMM: out[t][n] = sum over k of x[t][k] * w[n][k]. What matmul_prompt.hip,
// whose weights become f16 on their way into LDS, and matmul_f16.hip, whose weights are f16 in
// memory, have in common: arguments, steps in LDS, sums of a wave, and what becomes of them.
//
// A block computes TILE_TOKENS x TILE_ROWS sums, each of its waves WAVE_TOKENS x WAVE_ROWS of them,
// in steps of 32 * GROUPS columns, of which STAGES are in LDS. The order of a row's columns in LDS,
// eight at a time, changes from row to row, so that lanes at neighbouring rows use different banks.
// Grid (ceil(T / TILE_TOKENS), ceil(N / TILE_ROWS) of all products together): blocks that share
// weights follow one another. kGated: gate and up with SwiGLU. A block computes TILE_ROWS / 2
// columns of out; the first half of each wave's rows are rows of w, the second half the same rows
// of up, so that a wave holds both.
#pragma once

#include "output.h"
#include "packed_halves.h"
#include "tile.h"

#if !defined(TILE_TOKENS) || !defined(TILE_ROWS) || !defined(WAVE_TOKENS) || \
    !defined(WAVE_ROWS) || !defined(GROUPS) || !defined(STAGES)
#error "TILE_*, WAVE_*, GROUPS and STAGES have to be passed by the build"
#endif

constexpr int kStep = 32 * GROUPS;  // columns
constexpr int kEights = kStep / 8;
constexpr int kWavesDown = TILE_TOKENS / WAVE_TOKENS;
constexpr int kThreads = WAVE * kWavesDown * (TILE_ROWS / WAVE_ROWS);
constexpr int kTilesDown = WAVE_TOKENS / 16, kTilesAcross = WAVE_ROWS / 16;
constexpr int kXPieces = TILE_TOKENS * kEights / kThreads;  // of 16 bytes, of a thread in a step
constexpr int kLine = WAVE_ROWS + 8;  // floats from line to line of the outputs in LDS
static_assert(kXPieces * kThreads == TILE_TOKENS * kEights, "activations divide among the threads");
static_assert(kTilesAcross % 2 == 0, "gates, and what they scale");

enum Result { kStore, kAdd, kHalves, kPermuted };

struct Args {
    const f16* x;
    PackedMatrix w, up;
    const float* bias;
    void* out;
    int tokens, rows, columns, result;
    int added_from, added_to;  // tokens whose outputs kAdd adds to; others it stores
    int first_block;           // of the grid's y, for this product
};

// One step in LDS.
struct Stage {
    alignas(16) f16 x[TILE_TOKENS * kStep];
    alignas(16) f16 w[TILE_ROWS * kStep];
};

static_assert(sizeof(Stage) * STAGES >= kThreads / WAVE * 16 * kLine * 4, "room for the lines");

// Where eight neighbouring f16 of a row are in a step. Their order repeats after 16 rows at the
// latest.
DEVICE int place(int row, int eight) {
    return row * kStep + 8 * (eight ^ row * kEights / 8 % kEights);
}

DEVICE int first_token() {
    return block_x() * TILE_TOKENS;
}
template <bool kGated>
DEVICE int first_row(const Args& a) {
    // Gate and up are alone in their launch. With the difference, ptxas of CUDA 13.5 makes each
    // wgmma of theirs wait for the one before, in the tile of 128 x 256 on sm_90.
    if constexpr (kGated) return block_y() * (TILE_ROWS / 2);
    return (static_cast<int>(block_y()) - a.first_block) * TILE_ROWS;
}

// The row of weights that row `local` of a block's tile is, and whether it is one of `up`. Past the
// end it is the last one.
template <bool kGated>
struct WeightRow {
    int row;
    bool up;

    DEVICE WeightRow(const Args& a, int local) {
        if constexpr (kGated) {
            const int wave = local / WAVE_ROWS, in_wave = local % WAVE_ROWS;
            up = in_wave >= WAVE_ROWS / 2;
            row = first_row<kGated>(a) + wave * (WAVE_ROWS / 2) + in_wave % (WAVE_ROWS / 2);
        } else {
            up = false;
            row = first_row<kGated>(a) + local;
        }
        row = minimum(row, a.rows - 1);
    }
};

// Outputs of a wave and a token, and of a lane; and how many of a lane are written at once.
template <bool kGated>
constexpr int kOutputs = kGated ? WAVE_ROWS / 2 : WAVE_ROWS;
template <bool kGated>
constexpr int kOwnOutputs = 16 * kOutputs<kGated> / WAVE;  // of a lane, of 16 tokens
template <bool kGated>
constexpr int kAtOnce = kOwnOutputs<kGated> % 16 == 0 ? 16 : 4;

// The sums that a wave computes, and their first token and row in the block's tile.
struct Accumulators {
    TileC tiles[kTilesDown][kTilesAcross];
    int token, row;

    DEVICE Accumulators() {
        token = wave() % kWavesDown * WAVE_TOKENS;
        row = wave() / kWavesDown * WAVE_ROWS;
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) {
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) tiles[i][j].clear();
        }
    }

    // Loads 16 tokens, or 16 rows of weights, of 16 columns from eight `k` of a step on.
    DEVICE void load(TileA& x, const Stage& stage, int i, int k) const {
        x.load_from([&](int line, int eight) {
            return stage.x + (token + 16 * i) * kStep + place(line, k + eight);
        });
    }
    DEVICE void load(TileB& w, const Stage& stage, int j, int k) const {
        w.load_from([&](int line, int eight) {
            return stage.w + (row + 16 * j) * kStep + place(line, k + eight);
        });
    }

    DEVICE void settle() {
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) {
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) tiles[i][j].settle();
        }
    }

    // The column of out that the wave's first row gives.
    template <bool kGated>
    DEVICE int first_output(const Args& a) const {
        return first_row<kGated>(a) + (kGated ? row / 2 : row);
    }

    // Calls f(its number, its place among those of 16 tokens, where it goes) for kAtOnce outputs of
    // a lane, from number `own` on, which are of the 16 tokens number i.
    template <bool kGated, class Function>
    DEVICE void each_output(const Args& a, int i, int own, Function f) const {
        constexpr int outputs = kOutputs<kGated>;
        const int first = first_output<kGated>(a);
        UNROLL
        for (int u = 0; u < kAtOnce<kGated>; ++u) {
            const int at = lane() + (own + u) * WAVE;
            const int t = first_token() + token + 16 * i + at / outputs;
            const int n = first + at % outputs;
            if (t < a.tokens && n < a.rows) f(u, at, static_cast<u64>(t) * a.rows + n);
        }
    }

    // Writes the outputs, 16 tokens at a time, through the wave's own lines in LDS, so that
    // neighbouring lanes write neighbours. Of kAtOnce outputs of a lane, all loads come before the
    // first store, so that none waits for another. No thread may read the stages any more.
    template <bool kGated>
    DEVICE void finish(const Args& a, Stage* stages) {
        constexpr int outputs = kOutputs<kGated>;
        float* lines = reinterpret_cast<float*>(stages) + wave() * 16 * kLine;
        const int first = first_output<kGated>(a);
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) {
            wave_sync();
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) {
                tiles[i][j].each(
                    [&](int m, int n, float& y) { lines[m * kLine + 16 * j + n] = y; });
            }
            wave_sync();
            for (int own = 0; own < kOwnOutputs<kGated>; own += kAtOnce<kGated>) {
                float before[kAtOnce<kGated>] = {};
                const float* const old = static_cast<const float*>(a.out);
                if (a.result == kAdd) {
                    const u64 from = static_cast<u64>(a.added_from) * a.rows;
                    const u64 end = static_cast<u64>(a.added_to) * a.rows;
                    each_output<kGated>(a, i, own, [&](int u, int, u64 to) {
                        if (to >= from && to < end) before[u] = old[to];
                    });
                }
                each_output<kGated>(a, i, own, [&](int u, int at, u64 to) {
                    const float* line = lines + at / outputs * kLine;
                    float y = line[at % outputs] + before[u];
                    if constexpr (kGated) {
                        y = y / (1.0f + fast_exp(-y)) * line[at % outputs + outputs];
                    } else if (a.bias != nullptr) {
                        y += a.bias[first + at % outputs];
                    }
                    if (kGated || a.result >= kHalves) {
                        const u64 place = a.result == kPermuted ? permuted(to) : to;
                        static_cast<f16*>(a.out)[place] = to_finite_f16(y);
                    } else {
                        static_cast<float*>(a.out)[to] = y;
                    }
                });
            }
        }
    }
};
