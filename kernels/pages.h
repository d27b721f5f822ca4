// Keys and values in the pages of the KV cache, as f16, Q8_0, FP8 or float, and how they are read.
//
//   pages   (pages, G, P, D) f16, int8 codes of Q8_0, E4M3 codes of FP8, or float; D fastest,
//           aligned to 16
//   scales  f16: (pages, G, P, D / 32) for Q8_0, (pages, G, P) for FP8
// G KV heads, P tokens of a page, D dims: a multiple of 8, and of 32 for Q8_0.
//
// A row is the D numbers of one token and KV head; its number is (page * G + g) * P + slot.
#pragma once

#include "halves.h"

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

// Eight codes of a byte each and their scale. Codes::pair<k>(word) gives codes 2k and 2k + 1 of a
// word as f16, to be multiplied by the scale.
template <class Codes>
struct BytePages {
    struct Eight {
        u32x2 codes;
        f16 scale;
    };
    static DEVICE void widen(const Eight& from, float (&to)[8]) {
        const u32x4 codes = pairs(from);
        F16Pages::widen(codes, to);
        const float scale = to_float(from.scale);
        UNROLL
        for (int i = 0; i < 8; ++i) to[i] *= scale;
    }
    static DEVICE u32x4 halves(const Eight& from) {
        const u32x4 codes = pairs(from);
        const uint32_t scale = from.scale.bits * 0x10001u;
        return {multiply_halves(codes.x, scale), multiply_halves(codes.y, scale),
                multiply_halves(codes.z, scale), multiply_halves(codes.w, scale)};
    }

  private:
    static DEVICE u32x4 pairs(const Eight& from) {
        return {Codes::template pair<0>(from.codes.x), Codes::template pair<1>(from.codes.x),
                Codes::template pair<0>(from.codes.y), Codes::template pair<1>(from.codes.y)};
    }
};

struct Q8Pages : BytePages<Q8Pages> {
    static DEVICE Eight load_eight(const void* pages, const void* scales, u64 row, int dims,
                                   int dim) {
        const u64 at = row * dims + dim;
        return {load<u32x2>(static_cast<const int8_t*>(pages) + at),
                static_cast<const f16*>(scales)[at / 32]};
    }
    // A code + 128 is a byte without a sign, and 1,152 = 1,024 + 128.
    template <int kPair>
    static DEVICE uint32_t pair(uint32_t word) {
        return add_halves(bytes_above_1024<kPair>(word ^ 0x80808080u),
                          pack_halves(-1152.0f, -1152.0f));
    }
};

// E4M3 has a sign, 4 bits of exponent and 3 of mantissa. Put where an f16 has these, a code is
// 2^-8 of its number, also where that is subnormal. Scales are those of the f16.
struct Fp8Pages : BytePages<Fp8Pages> {
    static DEVICE Eight load_eight(const void* pages, const void* scales, u64 row, int dims,
                                   int dim) {
        return {load<u32x2>(static_cast<const uint8_t*>(pages) + row * dims + dim),
                static_cast<const f16*>(scales)[row]};
    }
    template <int kPair>
    static DEVICE uint32_t pair(uint32_t word) {
        const uint32_t codes = bytes_on_top<kPair>(word);
        return (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
    }
};
