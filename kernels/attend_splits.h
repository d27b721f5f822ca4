// What attention of decode (attend.h) shares, whatever a wave does: which tokens and heads a block
// takes, and how the states of its waves and of all splits are merged. At the end of a block its
// waves merge their states through LDS. The block that ends last merges those of the splits; a
// sequence of one split goes straight to the output.
//
// The grid does not depend on the lengths, which are read from device memory; so one captured
// launch serves sequences that grow. A short sequence uses fewer splits than there are, and the
// blocks of the others exit at once. A window leaves the tokens before it out of the splits.
#pragma once

#include "four_dims.h"
#include "output.h"
#include "pages.h"
#include "softcap.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(QUERIES) || !defined(TOKENS) || \
    !defined(WAVES) || !defined(LEAST) || !defined(ALONE) || !defined(RESIDENT) || \
    !defined(TILES) || !defined(EARLY)
#error "HEAD_DIM, KV, QUERIES, TOKENS, WAVES, LEAST, ALONE, RESIDENT, TILES, EARLY are missing"
#endif

CONSTEXPR int power_of_two(int least) {
    int n = 1;
    while (n < least) n *= 2;
    return n;
}
CONSTEXPR int smaller(int a, int b) {
    return a < b ? a : b;
}

constexpr int kThreads = WAVES * WAVE;
constexpr int kLanes = power_of_two(HEAD_DIM / 8);              // that read one token, 8 dims each
constexpr int kStep = TILES ? TOKENS : WAVE / kLanes * TOKENS;  // tokens of a wave at a time
constexpr int kRound = kStep * WAVES;
static_assert(HEAD_DIM % 8 == 0 && kLanes <= WAVE);

// Tokens of a split, in whole steps: the same for all but the last, and at least LEAST rounds. A
// sequence of up to ALONE tokens, or a round, is one split.
DEVICE int split_tokens(int length, int splits) {
    constexpr int kAlone = ALONE > kRound ? ALONE : kRound;
    if (length <= kAlone) return kAlone;
    const int even = (length + splits - 1) / splits;
    return maximum((even + kStep - 1) / kStep * kStep, LEAST * kRound);
}

struct AttentionArgs {
    const float* q;
    void* k;
    void* v;
    void* k_scales;
    void* v_scales;
    const int* page_table;
    const int* lengths;
    float* outputs;
    float* stats;
    uint32_t* arrivals;
    const float* sinks;  // (H,) one more score of each head, without a value; null: none
    Output out;
    int heads, kv_heads, page_bits, max_pages, splits, dtype;  // dtype: a number of Dtype
    int window;            // tokens that a query sees at most; 0: all
    float scale, softcap;  // softcap: scores become softcap * tanh(score / softcap); 0: they stay
};

// The tokens that a block takes: first to last - 1 of sequence s. It is split number `index` of
// `used`. Tokens before `hidden` lie outside the window; the splits begin at a step's first token.
struct Split {
    int s, index, used, length, hidden, first, last;

    DEVICE explicit Split(const AttentionArgs& a) {
        s = block_z();
        index = block_x();
        length = a.lengths[s];
        hidden = a.window > 0 ? maximum(length - a.window, 0) : 0;
        const int begin = hidden / kStep * kStep, tokens = split_tokens(length - begin, a.splits);
        used = maximum((length - begin + tokens - 1) / tokens, 1);  // without tokens, the first
        first = begin + index * tokens;                             // gives zeros
        last = minimum(first + tokens, length);
    }
};

// The query heads that a block takes: `count` of them from `first` on, which share one KV head;
// `index` counts such groups over all sequences.
struct HeadGroup {
    int index, kv_head, first, count;

    DEVICE explicit HeadGroup(const AttentionArgs& a) {
        const int group = a.heads / a.kv_heads, blocks = (group + QUERIES - 1) / QUERIES;
        index = block_z() * a.kv_heads * blocks + block_y();
        kv_head = block_y() / blocks;
        const int block = block_y() % blocks;
        first = kv_head * group + block * QUERIES;
        count = minimum(QUERIES, group - block * QUERIES);
    }
};

// Where the tokens of a block's split lie in the pages.
struct TokenRows {
    const AttentionArgs& a;
    const Split& split;
    const int kv_head;
    const int* const table;

    DEVICE TokenRows(const AttentionArgs& args, const Split& own, int head)
        : a(args),
          split(own),
          kv_head(head),
          table(args.page_table + static_cast<u64>(own.s) * args.max_pages) {}

    // Past the end it is the last token, and its weight will be zero.
    DEVICE int present(int token) const { return minimum(token, split.last - 1); }
    DEVICE bool seen(int token) const { return token < split.last && token >= split.hidden; }

    DEVICE int page_of(int token) const { return table[token >> a.page_bits]; }
    // The row of the pages that holds a token of which the page is known.
    DEVICE u64 row(int page, int token) const {
        const u64 first = (static_cast<u64>(page) * a.kv_heads + kv_head) << a.page_bits;
        return first + (token & ((1 << a.page_bits) - 1));
    }
};

// A sequence's last token in LDS, as a row of pages.
struct Newest {
    alignas(16) float keys[HEAD_DIM], values[HEAD_DIM];        // room for the largest dtype
    f16 key_scales[HEAD_DIM / 8], value_scales[HEAD_DIM / 8];  // room for all dtypes

    DEVICE KV::Eight key(int dim) const {
        return KV::load_eight(keys, key_scales, 0, HEAD_DIM, dim);
    }
    DEVICE KV::Eight value(int dim) const {
        return KV::load_eight(values, value_scales, 0, HEAD_DIM, dim);
    }
};

// ---- the waves of a block merge their states through LDS ---------------------------------------

using WaveOutputs = float[WAVES][QUERIES][HEAD_DIM];
using WaveStats = float[WAVES][QUERIES][2];

// What a block needs in LDS.
struct BlockStates {
    alignas(16) WaveOutputs outputs;
    WaveStats stats;
    uint32_t arrived;
};

// Dims d to d + 3 of the state that the first kParts states in LDS have together for query h.
template <int kParts>
DEVICE FourDims merge_states(const BlockStates& all, int h, int d) {
    FourDims merged;
    UNROLL for (int w = 0; w < kParts; ++w) {
        merged.largest = maximum(merged.largest, all.stats[w][h][0]);
    }
    UNROLL for (int w = 0; w < kParts; ++w) {
        const float factor = fast_exp(all.stats[w][h][0] - merged.largest);
        float out[4];
        load_floats(&all.outputs[w][h][d], out);
        merged.total += factor * all.stats[w][h][1];
        UNROLL for (int i = 0; i < 4; ++i) merged.out[i] += factor * out[i];
    }
    return merged;
}

// ---- the last block merges the splits of a sequence --------------------------------------------

// Four neighbouring dims of a head are a thread's work; it has several where a block's heads have
// more of them than there are threads. All threads call `take` as often, since Q8 needs whole
// waves; `inside` is false where a thread has no work.
template <class Take>
DEVICE void each_four_dims(int heads, const Take& take) {
    const int dims = heads * HEAD_DIM;
    for (int first = 0; first < dims; first += 4 * kThreads) {
        const int at = first + 4 * static_cast<int>(thread_x());
        const bool inside = at < dims;
        take(inside ? at / HEAD_DIM : 0, inside ? at % HEAD_DIM : 0, inside);
    }
}

// Number of a query head's first split in outputs and stats.
DEVICE u64 first_split(const AttentionArgs& a, const Split& split, int head) {
    return (static_cast<u64>(split.s) * a.heads + head) * a.splits;
}

// Threads beside each other in a block share the dims of the block's heads; kShares such teams
// share the splits, and leave their states in LDS.
constexpr int kTeam = QUERIES * HEAD_DIM / 4;
constexpr int kShares = kTeam >= kThreads ? 1 : smaller(kThreads / kTeam, WAVES);

DEVICE void merge_splits(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                         BlockStates& all) {
    for (int i = thread_x(); i < kShares * kTeam; i += kThreads) {
        const int share = i / kTeam, h = i % kTeam * 4 / HEAD_DIM, d = i % kTeam * 4 % HEAD_DIM;
        if (h >= group.count) continue;
        const u64 first = first_split(a, split, group.first + h);
        FourDims state;
        for (int other = share; other < split.used; other += kShares) {
            float out[4];
            load_floats(a.outputs + (first + other) * HEAD_DIM + d, out);
            state.add(a.stats[2 * (first + other)], a.stats[2 * (first + other) + 1], out);
        }
        store_floats(&all.outputs[share][h][d], state.out);
        if (d == 0) {
            all.stats[share][h][0] = state.largest;
            all.stats[share][h][1] = state.total;
        }
    }
}

// Writes dims d to d + 3 of a head. All threads call it, and `inside` says which have such dims.
DEVICE void write_dims(const AttentionArgs& a, int s, int head, int d, const float (&x)[4],
                       bool inside) {
    const u64 at = (static_cast<u64>(s) * a.heads + head) * HEAD_DIM + d;
    if (a.dtype == static_cast<int>(Dtype::Q8)) {
        store_as<Dtype::Q8>(a.out, at, x, inside);
    } else if (a.dtype == static_cast<int>(Dtype::F16)) {
        store_as<Dtype::F16>(a.out, at, x, inside);
    } else if (a.dtype == static_cast<int>(Dtype::Permuted)) {
        store_as<Dtype::Permuted>(a.out, at, x, inside);
    } else {
        store_as<Dtype::F32>(a.out, at, x, inside);
    }
}

// Writes this split's part. In the block that ends last, merges the parts of all splits to kShares
// states in LDS, and returns true.
DEVICE bool gather_splits(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                          BlockStates& all) {
    each_four_dims(group.count, [&](int h, int d, bool inside) {
        if (!inside) return;
        const FourDims merged = merge_states<WAVES>(all, h, d);
        const u64 row = first_split(a, split, group.first + h) + split.index;
        store_floats(a.outputs + row * HEAD_DIM + d, merged.out);
        if (d == 0) {
            a.stats[2 * row] = merged.largest;
            a.stats[2 * row + 1] = merged.total;
        }
    });
    if (!last_to_arrive(a.arrivals + group.index, split.used, &all.arrived)) return false;
    merge_splits(a, split, group, all);
    block_sync();
    return true;
}

// From the states of the block's waves to the output, or to this split's part of it.
DEVICE void finish(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                   BlockStates& all) {
    const bool alone = split.used == 1;
    if (!alone && !gather_splits(a, split, group, all)) return;
    each_four_dims(group.count, [&](int h, int d, bool inside) {
        FourDims merged = alone ? merge_states<WAVES>(all, h, d) : merge_states<kShares>(all, h, d);
        const float nothing[4] = {};
        if (a.sinks != nullptr && inside) merged.add(a.sinks[group.first + h], 1.0f, nothing);
        float x[4];
        UNROLL for (int i = 0; i < 4; ++i) {
            x[i] = inside && split.length > 0 ? merged.out[i] / merged.total : 0.0f;
        }
        write_dims(a, split.s, group.first + h, d, x, inside);
    });
}
