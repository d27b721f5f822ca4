// attention: out[s][h] = softmax(scale * q[s][h] k^T) v over the tokens of sequence s, one query a
// sequence, through the paged KV cache.
//
// Two kernels. `attention` cuts each sequence into `splits` parts by its length in device memory,
// so that the launch stays the same while the sequence grows; parts without tokens exit at once.
// `attention_merge` joins the parts.
//
//   q           (S, H, D) float, aligned to 16
//   k, v        (pages, G, P, D) and k_scales, v_scales: see pages.h
//   page_table  (S, max_pages) int; lengths (S,) int: 0 gives zeros
//   outputs     (S, H, splits, D) float: each part's weighted sum of values, undivided
//   marks       (S, H, splits, 2) float: each part's largest score and sum of weights
//   out         (S, H * D) float, f16, or int8 with scales and sums (forms.h; H * D is whole 32s)
//
// A block of `attention` has WAVES waves and works on up to QUERIES heads of one KV head; its grid
// is (splits, G * parts, S), parts = ceil(H / G / QUERIES). kLanes neighbouring lanes read a token,
// 8 dims each; a wave reads kStep tokens a step. Every group of kLanes lanes keeps its own running
// maximum and sums, which meet at the end.
// `attention_merge`: a thread a column of out; its grid is (ceil(H * D / 128), S).
// Limits: D a multiple of 8 up to 256; P a power of two, at least 16. Launched by
// gpu/ops/attention.py.
#include "forms.h"
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
constexpr int kMergeThreads = 128;
constexpr float kLowest = -1e30f;  // a maximum over nothing; finite, so that differences are
static_assert(HEAD_DIM % 8 == 0 && kLanes <= WAVE);
static_assert(kStep > 16 || 16 % kStep == 0, "a short step must not cross a page");

// Tokens of a part: whole rounds, so that only the last part has idle waves.
DEVICE int part_tokens(int length, int splits) {
    const int even = (length + splits - 1) / splits;
    return most((even + kRound - 1) / kRound, 1) * kRound;
}

// Running softmax of one query over some tokens: 8 of its dims in each of kLanes lanes.
struct Sums {
    float largest = kLowest;
    float total = 0.0f;
    float out[8] = {};

    // Joins what lanes that are kMask, 2 kMask, … apart hold.
    template <int kMask>
    DEVICE void join() {
        if constexpr (kMask < WAVE) {
            const float other = shuffle_xor<kMask>(largest), top = larger(largest, other);
            const float mine = fast_exp(largest - top), theirs = fast_exp(other - top);
            largest = top;
            total = total * mine + shuffle_xor<kMask>(total) * theirs;
            UNROLL for (int i = 0; i < 8; ++i) {
                out[i] = out[i] * mine + shuffle_xor<kMask>(out[i]) * theirs;
            }
            join<2 * kMask>();
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
    float* marks;
    int heads, kv_heads, page_bits, max_pages, splits;
    float scale;
};

KERNEL(attention, AttentionArgs, WAVES* WAVE) {
    SHARED float outputs[WAVES][QUERIES][HEAD_DIM];
    SHARED float marks[WAVES][QUERIES][2];

    const int s = block_z(), split = block_x();
    const int length = a.lengths[s], tokens = part_tokens(length, a.splits);
    const int first = split * tokens, last = least(first + tokens, length);
    if (first >= length) return;

    const int group = a.heads / a.kv_heads, parts = (group + QUERIES - 1) / QUERIES;
    const int g = block_y() / parts, part = block_y() % parts;
    const int head = g * group + part * QUERIES, heads = least(QUERIES, group - part * QUERIES);
    const int slot = lane() / kLanes, dim = lane() % kLanes * 8;
    const bool idle = dim >= HEAD_DIM;  // lanes past the dims read dim 0 and count for nothing
    const int at = idle ? 0 : dim;

    float q[QUERIES][8];
    UNROLL for (int h = 0; h < QUERIES; ++h) {
        const float* from = a.q + (static_cast<u64>(s) * a.heads + head) * HEAD_DIM + at;
        F32Pages::widen(F32Pages::load_eight(from, nullptr, least(h, heads - 1), HEAD_DIM, 0),
                        q[h]);
        UNROLL for (int i = 0; i < 8; ++i) q[h][i] = idle ? 0.0f : q[h][i] * a.scale;
    }

    // Tokens past the end are read as the last one, with a weight of zero.
    const int* table = a.page_table + static_cast<u64>(s) * a.max_pages;
    const auto token_of = [&](int start, int u) {
        return least(start + u * kSlots + slot, last - 1);
    };
    constexpr int kPages = kStep <= 16 ? 1 : TOKENS;  // a short step lies in one page
    int pages[kPages];
    const auto look_up = [&](int start) {
        UNROLL for (int u = 0; u < kPages; ++u) pages[u] = table[token_of(start, u) >> a.page_bits];
    };

    Sums sums[QUERIES];
    int start = first + static_cast<int>(wave()) * kStep;
    if (start < last) look_up(start);
    for (; start < last; start += kRound) {
        KV::Eight k[TOKENS], v[TOKENS];
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            const u64 row = static_cast<u64>(pages[u % kPages]) * a.kv_heads + g;
            const int in_page = token_of(start, u) & ((1 << a.page_bits) - 1);
            k[u] = KV::load_eight(a.k, a.k_scales, (row << a.page_bits) + in_page, HEAD_DIM, at);
            v[u] = KV::load_eight(a.v, a.v_scales, (row << a.page_bits) + in_page, HEAD_DIM, at);
        }
        look_up(least(start + kRound, last - 1));

        float weights[QUERIES][TOKENS];
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            float keys[8];
            KV::widen(k[u], keys);
            UNROLL for (int h = 0; h < QUERIES; ++h) {
                float score = 0.0f;
                UNROLL for (int i = 0; i < 8; ++i) score += q[h][i] * keys[i];
                score = wave_sum<kLanes>(score);
                weights[h][u] = start + u * kSlots + slot < last ? score : -infinity();
            }
        }
        UNROLL for (int h = 0; h < QUERIES; ++h) {
            float top = sums[h].largest;
            UNROLL for (int u = 0; u < TOKENS; ++u) top = larger(top, weights[h][u]);
            const float factor = fast_exp(sums[h].largest - top);
            sums[h].largest = top;
            sums[h].total *= factor;
            UNROLL for (int i = 0; i < 8; ++i) sums[h].out[i] *= factor;
            UNROLL for (int u = 0; u < TOKENS; ++u) {
                weights[h][u] = fast_exp(weights[h][u] - top);
                sums[h].total += weights[h][u];
            }
        }
        UNROLL for (int u = 0; u < TOKENS; ++u) {
            float values[8];
            KV::widen(v[u], values);
            UNROLL for (int h = 0; h < QUERIES; ++h) {
                UNROLL for (int i = 0; i < 8; ++i) sums[h].out[i] += weights[h][u] * values[i];
            }
        }
    }

    UNROLL for (int h = 0; h < QUERIES; ++h) {
        sums[h].join<kLanes>();
        if (slot == 0 && !idle) {
            UNROLL for (int i = 0; i < 8; ++i) outputs[wave()][h][dim + i] = sums[h].out[i];
            if (dim == 0) {
                marks[wave()][h][0] = sums[h].largest;
                marks[wave()][h][1] = sums[h].total;
            }
        }
    }
    block_sync();
    for (int i = thread_x(); i < heads * HEAD_DIM; i += WAVES * WAVE) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        float top = marks[0][h][0], total = 0.0f, out = 0.0f;
        UNROLL for (int w = 1; w < WAVES; ++w) top = larger(top, marks[w][h][0]);
        UNROLL for (int w = 0; w < WAVES; ++w) {
            const float factor = fast_exp(marks[w][h][0] - top);
            total += factor * marks[w][h][1];
            out += factor * outputs[w][h][d];
        }
        const u64 row = (static_cast<u64>(s) * a.heads + head + h) * a.splits + split;
        a.outputs[row * HEAD_DIM + d] = out;
        if (d == 0) {
            a.marks[2 * row] = top;
            a.marks[2 * row + 1] = total;
        }
    }
}

struct MergeArgs {
    const float* outputs;
    const float* marks;
    const int* lengths;
    Output out;
    int heads, splits, form;  // a number of Form
};

KERNEL(attention_merge, MergeArgs, kMergeThreads) {
    const int s = block_y(), columns = a.heads * HEAD_DIM;
    const int column = block_x() * kMergeThreads + thread_x();
    const int length = a.lengths[s], tokens = part_tokens(length, a.splits);
    const int used = (length + tokens - 1) / tokens;
    const int in_row = least(column, columns - 1);  // threads past the row keep its waves whole
    const u64 first = (static_cast<u64>(s) * a.heads + in_row / HEAD_DIM) * a.splits;

    float top = kLowest, total = 0.0f, out = 0.0f;
    for (int i = 0; i < used; ++i) top = larger(top, a.marks[2 * (first + i)]);
    for (int i = 0; i < used; ++i) {
        const float factor = fast_exp(a.marks[2 * (first + i)] - top);
        total += factor * a.marks[2 * (first + i) + 1];
        out += factor * a.outputs[(first + i) * HEAD_DIM + in_row % HEAD_DIM];
    }
    out = used > 0 ? out / total : 0.0f;

    const bool inside = column < columns;
    const float one[1] = {inside ? out : 0.0f};
    const u64 at = static_cast<u64>(s) * columns + column;
    if (a.form == static_cast<int>(Form::Q8)) {
        store_form<Form::Q8>(a.out, at, one, inside);
    } else if (a.form == static_cast<int>(Form::F16)) {
        store_form<Form::F16>(a.out, at, one, inside);
    } else {
        store_form<Form::F32>(a.out, at, one, inside);
    }
}
