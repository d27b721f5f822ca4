// kv_append: writes k, v (T, G, D) of new tokens into the pages of one layer's KV cache.
//
// Token t goes to slot offsets[t] of page pages[t]. K is stored transposed inside a page,
// (pages, G, D, P), so that attention's lanes are tokens; V is (pages, G, P, D).
#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

template <class Element, class Convert>
void append(const KvAppendArgs& a, Convert convert) {
    auto* k_pages = static_cast<Element*>(a.k_pages);
    auto* v_pages = static_cast<Element*>(a.v_pages);
    const int64_t page_elements = a.head_dim * a.page_size;
    for (int64_t t = 0; t < a.tokens; ++t) {
        for (int64_t g = 0; g < a.kv_heads; ++g) {
            const float* k = a.k + (t * a.kv_heads + g) * a.head_dim;
            const float* v = a.v + (t * a.kv_heads + g) * a.head_dim;
            const int64_t page = (a.pages[t] * a.kv_heads + g) * page_elements;
            Element* k_out = k_pages + page + a.offsets[t];
            Element* v_out = v_pages + page + a.offsets[t] * a.head_dim;
            // A line of each: all are asked for before the first is waited for.
            for (int64_t d = 0; d < a.head_dim; ++d) __builtin_prefetch(k_out + d * a.page_size, 1);
            convert(k, k_out, a.page_size, a.head_dim);
            convert(v, v_out, int64_t{1}, a.head_dim);
        }
    }
}

void to_half(const float* from, uint16_t* to, int64_t stride, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        uint16_t half[kLanes];
        store_f16(half, load(from + i));
        for (int64_t j = 0; j < kLanes; ++j) to[(i + j) * stride] = half[j];
    }
    if (i < n) {
        float rest[kLanes] = {};
        uint16_t half[kLanes];
        for (int64_t j = i; j < n; ++j) rest[j - i] = from[j];
        store_f16(half, load(rest));
        for (int64_t j = i; j < n; ++j) to[j * stride] = half[j - i];
    }
}

void to_float32(const float* from, float* to, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
}

}  // namespace

void kv_append(const KvAppendArgs& args) {
    if (args.half) {
        append<uint16_t>(args, to_half);
    } else {
        append<float>(args, to_float32);
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
