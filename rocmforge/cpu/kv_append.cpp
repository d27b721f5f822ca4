// kv_append: writes k, v (T, G, D) of new tokens into the pages of one layer's KV cache.
//
// Token t goes to slot offsets[t] of page pages[t]. K is stored transposed inside a page,
// (pages, G, D, P), so that attention's lanes are tokens; V is (pages, G, P, D). Q8_0: see ops.h.
#include <algorithm>

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

// Q8_0 of 32 numbers, a code each `stride`, as kernels/append.h has it: the scale is the largest
// |x| / 127 as f16, a code is x / scale, rounded. Where x holds NaN or an infinity, the scale is
// infinite, and the group reads as NaN.
uint16_t to_codes(const float* from, int8_t* to, int64_t stride) {
    const F32 x[] = {load(from), load(from + kLanes)};
    const F32 zero = set1(0.0f);
    const bool finite = sum(x[0] * zero + x[1] * zero) == 0.0f;
    const float largest = finite ? max_lane(max(abs(x[0]), abs(x[1]))) : 0.0f;
    uint16_t scale[kLanes];
    store_f16(scale, set1(std::min(largest * (1.0f / 127.0f), 65504.0f)));
    const float step = half_to_float(scale[0]);
    const F32 inverse = set1(step > 0.0f ? 1.0f / step : 0.0f);
    for (int64_t i = 0; i < 2; ++i) {
        int32_t codes[kLanes] = {};
        if (finite) {
            store(codes, round_to_int(min(max(x[i] * inverse, set1(-127.0f)), set1(127.0f))));
        }
        for (int64_t j = 0; j < kLanes; ++j) {
            to[(i * kLanes + j) * stride] = static_cast<int8_t>(codes[j]);
        }
    }
    constexpr uint16_t kInfinity = 0x7C00;
    return finite ? scale[0] : kInfinity;
}

void append_q8(const KvAppendArgs& a) {
    const int64_t codes = a.head_dim * a.page_size, groups = a.head_dim / kPageGroup;
    const int64_t page_bytes = codes + 2 * groups * a.page_size;
    for (int64_t t = 0; t < a.tokens; ++t) {
        for (int64_t g = 0; g < a.kv_heads; ++g) {
            const int64_t from = (t * a.kv_heads + g) * a.head_dim, slot = a.offsets[t];
            const int64_t page = (a.pages[t] * a.kv_heads + g) * page_bytes;
            int8_t* const k = static_cast<int8_t*>(a.k_pages) + page;
            int8_t* const v = static_cast<int8_t*>(a.v_pages) + page;
            auto* const k_scales = reinterpret_cast<uint16_t*>(k + codes);
            auto* const v_scales = reinterpret_cast<uint16_t*>(v + codes);
            for (int64_t i = 0; i < groups; ++i) {
                const int64_t d = i * kPageGroup;
                k_scales[i * a.page_size + slot] =
                    to_codes(a.k + from + d, k + d * a.page_size + slot, a.page_size);
                v_scales[slot * groups + i] =
                    to_codes(a.v + from + d, v + slot * a.head_dim + d, 1);
            }
        }
    }
}

void to_float32(const float* from, float* to, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
}

}  // namespace

void kv_append(const KvAppendArgs& args) {
    switch (args.type) {
        case PageType::F32:
            return append<float>(args, to_float32);
        case PageType::F16:
            return append<uint16_t>(args, to_half);
        case PageType::Q8_0:
            return append_q8(args);
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
