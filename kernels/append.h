// How rows of keys and values are written into the pages of the KV cache. pages.h states the layout
// of the pages, heads.h how lanes share a head.
#pragma once

#include "heads.h"
#include "pages.h"

// store_row writes VECTOR neighbouring dims of a row, from number `at` of the pages on; there is
// one for each dtype of the pages but FP8. All lanes of the wave must call it; those with `valid`
// false write nothing.

DEVICE void store_row(F16Pages, void* pages, void*, u64 at, const float (&x)[VECTOR], bool valid) {
    if (!valid) return;
    f16* to = static_cast<f16*>(pages) + at;
    if constexpr (VECTOR == 4) {
        *reinterpret_cast<u32x2*>(to) = {pack_halves(x[0], x[1 % VECTOR]),
                                         pack_halves(x[2 % VECTOR], x[3 % VECTOR])};
    } else {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) to[j] = to_f16(x[j]);
    }
}

DEVICE void store_row(F32Pages, void* pages, void*, u64 at, const float (&x)[VECTOR], bool valid) {
    if (valid) store_floats(static_cast<float*>(pages) + at, x);
}

// Writes VECTOR codes of a byte each.
DEVICE void store_codes(int8_t* to, const int (&codes)[VECTOR]) {
    if constexpr (VECTOR == 4) {
        *reinterpret_cast<uint32_t*>(to) =
            pack_codes(codes[0], codes[1 % VECTOR], codes[2 % VECTOR], codes[3 % VECTOR]);
    } else {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) to[j] = static_cast<int8_t>(codes[j]);
    }
}

// A scale as f16, at most `most`, with which the largest code is still a finite f16: larger numbers
// are cut to that. An infinity and NaN stay.
DEVICE f16 finite_scale(float scale, float most) {
    return to_f16(scale < infinity() ? minimum(scale, most) : scale);
}
// What numbers are multiplied by to become codes; 0, where all codes are to be 0, of a scale that
// is 0 or not finite.
DEVICE float inverse_scale(f16 scale) {
    const float step = to_float(scale);
    return step > 0.0f && step < infinity() ? 1.0f / step : 0.0f;
}

// Q8_0: the scale is the largest |x| of 32 dims / 127, rounded to f16; a code is x / scale,
// rounded. If x holds NaN or an infinity, the scale is not finite, and so the whole group reads as
// NaN.
DEVICE void store_row(Q8Pages, void* pages, void* scales, u64 at, const float (&x)[VECTOR],
                      bool valid) {
    const f16 scale = finite_scale(largest_size<kGroup / VECTOR>(x) * (1.0f / 127.0f), 515.5f);
    const float inverse = inverse_scale(scale);
    int codes[VECTOR];
    UNROLL
    for (int j = 0; j < VECTOR; ++j) {
        const float code = inverse > 0.0f ? round_even(x[j] * inverse) : 0.0f;
        codes[j] = static_cast<int>(minimum(maximum(code, -127.0f), 127.0f));
    }
    if (!valid) return;
    store_codes(static_cast<int8_t*>(pages) + at, codes);
    if (at % kGroup == 0) static_cast<f16*>(scales)[at / kGroup] = scale;
}

// The E4M3 code that is nearest to 2^8 * x, half to even; at most 448 = 2^8 * 1.75.
DEVICE int e4m3_code(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x), size = bits & 0x7fffffffu;
    int code;
    if (size < bit_cast<uint32_t>(0x1p-14f)) {  // subnormal, in steps of 2^-17
        code = static_cast<int>(round_even(bit_cast<float>(size) * 0x1p17f));
    } else {
        code = static_cast<int>((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - ((127 - 15) << 3);
    }
    return minimum(code, 0x7e) | static_cast<int>(bits >> 31) << 7;
}

// Writes a lane's part of a head to row `row` of the pages. All lanes of the wave must call.
template <class Pages>
DEVICE void append_head(void* pages, void* scales, u64 row, int dims, const Head& x, bool valid) {
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        store_row(Pages{}, pages, scales, row * dims + head_dim(i), x[i],
                  valid && head_dim(i) < dims);
    }
}

// FP8: the scale is the largest |x| of the head / 1.75, rounded to f16. If x holds NaN or an
// infinity, the whole head reads as NaN.
template <>
DEVICE void append_head<Fp8Pages>(void* pages, void* scales, u64 row, int dims, const Head& x,
                                  bool valid) {
    float all[ITEMS * VECTOR];
    UNROLL
    for (int i = 0; i < ITEMS * VECTOR; ++i) all[i] = x[i / VECTOR][i % VECTOR];
    const f16 scale = finite_scale(largest_size<SPAN>(all) * (1.0f / 1.75f), 37408.0f);
    const float inverse = inverse_scale(scale);
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        int codes[VECTOR];
        UNROLL
        for (int j = 0; j < VECTOR; ++j)
            codes[j] = inverse > 0.0f ? e4m3_code(x[i][j] * inverse) : 0;
        if (!valid || head_dim(i) >= dims) continue;
        store_codes(static_cast<int8_t*>(pages) + row * dims + head_dim(i), codes);
        if (head_dim(i) == 0) static_cast<f16*>(scales)[row] = scale;
    }
}
