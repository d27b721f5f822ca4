// Scores of attention_prompt.hip on the way to weights: mask, soft cap, and the softmax state.
//
// A tile has 16 queries one way and 16 tokens or dims the other way. QueryLanes, which comes before
// this file, says what value v of a tile's accumulator is in a lane:
//   query(lane, v), other(lane, v)  its query, and its token or dim
//   own(v), kQueries                which of the lane's queries that is, and how many it has
//   kFirst, kEnd                    lanes of a query differ in bits from kFirst to below kEnd
//   writes(lane)                    true in one lane of each query
#pragma once

#include "attend_prompt.h"
#include "four_dims.h"
#include "softcap.h"

constexpr int kOwn = QueryLanes::kQueries;
using Scores = TileC[kKeyTiles];
using Outputs = TileC[kDimTiles];  // sums of weight * value

// Scores of tokens that a query must not see become -infinity: those that come after it, and those
// before its window. Query 0 of the tile sees `visible` tokens, each next one a token more, and
// none more than `length`.
DEVICE void mask(int at, int visible, int length, int window, Scores& scores) {
    UNROLL for (int t = 0; t < kKeyTiles; ++t) {
        UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
            const int token = at + 16 * t + QueryLanes::other(lane(), v);
            const int end = minimum(visible + QueryLanes::query(lane(), v), length);
            if (token >= end || (window > 0 && token < end - window)) {
                scores[t].values[v] = -infinity();
            }
        }
    }
}

DEVICE void cap(float softcap, Scores (&scores)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
                scores[q][t].values[v] = soft_capped(scores[q][t].values[v], softcap);
            }
        }
    }
}

// Joins the values of the lanes that hold sums of the same queries.
template <int kMask = QueryLanes::kFirst, class Join>
DEVICE float over_lanes(float value, Join join) {
    if constexpr (kMask < QueryLanes::kEnd) {
        return over_lanes<2 * kMask>(join(value, shuffle_xor<kMask>(value)), join);
    } else {
        return value;
    }
}

// The softmax state of 16 queries of the wave over the tokens so far. `largest` is the same in all
// lanes of a query; `total` is the lane's own part of the sum of the weights.
struct SoftmaxState {
    float largest[kOwn], total[kOwn];

    DEVICE void clear() {
        UNROLL for (int c = 0; c < kOwn; ++c) largest[c] = kLowest, total[c] = 0.0f;
    }

    // Takes the scores of KEYS more tokens. They become the weights exp(score - largest). Where
    // `largest` grows, the outputs so far are scaled down: seldom, once the first steps are done.
    DEVICE void add_scores(Scores& scores, Outputs& out) {
        const auto max = [](float x, float y) { return maximum(x, y); };
        float top[kOwn], factor[kOwn];
        bool grown = false;
        UNROLL for (int c = 0; c < kOwn; ++c) top[c] = largest[c];
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
                top[QueryLanes::own(v)] = maximum(top[QueryLanes::own(v)], scores[t].values[v]);
            }
        }
        UNROLL for (int c = 0; c < kOwn; ++c) {
            top[c] = over_lanes(top[c], max);
            factor[c] = fast_exp(largest[c] - top[c]);
            grown |= top[c] > largest[c];
            largest[c] = top[c];
            total[c] *= factor[c];
            top[c] *= kLog2OfE;
        }
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
                const int c = QueryLanes::own(v);
                scores[t].values[v] = fast_exp2(scores[t].values[v] * kLog2OfE - top[c]);
                total[c] += scores[t].values[v];
            }
        }
        if (!any_lane(grown)) return;
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
                out[i].values[v] *= factor[QueryLanes::own(v)];
            }
        }
    }
};

// Makes weights of the wave's scores of the tokens from `at` on.
DEVICE void weigh(const AttentionPromptArgs& a, const Reach& reach, int at, Scores (&scores)[TILES],
                  SoftmaxState (&states)[TILES], Outputs (&out)[TILES]) {
    if (a.softcap > 0.0f) cap(a.softcap, scores);
    // Only where some token of the step comes after the wave's first query, or lies before the
    // window of its last one.
    const int visible = reach.before + reach.wave_first + 1;  // to the wave's first query
    if (at + KEYS > visible || (a.window > 0 && at < reach.wave_end - a.window)) {
        UNROLL for (int q = 0; q < TILES; ++q) {
            mask(at, visible + 16 * q, reach.length, a.window, scores[q]);
        }
    }
    UNROLL for (int q = 0; q < TILES; ++q) states[q].add_scores(scores[q], out[q]);
}
