// How a block of attention_prompt.hip goes through its tokens, on any matrix unit that tile.h
// knows.
#pragma once

#include "attend_prompt_pages.h"

// Scores and outputs have queries across.
struct QueryLanes {
    using Map = TileC::Map;
    static constexpr int kQueries = Map::kColumns;
    static constexpr int kFirst = Map::kColumnLanes, kEnd = WAVE;
    static CONSTEXPR int own(int v) { return Map::column_index(v); }
    static CONSTEXPR int query(int lane, int v) { return Map::column(lane, v); }
    static CONSTEXPR int other(int lane, int v) { return Map::row(lane, v); }
    static CONSTEXPR bool writes(int lane) { return lane < Map::kColumnLanes; }
};

#include "attend_prompt_state.h"

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

// ---- one step: scores and weighted sums --------------------------------------------------------

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

// ---- all steps ---------------------------------------------------------------------------------

// The sums of the tokens of a split.
DEVICE void attend(const AttentionPromptArgs& a, const Rows& rows, const Reach& reach,
                   const Split& split, const CacheReader& cache, u32x4* memory,
                   SoftmaxState (&states)[TILES], Outputs (&out)[TILES]) {
    f16* const keys = reinterpret_cast<f16*>(memory);
    f16* const values = keys + kKeyHalves;
    f16* const all_queries = keys + (Q_IN_LDS ? kStepHalves : 0);
    f16* const queries = all_queries + wave() * kWaveQueries * kStride;
    f16* const exchange = keys + kMemoryHalves - (WAVES - wave()) * kExchangeHalves;
    KeyLoads key_loads;
    ValueLoads value_loads;

    load_queries(a, rows, all_queries);
    block_sync();
    QueryTiles query_tiles;
    if constexpr (!Q_IN_LDS) {
        UNROLL for (int k = 0; k < kDimTiles; ++k) load_query_tiles(queries, k, query_tiles[k]);
        block_sync();  // the keys take the queries' place
    }
    // Dims past the head's are zero in queries and keys, and their outputs are not stored.
    if constexpr (kDims > HEAD_DIM) {
        for (int token = thread_x(); token < KEYS; token += kThreads) {
            *reinterpret_cast<u32x4*>(keys + token * kStride + HEAD_DIM) = {};
        }
    }

    key_loads.load(a, cache, split.first, keys);
    key_loads.store(keys);
    block_sync();
    for (int at = split.first; at < split.last; at += KEYS) {
        Scores scores[TILES];
        if constexpr (LOAD_AHEAD) value_loads.load(a, cache, at, values);
        if (at < reach.wave_end) {
            score(keys, queries, query_tiles, scores);
            weigh(a, reach, at, scores, states, out);
        }
        if constexpr (!LOAD_AHEAD) value_loads.load(a, cache, at, values);
        value_loads.store(values);
        block_sync();
        if constexpr (LOAD_AHEAD) key_loads.load(a, cache, at + KEYS, keys);
        if (at < reach.wave_end) accumulate(scores, values, exchange, out);
        if constexpr (!LOAD_AHEAD) key_loads.load(a, cache, at + KEYS, keys);
        key_loads.store(keys);
        block_sync();
    }
}
