// How a wave attends on NVIDIA's matrix units (attend.h): 16 tokens a step, up to 8 queries.
//   S^T = K Q^T        tokens down, queries across
//   O^T += V^T P^T     dims down, queries across
// Every lane loads what its own operands need. Any order of the dims will do for the first product,
// as long as keys and queries have the same, and for the second one any order of its rows. So a
// lane reads 8 neighbouring dims at a time.
//
// Keys and values are f16, or become f16. Queries and weights are float: each is the sum of two
// f16, the second of which is what the first one's rounding lost. Weights are raised by kRaised
// first, so that small ones of long sequences stay above the least f16. Scaled queries must be
// below 65,520.
#pragma once

#include "attend_splits.h"
#include "mma_sync.h"

#if defined(ROCMFORGE_AMD)
#error "attend_tiles.h is for NVIDIA's matrix units: TILES has to be 0"
#endif

constexpr int kKeyPieces = HEAD_DIM / 32, kValuePieces = HEAD_DIM / 64;  // of 8 dims, in a lane
constexpr int kDimTiles = HEAD_DIM / 16;
constexpr float kRaised = 16384.0f;
static_assert(WAVE == 32 && kStep == 16 && HEAD_DIM % 64 == 0 && QUERIES <= 8);

DEVICE int lane_line() {
    return lane() / 4;
}
DEVICE int lane_part() {
    return lane() % 4;
}
// First dim of a lane's piece of keys and queries, and of values.
DEVICE int key_dim(int piece) {
    return 32 * piece + 8 * lane_part();
}
DEVICE int value_dim(int piece) {
    return 64 * piece + 8 * lane_line();
}

// Two numbers as f16, and what their rounding lost.
struct ExactPair {
    uint32_t high, low;

    DEVICE void set(float x, float y) {
        high = pack_halves(x, y);
        low = pack_halves(x - low_half(high), y - high_half(high));
    }
};

// The steps of a wave over the tokens of its block's split, with the keys and values of one of
// them. A step lies in one page.
struct Steps : TokenRows {
    int start;  // of the step that is loaded
    int page;   // of that step
    KV::Eight keys[2][kKeyPieces], values[4][kValuePieces];

    DEVICE Steps(const AttentionArgs& args, const Split& own, int head)
        : TokenRows(args, own, head), start(own.first + static_cast<int>(wave()) * kStep) {
        if (start < split.last) page = page_of(start);
    }

    // Loads the step, whose page is known.
    DEVICE void load_keys() {
        UNROLL for (int i = 0; i < 2; ++i) {
            const u64 at = row(page, key_token(i));
            UNROLL for (int p = 0; p < kKeyPieces; ++p) {
                keys[i][p] = KV::load_eight(a.k, a.k_scales, at, HEAD_DIM, key_dim(p));
            }
        }
    }
    DEVICE void load_values() {
        UNROLL for (int i = 0; i < 4; ++i) {
            const u64 at = row(page, value_token(i));
            UNROLL for (int p = 0; p < kValuePieces; ++p) {
                values[i][p] = KV::load_eight(a.v, a.v_scales, at, HEAD_DIM, value_dim(p));
            }
        }
    }
    DEVICE void look_up_next() { page = page_of(present(start + kRound)); }

    // Puts the sequence's last token where the step has it.
    DEVICE void replace(const Newest& newest) {
        UNROLL for (int i = 0; i < 2; ++i) {
            if (key_token(i) != split.length - 1) continue;
            UNROLL for (int p = 0; p < kKeyPieces; ++p) keys[i][p] = newest.key(key_dim(p));
        }
        UNROLL for (int i = 0; i < 4; ++i) {
            if (value_token(i) != split.length - 1) continue;
            UNROLL for (int p = 0; p < kValuePieces; ++p) values[i][p] = newest.value(value_dim(p));
        }
    }

  private:
    DEVICE int key_token(int i) const { return present(start + lane_line() + 8 * i); }
    DEVICE int value_token(int i) const {
        return present(start + 2 * lane_part() + i % 2 + 8 * (i / 2));
    }
};

// The block's queries as the second operand. Lines past the last query repeat it.
struct OwnQueries {
    ExactPair of[kDimTiles][2];

    // `heads` holds `count` queries, `stride` numbers apart.
    DEVICE void load(const float* heads, int stride, int count, float scale) {
        const int line = minimum(lane_line(), count - 1);
        UNROLL for (int p = 0; p < kKeyPieces; ++p) {
            float x[8];
            F32Pages::widen(F32Pages::load_eight(heads, nullptr, line, stride, key_dim(p)), x);
            UNROLL for (int i = 0; i < 8; i += 2) {
                of[2 * p + i / 4][i / 2 % 2].set(x[i] * scale, x[i + 1] * scale);
            }
        }
    }
};

// The softmax states of the block's queries over a wave's tokens. A lane has those of queries
// 2 part and 2 part + 1.
class WaveStates {
  public:
    // Computes the scores of the step's tokens; -infinity of tokens that lie outside the split or
    // before the window.
    DEVICE void score(const OwnQueries& q, const Steps& steps) {
        float rest[4] = {};
        UNROLL for (int v = 0; v < 4; ++v) weights[v] = 0.0f;
        UNROLL for (int p = 0; p < kKeyPieces; ++p) {
            const u32x4 first = KV::halves(steps.keys[0][p]), second = KV::halves(steps.keys[1][p]);
            const uint32_t keys[2][4] = {{first.x, second.x, first.y, second.y},
                                         {first.z, second.z, first.w, second.w}};
            UNROLL for (int i = 0; i < 2; ++i) {
                const ExactPair(&pairs)[2] = q.of[2 * p + i];
                mma_sync(weights, keys[i], pairs[0].high, pairs[1].high);
                mma_sync(rest, keys[i], pairs[0].low, pairs[1].low);
            }
        }
        UNROLL for (int v = 0; v < 4; ++v) {
            float sum = weights[v] + rest[v];
            if (steps.a.softcap > 0.0f) sum = soft_capped(sum, steps.a.softcap);
            const bool seen = steps.seen(steps.start + lane_line() + 8 * (v / 2));
            weights[v] = seen ? sum : -infinity();
        }
    }

    // The scores become weights.
    DEVICE void weigh() {
        float factors[2];
        UNROLL for (int c = 0; c < 2; ++c) {
            const float top =
                maximum(largest[c], over_lines(maximum(weights[c], weights[2 + c]),
                                               [](float x, float y) { return maximum(x, y); }));
            factors[c] = fast_exp(largest[c] - top);
            largest[c] = top;
            weights[c] = fast_exp(weights[c] - top);
            weights[2 + c] = fast_exp(weights[2 + c] - top);
            total[c] = total[c] * factors[c] + weights[c] + weights[2 + c];
        }
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            UNROLL for (int v = 0; v < 4; ++v) out[i][v] *= factors[v % 2];
        }
    }

    // out += kRaised * weight * value over the step's tokens. Rows g and g + 8 of tile 4 p + i are
    // the two dims from value_dim(p) + 2 i on.
    DEVICE void accumulate(const Steps& steps) {
        ExactPair early, late;  // tokens 0 to 7 of the step, and 8 to 15
        early.set(kRaised * weights[0], kRaised * weights[1]);
        late.set(kRaised * weights[2], kRaised * weights[3]);
        const uint32_t high[2] = {transposed(early.high), transposed(late.high)};
        const uint32_t low[2] = {transposed(early.low), transposed(late.low)};
        UNROLL for (int p = 0; p < kValuePieces; ++p) {
            uint32_t words[4][4];  // [token][two dims]
            UNROLL for (int i = 0; i < 4; ++i) {
                const u32x4 eight = KV::halves(steps.values[i][p]);
                words[i][0] = eight.x, words[i][1] = eight.y;
                words[i][2] = eight.z, words[i][3] = eight.w;
            }
            UNROLL for (int i = 0; i < 4; ++i) {
                const uint32_t tile[4] = {
                    low_halves(words[0][i], words[1][i]), high_halves(words[0][i], words[1][i]),
                    low_halves(words[2][i], words[3][i]), high_halves(words[2][i], words[3][i])};
                mma_sync(out[4 * p + i], tile, high[0], high[1]);
                mma_sync(out[4 * p + i], tile, low[0], low[1]);
            }
        }
    }

    // Leaves the states in LDS.
    DEVICE void store(BlockStates& all) {
        // Rows of different queries begin in the same bank of LDS. Where lanes of four queries
        // store at once, those of each query begin with another pair of dims.
        const int shift = QUERIES > 4 ? lane_part() : 0;
        UNROLL for (int c = 0; c < 2; ++c) {
            const float sum = over_lines(total[c], [](float x, float y) { return x + y; });
            const int query = 2 * lane_part() + c;
            if (query >= QUERIES) continue;
            UNROLL for (int p = 0; p < kValuePieces; ++p) {
                Pair pairs[4];
                UNROLL for (int i = 0; i < 4; ++i) {
                    pairs[i] = {out[4 * p + i][c] / kRaised, out[4 * p + i][2 + c] / kRaised};
                }
                begin_at(pairs, shift);
                float* const to = &all.outputs[wave()][query][value_dim(p)];
                UNROLL for (int i = 0; i < 4; ++i) {
                    *reinterpret_cast<Pair*>(to + (i + shift) % 4 * 2) = pairs[i];
                }
            }
            if (lane_line() == 0) {
                all.stats[wave()][query][0] = largest[c];
                all.stats[wave()][query][1] = sum;
            }
        }
    }

  private:
    float largest[2] = {kLowest, kLowest}, total[2] = {};  // total: the lane's own part
    float weights[4];
    float out[kDimTiles][4] = {};

    struct alignas(8) Pair {
        float first, second;
    };

    // Element (i + first) % 4 becomes element i; `first` is at most 3.
    static DEVICE void begin_at(Pair (&pairs)[4], int first) {
        UNROLL for (int step = 1; step < 4; step *= 2) {
            const Pair from[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
            UNROLL for (int i = 0; i < 4; ++i) {
                if (first & step) pairs[i] = from[(i + step) % 4];
            }
        }
    }

    static DEVICE uint32_t low_halves(uint32_t x, uint32_t y) { return (x & 0xffffu) | y << 16; }
    static DEVICE uint32_t high_halves(uint32_t x, uint32_t y) {
        return x >> 16 | (y & 0xffff0000u);
    }

    // Joins the values of the lanes that have the same queries.
    template <class Join>
    static DEVICE float over_lines(float value, const Join& join) {
        value = join(value, shuffle_xor<4>(value));
        value = join(value, shuffle_xor<8>(value));
        return join(value, shuffle_xor<16>(value));
    }
};
