// The two parts of batch_rows.h that depend on the matrix unit, for Hopper's (warpgroup.h), which
// reads all tokens' activations from LDS once for four waves.
//
// A lane has a group of 32 columns of its row, and the four lanes of a row have four groups; so a
// product takes four columns from each of them. Product p (0 to 7) of a round takes columns 4 p to
// 4 p + 3 of its four groups: of a token in LDS, piece 0 has the first two columns of each group,
// one word each, and piece 1 the other two. All tokens' pieces 0 come first, then all pieces 1.
//
// PERMUTED activations (output.h) lie in memory in such pieces. In a row's last round some of the
// four groups may be missing, and so the end of each piece. Others come word by word, which takes
// four times as many copies.
#pragma once

#include "batch.h"

// Pieces of 16 bytes. The half is odd, so that eight pieces of a token are in different banks.
constexpr int kHalf = TOKENS + 1, kProduct = 2 * kHalf;
constexpr int kRoundPieces = 8 * kProduct;
constexpr int kStage = kRoundPieces * kRounds * SPLITS, kLds = STAGES * kStage;
constexpr int kWaves = ROW_WAVES * SPLITS, kOwnTokens = TOKENS / kWaves;
static_assert(kRound == 128 && kOwnTokens * kWaves == TOKENS);
static_assert(ROW_WAVES % 4 == 0, "the waves of a warpgroup take the same columns");

// A step's activations on their way from memory to LDS. A wave copies the tokens wave() + i kWaves:
// all pieces of two tokens at a time, a piece a lane, or two groups of one token, a word a lane.
template <class Rows>
struct Activations {
#if defined(PERMUTED)
    static constexpr int kTogether = 2;
#else
    static constexpr int kTogether = 1;
#endif
    static constexpr int kCopies = kOwnTokens / kTogether;
    static_assert(kCopies * kTogether == kOwnTokens);
    const Batch& batch;
    uint32_t rows[kCopies];  // bytes before them, below 2^32; absent tokens read row 0

    DEVICE Activations(const Batch& batch, const Rows& all) : batch(batch) {
#if defined(PERMUTED)
        const int columns = permuted_columns(batch.columns);
#else
        const int columns = batch.columns;
#endif
        UNROLL
        for (int i = 0; i < kCopies; ++i) {
            const int token = first() + i * kTogether * kWaves;
            rows[i] = static_cast<uint32_t>(all.has(token) ? all.row(token) : 0) * columns * 2;
        }
    }

    DEVICE void start(int step, u32x4* stage) const {
#if defined(PERMUTED)
        const int piece = lane() % 16, column = step * kStep + 8 * piece;
        u32x4* const to = stage + piece / 2 * kProduct + piece % 2 * kHalf + first();
        const char* const from = reinterpret_cast<const char*>(batch.x + column);
        UNROLL
        for (int round = 0; round < kRounds * SPLITS; ++round) {
            // Four bytes of each group that the row still has; the rest becomes 0.
            const int left = batch.columns - step * kStep - kRound * round;
            const int bytes = maximum(minimum(left, kRound), 0) / 8;
            UNROLL
            for (int i = 0; i < kCopies; ++i) {
                copy_begin_to_lds(to + kRoundPieces * round + kTogether * kWaves * i,
                                  from + 2 * kRound * round + rows[i], bytes);
            }
        }
#else
        const int group = lane() / 16, word = lane() % 16;
        u32x4* const pieces = stage + word / 2 * kProduct + word % 2 * kHalf + first();
        uint32_t* const to = reinterpret_cast<uint32_t*>(pieces) + group;
        const int column = step * kStep + 32 * group + 2 * word;
        const char* const from = reinterpret_cast<const char*>(batch.x + column);
        UNROLL
        for (int round = 0; round < kRounds * SPLITS; ++round) {
            UNROLL
            for (int pair = 0; pair < 2; ++pair) {
                const int more = kRound * round + 64 * pair;
                const bool present = column + more < batch.columns;  // else it becomes 0
                UNROLL
                for (int i = 0; i < kCopies; ++i) {
                    const int words = 4 * (kRoundPieces * round + kWaves * i) + 2 * pair;
                    copy_near_to_lds(to + words, from + 2 * more + rows[i], present);
                }
            }
        }
#endif
        Transfer::batch_started();
    }
    // Waits for all steps but the last STAGES - 2 that were started.
    DEVICE void arrive(u32x4*) const {
        Transfer::wait<STAGES - 2>();
        lds_for_warpgroup();
    }

  private:
    // The first token of a lane.
    static DEVICE int first() {
        const int other = kTogether == 1 ? 0 : static_cast<int>(lane()) / 16;
        return static_cast<int>(wave()) + other * kWaves;
    }
};

struct Sums : BatchSums {
    // Multiplies a round of weights with the activations that begin at `x` in LDS, of kUsed tiles.
    template <int kUsed, class Format>
    DEVICE void multiply(const Share<Format>& share, const u32x4* x) {
        const typename Share<Format>::Scales scales(share);
        const u64 operand = warpgroup_operand(x, kHalf);
        UNROLL
        for (int eight = 0; eight < 4; ++eight) {
            uint32_t w[kTiles][kLinesA][4];
            share.template halves<1>(eight, scales, w);
            registers_for_warpgroup();
            UNROLL
            for (int p = 0; p < 2; ++p) {
                UNROLL
                for (int j = 0; j < kTiles; ++j) {
                    TileA a;
                    UNROLL
                    for (int i = 0; i < kLinesA; ++i) a.set(i, w[j][i] + 2 * p);
                    warpgroup_mma<kUsed>(tiles[j], a, operand + (2 * eight + p) * kProduct);
                }
            }
            warpgroup_started();
            if (eight > 0) warpgroup_wait<1>();
        }
        warpgroup_wait<0>();
        UNROLL
        for (int j = 0; j < kTiles; ++j) hold_sums(tiles[j]);
    }
};
