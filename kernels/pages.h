// Keys and values in the pages of the KV cache, as f16, Q8_0 or float, and how they are read.
//
//   pages   (pages, G, P, D) f16, int8 codes of Q8_0, or float; D fastest, aligned to 16
//   scales  (pages, G, P, D / 32) f16, for Q8_0 only
// G KV heads, P tokens of a page, D dims: a multiple of 8, and of 32 for Q8_0.
//
// A row is the D numbers of one token and KV head; its number is (page * G + g) * P + slot.
#pragma once

#include "device.h"

DEVICE u32x4 pack_eight(const float (&x)[8]) {
    return {pack_halves(x[0], x[1]), pack_halves(x[2], x[3]), pack_halves(x[4], x[5]),
            pack_halves(x[6], x[7])};
}

// Each type below has
//   Eight: eight neighbouring numbers of a row, as they lie in memory;
//   load_eight: loads them;
//   widen: gives them as float;
//   halves: gives them as f16.

struct F16Pages {
    using Eight = u32x4;
    static DEVICE Eight load_eight(const void* pages, const void*, u64 row, int dims, int dim) {
        return load<u32x4>(static_cast<const f16*>(pages) + row * dims + dim);
    }
    static DEVICE void widen(const Eight& from, float (&to)[8]) {
        const uint32_t words[4] = {from.x, from.y, from.z, from.w};
        UNROLL
        for (int i = 0; i < 4; ++i) {
            to[2 * i] = low_half(words[i]);
            to[2 * i + 1] = high_half(words[i]);
        }
    }
    static DEVICE u32x4 halves(const Eight& from) { return from; }
};

struct F32Pages {
    struct Eight {
        u32x4 low, high;
    };
    static DEVICE Eight load_eight(const void* pages, const void*, u64 row, int dims, int dim) {
        const float* at = static_cast<const float*>(pages) + row * dims + dim;
        return {load<u32x4>(at), load<u32x4>(at + 4)};
    }
    static DEVICE void widen(const Eight& from, float (&to)[8]) {
        const uint32_t words[8] = {from.low.x,  from.low.y,  from.low.z,  from.low.w,
                                   from.high.x, from.high.y, from.high.z, from.high.w};
        UNROLL
        for (int i = 0; i < 8; ++i) to[i] = bit_cast<float>(words[i]);
    }
    static DEVICE u32x4 halves(const Eight& from) {
        float wide[8];
        widen(from, wide);
        return pack_eight(wide);
    }
};

struct Q8Pages {
    struct Eight {
        u32x2 codes;
        f16 scale;
    };
    static DEVICE Eight load_eight(const void* pages, const void* scales, u64 row, int dims,
                                   int dim) {
        const u64 at = row * dims + dim;
        return {load<u32x2>(static_cast<const int8_t*>(pages) + at),
                static_cast<const f16*>(scales)[at / 32]};
    }
    static DEVICE void widen(const Eight& from, float (&to)[8]) {
        const float scale = to_float(from.scale);
        UNROLL
        for (int i = 0; i < 4; ++i) {
            to[i] = scale * static_cast<float>(static_cast<int8_t>(from.codes.x >> (8 * i)));
            to[i + 4] = scale * static_cast<float>(static_cast<int8_t>(from.codes.y >> (8 * i)));
        }
    }
    static DEVICE u32x4 halves(const Eight& from) {
        float wide[8];
        widen(from, wide);
        return pack_eight(wide);
    }
};
