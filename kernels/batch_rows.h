// Products of 9 to 128 rows of activations with packed weights, on the matrix units: each weight is
// read once for TOKENS of them. Batched decode and short prompts need them.
//
// Weights never lie in LDS. A lane loads groups of 32 columns of its rows, makes f16 of them
// (packed_halves.h) and passes them to the matrix units as they are (TileShare of tile.h): in a
// round, a wave multiplies kRound columns of two tiles of 16 rows with all tokens. The activations
// are in LDS, in the order in which lanes read them.
//
// A block has ROW_WAVES times two tiles. SPLITS waves share two tiles: each takes COLUMNS columns
// of a step, and their sums meet in LDS. The weights of the next DEPTH rounds are on their way, and
// the activations of STAGES steps. Several blocks may share the steps of the same
// rows, as slices. The last slice to end adds the sums of all, in their order.
#pragma once

#include "packed_halves.h"
#include "tile.h"

#if !defined(TOKENS) || !defined(ROW_WAVES) || !defined(SPLITS) || !defined(COLUMNS) || \
    !defined(STAGES) || !defined(DEPTH) || !defined(BLOCKS)
#error "TOKENS, ROW_WAVES, SPLITS, COLUMNS, STAGES, DEPTH and BLOCKS have to be passed by the build"
#endif

constexpr int kLinesA = TileShare::kLinesA, kLinesB = TileShare::kLinesB;
constexpr int kSpans = TileShare::kSpans, kPer = TileShare::kPer;
constexpr int kTiles = 2, kTokenTiles = TOKENS / 16;
constexpr int kWaveRows = 16 * kTiles, kRows = kWaveRows * ROW_WAVES;
constexpr int kThreads = WAVE * ROW_WAVES * SPLITS;
constexpr int kRound = 32 * kSpans, kRounds = COLUMNS / kRound;
constexpr int kUnrolled = DEPTH > kRounds ? DEPTH : kRounds;
constexpr int kStep = COLUMNS * SPLITS;
constexpr int kRowPieces = kStep / 8;  // of 16 bytes
constexpr int kLine = kRowPieces + TileShare::kPad, kStage = TOKENS * kLine, kLds = STAGES * kStage;
constexpr int kOwnPieces = TOKENS * kRowPieces / kThreads;
constexpr int kLaneFloats = kTiles * kTokenTiles * TileC::Map::kValues;
constexpr int kWaveFloats = kLaneFloats * WAVE;
constexpr int kTileFloats = kWaveFloats * ROW_WAVES;
static_assert(kUnrolled % DEPTH == 0 && kUnrolled % kRounds == 0);
static_assert(TOKENS % 16 == 0 && kRounds * kRound == COLUMNS &&
              kOwnPieces * kThreads == TOKENS * kRowPieces);
static_assert(16 * kLds >= 4 * (SPLITS - 1) * kTileFloats, "room for the sums");

// Where the activations are, how many, and how the work is cut.
struct Batch {
    const f16* x;
    float* partials;
    uint32_t* arrivals;
    int tokens, columns, slices;
};

// The rows of one tile of 16.
struct TileSource {
    PackedMatrix matrix;
    int first;
};

// The weights that a lane loads in a round: a group of 32 columns of each of its rows.
template <class Format>
struct Share {
    using Weights = Packed<Format>;
    using Halves = PackedHalves<Format>;
    static constexpr int kUnits = 32 / Weights::kColumns;
    typename Weights::Unit units[kTiles][kLinesA][kUnits];

    struct Scales {
        typename Halves::Scales of[kTiles][kLinesA][kUnits];
        bool fit = true;  // whether all weights of the lane are finite f16

        DEVICE explicit Scales(const Share& share) {
            each([&](int j, int i, int u) {
                of[j][i][u] = Halves::scales(share.units[j][i][u]);
                fit &= of[j][i][u].fits;
            });
            if (!fit) each([&](int j, int i, int u) { of[j][i][u].limit(); });
        }
    };

    // Calls f(tile, line, unit).
    template <class Function>
    static DEVICE void each(Function f) {
        UNROLL
        for (int j = 0; j < kTiles; ++j) {
            UNROLL
            for (int i = 0; i < kLinesA; ++i) {
                UNROLL
                for (int u = 0; u < kUnits; ++u) f(j, i, u);
            }
        }
    }

    DEVICE void fetch(const TileSource (&from)[kTiles], int rows, int columns, int round) {
        const int group = minimum(round * kSpans + TileShare::span(lane()), columns / 32 - 1);
        each([&](int j, int i, int u) {
            const int row = minimum(from[j].first + TileShare::line_a(lane(), i), rows - 1);
            const uint32_t unit = (row * (columns / 32) + group) * kUnits + u;
            units[j][i][u] = Weights::load(from[j].matrix, unit);
        });
    }

    // Four words of f16: columns 8 * eight and on of a line's group.
    DEVICE void halves(int tile, int line, int eight, const Scales& s, uint32_t* out) const {
        constexpr int kEights = Weights::kColumns / 8;
        uint32_t four[4];
        const int unit = eight / kEights;
        Halves::some(units[tile][line][unit], s.of[tile][line][unit], eight % kEights * 4, four);
        UNROLL
        for (int k = 0; k < 4; ++k) out[k] = four[k];
    }
};

// The block's first token, its tile of rows, and its slice of the steps. Blocks that share weights
// follow one another.
DEVICE int first_token() {
    return block_x() * TOKENS;
}
DEVICE int row_tile() {
    return block_y();
}
DEVICE int slice() {
    return block_z();
}

// Which row of x each token of a block is: they follow one another.
struct Neighbours {
    int tokens;  // of x

    DEVICE bool has(int token) const { return first_token() + token < tokens; }
    DEVICE int row(int token) const { return first_token() + token; }
};

// A thread's share of a step's activations on their way from memory to LDS. In LDS, the pieces of
// a round are in the order (eight columns of a group, span), so that the spans read neighbours.
struct Activations {
    Transfer pieces[kOwnPieces];

    template <class Rows>
    DEVICE void start(const Batch& b, const Rows& rows, int step, u32x4* stage) {
        UNROLL
        for (int i = 0; i < kOwnPieces; ++i) {
            const int token = own(i) / kRowPieces;
            const int column = step * kStep + own(i) % kRowPieces * 8;
            const bool present = rows.has(token) && column < b.columns;
            const u64 at = present ? static_cast<u64>(rows.row(token)) * b.columns + column : 0;
            pieces[i].start(stage + place(i), b.x + at, present);
        }
        Transfer::batch_started();
    }
    // Waits for all steps but the last STAGES - 2 that were started.
    DEVICE void arrive(u32x4* stage) {
        UNROLL
        for (int i = 0; i < kOwnPieces; ++i) {
            pieces[i].template arrive<STAGES - 2>(stage + place(i));
        }
    }

  private:
    static DEVICE int own(int i) { return static_cast<int>(thread_x()) + i * kThreads; }
    static DEVICE int place(int i) {
        const int token = own(i) / kRowPieces, piece = own(i) % kRowPieces;
        const int round = piece / (4 * kSpans), eight = piece % 4, span = piece / 4 % kSpans;
        return token * kLine + (round * 4 + eight) * kSpans + span;
    }
};

struct Sums {
    TileC tiles[kTiles][kTokenTiles];

    // Multiplies a round of weights with the activations that begin at `x` in LDS.
    template <class Format>
    DEVICE void multiply(const Share<Format>& share, const u32x4* x) {
        const typename Share<Format>::Scales scales(share);
        // Lines lie equally far apart in all lanes, so that one address and constants reach them.
        const u32x4* own = x + TileShare::line_b(lane(), 0) * kLine + TileShare::span(lane());
        constexpr int kPieces = kPer > 8 ? kPer / 8 : 1;  // of eight columns, at a time
        UNROLL
        for (int first = 0; first < 4; first += kPieces) {
            uint32_t w[kTiles][kLinesA][4 * kPieces];
            UNROLL
            for (int j = 0; j < kTiles; ++j) {
                UNROLL
                for (int i = 0; i < kLinesA; ++i) {
                    UNROLL
                    for (int k = 0; k < kPieces; ++k) {
                        share.halves(j, i, first + k, scales, w[j][i] + 4 * k);
                    }
                }
            }
            if (!scales.fit) {
                UNROLL
                for (int j = 0; j < kTiles; ++j) {
                    UNROLL
                    for (int i = 0; i < kLinesA; ++i) {
                        UNROLL
                        for (int k = 0; k < 4 * kPieces; ++k)
                            w[j][i][k] = finite_halves(w[j][i][k]);
                    }
                }
            }
            UNROLL
            for (int t = 0; t < kTokenTiles; ++t) {
                uint32_t words[kLinesB][4 * kPieces];
                UNROLL
                for (int i = 0; i < kLinesB; ++i) {
                    const int token = 16 * t + TileShare::line_b(0, i) - TileShare::line_b(0, 0);
                    UNROLL
                    for (int k = 0; k < kPieces; ++k) {
                        const u32x4 v = own[token * kLine + (first + k) * kSpans];
                        words[i][4 * k] = v.x, words[i][4 * k + 1] = v.y;
                        words[i][4 * k + 2] = v.z, words[i][4 * k + 3] = v.w;
                    }
                }
                UNROLL
                for (int from = 0; from < 8 * kPieces; from += kPer) {
                    TileB b;
                    UNROLL
                    for (int i = 0; i < kLinesB; ++i) b.set(i, words[i] + from / 2);
                    UNROLL
                    for (int j = 0; j < kTiles; ++j) {
                        TileA a;
                        UNROLL
                        for (int i = 0; i < kLinesA; ++i) {
                            a.set(i, w[j][i] + from / 2);
                        }
                        tiles[j][t].mma(a, b);
                    }
                }
            }
        }
        each_tile([](TileC& tile, int) { tile.settle(); });
    }

    // Calls f(tile, its number).
    template <class Function>
    DEVICE void each_tile(Function f) {
        UNROLL
        for (int j = 0; j < kTiles; ++j) {
            UNROLL
            for (int t = 0; t < kTokenTiles; ++t) f(tiles[j][t], j * kTokenTiles + t);
        }
    }

    // Writes a wave's sums, or adds to them what was written so.
    DEVICE void write(float* to) {
        each_tile([&](TileC& tile, int number) {
            float* own = to + number * TileC::Map::kValues * WAVE + lane();
            tile.each([&](int, int, float& y) { *own = y, own += WAVE; });
        });
    }
    DEVICE void add(const float* from) {
        each_tile([&](TileC& tile, int number) {
            const float* own = from + number * TileC::Map::kValues * WAVE + lane();
            tile.each([&](int, int, float& y) { y += *own, own += WAVE; });
        });
    }
    DEVICE void clear() {
        each_tile([](TileC& tile, int) { tile.clear(); });
    }
};

DEVICE int split() {
    return wave() / ROW_WAVES;
}

// The block's share of the steps, summed over its waves and over all slices, for tokens whose rows
// of x `tokens` tells (as Neighbours). Weights have `rows` rows. Returns whether this wave has sums
// to store.
template <class Format, class Tokens>
DEVICE bool compute(const Batch& b, const Tokens& tokens, const TileSource (&from)[kTiles],
                    int rows, Sums& sums, u32x4* lds) {
    SHARED uint32_t word;
    const int steps = (b.columns + kStep - 1) / kStep, slices = b.slices;
    const int begin = steps * slice() / slices, end = steps * (slice() + 1) / slices;
    const int count = end - begin;
    // Past the last one, the last one comes again.
    const auto step_of = [&](int i) { return begin + minimum(i, count - 1); };
    const auto round_of = [&](int i) {
        return (step_of(i / kRounds) * SPLITS + split()) * kRounds + i % kRounds;
    };
    Share<Format> ahead[DEPTH];
    UNROLL
    for (int i = 0; i < DEPTH; ++i) ahead[i].fetch(from, rows, b.columns, round_of(i));
    await_earlier();
    Activations x;
    const auto stage_of = [&](int i) { return lds + i % STAGES * kStage; };
    UNROLL
    for (int i = 0; i < STAGES - 1; ++i) x.start(b, tokens, step_of(i), stage_of(i));
    x.arrive(stage_of(0));
    sums.clear();
    for (int first = 0; first < count * kRounds; first += kUnrolled) {
        UNROLL
        for (int u = 0; u < kUnrolled; ++u) {
            const int i = first + u, step = i / kRounds;
            if (step >= count) break;
            if (u % kRounds == 0) {
                block_sync();
                x.start(b, tokens, step_of(step + STAGES - 1), stage_of(step + STAGES - 1));
            }
            const int own = (split() * kRounds + u % kRounds) * 4 * kSpans;
            sums.multiply(ahead[u % DEPTH], stage_of(step) + own);
            ahead[u % DEPTH].fetch(from, rows, b.columns, round_of(i + DEPTH));
            if (u % kRounds == kRounds - 1) x.arrive(stage_of(step + 1));
        }
    }
    block_sync();
    float* floats = reinterpret_cast<float*>(lds);
    const int row_wave = wave() % ROW_WAVES;
    if constexpr (SPLITS > 1) {
        if (split() > 0) sums.write(floats + (wave() - ROW_WAVES) * kWaveFloats);
        block_sync();
        if (split() == 0) {
            UNROLL
            for (int i = 1; i < SPLITS; ++i) {
                sums.add(floats + ((i - 1) * ROW_WAVES + row_wave) * kWaveFloats);
            }
        }
    }
    if (slices > 1) {
        const int tile = row_tile() * ((b.tokens + TOKENS - 1) / TOKENS) + block_x();
        float* own =
            b.partials + static_cast<u64>(tile) * slices * kTileFloats + row_wave * kWaveFloats;
        if (split() == 0) sums.write(own + slice() * kTileFloats);
        if (!last_to_arrive(b.arrivals + tile, slices, &word)) return false;
        if (split() == 0) {
            sums.clear();
            for (int i = 0; i < slices; ++i) sums.add(own + i * kTileFloats);
        }
    }
    return split() == 0;
}
