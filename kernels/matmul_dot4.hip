// matmul_dot4: out[t][n] = sum over k of x[t][k] * w[n][k], + bias[n]: a GEMM for prompts (prefill)
// on GPUs without matrix units. Activations are int8. dot4 multiplies four bytes at a time; a sum
// stays an integer over 16 or 32 columns.
//
//   codes, scales, sums  x as Q8 of rocmforge/gpu/arrays.py: (T, K) int8 aligned to 16,
//                        (T, K / 32) float, (T, K / 32) pairs of int16
//   w                    (N, K) of the quantized FORMAT, packed (packed.h)
//   bias                 (N,) float, or null
//   out                  (T, N): kStore writes float, kAdd adds to float, kHalves writes f16 that
//                        is kept finite
//
// Threads: a block computes TILE_TOKENS x TILE_ROWS outputs, in steps of GROUPS groups of 32
// columns. A thread computes THREAD_TILE x THREAD_TILE of them, of tokens kDown apart and rows
// kAcross apart, so that neighbouring lanes read neighbouring lines in LDS. LDS holds two steps.
// While the block multiplies one, each thread loads a group of a row or of a token of the next step
// into registers, and then stores it. Grid (ceil(T / TILE_TOKENS), ceil(N / TILE_ROWS)).
// Limits: T and N at least 1; K whole blocks of FORMAT. Tokens and rows past the end are computed
// from the data of the last one and not stored.
// Launched by rocmforge/gpu/ops/matmul_dot4.py.
#include "packed_halves.h"

#if !defined(FORMAT) || !defined(TILE_TOKENS) || !defined(TILE_ROWS) || !defined(THREAD_TILE) || \
    !defined(GROUPS)
#error "FORMAT, TILE_TOKENS, TILE_ROWS, THREAD_TILE and GROUPS have to be passed by the build"
#endif

using Weights = Packed<FORMAT>;

constexpr int kDown = TILE_TOKENS / THREAD_TILE, kAcross = TILE_ROWS / THREAD_TILE;
constexpr int kThreads = kDown * kAcross;
constexpr int kSubs = Weights::kSubs;  // sub-blocks of a group that have a scale of their own
constexpr int kUnits = 32 / Weights::kColumns;
constexpr int kLine = 12;  // words from line to line; eight neighbours begin in different banks
static_assert(kThreads == (TILE_TOKENS + TILE_ROWS) * GROUPS, "a group for each thread");

enum Result { kStore, kAdd, kHalves };

struct Args {
    const int8_t* codes;
    const float* scales;
    const uint32_t* sums;
    PackedMatrix w;
    const float* bias;
    void* out;
    int tokens, rows, columns, result;
};

// One step in LDS.
struct Stage {
    alignas(16) uint32_t x[GROUPS * TILE_TOKENS][kLine], w[GROUPS * TILE_ROWS][kLine];
    float x_scales[GROUPS * TILE_TOKENS];
    uint32_t x_sums[GROUPS * TILE_TOKENS];
    float scales[kSubs][GROUPS * TILE_ROWS], offsets[kSubs][GROUPS * TILE_ROWS];
};

DEVICE void store_line(uint32_t* to, const uint32_t (&words)[8]) {
    *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
    *reinterpret_cast<u32x4*>(to + 4) = {words[4], words[5], words[6], words[7]};
}
DEVICE void load_line(const void* from, uint32_t (&words)[8]) {
    const u32x4 low = load<u32x4>(from), high = load<u32x4>(static_cast<const u32x4*>(from) + 1);
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

// What a thread loads from memory and stores to LDS: a group of a row of weights, or of a token.
// `line` counts the block's groups of rows, or those of tokens.
struct Loads {
    Weights::Unit units[kUnits];
    uint32_t x[8], x_sums;
    float x_scale;

    static DEVICE bool of_weights() { return thread_x() < TILE_ROWS * GROUPS; }
    static DEVICE int line() { return thread_x() - (of_weights() ? 0 : TILE_ROWS * GROUPS); }

    DEVICE void fetch(const Args& a, int step) {
        const int groups = a.columns / 32, group = step * GROUPS + line() % GROUPS;
        const int near = line() / GROUPS, last = minimum(group, groups - 1);
        if (of_weights()) {
            const int row = minimum(block_y() * TILE_ROWS + near, a.rows - 1);
            const u64 first = (static_cast<u64>(row) * groups + last) * kUnits;
            UNROLL
            for (int i = 0; i < kUnits; ++i) units[i] = Weights::load(a.w, first + i);
        } else {
            const int token = minimum(block_x() * TILE_TOKENS + near, a.tokens - 1);
            const u64 at = static_cast<u64>(token) * groups + last;
            load_line(a.codes + at * 32, x);
            x_sums = a.sums[at];
            x_scale = group < groups ? a.scales[at] : 0.0f;
        }
    }

    DEVICE void store(Stage& stage) const {
        const int to = line();
        if (of_weights()) {
            uint32_t words[8];
            UNROLL
            for (int i = 0; i < kUnits; ++i) {
                uint32_t some[Weights::kWords];
                Weights::unpack(units[i], some);
                UNROLL
                for (int j = 0; j < Weights::kWords; ++j) words[i * Weights::kWords + j] = some[j];
            }
            store_line(stage.w[to], words);
            const auto scales = Weights::scales(units[0]);
            UNROLL
            for (int i = 0; i < kSubs; ++i) {
                stage.scales[i][to] = scales.scale[i];
                if (Weights::kHasMins) stage.offsets[i][to] = scales.offset[i];
            }
        } else {
            store_line(stage.x[to], x);
            stage.x_sums[to] = x_sums;
            stage.x_scales[to] = x_scale;
        }
    }
};

// The sums that a thread computes.
struct Accumulators {
    float y[THREAD_TILE][THREAD_TILE];  // tokens, rows

    DEVICE void multiply(const Stage& stage, int group) {
        uint32_t x[THREAD_TILE][8];
        int sums[THREAD_TILE][kSubs];
        float scales[THREAD_TILE];
        UNROLL
        for (int t = 0; t < THREAD_TILE; ++t) {
            const int line = token(t) * GROUPS + group;
            load_line(stage.x[line], x[t]);
            scales[t] = stage.x_scales[line];
            const int low = static_cast<int16_t>(stage.x_sums[line]);
            const int high = static_cast<int16_t>(stage.x_sums[line] >> 16);
            sums[t][0] = kSubs == 2 ? low : low + high;
            sums[t][kSubs - 1] = kSubs == 2 ? high : low + high;
        }
        UNROLL
        for (int n = 0; n < THREAD_TILE; ++n) {
            const int line = row(n) * GROUPS + group;
            uint32_t w[8];
            load_line(stage.w[line], w);
            UNROLL
            for (int t = 0; t < THREAD_TILE; ++t) {
                float sum;
                UNROLL
                for (int i = 0; i < kSubs; ++i) {
                    int dot = Weights::kHasMins ? 0 : -FORMAT::kZero * sums[t][i];
                    UNROLL
                    for (int j = i * 8 / kSubs; j < (i + 1) * 8 / kSubs; ++j) {
                        dot = dot4(w[j], x[t][j], dot);
                    }
                    const float part = stage.scales[i][line] * static_cast<float>(dot);
                    sum = i == 0 ? part : sum + part;
                    if (Weights::kHasMins) {
                        sum += stage.offsets[i][line] * static_cast<float>(sums[t][i]);
                    }
                }
                y[t][n] += scales[t] * sum;
                settle(y[t][n]);
            }
        }
    }

    DEVICE void store(const Args& a) const {
        UNROLL
        for (int t = 0; t < THREAD_TILE; ++t) {
            UNROLL
            for (int n = 0; n < THREAD_TILE; ++n) {
                const int to_token = block_x() * TILE_TOKENS + token(t);
                const int to_row = block_y() * TILE_ROWS + row(n);
                if (to_token >= a.tokens || to_row >= a.rows) continue;
                const u64 to = static_cast<u64>(to_token) * a.rows + to_row;
                const float sum = a.bias == nullptr ? y[t][n] : y[t][n] + a.bias[to_row];
                if (a.result == kHalves) {
                    static_cast<f16*>(a.out)[to] = to_finite_f16(sum);
                } else {
                    float* out = static_cast<float*>(a.out) + to;
                    *out = a.result == kAdd ? *out + sum : sum;
                }
            }
        }
    }

    static DEVICE int token(int t) { return thread_x() / kAcross + kDown * t; }
    static DEVICE int row(int n) { return thread_x() % kAcross + kAcross * n; }
};

KERNEL(matmul_dot4, Args, kThreads) {
    SHARED Stage stages[2];
    Accumulators sums;
    UNROLL
    for (int t = 0; t < THREAD_TILE; ++t) {
        UNROLL
        for (int n = 0; n < THREAD_TILE; ++n) sums.y[t][n] = 0.0f;
    }
    const int last = (a.columns / 32 - 1) / GROUPS;
    Loads loads;
    loads.fetch(a, 0);
    loads.store(stages[0]);
    for (int step = 0; step <= last; ++step) {
        loads.fetch(a, minimum(step + 1, last));
        block_sync();
        for (int group = 0; group < GROUPS; ++group) sums.multiply(stages[step % 2], group);
        loads.store(stages[(step + 1) % 2]);
    }
    sums.store(a);
}
