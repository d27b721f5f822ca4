// The work of a wave of attention_prompt.hip on the tokens of a step: scores, mask, softmax, and
// the weighted sums of the values.
#pragma once

#include "attend_prompt_pages.h"
#include "four_dims.h"
#include "softcap.h"

// ---- queries -----------------------------------------------------------------------------------

// Stores the block's queries in LDS, scaled and rounded; zeros where there is no query or no dim.
DEVICE void load_queries(const AttentionPromptArgs& a, const Rows& rows, f16* lds) {
    const u64 row_stride = static_cast<u64>(a.heads) * HEAD_DIM;
    const float* const q = a.q + rows.start * row_stride + static_cast<u64>(rows.head) * HEAD_DIM;
    for (int n = thread_x(); n < kQueries * (kDims / 8); n += kThreads) {
        const int row = n / (kDims / 8), dim = n % (kDims / 8) * 8;
        u32x4 words = {};
        if (dim < HEAD_DIM && rows.first + row < rows.count) {
            const u64 at = (rows.first + row) * row_stride;
            float eight[8];
            F32Pages::widen(F32Pages::load_eight(q, nullptr, at, 1, dim), eight);
            UNROLL for (int i = 0; i < 8; ++i) eight[i] *= a.scale;
            words = pack_eight(eight);
        }
        *reinterpret_cast<u32x4*>(lds + row * kStride + dim) = words;
    }
}

// The wave's queries as operands: all of them in registers, or 16 dims at a time, read from LDS.
using QueryTiles = TileB[Q_IN_LDS ? 1 : kDimTiles][TILES];

DEVICE void load_query_tiles(const f16* queries, int k, TileB (&tiles)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        tiles[q].load(queries + 16 * q * kStride + 16 * k, kStride);
    }
}

// ---- one step: score, mask, softmax, accumulate ------------------------------------------------

using Scores = TileC[kKeyTiles];   // tokens down, queries across
using Outputs = TileC[kDimTiles];  // dims down, queries across: sums of weight * value

// scores = K Q^T of a step.
DEVICE void score(const f16* keys, const f16* queries, QueryTiles& query_tiles,
                  Scores (&scores)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int t = 0; t < kKeyTiles; ++t) scores[q][t].clear();
    }
    const auto multiply = [&](int t, int k) {
        TileA key_tile;
        key_tile.load(keys + 16 * t * kStride + 16 * k, kStride);
        UNROLL for (int q = 0; q < TILES; ++q) {
            scores[q][t].mma(key_tile, query_tiles[Q_IN_LDS ? 0 : k][q]);
        }
    };
    UNROLL for (int k = 0; k < kDimTiles; ++k) {
        if constexpr (Q_IN_LDS) load_query_tiles(queries, k, query_tiles[0]);
        UNROLL for (int t = 0; t < kKeyTiles; ++t) multiply(t, k);
    }
}

// Scores of tokens that a query must not see become -infinity: those that come after it, and those
// before its window. Query 0 of the tile sees `visible` tokens, each next one a token more, and
// none more than `length`.
DEVICE void mask(int at, int visible, int length, int window, Scores& scores) {
    UNROLL for (int t = 0; t < kKeyTiles; ++t) {
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            const int token = at + 16 * t + Map::row(lane(), v);
            const int end = minimum(visible + Map::column(lane(), v), length);
            if (token >= end || (window > 0 && token < end - window)) {
                scores[t].values[v] = -infinity();
            }
        }
    }
}

DEVICE void cap(float softcap, Scores (&scores)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                scores[q][t].values[v] = soft_capped(scores[q][t].values[v], softcap);
            }
        }
    }
}

// Joins the values of the lanes that hold sums of the same queries.
template <int kMask = Map::kColumnLanes, class Join>
DEVICE float over_column(float value, Join join) {
    if constexpr (kMask < WAVE) {
        return over_column<2 * kMask>(join(value, shuffle_xor<kMask>(value)), join);
    } else {
        return value;
    }
}

// The softmax state of 16 queries of the wave over the tokens so far. `largest` is the same in all
// lanes of a query; `total` is the lane's own part of the sum of the weights.
struct SoftmaxState {
    float largest[kColumns], total[kColumns];

    // Takes the scores of KEYS more tokens. They become the weights exp(score - largest). Where
    // `largest` grows, the outputs so far are scaled down: seldom, once the first steps are done.
    DEVICE void add_scores(Scores& scores, Outputs& out) {
        const auto max = [](float x, float y) { return maximum(x, y); };
        float top[kColumns], factor[kColumns];
        bool grown = false;
        UNROLL for (int c = 0; c < kColumns; ++c) top[c] = largest[c];
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                top[Map::column_index(v)] = maximum(top[Map::column_index(v)], scores[t].values[v]);
            }
        }
        UNROLL for (int c = 0; c < kColumns; ++c) {
            top[c] = over_column(top[c], max);
            factor[c] = fast_exp(largest[c] - top[c]);
            grown |= top[c] > largest[c];
            largest[c] = top[c];
            total[c] *= factor[c];
            top[c] *= kLog2OfE;
        }
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                const int c = Map::column_index(v);
                scores[t].values[v] = fast_exp2(scores[t].values[v] * kLog2OfE - top[c]);
                total[c] += scores[t].values[v];
            }
        }
        if (!any_lane(grown)) return;
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                out[i].values[v] *= factor[Map::column_index(v)];
            }
        }
    }
};

// out += weight * value over the tokens of the step.
DEVICE void accumulate(const Scores (&weights)[TILES], const f16* values, f16* exchange,
                       Outputs (&out)[TILES]) {
    UNROLL for (int t = 0; t < kKeyTiles; ++t) {
        TileB weight_tiles[TILES];
        UNROLL for (int q = 0; q < TILES; ++q) {
            weight_tiles[q] = as_operand(weights[q][t], exchange);
        }
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            TileA value_tile;
            load_values(value_tile, values, 16 * t, 16 * i);
            UNROLL for (int q = 0; q < TILES; ++q) out[q][i].mma(value_tile, weight_tiles[q]);
        }
    }
}
