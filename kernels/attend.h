// Attention of one query a sequence (decode) over one split of its tokens, and the merge of splits.
// attention.hip and rope_attention.hip are kernels of it; attention.hip states the layouts.
//
// As in flash decoding, a block of WAVES waves takes one split of a sequence's tokens, and up to
// QUERIES query heads that share a KV head. It computes their softmax states (the largest score,
// and the sum of the weights exp(score - largest)) and the weighted sums of the values. kLanes
// neighbouring lanes read one token, 8 dims each. A wave reads kStep tokens a step, and the waves
// take turns. Each group of kLanes lanes keeps a softmax state of its own. At the end the states of
// the lanes are merged, then those of the waves, through LDS. The block that ends last merges those
// of the splits; a sequence of one split goes straight to the output.
//
// The grid does not depend on the lengths, which are read from device memory; so one captured
// launch serves sequences that grow. A short sequence uses fewer splits than there are, and the
// blocks of the others exit at once. A window leaves the tokens before it out of the splits.
#pragma once

#include "output.h"
#include "pages.h"
#include "softcap.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(QUERIES) || !defined(TOKENS) || \
    !defined(WAVES) || !defined(LEAST) || !defined(RESIDENT)
#error "HEAD_DIM, KV, QUERIES, TOKENS, WAVES, LEAST and RESIDENT have to be passed by the build"
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
constexpr int kLanes = power_of_two(HEAD_DIM / 8);
constexpr int kSlots = WAVE / kLanes;  // tokens that a wave loads at once
constexpr int kStep = kSlots * TOKENS;
constexpr int kRound = kStep * WAVES;
constexpr int kPages = kStep <= 16 ? 1 : TOKENS;  // a short step lies in one page
constexpr int kMaxSplits = 64;
constexpr float kLowest = -1e30f;  // the maximum of no scores; finite, so that no difference is NaN
static_assert(HEAD_DIM % 8 == 0 && kLanes <= WAVE);
static_assert(kStep > 16 || 16 % kStep == 0, "a short step must not cross a page");

// Tokens of a split, in whole steps: the same for all but the last, and at least LEAST rounds.
DEVICE int split_tokens(int length, int splits) {
    const int even = (length + splits - 1) / splits;
    return maximum((even + kStep - 1) / kStep * kStep, LEAST * kRound);
}

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
struct Steps {
    const AttentionArgs& a;
    const Split& split;
    const int kv_head;
    const int* const table;
    const int dim;
    int start;          // of the step that load() takes
    int pages[kPages];  // of that step
    KV::Eight keys[TOKENS], values[TOKENS];

    DEVICE Steps(const AttentionArgs& args, const Split& own, int head)
        : a(args),
          split(own),
          kv_head(head),
          table(args.page_table + static_cast<u64>(own.s) * args.max_pages),
          dim(lane_idle() ? 0 : lane_dim()),
          start(own.first + static_cast<int>(wave()) * kStep) {
        if (start < split.last) look_up(start);
    }

    // Number of this lane's token u. Past the end it is the last one, and score() gives it a weight
    // of zero.
    DEVICE int token(int from, int u) const {
        return minimum(from + u * kSlots + lane_slot(), split.last - 1);
    }

    DEVICE void look_up(int from) {
        UNROLL for (int u = 0; u < kPages; ++u) pages[u] = table[token(from, u) >> a.page_bits];
    }

    // The row of the pages that holds a token of which the page is known.
    DEVICE u64 row(int page, int number) const {
        const u64 first = (static_cast<u64>(page) * a.kv_heads + kv_head) << a.page_bits;
        return first + (number & ((1 << a.page_bits) - 1));
    }
    DEVICE u64 row(int number) const { return row(table[number >> a.page_bits], number); }

    // Loads the step, whose pages are known.
    DEVICE void load() {
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            const u64 at = row(pages[u % kPages], token(start, u));
            keys[u] = KV::load_eight(a.k, a.k_scales, at, HEAD_DIM, dim);
            values[u] = KV::load_eight(a.v, a.v_scales, at, HEAD_DIM, dim);
        }
    }
    DEVICE void look_up_next() { look_up(minimum(start + kRound, split.last - 1)); }
};

// The scores of this lane's tokens for each query; -infinity of tokens that lie outside the split
// or before the window.
DEVICE void score(const AttentionArgs& a, const Split& split, const float (&q)[QUERIES][8],
                  const KV::Eight (&keys)[TOKENS], int start, float (&scores)[QUERIES][TOKENS]) {
    UNROLL for (int u = 0; u < TOKENS; ++u) {
        float key[8];
        KV::widen(keys[u], key);
        const int token = start + u * kSlots + lane_slot();
        const bool seen = token < split.last && token >= split.hidden;
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            float sum = 0.0f;
            UNROLL for (int i = 0; i < 8; ++i) sum += q[h][i] * key[i];
            sum = wave_sum<kLanes>(sum);
            if (a.softcap > 0.0f) sum = soft_capped(sum, a.softcap);
            scores[h][u] = seen ? sum : -infinity();
        }
    }
}

// out += weight * value over the lane's tokens of the step.
DEVICE void accumulate(const float (&weights)[QUERIES][TOKENS], const KV::Eight (&values)[TOKENS],
                       SoftmaxState (&states)[QUERIES]) {
    UNROLL for (int u = 0; u < TOKENS; ++u) {
        float value[8];
        KV::widen(values[u], value);
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            UNROLL for (int i = 0; i < 8; ++i) states[h].out[i] += weights[h][u] * value[i];
        }
    }
}

// ---- the waves of a block merge their states through LDS ---------------------------------------

using WaveOutputs = float[WAVES][QUERIES][HEAD_DIM];
using WaveStats = float[WAVES][QUERIES][2];

// How much each split counts for each query, and the sums of weights of all splits together.
struct SplitFactors {
    float of[QUERIES][kMaxSplits];
    float total[QUERIES];
};

// What a block needs in LDS.
struct BlockStates {
    alignas(16) WaveOutputs outputs;
    WaveStats stats;
    SplitFactors factors;
    uint32_t arrived;
};

DEVICE void store_wave_state(const SoftmaxState& state, int h, BlockStates& all) {
    if (lane_slot() != 0 || lane_idle()) return;
    const int dim = lane_dim();
    UNROLL for (int i = 0; i < 8; ++i) all.outputs[wave()][h][dim + i] = state.out[i];
    if (dim == 0) {
        all.stats[wave()][h][0] = state.largest;
        all.stats[wave()][h][1] = state.total;
    }
}

// Four dims of a softmax state.
struct FourDims {
    float largest = kLowest, total = 0.0f, out[4] = {};
};

// Dims d to d + 3 of the state that all waves have together for query h.
DEVICE FourDims merge_waves(const BlockStates& all, int h, int d) {
    FourDims merged;
    UNROLL for (int w = 0; w < WAVES; ++w) {
        merged.largest = maximum(merged.largest, all.stats[w][h][0]);
    }
    UNROLL for (int w = 0; w < WAVES; ++w) {
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

// How the splits of each head count; a wave takes a head.
DEVICE void weigh_splits(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                         SplitFactors& factors) {
    constexpr int kOwn = kMaxSplits / WAVE;
    for (int h = wave(); h < group.count; h += WAVES) {
        const float* const stats = a.stats + 2 * first_split(a, split, group.first + h);
        float largest[kOwn], totals[kOwn], top = kLowest, total = 0.0f;
        UNROLL for (int i = 0; i < kOwn; ++i) {
            const int other = lane() + i * WAVE;
            const bool used = other < split.used;
            largest[i] = used ? stats[2 * other] : kLowest;
            totals[i] = used ? stats[2 * other + 1] : 0.0f;
            top = maximum(top, largest[i]);
        }
        top = wave_max(top);
        if (a.sinks != nullptr) top = maximum(top, a.sinks[group.first + h]);
        UNROLL for (int i = 0; i < kOwn; ++i) {
            const float factor = fast_exp(largest[i] - top);
            factors.of[h][lane() + i * WAVE] = factor;
            total += factor * totals[i];
        }
        total = wave_sum(total);
        if (a.sinks != nullptr) total += fast_exp(a.sinks[group.first + h] - top);
        if (lane() == 0) factors.total[h] = total;
    }
}

// Threads beside each other in a block share the dims of the block's heads; kShares such teams
// share the splits, and leave their sums in `all.outputs`.
constexpr int kTeam = QUERIES * HEAD_DIM / 4;
constexpr int kShares = kTeam >= kThreads ? 1 : smaller(kThreads / kTeam, WAVES);

DEVICE void add_splits(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                       BlockStates& all) {
    for (int i = thread_x(); i < kShares * kTeam; i += kThreads) {
        const int share = i / kTeam, h = i % kTeam * 4 / HEAD_DIM, d = i % kTeam * 4 % HEAD_DIM;
        if (h >= group.count) continue;
        const float* const from = a.outputs + first_split(a, split, group.first + h) * HEAD_DIM + d;
        float sum[4] = {};
        for (int other = share; other < split.used; other += kShares) {
            float out[4];
            load_floats(from + other * HEAD_DIM, out);
            UNROLL for (int j = 0; j < 4; ++j) sum[j] += all.factors.of[h][other] * out[j];
        }
        store_floats(&all.outputs[share][h][d], sum);
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
    } else {
        store_as<Dtype::F32>(a.out, at, x, inside);
    }
}

// Writes this split's part. In the block that ends last, adds up the parts of all splits, and
// returns true.
DEVICE bool gather_splits(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                          BlockStates& all) {
    each_four_dims(group.count, [&](int h, int d, bool inside) {
        if (!inside) return;
        const FourDims merged = merge_waves(all, h, d);
        const u64 row = first_split(a, split, group.first + h) + split.index;
        store_floats(a.outputs + row * HEAD_DIM + d, merged.out);
        if (d == 0) {
            a.stats[2 * row] = merged.largest;
            a.stats[2 * row + 1] = merged.total;
        }
    });
    if (!last_to_arrive(a.arrivals + group.index, split.used, &all.arrived)) return false;
    weigh_splits(a, split, group, all.factors);
    block_sync();
    add_splits(a, split, group, all);
    block_sync();
    return true;
}

// Dims d to d + 3 of the state that all splits have together for query h.
DEVICE FourDims merge_shares(const BlockStates& all, int h, int d) {
    FourDims merged;
    merged.total = all.factors.total[h];
    UNROLL for (int share = 0; share < kShares; ++share) {
        float sum[4];
        load_floats(&all.outputs[share][h][d], sum);
        UNROLL for (int i = 0; i < 4; ++i) merged.out[i] += sum[i];
    }
    return merged;
}

// Adds a head's sink to the state of all its tokens.
DEVICE void add_sink(const AttentionArgs& a, int head, FourDims& state) {
    const float sink = a.sinks[head], top = maximum(state.largest, sink);
    const float factor = fast_exp(state.largest - top);
    state.total = state.total * factor + fast_exp(sink - top);
    UNROLL for (int i = 0; i < 4; ++i) state.out[i] *= factor;
}

// From the states of the block's waves to the output, or to this split's part of it.
DEVICE void finish(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                   BlockStates& all) {
    const bool alone = split.used == 1;
    if (!alone && !gather_splits(a, split, group, all)) return;
    each_four_dims(group.count, [&](int h, int d, bool inside) {
        FourDims merged = alone ? merge_waves(all, h, d) : merge_shares(all, h, d);
        if (alone && a.sinks != nullptr && inside) add_sink(a, group.first + h, merged);
        float x[4];
        UNROLL for (int i = 0; i < 4; ++i) {
            x[i] = inside && split.length > 0 ? merged.out[i] / merged.total : 0.0f;
        }
        write_dims(a, split.s, group.first + h, d, x, inside);
    });
}

// The block's work, from scaled queries on. Idle lanes have zeros as queries. Where kLoaded, the
// first step is loaded already.
template <bool kLoaded>
DEVICE void attend(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                   const float (&q)[QUERIES][8], Steps& steps, BlockStates& all) {
    SoftmaxState states[QUERIES];
    for (bool loaded = kLoaded; steps.start < split.last; steps.start += kRound) {
        if (!loaded) steps.load();
        loaded = false;
        steps.look_up_next();

        float weights[QUERIES][TOKENS];
        score(a, split, q, steps.keys, steps.start, weights);
        UNROLL for (int h = 0; h < QUERIES; ++h) states[h].add_scores(weights[h]);
        accumulate(weights, steps.values, states);
    }
    UNROLL for (int h = 0; h < QUERIES; ++h) {
        states[h].merge_lanes<kLanes>();
        store_wave_state(states[h], h, all);
    }
    block_sync();
    finish(a, split, group, all);
}
