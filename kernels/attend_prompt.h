// What attention of prompts (attention_prompt.hip) shares: its arguments and sizes, and which
// queries and tokens a block takes.
#pragma once

#include "output.h"
#include "pages.h"
#include "tile.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(KEYS) || !defined(WAVES) || !defined(TILES) || \
    !defined(Q_IN_LDS) || !defined(LOAD_AHEAD) || !defined(DIRECT) || !defined(WARPGROUP) ||      \
    !defined(BLOCKS) || !defined(LEAST) || !defined(LDS_BYTES)
#error "the build has to pass all constants of rocmforge/gpu/ops/attention_prompt.py"
#endif

constexpr int kThreads = WAVES * WAVE;
constexpr int kWaveQueries = TILES * 16;
constexpr int kQueries = WAVES * kWaveQueries;
constexpr int kDims = (HEAD_DIM + 15) / 16 * 16;
constexpr int kEights = HEAD_DIM / 8;
constexpr int kKeyTiles = KEYS / 16;
constexpr int kDimTiles = kDims / 16;
constexpr int kLine = 16 + 4;  // floats in LDS between the outputs of two queries
static_assert(HEAD_DIM % 8 == 0 && KEYS % 16 == 0);

struct AttentionPromptArgs {
    const float* q;
    const void* k;
    const void* v;
    const void* k_scales;
    const void* v_scales;
    const int* page_table;
    const int* lengths;
    const int* starts;
    float* outputs;
    float* stats;
    uint32_t* arrivals;
    const float* sinks;
    Output out;
    int tokens, heads, kv_heads, page_bits, max_pages;
    int blocks, splits, dtype;  // blocks: of the grid in y; dtype: a number of Dtype
    int window;
    float scale, softcap;
};

// The queries that a block takes: row `first` and the next ones of sequence s, for one head. Rows
// are counted from the sequence's first query; `start` is the first query's row in q and out.
struct Rows {
    int head, s, start, count, first;

    DEVICE explicit Rows(const AttentionPromptArgs& a) {
        head = block_x();
        s = block_z() / a.splits;
        start = a.starts[s];
        count = a.starts[s + 1] - start;
        const int blocks = (count + kQueries - 1) / kQueries;
        first = (blocks - 1 - static_cast<int>(block_y())) * kQueries;
    }
};

// The wave's rows, and the tokens that rows see: row j sees tokens 0 to `before` + j.
struct Reach {
    int length, before;
    int block_end, wave_end;  // no row of the block, or of the wave, sees this token or later ones
    int begin;                // of the first step that rows of the block see
    int wave_first;           // row

    DEVICE Reach(const AttentionPromptArgs& a, const Rows& rows) {
        length = a.lengths[rows.s];
        before = length - rows.count;
        block_end = before + minimum(rows.first + kQueries, rows.count);
        const int hidden = a.window > 0 ? maximum(before + rows.first + 1 - a.window, 0) : 0;
        begin = hidden / KEYS * KEYS;
        wave_first = rows.first + static_cast<int>(wave()) * kWaveQueries;
        wave_end =
            wave_first < rows.count ? before + minimum(wave_first + kWaveQueries, rows.count) : 0;
    }
};

// The tokens first to last - 1, which a block takes of those that its rows see: split number
// `index` of `used`. All but the last have the same number of steps.
struct Split {
    int index, used, first, last;

    DEVICE Split(const AttentionPromptArgs& a, const Reach& reach) {
        const int steps = (reach.block_end - reach.begin + KEYS - 1) / KEYS;
        const int own = maximum((steps + a.splits - 1) / a.splits, (LEAST + KEYS - 1) / KEYS);
        index = block_z() % a.splits;
        used = (steps + own - 1) / own;
        first = reach.begin + index * own * KEYS;
        last = minimum(first + own * KEYS, reach.block_end);
    }
};

// The cache as one head of one sequence sees it. Tokens past the end are read as the last one: no
// query sees them, but what they hold must be a number.
struct CacheReader {
    const int* table;
    int length, kv_heads, kv_head, page_bits;

    DEVICE u64 row(int token) const {
        const int t = minimum(token, length - 1);
        const u64 page = static_cast<u64>(table[t >> page_bits]) * kv_heads + kv_head;
        return (page << page_bits) + (t & ((1 << page_bits) - 1));
    }
    DEVICE KV::Eight eight(const void* pages, const void* scales, int token, int dim) const {
        return KV::load_eight(pages, scales, row(token), HEAD_DIM, dim);
    }
};
