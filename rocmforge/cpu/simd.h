// Sixteen-lane vectors on four instruction sets: AVX-512 VNNI, AVX-VNNI, AVX2 and portable C++.
//
// Every op file is compiled once per set, with ROCMFORGE_ISA naming the namespace; this header and
// the three that it chooses from are the only ones with intrinsics. A vector always has 16 float or
// int32 lanes (or 64 bytes), so that a packed tile of 16 output rows is one vector on every set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifndef ROCMFORGE_ISA
#error "ROCMFORGE_ISA must name the instruction set's namespace"
#endif

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kLanes = 16;

constexpr int log2_of(int x) {
    return x <= 1 ? 0 : 1 + log2_of(x / 2);
}

// Asks for `bytes` from p on, a hint: they may lie behind the end of what is mapped.
inline void prefetch(const uint8_t* p, int bytes) {
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(p + at);
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7FFFu;
    uint32_t bits;
    if (magnitude >= 0x7C00u) {
        bits = sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13);
    } else if (magnitude >= 0x400u) {
        bits = sign | ((magnitude << 13) + 0x38000000u);
    } else {
        const float f = static_cast<float>(magnitude) * 0x1p-24f;
        std::memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline float bfloat_to_float(uint16_t x) {
    const uint32_t bits = uint32_t{x} << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Two floats as bfloat16, rounded to nearest even, `low` in the lower half; a NaN stays one.
inline uint32_t bfloat_pair(float low, float high) {
    const auto rounded = [](float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        return x == x ? (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40u;
    };
    return rounded(low) | rounded(high) << 16;
}

}  // namespace rocmforge::ROCMFORGE_ISA

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define ROCMFORGE_VNNI  // vpdpbusd, which adds up four products of bytes
#endif

#if defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace rocmforge::ROCMFORGE_ISA {

// Whether many tokens' activations are biased in place of the weights.
constexpr bool kBiasedTokens = kByteBias != 0;
// Whether products of narrow codes are added up in 16 bits, for want of vpdpbusd.
#if defined(ROCMFORGE_VNNI)
constexpr bool kSumsOf16Bits = false;
#else
constexpr bool kSumsOf16Bits = true;
#endif

// Four bytes in every lane.
inline I32 broadcast4(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return set1(word);
}

#if defined(ROCMFORGE_VNNI)

// acc + the products of n vectors of codes below 128 with four activations each, which lie `stride`
// bytes apart.
template <int n>
inline __attribute__((always_inline)) I32 dot_narrow(I32 acc, const U8* w, const int8_t* x,
                                                     int64_t stride) {
#if defined(__AVX512VNNI__)
#pragma GCC unroll 8
    for (int q = 0; q < n; ++q) acc = dot4_narrow(acc, w[q], broadcast4(x + q * stride));
#else
    // In two sums, because each product waits for the one before.
    I32 odd = set1(int32_t{0});
#pragma GCC unroll 8
    for (int q = 0; q < n; q += 2) {
        acc = dot4_narrow(acc, w[q], broadcast4(x + q * stride));
        odd = dot4_narrow(odd, w[q + 1], broadcast4(x + (q + 1) * stride));
    }
    acc = acc + odd;
#endif
    return acc;
}

#else

// Calls f(0) to f(n - 1). Each number is a compile-time constant. In a loop, even an unrolled one,
// GCC 12 would keep the array of sums in memory.
template <int n, class Function>
inline __attribute__((always_inline)) void for_each_token(const Function& f) {
    [&]<int... t>(std::integer_sequence<int, t...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, t>{}), ...);
    }(std::make_integer_sequence<int, n>{});
}

// The products of n vectors of codes with four activations of each of some tokens, which lie side
// by side, vector by vector `stride` bytes apart. Codes are unsigned and counted from `middle`, a
// power of two or 0, so that the sums fit 16 bits, which the caller must know: they begin with what
// start_of made of the activations, and may leave 16 bits on the way.
template <int middle, int n, int tokens, class Codes>
inline __attribute__((always_inline)) void dot_narrow(I32* dot, Codes codes, const int8_t* x,
                                                      int64_t stride, const int32_t* start) {
    I16 sums[tokens];
    for_each_token<tokens>([&](auto t) __attribute__((always_inline)) {
        sums[t] = as_shorts(set1(middle ? start[t] : 0));
        if constexpr (middle > 1) sums[t] = shift_left<log2_of(middle)>(sums[t]);
    });
#pragma GCC unroll 8
    for (int q = 0; q < n; ++q) {
        const U8 four = codes[q];
        for_each_token<tokens>([&](auto t) __attribute__((always_inline)) {
            add_pairs(sums[t], four, broadcast4(x + q * stride + 4 * t));
        });
    }
    for_each_token<tokens>([&](auto t) __attribute__((always_inline)) { dot[t] = fours(sums[t]); });
}

// The same of codes in 16 bits, n vectors whose even and odd ones take turns, with activations of
// that form.
template <int n, int tokens, class Codes>
inline __attribute__((always_inline)) void dot_shorts(I32* dot, Codes codes, const int32_t* x,
                                                      int64_t stride) {
    I32 sums[tokens] = {};
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
        const I16 two = as_shorts(as_int(codes[i]));
        for_each_token<tokens>([&](auto t) __attribute__((always_inline)) {
            add_twos(sums[t], two, as_shorts(set1(x[i * stride + t])));
        });
    }
    for_each_token<tokens>([&](auto t) __attribute__((always_inline)) { dot[t] = sums[t]; });
}

// Of n words of four codes each, minus the sums of their first two and of their last two, in 16
// bits each.
template <int n>
I32 start_of(const U8* words) {
    const I16 none = as_shorts(set1(int32_t{0}));
    I16 sums = none;
    for (int q = 0; q < n; ++q) add_pairs(sums, set_bytes(1), as_int(words[q]));
    return as_int(none - sums);
}

#endif

// Elements of 16 and 8 bits, told apart by their types; load_element makes float32 of 16 of any
// type.
struct Half {
    uint16_t bits;
};
struct BFloat {
    uint16_t bits;
};
// E5M2, the higher byte of a half: sign, 5 bits of exponent, 2 of mantissa.
struct Float8 {
    uint8_t bits;
};
inline F32 load_element(const float* p) {
    return load(p);
}
inline F32 load_element(const Half* p) {
    return load_f16(&p->bits);
}
inline F32 load_element(const BFloat* p) {
    return load_bf16(&p->bits);
}
inline F32 load_element(const Float8* p) {
    return load_f8(&p->bits);
}

// Of each byte, the `width` bits that start at bit `from`, moved to bit `to`; all others zero.
template <int from, int to, int width>
U8 bit_field(U8 a) {
    const U8 mask = set_bytes(((1 << width) - 1) << to);
    if constexpr (from > to) {
        return as_bytes(shift_right<from - to>(as_int(a))) & mask;
    } else if constexpr (from < to) {
        return as_bytes(shift_left<to - from>(as_int(a))) & mask;
    } else {
        return a & mask;
    }
}

// e^x, relative error below 2e-7 for x in [-87, 88]; smaller x give a value below 1e-37.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7.
inline F32 exp(F32 x) {
    x = min(set1(88.3f), max(set1(-87.3f), x));  // this order keeps a NaN
    const I32 n = round_to_int(x * set1(1.44269504088896341f));
    const F32 nf = to_float(n);
    F32 r = fma(nf, set1(-0.693359375f), x);
    r = fma(nf, set1(2.12194440e-4f), r);
    F32 p = set1(1.0f / 5040);
    p = fma(p, r, set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return p * bits_to_float(shift_left<23>(n + set1(int32_t{127})));
}

}  // namespace rocmforge::ROCMFORGE_ISA
