// attention: out[s][h] = softmax(scale * q[s][h] k^T) v over the tokens of sequence s, with one
// query per sequence (decode), through the paged KV cache.
//
// Two kernels, as in flash decoding. `attention` takes one split of a sequence's tokens. It
// computes the softmax state (the largest score, and the sum of the weights exp(score - largest))
// and the weighted sum of the values. `attention_merge` merges the splits. The number of splits
// does not depend on the lengths, which are read from device memory; so one captured launch serves
// sequences that grow. Blocks whose split has no tokens exit at once.
//
//   q           (S, H, D) float, aligned to 16
//   k, v        (pages, G, P, D), and k_scales, v_scales (pages, G, P, D / 32): see pages.h
//   page_table  (S, max_pages) int: the page that holds tokens i * P to i * P + P - 1
//   lengths     (S,) int: tokens of each sequence; 0 gives an output of zeros
//   outputs     (S, H, splits, D) float: each split's weighted sum of values, not yet divided
//   stats       (S, H, splits, 2) float: each split's largest score and sum of weights
//   out         (S, H * D) float, f16 or Q8 (output.h), aligned to 16; Q8 needs H * D to be a
//               multiple of 32
// S sequences, H query heads, G KV heads, D dims, P tokens of a page.
//
// attention: a block of WAVES waves takes one split, and up to QUERIES query heads that share a KV
// head. kLanes neighbouring lanes read one token, 8 dims each. A wave reads kStep tokens a step,
// and the waves take turns. Each group of kLanes lanes keeps a softmax state of its own. At the end
// the states of the lanes are merged, then those of the waves, through LDS.
// Grid (splits, G * ceil(H / G / QUERIES), S).
// attention_merge: a thread takes one column of out. Grid (ceil(H * D / 128), S).
// Limits: D a multiple of 8 up to 256; P a power of two, at least 16.
// Launched by rocmforge/gpu/ops/attention.py.
#include "output.h"
#include "pages.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(QUERIES) || !defined(TOKENS) || !defined(WAVES)
#error "HEAD_DIM, KV, QUERIES, TOKENS and WAVES have to be passed by the build"
#endif

CONSTEXPR int power_of_two(int least) {
    int n = 1;
    while (n < least) n *= 2;
    return n;
}

constexpr int kLanes = power_of_two(HEAD_DIM / 8);
constexpr int kSlots = WAVE / kLanes;  // tokens that a wave loads at once
constexpr int kStep = kSlots * TOKENS;
constexpr int kRound = kStep * WAVES;
constexpr int kPages = kStep <= 16 ? 1 : TOKENS;  // a short step lies in one page
constexpr int kMergeThreads = 128;
constexpr float kLowest = -1e30f;  // the maximum of no scores; finite, so that no difference is NaN
static_assert(HEAD_DIM % 8 == 0 && kLanes <= WAVE);
static_assert(kStep > 16 || 16 % kStep == 0, "a short step must not cross a page");

// Tokens of a split: whole rounds, so that only a sequence's last split has idle waves.
DEVICE int split_tokens(int length, int splits) {
    const int even = (length + splits - 1) / splits;
    return maximum((even + kRound - 1) / kRound, 1) * kRound;
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
    const void* k;
    const void* v;
    const void* k_scales;
    const void* v_scales;
    const int* page_table;
    const int* lengths;
    float* outputs;
    float* stats;
    int heads, kv_heads, page_bits, max_pages, splits;
    float scale;
};

// The tokens that a block takes: first to last - 1 of sequence s, its split number `index`.
struct Split {
    int s, index, length, first, last;

    DEVICE explicit Split(const AttentionArgs& a) {
        s = block_z();
        index = block_x();
        length = a.lengths[s];
        const int tokens = split_tokens(length, a.splits);
        first = index * tokens;
        last = minimum(first + tokens, length);
    }
};

// The query heads that a block takes: `count` of them from `first` on, which share one KV head.
struct HeadGroup {
    int kv_head, first, count;

    DEVICE explicit HeadGroup(const AttentionArgs& a) {
        const int group = a.heads / a.kv_heads, blocks = (group + QUERIES - 1) / QUERIES;
        kv_head = block_y() / blocks;
        const int block = block_y() % blocks;
        first = kv_head * group + block * QUERIES;
        count = minimum(QUERIES, group - block * QUERIES);
    }
};

// The scaled queries of the block's heads. Heads past the last one repeat it.
DEVICE void load_queries(const AttentionArgs& a, int s, const HeadGroup& group, int dim, bool idle,
                         float (&q)[QUERIES][8]) {
    UNROLL for (int h = 0; h < QUERIES; ++h) {
        const float* from = a.q + (static_cast<u64>(s) * a.heads + group.first) * HEAD_DIM + dim;
        F32Pages::widen(
            F32Pages::load_eight(from, nullptr, minimum(h, group.count - 1), HEAD_DIM, 0), q[h]);
        UNROLL for (int i = 0; i < 8; ++i) q[h][i] = idle ? 0.0f : q[h][i] * a.scale;
    }
}

// Loads the keys and values of a step. token_of(start, u) is the number of this lane's token u.
template <class TokenOf>
DEVICE void load_tokens(const AttentionArgs& a, int kv_head, int dim, const int (&pages)[kPages],
                        int start, const TokenOf& token_of, KV::Eight (&keys)[TOKENS],
                        KV::Eight (&values)[TOKENS]) {
    UNROLL for (int u = 0; u < TOKENS; ++u) {
        const u64 row = static_cast<u64>(pages[u % kPages]) * a.kv_heads + kv_head;
        const int in_page = token_of(start, u) & ((1 << a.page_bits) - 1);
        keys[u] = KV::load_eight(a.k, a.k_scales, (row << a.page_bits) + in_page, HEAD_DIM, dim);
        values[u] = KV::load_eight(a.v, a.v_scales, (row << a.page_bits) + in_page, HEAD_DIM, dim);
    }
}

// The scores of this lane's tokens for each query; -infinity from token `last` on.
DEVICE void score(const float (&q)[QUERIES][8], const KV::Eight (&keys)[TOKENS], int start,
                  int slot, int last, float (&scores)[QUERIES][TOKENS]) {
    UNROLL for (int u = 0; u < TOKENS; ++u) {
        float key[8];
        KV::widen(keys[u], key);
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            float sum = 0.0f;
            UNROLL for (int i = 0; i < 8; ++i) sum += q[h][i] * key[i];
            sum = wave_sum<kLanes>(sum);
            scores[h][u] = start + u * kSlots + slot < last ? sum : -infinity();
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

DEVICE void store_wave_state(const SoftmaxState& state, int h, int dim, WaveOutputs& outputs,
                             WaveStats& stats) {
    UNROLL for (int i = 0; i < 8; ++i) outputs[wave()][h][dim + i] = state.out[i];
    if (dim == 0) {
        stats[wave()][h][0] = state.largest;
        stats[wave()][h][1] = state.total;
    }
}

// One dim of a softmax state.
struct DimState {
    float largest, total, out;
};

// Dim d of the state that all waves have together for query h.
DEVICE DimState merge_waves(const WaveOutputs& outputs, const WaveStats& stats, int h, int d) {
    float top = stats[0][h][0], total = 0.0f, out = 0.0f;
    UNROLL for (int w = 1; w < WAVES; ++w) top = maximum(top, stats[w][h][0]);
    UNROLL for (int w = 0; w < WAVES; ++w) {
        const float factor = fast_exp(stats[w][h][0] - top);
        total += factor * stats[w][h][1];
        out += factor * outputs[w][h][d];
    }
    return {top, total, out};
}

KERNEL(attention, AttentionArgs, WAVES* WAVE) {
    SHARED WaveOutputs outputs;
    SHARED WaveStats stats;
    const Split split(a);
    if (split.first >= split.length) return;
    const HeadGroup group(a);
    // What this lane reads in every load: which of kSlots tokens, and which 8 dims of it. Lanes
    // past the dims read dim 0 and count for nothing.
    const int slot = lane() / kLanes, dim = lane() % kLanes * 8;
    const bool idle = dim >= HEAD_DIM;
    const int read_dim = idle ? 0 : dim;
    float q[QUERIES][8];
    load_queries(a, split.s, group, read_dim, idle, q);

    // Tokens past the end are read as the last one, and score() gives them a weight of zero.
    const int* const table = a.page_table + static_cast<u64>(split.s) * a.max_pages;
    const auto token_of = [&](int start, int u) {
        return minimum(start + u * kSlots + slot, split.last - 1);
    };
    int pages[kPages];
    const auto look_up = [&](int start) {
        UNROLL for (int u = 0; u < kPages; ++u) pages[u] = table[token_of(start, u) >> a.page_bits];
    };

    SoftmaxState states[QUERIES];
    int start = split.first + static_cast<int>(wave()) * kStep;
    if (start < split.last) look_up(start);
    for (; start < split.last; start += kRound) {
        KV::Eight keys[TOKENS], values[TOKENS];
        load_tokens(a, group.kv_head, read_dim, pages, start, token_of, keys, values);
        look_up(minimum(start + kRound, split.last - 1));

        float weights[QUERIES][TOKENS];
        score(q, keys, start, slot, split.last, weights);
        UNROLL for (int h = 0; h < QUERIES; ++h) states[h].add_scores(weights[h]);
        accumulate(weights, values, states);
    }

    UNROLL for (int h = 0; h < QUERIES; ++h) {
        states[h].merge_lanes<kLanes>();
        if (slot == 0 && !idle) store_wave_state(states[h], h, dim, outputs, stats);
    }
    block_sync();
    for (int i = thread_x(); i < group.count * HEAD_DIM; i += WAVES * WAVE) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        const DimState merged = merge_waves(outputs, stats, h, d);
        const u64 row =
            (static_cast<u64>(split.s) * a.heads + group.first + h) * a.splits + split.index;
        a.outputs[row * HEAD_DIM + d] = merged.out;
        if (d == 0) {
            a.stats[2 * row] = merged.largest;
            a.stats[2 * row + 1] = merged.total;
        }
    }
}

struct MergeArgs {
    const float* outputs;
    const float* stats;
    const int* lengths;
    Output out;
    int heads, splits, dtype;  // dtype: a number of Dtype
};

KERNEL(attention_merge, MergeArgs, kMergeThreads) {
    const int s = block_y(), columns = a.heads * HEAD_DIM;
    const int column = block_x() * kMergeThreads + thread_x();
    const int length = a.lengths[s], tokens = split_tokens(length, a.splits);
    const int used = (length + tokens - 1) / tokens;
    const int in_row = minimum(column, columns - 1);  // threads past the row keep its waves whole
    const u64 first = (static_cast<u64>(s) * a.heads + in_row / HEAD_DIM) * a.splits;

    float top = kLowest, total = 0.0f, out = 0.0f;
    for (int i = 0; i < used; ++i) top = maximum(top, a.stats[2 * (first + i)]);
    for (int i = 0; i < used; ++i) {
        const float factor = fast_exp(a.stats[2 * (first + i)] - top);
        total += factor * a.stats[2 * (first + i) + 1];
        out += factor * a.outputs[(first + i) * HEAD_DIM + in_row % HEAD_DIM];
    }
    out = used > 0 ? out / total : 0.0f;

    const bool inside = column < columns;
    const float one[1] = {inside ? out : 0.0f};
    const u64 at = static_cast<u64>(s) * columns + column;
    if (a.dtype == static_cast<int>(Dtype::Q8)) {
        store_as<Dtype::Q8>(a.out, at, one, inside);
    } else if (a.dtype == static_cast<int>(Dtype::F16)) {
        store_as<Dtype::F16>(a.out, at, one, inside);
    } else {
        store_as<Dtype::F32>(a.out, at, one, inside);
    }
}
