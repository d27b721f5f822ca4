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
// Threads: a block computes TILE_TOKENS x TILE_ROWS sums, each of its waves WAVE_TOKENS x WAVE_ROWS
// of them, in steps of 32 * GROUPS columns. While the waves multiply a step in LDS, the next DEPTH
// steps are on their way into registers. With two STAGES, LDS holds two steps, and a step needs one
// barrier instead of two. The order of a row's columns in LDS, eight at a time, changes from row to
// row, so that lanes at neighbouring rows use different banks.
// Grid (ceil(T / TILE_TOKENS), ceil(N / TILE_ROWS)): blocks that share weights follow one another.
// gate_up_swiglu_prompt: a block computes TILE_ROWS / 2 columns of out. The first half of each
// wave's rows are rows of w, the second half the same rows of up, so that a wave holds both.
// Limits: T, N and K at least 1. Tokens and rows past the end are computed from the data of the
// last one and not stored; columns past the end have weights of zero. A block takes 64 * STAGES *
// GROUPS * (TILE_TOKENS + TILE_ROWS) bytes of LDS.
// Launched by rocmforge/gpu/ops/matmul_prompt.py.
#include "packed_halves.h"
#include "tile.h"

#if !defined(FORMAT) || !defined(TILE_TOKENS) || !defined(TILE_ROWS) || !defined(WAVE_TOKENS) || \
    !defined(WAVE_ROWS) || !defined(GROUPS) || !defined(STAGES) || !defined(DEPTH) ||            \
    !defined(ALIGNED)
#error "FORMAT, TILE_*, WAVE_*, GROUPS, STAGES, DEPTH and ALIGNED have to be passed by the build"
#endif

using Weights = Packed<FORMAT>;

constexpr int kStep = 32 * GROUPS;  // columns
constexpr int kEights = kStep / 8;
constexpr int kWavesDown = TILE_TOKENS / WAVE_TOKENS;
constexpr int kThreads = WAVE * kWavesDown * (TILE_ROWS / WAVE_ROWS);
constexpr int kTilesDown = WAVE_TOKENS / 16, kTilesAcross = WAVE_ROWS / 16;
constexpr int kRowUnits = kStep / Weights::kColumns;
constexpr int kUnits =
    TILE_ROWS * kRowUnits / kThreads;  // of weights that a thread loads in a step
constexpr int kXUnits = TILE_TOKENS * kEights / kThreads;
constexpr int kLine = WAVE_ROWS + 8;  // floats from line to line of the outputs in LDS
static_assert(kUnits * kThreads == TILE_ROWS * kRowUnits, "weights divide among the threads");
static_assert(kXUnits * kThreads == TILE_TOKENS * kEights, "activations divide too");
static_assert(kTilesAcross % 2 == 0, "gates, and what they scale");

enum Result { kStore, kAdd, kHalves };

struct Args {
    const f16* x;
    PackedMatrix w, up;
    const float* bias;
    void* out;
    int tokens, rows, columns, result;
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
DEVICE int first_row() {
    return block_y() * (kGated ? TILE_ROWS / 2 : TILE_ROWS);
}

// The row of weights that row `local` of a block's tile is, and whether it is one of `up`.
template <bool kGated>
struct WeightRow {
    int row;
    bool up;

    DEVICE WeightRow(const Args& a, int local) {
        if constexpr (kGated) {
            const int wave = local / WAVE_ROWS, in_wave = local % WAVE_ROWS;
            up = in_wave >= WAVE_ROWS / 2;
            row = first_row<kGated>() + wave * (WAVE_ROWS / 2) + in_wave % (WAVE_ROWS / 2);
        } else {
            up = false;
            row = first_row<kGated>() + local;
        }
        row = minimum(row, a.rows - 1);
    }

    DEVICE PackedMatrix matrix(const Args& a) const {
        if constexpr (!kGated) return a.w;
        return {up ? a.up.codes : a.w.codes, up ? a.up.high : a.w.high,
                up ? a.up.scales : a.w.scales, up ? a.up.supers : a.w.supers};
    }
};

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
    const PackedMatrix matrix = from.matrix(a);
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
    u32x4 x[kXUnits];
    Weights::Unit w[kUnits];

    DEVICE void fetch(const Args& a, int step) {
        UNROLL
        for (int i = 0; i < kUnits; ++i) {
            const int unit = thread_x() + i * kThreads;
            const WeightRow<kGated> from(a, unit / kRowUnits);
            w[i] = load_w<Weights>(a, from, step * kStep + unit % kRowUnits * Weights::kColumns);
        }
        UNROLL
        for (int i = 0; i < kXUnits; ++i) {
            const int unit = thread_x() + i * kThreads;
            const int token = minimum(first_token() + unit / kEights, a.tokens - 1);
            x[i] = load_x(a, token, step * kStep + unit % kEights * 8);
        }
    }

    DEVICE void store(Stage& stage) const {
        UNROLL
        for (int i = 0; i < kXUnits; ++i) {
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

// The sums that a wave computes, and their first token and row in the block's tile.
struct Accumulators {
    TileC tiles[kTilesDown][kTilesAcross];
    int token, row;

    DEVICE void multiply(const Stage& stage) {
        UNROLL
        for (int k = 0; k < kEights; k += 2) {
            TileA x[kTilesDown];
            UNROLL
            for (int i = 0; i < kTilesDown; ++i) {
                x[i].load_from([&](int line, int eight) {
                    return stage.x + (token + 16 * i) * kStep + place(line, k + eight);
                });
            }
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) {
                TileB w;
                w.load_from([&](int line, int eight) {
                    return stage.w + (row + 16 * j) * kStep + place(line, k + eight);
                });
                UNROLL
                for (int i = 0; i < kTilesDown; ++i) tiles[i][j].mma(x[i], w);
            }
        }
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) {
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) tiles[i][j].settle();
        }
    }

    // Writes the outputs, 16 tokens at a time, through the wave's own `lines` in LDS, so that
    // neighbouring lanes write neighbours.
    template <bool kGated>
    DEVICE void finish(const Args& a, float* lines) {
        constexpr int outputs = kGated ? WAVE_ROWS / 2 : WAVE_ROWS;
        const int first = first_row<kGated>() + (kGated ? row / 2 : row);
        UNROLL
        for (int i = 0; i < kTilesDown; ++i) {
            wave_sync();
            UNROLL
            for (int j = 0; j < kTilesAcross; ++j) {
                tiles[i][j].each(
                    [&](int m, int n, float& y) { lines[m * kLine + 16 * j + n] = y; });
            }
            wave_sync();
            for (int at = lane(); at < 16 * outputs; at += WAVE) {
                const int t = first_token() + token + 16 * i + at / outputs;
                const int n = first + at % outputs;
                if (t >= a.tokens || n >= a.rows) continue;
                const float* line = lines + at / outputs * kLine;
                const u64 to = static_cast<u64>(t) * a.rows + n;
                float y = line[at % outputs];
                if constexpr (kGated) {
                    y = y / (1.0f + fast_exp(-y)) * line[at % outputs + outputs];
                } else if (a.bias != nullptr) {
                    y += a.bias[n];
                }
                if (kGated || a.result == kHalves) {
                    static_cast<f16*>(a.out)[to] = to_finite_f16(y);
                } else {
                    float* out = static_cast<float*>(a.out) + to;
                    *out = a.result == kAdd ? *out + y : y;
                }
            }
        }
    }
};

template <bool kGated>
DEVICE void compute(const Args& a, Stage (&stages)[STAGES]) {
    Accumulators sums;
    sums.token = wave() % kWavesDown * WAVE_TOKENS;
    sums.row = wave() / kWavesDown * WAVE_ROWS;
    UNROLL
    for (int i = 0; i < kTilesDown; ++i) {
        UNROLL
        for (int j = 0; j < kTilesAcross; ++j) sums.tiles[i][j].clear();
    }
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
            sums.multiply(stages[step % STAGES]);
            if constexpr (STAGES == 1) block_sync();
            loads[(i + 1) % DEPTH].store(stages[(step + 1) % STAGES]);
        }
    }
    block_sync();
    sums.finish<kGated>(a, reinterpret_cast<float*>(stages) + wave() * 16 * kLine);
}

KERNEL(matmul_prompt, Args, kThreads) {
    SHARED Stage stages[STAGES];
    compute<false>(a, stages);
}

KERNEL(gate_up_swiglu_prompt, Args, kThreads) {
    SHARED Stage stages[STAGES];
    compute<true>(a, stages);
}
