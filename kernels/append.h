// How rows of keys and values are written into the pages of the KV cache. pages.h states the layout
// of the pages, heads.h how lanes share a head.
#pragma once

#include "heads.h"
#include "pages.h"

// store_row writes VECTOR neighbouring dims of a row, from number `at` of the pages on; there is
// one for each dtype of the pages. All lanes of the wave must call it; those with `valid` false
// write nothing.

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

// Q8_0: the scale is the largest |x| of 32 dims / 127, rounded to f16; a code is x / scale,
// rounded. If x holds NaN or an infinity, the scale is not finite, and so the whole group reads as
// NaN.
DEVICE void store_row(Q8Pages, void* pages, void* scales, u64 at, const float (&x)[VECTOR],
                      bool valid) {
    const f16 scale = to_f16(clamp_to_f16(largest_size<kGroup / VECTOR>(x) * (1.0f / 127.0f)));
    const float step = to_float(scale);
    const bool usable = step > 0.0f && step < infinity();
    const float inverse = usable ? 1.0f / step : 0.0f;
    int codes[VECTOR];
    UNROLL
    for (int j = 0; j < VECTOR; ++j) {
        const float code = usable ? round_even(x[j] * inverse) : 0.0f;
        codes[j] = static_cast<int>(minimum(maximum(code, -127.0f), 127.0f));
    }
    if (!valid) return;
    int8_t* to = static_cast<int8_t*>(pages) + at;
    if constexpr (VECTOR == 4) {
        *reinterpret_cast<uint32_t*>(to) =
            pack_codes(codes[0], codes[1 % VECTOR], codes[2 % VECTOR], codes[3 % VECTOR]);
    } else {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) to[j] = static_cast<int8_t>(codes[j]);
    }
    if (at % kGroup == 0) static_cast<f16*>(scales)[at / kGroup] = scale;
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
