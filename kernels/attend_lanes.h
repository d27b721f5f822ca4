// How a wave attends on the vector units (attend.h). kLanes neighbouring lanes read one token, 8
// dims each, and keep a softmax state of their own. At the end the states of the lanes are merged.
#pragma once

#include "attend_splits.h"

constexpr int kSlots = WAVE / kLanes;             // tokens that a wave loads at once
constexpr int kPages = kStep <= 16 ? 1 : TOKENS;  // a short step lies in one page
static_assert(kStep > 16 || 16 % kStep == 0, "a short step must not cross a page");

// The softmax state of one query over some tokens, and its output; kLanes neighbouring lanes hold 8
// dims of it each.
struct SoftmaxState {
    float largest = kLowest;  // of the scores
    float total = 0.0f;       // of the weights exp(score - largest)
    float out[8] = {};        // sum of weight * value

    // Takes the scores of TOKENS more tokens. They become the weights exp(score - largest).
    DEVICE void add_scores(float (&scores)[TOKENS]) {
        float top = largest;
        UNROLL for (int u = 0; u < TOKENS; ++u) top = maximum(top, scores[u]);
        const float factor = fast_exp(largest - top);
        largest = top;
        total *= factor;
        UNROLL for (int i = 0; i < 8; ++i) out[i] *= factor;
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            scores[u] = fast_exp(scores[u] - top);
            total += scores[u];
        }
    }

    // Merges the states of lanes that are kMask, 2 kMask, 4 kMask, … apart.
    template <int kMask>
    DEVICE void merge_lanes() {
        if constexpr (kMask < WAVE) {
            const float other = shuffle_xor<kMask>(largest), top = maximum(largest, other);
            const float mine = fast_exp(largest - top), theirs = fast_exp(other - top);
            largest = top;
            total = total * mine + shuffle_xor<kMask>(total) * theirs;
            UNROLL for (int i = 0; i < 8; ++i) {
                out[i] = out[i] * mine + shuffle_xor<kMask>(out[i]) * theirs;
            }
            merge_lanes<2 * kMask>();
        }
    }
};

// What a lane reads in every load: which of kSlots tokens, and which 8 dims of it. Lanes past the
// dims are idle: they read dim 0 and count for nothing.
DEVICE int lane_slot() {
    return lane() / kLanes;
}
DEVICE int lane_dim() {
    return lane() % kLanes * 8;
}
DEVICE bool lane_idle() {
    return lane_dim() >= HEAD_DIM;
}

// The steps of a wave over the tokens of its block's split, with the keys and values of one of
// them.
struct Steps : TokenRows {
    const int dim;
    int start;          // of the step that is loaded
    int pages[kPages];  // of that step
    KV::Eight keys[TOKENS], values[TOKENS];

    DEVICE Steps(const AttentionArgs& args, const Split& own, int head)
        : TokenRows(args, own, head),
          dim(lane_idle() ? 0 : lane_dim()),
          start(own.first + static_cast<int>(wave()) * kStep) {
        if (start < split.last) look_up(start);
    }

    // Loads the step, whose pages are known.
    DEVICE void load_keys() {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            keys[u] = KV::load_eight(a.k, a.k_scales, own_row(u), HEAD_DIM, dim);
        }
    }
    DEVICE void load_values() {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            values[u] = KV::load_eight(a.v, a.v_scales, own_row(u), HEAD_DIM, dim);
        }
    }
    DEVICE void look_up_next() { look_up(present(start + kRound)); }

    // Puts the sequence's last token where the step has it.
    DEVICE void replace(const Newest& newest) {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            if (token(start, u) != split.length - 1) continue;
            keys[u] = newest.key(dim), values[u] = newest.value(dim);
        }
    }

  private:
    DEVICE int token(int from, int u) const { return present(from + u * kSlots + lane_slot()); }
    DEVICE u64 own_row(int u) const { return row(pages[u % kPages], token(start, u)); }
    DEVICE void look_up(int from) {
        UNROLL for (int u = 0; u < kPages; ++u) pages[u] = page_of(token(from, u));
    }
};

// The lane's 8 dims of the block's queries; zeros in idle lanes.
struct OwnQueries {
    float of[QUERIES][8];

    // `heads` holds `count` of them, `stride` numbers apart. Those past the last one repeat it.
    DEVICE void load(const float* heads, int stride, int count, float scale) {
        const int dim = lane_idle() ? 0 : lane_dim();
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            F32Pages::widen(
                F32Pages::load_eight(heads, nullptr, minimum(h, count - 1), stride, dim), of[h]);
            UNROLL for (int i = 0; i < 8; ++i) of[h][i] = lane_idle() ? 0.0f : of[h][i] * scale;
        }
    }
};

// The softmax states of the block's queries over a wave's tokens.
class WaveStates {
  public:
    // Computes the scores of this lane's tokens of the step; -infinity of tokens that lie outside
    // the split or before the window.
    DEVICE void score(const OwnQueries& q, const Steps& steps) {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            float key[8];
            KV::widen(steps.keys[u], key);
            const bool seen = steps.seen(steps.start + u * kSlots + lane_slot());
            UNROLL for (int h = 0; h < QUERIES; ++h) {
                float sum = 0.0f;
                UNROLL for (int i = 0; i < 8; ++i) sum += q.of[h][i] * key[i];
                sum = wave_sum<kLanes>(sum);
                if (steps.a.softcap > 0.0f) sum = soft_capped(sum, steps.a.softcap);
                weights[h][u] = seen ? sum : -infinity();
            }
        }
    }

    // The scores become weights.
    DEVICE void weigh() {
        UNROLL for (int h = 0; h < QUERIES; ++h) states[h].add_scores(weights[h]);
    }

    // out += weight * value over the lane's tokens of the step.
    DEVICE void accumulate(const Steps& steps) {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            float value[8];
            KV::widen(steps.values[u], value);
            UNROLL for (int h = 0; h < QUERIES; ++h) {
                UNROLL for (int i = 0; i < 8; ++i) states[h].out[i] += weights[h][u] * value[i];
            }
        }
    }

    // Merges the states of the lanes, and leaves them in LDS.
    DEVICE void store(BlockStates& all) {
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            states[h].merge_lanes<kLanes>();
            if (lane_slot() != 0 || lane_idle()) continue;
            const int dim = lane_dim();
            UNROLL for (int i = 0; i < 8; ++i) all.outputs[wave()][h][dim + i] = states[h].out[i];
            if (dim == 0) {
                all.stats[wave()][h][0] = states[h].largest;
                all.stats[wave()][h][1] = states[h].total;
            }
        }
    }

  private:
    SoftmaxState states[QUERIES];
    float weights[QUERIES][TOKENS];
};
