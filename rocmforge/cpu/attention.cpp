// attention: causal softmax(scale q k^T) v over the paged KV cache, one pass with a running
// maximum. A window hides tokens that lie further back, a soft cap bends scores, and a sink is one
// more score without a value.
//
// A work item is up to 32 query rows that share a KV head: row i of the item is query i / (H / G),
// head g * (H / G) + i % (H / G). It walks the sequence's pages once. Scores have tokens as lanes
// (K is stored transposed), and outputs have head dims as lanes, so that neither needs a horizontal
// sum; blocks of rows by vectors stay in registers. Where many rows use a page, or head dims fill
// no whole vectors, or it is Q8_0, it is made float32 in cache first. The queries of a sequence are
// its last tokens: query j of n stands at position length - n + j.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "isa_ops.h"
#include "simd.h"
#include "swiglu.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int kMaxPage = 64;
constexpr int kRows = 32;
#if defined(__AVX512VNNI__)
constexpr int kRowBlock = 8, kVectors = 2;  // sums in registers: rows by vectors
#else
constexpr int kRowBlock = 4, kVectors = 1;
#endif

// The place of a lane in its vector.
alignas(64) constexpr float kPlaces[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};

// For head dims up to max_dims. Rows lie no further apart than they must: it is what the caches
// see.
template <int max_dims>
struct Scratch {
    alignas(64) float q[kRows][max_dims];
    alignas(64) float out[kRows][max_dims];
    alignas(64) float scores[kRows][kMaxPage];
    alignas(64) float k[max_dims * kMaxPage];
    alignas(64) float v[kMaxPage * max_dims];
    alignas(64) float largest[kRows];
    float total[kRows][kLanes];  // of the weights of tokens 16 apart
    int64_t first[kRows];        // of the tokens of the sequence that the row may see
    int64_t visible[kRows];      // one past the last of them
};

inline float to_float(float x) {
    return x;
}
inline float to_float(Half x) {
    return half_to_float(x.bits);
}

template <class Element>
void widen(const Element* from, float* to, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, load_element(from + i));
    for (; i < n; ++i) to[i] = to_float(from[i]);
}

// out [rows][at..] = out * factor + x [rows][steps] y [steps][width], for `vectors` * 16 columns
// from `at` on; without a factor, what out held does not count.
template <int rows, int vectors, class Element, int inner, int outer>
void multiply_columns(const float (*x)[inner], const Element* y, int64_t steps, int64_t width,
                      const float* factor, float (*out)[outer], int64_t at) {
    F32 acc[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i) {
            acc[r][i] = factor ? load(out[r] + at + i * kLanes) * set1(factor[r]) : set1(0.0f);
        }
    }
    for (int64_t k = 0; k < steps; ++k) {
        F32 row[vectors];
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i) row[i] = load_element(y + k * width + at + i * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const F32 value = set1(x[r][k]);
#pragma GCC unroll 2
            for (int i = 0; i < vectors; ++i) acc[r][i] = fma(row[i], value, acc[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i) store(out[r] + at + i * kLanes, acc[r][i]);
    }
}

// All columns of a block of rows: multiply_columns, a width of whole vectors.
template <int rows, class Element, int inner, int outer>
void multiply_rows(const float (*x)[inner], const Element* y, int64_t steps, int64_t width,
                   const float* factor, float (*out)[outer]) {
    int64_t at = 0;
    for (; at + kVectors * kLanes <= width; at += kVectors * kLanes) {
        multiply_columns<rows, kVectors>(x, y, steps, width, factor, out, at);
    }
    for (; at < width; at += kLanes) {
        multiply_columns<rows, 1>(x, y, steps, width, factor, out, at);
    }
}

// Calls f(first row, block's size as a constant) for blocks that cover the rows.
template <int block = kRowBlock, class Function>
void for_each_row_block(int first, int rows, Function&& f) {
    for (; first + block <= rows; first += block) f(first, std::integral_constant<int, block>{});
    if constexpr (block > 1) for_each_row_block<block - 1>(first, rows, f);
}

// Turns the scores of a page, the tokens start.., into exp(score - running maximum), zero where a
// row may not see; `factor` brings the rows' earlier sums to the new maximum.
template <int max_dims>
void soften(int rows, int64_t start, int64_t page, float softcap, Scratch<max_dims>& s,
            float* factor) {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    alignas(64) float highest[kRows];
    std::fill_n(highest, kRows, nothing);
    // Of 16 tokens of the page from t on: x of those that row r sees, y of the others.
    const auto where_seen = [&](int r, int64_t t, F32 x, F32 y) {
        const int64_t seen = std::clamp<int64_t>(s.visible[r] - start - t, 0, kLanes);
        const F32 shown = where_greater(set1(static_cast<float>(seen)), load(kPlaces), x, y);
        const int64_t hidden = s.first[r] - start - t;
        if (hidden <= 0) return shown;
        const auto before = static_cast<float>(std::min<int64_t>(hidden, kLanes));
        return where_greater(set1(before), load(kPlaces), y, shown);
    };
    for (int r = 0; r < rows; ++r) {
        if (softcap != 0.0f) {
            for (int64_t t = 0; t < page; t += kLanes) {
                store(s.scores[r] + t, soft_capped(load(s.scores[r] + t), softcap));
            }
        }
        F32 high = set1(s.largest[r]);
        for (int64_t t = 0; t < page; t += kLanes) {
            high = max(high, where_seen(r, t, load(s.scores[r] + t), set1(nothing)));
        }
        highest[r] = max_lane(high);
    }
    for (int r = 0; r < rows; r += kLanes) {
        const F32 now = load(highest + r), before = load(s.largest + r);
        store(factor + r, where_greater(now, before, exp(before - now), set1(1.0f)));
        store(s.largest + r, now);
    }
    for (int r = 0; r < rows; ++r) {
        F32 total = load(s.total[r]) * set1(factor[r]);
        for (int64_t t = 0; t < page; t += kLanes) {
            const F32 weight = exp(load(s.scores[r] + t) - set1(s.largest[r]));
            const F32 seen = where_seen(r, t, weight, set1(0.0f));
            store(s.scores[r] + t, seen);
            total = total + seen;
        }
        store(s.total[r], total);
    }
}

// Bytes of the page of a KV head.
template <class Element>
int64_t page_bytes(const AttentionArgs& a) {
    return a.head_dim * a.page_size * static_cast<int64_t>(sizeof(Element));
}

// Codes of Q8_0, and behind all of a page its scales: ops.h.
struct Code {
    int8_t code;
};

template <>
int64_t page_bytes<Code>(const AttentionArgs& a) {
    return a.head_dim * a.page_size + 2 * (a.head_dim / kPageGroup) * a.page_size;
}

F32 load_codes(const Code* codes) {
    return to_float(load_i8(reinterpret_cast<const uint8_t*>(codes)));
}

// Makes a page float32 in the scratch, its head dims padded to whole vectors.
template <int max_dims>
void load_page(const Code* k, const Code* v, const AttentionArgs& a, int64_t padded_dims,
               Scratch<max_dims>& s) {
    const int64_t size = a.head_dim * a.page_size, groups = a.head_dim / kPageGroup;
    const auto* const k_scales = reinterpret_cast<const uint16_t*>(k + size);
    const auto* const v_scales = reinterpret_cast<const uint16_t*>(v + size);
    for (int64_t i = 0; i < groups; ++i) {
        for (int64_t t = 0; t < a.page_size; t += kLanes) {
            const F32 scale = load_f16(k_scales + i * a.page_size + t);
            for (int64_t d = i * kPageGroup; d < (i + 1) * kPageGroup; ++d) {
                const int64_t at = d * a.page_size + t;
                store(s.k + at, load_codes(k + at) * scale);
            }
        }
    }
    for (int64_t t = 0; t < a.page_size; ++t) {
        for (int64_t i = 0; i < groups; ++i) {
            const F32 scale = set1(half_to_float(v_scales[t * groups + i]));
            for (int64_t d = i * kPageGroup; d < (i + 1) * kPageGroup; d += kLanes) {
                store(s.v + t * padded_dims + d, load_codes(v + t * a.head_dim + d) * scale);
            }
        }
    }
}

template <class Element, int max_dims>
void load_page(const Element* k, const Element* v, const AttentionArgs& a, int64_t padded_dims,
               Scratch<max_dims>& s) {
    widen(k, s.k, a.head_dim * a.page_size);
    for (int64_t t = 0; t < a.page_size; ++t) {
        widen(v + t * a.head_dim, s.v + t * padded_dims, a.head_dim);
    }
}

// Adds the first n tokens of a page, the sequence's tokens start.., to the rows' outputs.
template <class Element, int max_dims>
void add_page(const Element* k, const Element* v, int64_t start, int64_t n, int64_t page, int rows,
              int64_t dims, int64_t padded_dims, float softcap, Scratch<max_dims>& s) {
    alignas(64) float factor[kRows];
    for_each_row_block(0, rows, [&](int r, auto block) {
        multiply_rows<block.value>(s.q + r, k, dims, page, nullptr, s.scores + r);
    });
    soften(rows, start, page, softcap, s, factor);
    for_each_row_block(0, rows, [&](int r, auto block) {
        multiply_rows<block.value>(s.scores + r, v, n, padded_dims, factor + r, s.out + r);
    });
}

// Adds the pages of sequence `seq` from token `begin` to `reach`, as they lie where that costs less
// than to make them float32 first: where no head dims are to be padded, and each element is used
// once.
template <class Element, int max_dims>
void add_pages(const AttentionArgs& a, int64_t seq, int64_t g, int64_t begin, int64_t reach,
               int rows, int64_t padded_dims, Scratch<max_dims>& s) {
    constexpr bool coded = std::is_same_v<Element, Code>;
    const bool once = std::is_same_v<Element, float> || coded || rows <= kRowBlock;
    const bool as_it_is = padded_dims == a.head_dim && once;
    const int64_t size = page_bytes<Element>(a);
    const int32_t* const pages = a.page_table + seq * a.max_pages;
    const auto page_of = [&](const void* cache, int64_t token) {
        const int64_t page = pages[token / a.page_size];
        const char* const at = static_cast<const char*>(cache) + (page * a.kv_heads + g) * size;
        return reinterpret_cast<const Element*>(at);
    };
    const int64_t first = begin / a.page_size * a.page_size;
    for (int64_t start = first; start < reach; start += a.page_size) {
        const Element* const k = page_of(a.k, start);
        const Element* const v = page_of(a.v, start);
        const int64_t n = std::min(a.page_size, reach - start);
        const int64_t next = start + a.page_size;
        if (once && next < reach) {  // it lies anywhere: no processor foresees it
            const int bytes = static_cast<int>(size);
            prefetch(reinterpret_cast<const uint8_t*>(page_of(a.k, next)), bytes);
            prefetch(reinterpret_cast<const uint8_t*>(page_of(a.v, next)), bytes);
        }
        if constexpr (!coded) {
            if (as_it_is) {
                add_page(k, v, start, n, a.page_size, rows, a.head_dim, padded_dims, a.softcap, s);
                continue;
            }
        }
        load_page(k, v, a, padded_dims, s);
        add_page(s.k, s.v, start, n, a.page_size, rows, a.head_dim, padded_dims, a.softcap, s);
    }
}

// Rows first..first + rows of sequence `seq` for KV head g.
template <int max_dims>
void run_item(const AttentionArgs& a, int64_t seq, int64_t g, int64_t first, int rows) {
    Scratch<max_dims> s;
    const int64_t group = a.heads / a.kv_heads;
    const int64_t queries = a.starts[seq + 1] - a.starts[seq];
    const int64_t padded_dims = (a.head_dim + kLanes - 1) / kLanes * kLanes;
    const auto offset_of = [&](int64_t row) {
        const int64_t token = a.starts[seq] + row / group;
        return (token * a.heads + g * group + row % group) * a.head_dim;
    };
    int64_t begin = std::numeric_limits<int64_t>::max(), reach = 0;
    std::fill_n(s.largest, kRows, -std::numeric_limits<float>::infinity());
    for (int r = 0; r < rows; ++r) {
        const float* q = a.q + offset_of(first + r);
        for (int64_t d = 0; d < a.head_dim; ++d) s.q[r][d] = q[d] * a.scale;
        for (int64_t d = 0; d < padded_dims; ++d) s.out[r][d] = 0.0f;
        store(s.total[r], set1(0.0f));
        s.visible[r] = a.lengths[seq] - queries + (first + r) / group + 1;
        s.first[r] = a.window ? std::max<int64_t>(0, s.visible[r] - a.window) : 0;
        begin = std::min(begin, s.first[r]);
        reach = std::max(reach, s.visible[r]);
        if (a.sinks) {
            s.largest[r] = a.sinks[g * group + (first + r) % group];
            s.total[r][0] = 1.0f;
        }
    }
    // Columns past the head dim are read as lanes; they must not hold a stale NaN.
    if (padded_dims != a.head_dim) std::memset(s.v, 0, sizeof s.v);

    const auto add = a.type == PageType::Q8_0  ? add_pages<Code, max_dims>
                     : a.type == PageType::F16 ? add_pages<Half, max_dims>
                                               : add_pages<float, max_dims>;
    add(a, seq, g, begin, reach, rows, padded_dims, s);
    for (int r = 0; r < rows; ++r) {
        float* out = a.out + offset_of(first + r);
        const float inverse = 1.0f / sum(load(s.total[r]));
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
    const auto run = a.head_dim <= 256 ? run_item<256> : run_item<kMaxHeadDim>;
    int64_t items = 0;
    for (int64_t seq = 0; seq < a.sequences; ++seq) items += items_of(seq);
    // From the end: later rows see more tokens, and the longest items should not come last. One at
    // a time, for what they cost differs.
    auto item_from_the_end = [&](int64_t i) {
        int64_t seq = 0, item = items - 1 - i;
        for (; item >= items_of(seq); ++seq) item -= items_of(seq);
        const int64_t first = item / a.kv_heads * kRows;
        const int64_t rows = std::min<int64_t>(kRows, rows_of(seq) - first);
        run(a, seq, item % a.kv_heads, first, static_cast<int>(rows));
    };
    parallel_for(a.pool, items, 1, item_from_the_end, 1);
}

}  // namespace rocmforge::ROCMFORGE_ISA
