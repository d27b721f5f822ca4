// The parts of batch_rows.h that are the same for every matrix unit: how a block is cut, the
// weights of a lane on their way, and the sums of a wave.
#pragma once

#include "output.h"
#include "packed_halves.h"
#include "warpgroup.h"

#if !defined(TOKENS) || !defined(TILES) || !defined(ROW_WAVES) || !defined(SPLITS) || \
    !defined(COLUMNS) || !defined(STAGES) || !defined(DEPTH) || !defined(BLOCKS) ||   \
    !defined(SHARING)
#error "TOKENS, TILES, ROW_WAVES, SPLITS, COLUMNS, STAGES, DEPTH, BLOCKS or SHARING is missing"
#endif

enum { OWN, EVEN, PAIRS };  // SHARING, see batch_parts.h
constexpr bool kEven = SHARING != OWN, kPairs = SHARING == PAIRS;
constexpr int kLinesA = TileShare::kLinesA, kLinesB = TileShare::kLinesB;
constexpr int kSpans = TileShare::kSpans, kPer = TileShare::kPer;
constexpr int kTiles = TILES, kTokenTiles = TOKENS / 16;
constexpr int kWaveRows = 16 * kTiles, kRows = kWaveRows * ROW_WAVES;
constexpr int kThreads = WAVE * ROW_WAVES * SPLITS;
constexpr int kRound = 32 * kSpans, kRounds = COLUMNS / kRound;
constexpr int kUnrolled = DEPTH > kRounds ? DEPTH : kRounds;
constexpr int kStep = COLUMNS * SPLITS;
constexpr int kLaneFloats = kTiles * kTokenTiles * TileC::Map::kValues;
constexpr int kWaveFloats = kLaneFloats * WAVE;
constexpr int kBandFloats = kWaveFloats * ROW_WAVES;
static_assert(kUnrolled % DEPTH == 0 && kUnrolled % kRounds == 0);
static_assert(TOKENS % 16 == 0 && kRounds * kRound == COLUMNS);

// Where the activations are, how many, and how the work is cut: into bands of kRows rows of all
// matrices, and into blocks: of each band, or with kEven of all bands (batch_parts.h).
struct Batch {
    const f16* x;
    float* partials;
    uint32_t* arrivals;
    int tokens, columns, bands, blocks;
};

// The rows of the weights that a lane loads, by tile and line: row `row` of a matrix each.
struct Lines {
    struct Line {
        PackedMatrix matrix;
        int row;
    };
    Line of[kTiles][kLinesA];
};

// Those of a wave that has kWaveRows rows of one matrix, from `first` on.
DEVICE Lines lines_of(const PackedMatrix& matrix, int first) {
    Lines lines;
    UNROLL
    for (int j = 0; j < kTiles; ++j) {
        UNROLL
        for (int i = 0; i < kLinesA; ++i) {
            lines.of[j][i] = {matrix, first + 16 * j + TileShare::line_a(lane(), i)};
        }
    }
    return lines;
}

// Those of a wave that has kWaveRows / 2 rows of gate, from `first` on, and the same ones of up: a
// tile each, or the two lines of one tile.
DEVICE Lines gated_lines(const PackedMatrix& gate, const PackedMatrix& up, int first) {
    static_assert(kTiles == 2 || (kTiles == 1 && kLinesA == 2), "a tile each, or a line each");
    Lines lines;
    UNROLL
    for (int j = 0; j < kTiles; ++j) {
        UNROLL
        for (int i = 0; i < kLinesA; ++i) {
            const int line = kTiles == 2 ? i : 0;
            lines.of[j][i] = {(kTiles == 2 ? j : i) == 0 ? gate : up,
                              first + TileShare::line_a(lane(), line)};
        }
    }
    return lines;
}

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

    // How many groups stand before each of a lane's rows; past the last of `rows` rows it comes
    // again.
    struct Rows {
        uint32_t groups[kTiles][kLinesA];

        DEVICE Rows(const Lines& from, int rows, int columns) {
            UNROLL
            for (int j = 0; j < kTiles; ++j) {
                UNROLL
                for (int i = 0; i < kLinesA; ++i) {
                    groups[j][i] = minimum(from.of[j][i].row, rows - 1) * (columns / 32);
                }
            }
        }
    };

    DEVICE void fetch(const Lines& from, const Rows& rows, int columns, int round) {
        const int group = minimum(round * kSpans + TileShare::span(lane()), columns / 32 - 1);
        each([&](int j, int i, int u) {
            const uint32_t unit = (rows.groups[j][i] + group) * kUnits + u;
            units[j][i][u] = Weights::load(from.of[j][i].matrix, unit);
        });
    }

    // The f16 of kPieces times eight columns of each row's group, from eight columns `first` on,
    // two in a word.
    template <int kPieces>
    DEVICE void halves(int first, const Scales& s,
                       uint32_t (&out)[kTiles][kLinesA][4 * kPieces]) const {
        each_piece<kPieces>(first, [&](int j, int i, int unit, int pair, int word) {
            uint32_t words[kPart / 2];
            Halves::some(units[j][i][unit], s.of[j][i][unit], pair, words);
            UNROLL
            for (int w = 0; w < kPart / 2; ++w) out[j][i][word + w] = words[w];
        });
        if (s.fit) return;
        each_piece<kPieces>(first, [&](int j, int i, int unit, int pair, int word) {
            UNROLL
            for (int w = 0; w < kPart / 2; ++w) {
                uint32_t& own = out[j][i][word + w];
                own = Halves::finite(units[j][i][unit], pair + w, own);
            }
        });
    }

  private:
    static constexpr int kPart = Weights::kColumns < 8 ? Weights::kColumns : 8;  // of one unit

    // Calls f(tile, line, unit, its pair, word of `out`) for each kPart columns that halves()
    // takes.
    template <int kPieces, class Function>
    static DEVICE void each_piece(int first, Function f) {
        UNROLL
        for (int j = 0; j < kTiles; ++j) {
            UNROLL
            for (int i = 0; i < kLinesA; ++i) {
                UNROLL
                for (int done = 0; done < 8 * kPieces; done += kPart) {
                    const int column = 8 * first + done;
                    f(j, i, column / Weights::kColumns, column % Weights::kColumns / 2, done / 2);
                }
            }
        }
    }
};

// The block's first token. Blocks that share weights follow one another.
DEVICE int first_token() {
    return block_x() * TOKENS;
}

// Which row of x each token of a block is: they follow one another.
struct Neighbours {
    int tokens;  // of x

    DEVICE void fetch() const {}
    DEVICE bool has(int token) const { return first_token() + token < tokens; }
    DEVICE int row(int token) const { return first_token() + token; }
};

// Sums of a wave, whatever the matrix unit.
struct BatchSums {
    static_assert(TileC::Map::kValues % 4 == 0);
    TileC tiles[kTiles][kTokenTiles];

    // Calls f(tile, its number).
    template <class Function>
    DEVICE void each_tile(Function f) {
        UNROLL
        for (int j = 0; j < kTiles; ++j) {
            UNROLL
            for (int t = 0; t < kTokenTiles; ++t) f(tiles[j][t], j * kTokenTiles + t);
        }
    }

    // Calls f(row behind `first` of lines_of, token, sum), which may change the sum. Tiles without
    // one of the first `tokens` tokens are left out.
    template <class Function>
    DEVICE void each(int tokens, Function f) {
        each_tile([&](TileC& tile, int number) {
            const int row = number / kTokenTiles * 16, token = number % kTokenTiles * 16;
            if (token >= tokens) return;
            tile.each([&](int m, int n, float& y) { f(row + m, token + n, y); });
        });
    }

    // Calls f(row behind `first` of gated_lines, token, gate, up), which may change both. Tiles
    // without one of the first `tokens` tokens are left out.
    template <class Function>
    DEVICE void each_gated(int tokens, Function f) {
        UNROLL
        for (int t = 0; t < kTokenTiles; ++t) {
            if (16 * t >= tokens) break;
            float ups[TileC::Map::kValues];
            int next = 0;
            each_up(tiles[kTiles - 1][t], [&](float& y) { ups[next++] = y; });
            int value = 0;
            next = 0;
            tiles[0][t].each([&](int m, int n, float& y) {
                if (kTiles == 2 || !is_up(value++)) f(m, 16 * t + n, y, ups[next++]);
            });
            next = 0;
            each_up(tiles[kTiles - 1][t], [&](float& y) { y = ups[next++]; });
        }
    }

    // Writes a wave's sums, or adds to them what was written so. A lane moves four at a time.
    DEVICE void write(float* to) {
        each_tile([&](TileC& tile, int number) {
            float* own = to + number * TileC::Map::kValues * WAVE + 4 * lane();
            float four[4];
            int i = 0;
            tile.each([&](int, int, float& y) {
                four[i++] = y;
                if (i == 4) store_floats(own, four), own += 4 * WAVE, i = 0;
            });
        });
    }
    DEVICE void add(const float* from) {
        each_tile([&](TileC& tile, int number) {
            const float* own = from + number * TileC::Map::kValues * WAVE + 4 * lane();
            float four[4];
            int i = 4;
            tile.each([&](int, int, float& y) {
                if (i == 4) load_floats(own, four), own += 4 * WAVE, i = 0;
                y += four[i++];
            });
        });
    }
    DEVICE void clear() {
        each_tile([](TileC& tile, int) { tile.clear(); });
    }

  private:
    // Whether a value of a tile with both is of up: rows 0 to 7 are gate, 8 to 15 up.
    static DEVICE bool is_up(int value) { return TileC::Map::row(0, value) >= 8; }

    // Calls f(value) for those of up, in the last tile of gate and up.
    template <class Function>
    static DEVICE void each_up(TileC& tile, Function f) {
        int value = 0;
        tile.each([&](int, int, float& y) {
            if (kTiles == 2 || is_up(value++)) f(y);
        });
    }
};
