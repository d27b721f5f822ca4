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

// Eight codes of a byte each and their scale.
struct ScaledBytes {
    u32x2 codes;
    f16 scale;

    // `pairs` as float, times the scale.
    DEVICE void scaled(const uint32_t (&pairs)[4], float (&to)[8]) const {
        const float by = to_float(scale);
        UNROLL
        for (int i = 0; i < 4; ++i) {
            to[2 * i] = by * low_half(pairs[i]);
            to[2 * i + 1] = by * high_half(pairs[i]);
        }
    }
    // The same as f16.
    DEVICE u32x4 scaled(const uint32_t (&pairs)[4]) const {
        const uint32_t by = scale.bits * 0x10001u;
        return {multiply_halves(pairs[0], by), multiply_halves(pairs[1], by),
                multiply_halves(pairs[2], by), multiply_halves(pairs[3], by)};
    }
};

struct Q8Pages {
    using Eight = ScaledBytes;
    static DEVICE Eight load_eight(const void* pages, const void* scales, u64 row, int dims,
                                   int dim) {
        const u64 at = row * dims + dim;
        return {load<u32x2>(static_cast<const int8_t*>(pages) + at),
                static_cast<const f16*>(scales)[at / 32]};
    }
    static DEVICE void widen(const Eight& from, float (&to)[8]) { from.scaled(Pairs(from).of, to); }
    static DEVICE u32x4 halves(const Eight& from) { return from.scaled(Pairs(from).of); }

  private:
    // The codes as f16. A code + 128 is a byte without a sign, and 1,152 = 1,024 + 128.
    struct Pairs {
        uint32_t of[4];
        DEVICE explicit Pairs(const Eight& from) {
            const uint32_t low = from.codes.x ^ 0x80808080u, high = from.codes.y ^ 0x80808080u;
            const uint32_t zero = pack_halves(-1152.0f, -1152.0f);
            of[0] = add_halves(bytes_above_1024<0>(low), zero);
            of[1] = add_halves(bytes_above_1024<1>(low), zero);
            of[2] = add_halves(bytes_above_1024<0>(high), zero);
            of[3] = add_halves(bytes_above_1024<1>(high), zero);
        }
    };
};

// E4M3 has a sign, 4 bits of exponent and 3 of mantissa. Put where an f16 has these, a code is
// 2^-8 of its number, also where that is subnormal. Scales are those of the f16.
struct Fp8Pages {
    using Eight = ScaledBytes;
    static DEVICE Eight load_eight(const void* pages, const void* scales, u64 row, int dims,
                                   int dim) {
        return {load<u32x2>(static_cast<const uint8_t*>(pages) + row * dims + dim),
                static_cast<const f16*>(scales)[row]};
    }
    static DEVICE void widen(const Eight& from, float (&to)[8]) { from.scaled(Pairs(from).of, to); }
    static DEVICE u32x4 halves(const Eight& from) { return from.scaled(Pairs(from).of); }

  private:
    struct Pairs {
        uint32_t of[4];
        DEVICE explicit Pairs(const Eight& from) {
            of[0] = as_halves(bytes_on_top<0>(from.codes.x));
            of[1] = as_halves(bytes_on_top<1>(from.codes.x));
            of[2] = as_halves(bytes_on_top<0>(from.codes.y));
            of[3] = as_halves(bytes_on_top<1>(from.codes.y));
        }
        static DEVICE uint32_t as_halves(uint32_t codes) {
            return (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
        }
    };
};
