// attention: causal softmax(scale q k^T) v over the paged KV cache, one pass with a running
// maximum.
//
// A work item is up to 32 query rows that share a KV head: row i of the item is query i / (H / G),
// head g * (H / G) + i % (H / G). It walks the sequence's pages once. Each page is converted to
// float32 in cache, then scores have tokens as lanes (K is stored transposed), and outputs have
// head dims as lanes, so that neither needs a horizontal sum.
// The queries of a sequence are its last tokens: query j of n stands at position length - n + j.
#include <algorithm>
#include <cmath>
#include <limits>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxPage = 64;
constexpr int kRows = 32;
constexpr int kRowBlock = 4;

struct Scratch {
    alignas(64) float q[kRows][kMaxHeadDim];
    alignas(64) float out[kRows][kMaxHeadDim];
    alignas(64) float scores[kRows][kMaxPage];
    alignas(64) float k[kMaxHeadDim * kMaxPage];
    alignas(64) float v[kMaxPage * kMaxHeadDim];
    float largest[kRows], total[kRows];
    int64_t visible[kRows];  // tokens of the sequence that the row may see
};

void widen(const uint16_t* from, float* to, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, load_f16(from + i));
    for (; i < n; ++i) to[i] = half_to_float(from[i]);
}

// scores [rows][page] = q k^T for a block of rows.
template <int rows>
void score_rows(const float (*q)[kMaxHeadDim], const float* k, int64_t dims, int64_t page,
                float (*scores)[kMaxPage]) {
    for (int64_t t = 0; t < page; t += kLanes) {
        F32 acc[rows];
        for (int r = 0; r < rows; ++r) acc[r] = set1(0.0f);
        for (int64_t d = 0; d < dims; ++d) {
            const F32 column = load(k + d * page + t);
            for (int r = 0; r < rows; ++r) acc[r] = fma(column, set1(q[r][d]), acc[r]);
        }
        for (int r = 0; r < rows; ++r) store(scores[r] + t, acc[r]);
    }
}

// out [rows][dims] = out * factor + scores v, over the first n tokens of the page.
template <int rows>
void mix_rows(const float (*scores)[kMaxPage], const float* v, int64_t padded_dims, int64_t n,
              const float* factor, float (*out)[kMaxHeadDim]) {
    for (int64_t d = 0; d < padded_dims; d += kLanes) {
        F32 acc[rows];
        for (int r = 0; r < rows; ++r) acc[r] = load(out[r] + d) * set1(factor[r]);
        for (int64_t t = 0; t < n; ++t) {
            const F32 row = load(v + t * padded_dims + d);
            for (int r = 0; r < rows; ++r) acc[r] = fma(row, set1(scores[r][t]), acc[r]);
        }
        for (int r = 0; r < rows; ++r) store(out[r] + d, acc[r]);
    }
}

// Turns a row's scores into exp(score - running maximum), zero where the row may not see; returns
// the factor that brings the row's earlier sums to the new maximum.
float soften(float* scores, int64_t seen, int64_t page, float& largest, float& total) {
    for (int64_t t = seen; t < page; ++t) scores[t] = -std::numeric_limits<float>::infinity();
    F32 high = load(scores);
    for (int64_t t = kLanes; t < page; t += kLanes) high = max(high, load(scores + t));
    const float now = std::max(largest, max_lane(high));
    const float factor = largest == now ? 1.0f : std::exp(largest - now);
    F32 sums = set1(0.0f);
    for (int64_t t = 0; t < page; t += kLanes) store(scores + t, exp(load(scores + t) - set1(now)));
    for (int64_t t = seen; t < page; ++t) scores[t] = 0.0f;
    for (int64_t t = 0; t < page; t += kLanes) sums = sums + load(scores + t);
    total = total * factor + sum(sums);
    largest = now;
    return factor;
}

void load_page(const AttentionArgs& a, int64_t page, int64_t g, int64_t padded_dims, Scratch& s) {
    const int64_t at = (page * a.kv_heads + g) * a.head_dim * a.page_size;
    const int64_t n = a.head_dim * a.page_size;
    if (a.half) {
        widen(static_cast<const uint16_t*>(a.k) + at, s.k, n);
        const uint16_t* v = static_cast<const uint16_t*>(a.v) + at;
        for (int64_t t = 0; t < a.page_size; ++t) {
            widen(v + t * a.head_dim, s.v + t * padded_dims, a.head_dim);
        }
    } else {
        std::memcpy(s.k, static_cast<const float*>(a.k) + at,
                    sizeof(float) * static_cast<size_t>(n));
        const float* v = static_cast<const float*>(a.v) + at;
        for (int64_t t = 0; t < a.page_size; ++t) {
            std::memcpy(s.v + t * padded_dims, v + t * a.head_dim,
                        sizeof(float) * static_cast<size_t>(a.head_dim));
        }
    }
}

// Rows first..first + rows of sequence `seq` for KV head g.
void run_item(const AttentionArgs& a, int64_t seq, int64_t g, int64_t first, int rows, Scratch& s) {
    const int64_t group = a.heads / a.kv_heads;
    const int64_t queries = a.starts[seq + 1] - a.starts[seq];
    const int64_t padded_dims = (a.head_dim + kLanes - 1) / kLanes * kLanes;
    const auto offset_of = [&](int64_t row) {
        const int64_t token = a.starts[seq] + row / group;
        return (token * a.heads + g * group + row % group) * a.head_dim;
    };
    int64_t reach = 0;
    for (int r = 0; r < rows; ++r) {
        const float* q = a.q + offset_of(first + r);
        for (int64_t d = 0; d < a.head_dim; ++d) s.q[r][d] = q[d] * a.scale;
        for (int64_t d = 0; d < padded_dims; ++d) s.out[r][d] = 0.0f;
        s.largest[r] = -std::numeric_limits<float>::infinity();
        s.total[r] = 0.0f;
        s.visible[r] = a.lengths[seq] - queries + (first + r) / group + 1;
        reach = std::max(reach, s.visible[r]);
    }
    // Columns past the head dim are read as lanes; they must not hold a stale NaN.
    if (padded_dims != a.head_dim) std::memset(s.v, 0, sizeof s.v);

    for (int64_t start = 0; start < reach; start += a.page_size) {
        load_page(a, a.page_table[seq * a.max_pages + start / a.page_size], g, padded_dims, s);
        const int64_t n = std::min(a.page_size, reach - start);
        float factor[kRows];
        int r = 0;
        for (; r + kRowBlock <= rows; r += kRowBlock) {
            score_rows<kRowBlock>(s.q + r, s.k, a.head_dim, a.page_size, s.scores + r);
        }
        for (; r < rows; ++r) score_rows<1>(s.q + r, s.k, a.head_dim, a.page_size, s.scores + r);
        for (r = 0; r < rows; ++r) {
            const int64_t seen = std::clamp<int64_t>(s.visible[r] - start, 0, a.page_size);
            factor[r] = 1.0f;
            if (seen == 0) {
                std::memset(s.scores[r], 0, sizeof s.scores[r]);
            } else {
                factor[r] = soften(s.scores[r], seen, a.page_size, s.largest[r], s.total[r]);
            }
        }
        for (r = 0; r + kRowBlock <= rows; r += kRowBlock) {
            mix_rows<kRowBlock>(s.scores + r, s.v, padded_dims, n, factor + r, s.out + r);
        }
        for (; r < rows; ++r) mix_rows<1>(s.scores + r, s.v, padded_dims, n, factor + r, s.out + r);
    }
    for (int r = 0; r < rows; ++r) {
        float* out = a.out + offset_of(first + r);
        const float inverse = 1.0f / s.total[r];
        for (int64_t d = 0; d < a.head_dim; ++d) out[d] = s.out[r][d] * inverse;
    }
}

}  // namespace

void attention(const AttentionArgs& a) {
    const int64_t group = a.heads / a.kv_heads;
    const auto rows_of = [&](int64_t seq) { return (a.starts[seq + 1] - a.starts[seq]) * group; };
    const auto items_of = [&](int64_t seq) {
        return (rows_of(seq) + kRows - 1) / kRows * a.kv_heads;
    };
    int64_t items = 0;
    for (int64_t seq = 0; seq < a.sequences; ++seq) items += items_of(seq);
    // From the end: later rows see more tokens, and the longest items should not come last.
    parallel_for(a.pool, items, 1, [&](int64_t i) {
        int64_t seq = 0, item = items - 1 - i;
        for (; item >= items_of(seq); ++seq) item -= items_of(seq);
        const int64_t first = item / a.kv_heads * kRows;
        const int64_t rows = std::min<int64_t>(kRows, rows_of(seq) - first);
        Scratch scratch;
        run_item(a, seq, item % a.kv_heads, first, static_cast<int>(rows), scratch);
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
