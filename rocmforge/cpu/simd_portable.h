// simd.h on the vectors of 16 bytes that GCC and Clang know on every processor (SSE2, NEON).
// Included by simd.h alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kByteBias = 0;

using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using Shorts = int16_t __attribute__((vector_size(16)));
using UnsignedShorts = uint16_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(16)));
constexpr int kParts = 4;

struct F32 {
    Floats v[kParts];
};
struct I32 {
    Ints v[kParts];
};
struct U8 {
    Bytes v[kParts];
};

// The vector whose part i is f(i).
template <class Vector, class Function>
inline Vector each(Function f) {
    Vector r;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) r.v[i] = f(i);
    return r;
}
// The bits of `a` as another type of the same size.
template <class To, class From>
inline To as(const From& a) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}
inline Floats choose(Ints condition, Floats yes, Floats no) {
    return as<Floats>((condition & as<Ints>(yes)) | (~condition & as<Ints>(no)));
}

inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7E00u;
    if (magnitude >= 0x47800000u) return sign | 0x7C00u;
    if (magnitude < 0x38800000u) {
        float a;
        std::memcpy(&a, &magnitude, 4);
        return sign | static_cast<uint16_t>(std::nearbyint(a * 0x1p24f));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xFFFu + odd) >> 13);
}

inline F32 load(const float* p) {
    F32 r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void store(float* p, F32 a) {
    std::memcpy(p, &a, sizeof a);
}
inline F32 set1(float x) {
    return each<F32>([&](int) { return Floats{x, x, x, x}; });
}
inline F32 operator+(F32 a, F32 b) {
    return each<F32>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32 operator-(F32 a, F32 b) {
    return each<F32>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32 operator*(F32 a, F32 b) {
    return each<F32>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32 operator/(F32 a, F32 b) {
    return each<F32>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return each<F32>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F32 max(F32 a, F32 b) {
    return each<F32>([&](int i) { return choose(a.v[i] > b.v[i], a.v[i], b.v[i]); });
}
inline F32 min(F32 a, F32 b) {
    return each<F32>([&](int i) { return choose(a.v[i] < b.v[i], a.v[i], b.v[i]); });
}
inline F32 abs(F32 a) {
    return each<F32>([&](int i) { return as<Floats>(as<Ints>(a.v[i]) & 0x7FFFFFFF); });
}
inline float sum(F32 a) {
    const Floats s = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
    return (s[0] + s[1]) + (s[2] + s[3]);
}
inline float max_lane(F32 a) {
    float lanes[kLanes];
    store(lanes, a);
    float m = lanes[0];
    for (float x : lanes) m = x > m ? x : m;
    return m;
}
// Of each four neighbouring lanes, their sum or largest, in all four.
inline F32 sum4(F32 a) {
    return each<F32>([&](int i) {
        const float total = (a.v[i][0] + a.v[i][1]) + (a.v[i][2] + a.v[i][3]);
        return Floats{total, total, total, total};
    });
}
inline F32 max4(F32 a) {
    return each<F32>([&](int i) {
        const Floats v = a.v[i];
        const float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
        const float top = low > high ? low : high;
        return Floats{top, top, top, top};
    });
}
// Of each lane, x where a > b (false where either is a NaN), else y.
inline F32 where_greater(F32 a, F32 b, F32 x, F32 y) {
    return each<F32>([&](int i) { return choose(a.v[i] > b.v[i], x.v[i], y.v[i]); });
}
inline void store_f16(uint16_t* p, F32 a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(lanes[i]);
}

inline I32 set1(int32_t x) {
    return each<I32>([&](int) { return Ints{x, x, x, x}; });
}
// Sixteen numbers as int32; `Four` is the type of four of them.
template <class Four>
inline I32 widened(const void* p) {
    return each<I32>([&](int i) {
        Four part;
        std::memcpy(&part, static_cast<const uint8_t*>(p) + i * sizeof part, sizeof part);
        return __builtin_convertvector(part, Ints);
    });
}
inline I32 load_u8(const uint8_t* p) {
    return widened<uint8_t __attribute__((vector_size(4)))>(p);
}
inline I32 load_i8(const uint8_t* p) {
    return widened<int8_t __attribute__((vector_size(4)))>(p);
}
inline I32 load_u16(const uint16_t* p) {
    return widened<uint16_t __attribute__((vector_size(8)))>(p);
}
inline void store(int32_t* p, I32 a) {
    std::memcpy(p, &a, sizeof a);
}
inline I32 operator+(I32 a, I32 b) {
    return each<I32>([&](int i) { return a.v[i] + b.v[i]; });
}
inline I32 operator-(I32 a, I32 b) {
    return each<I32>([&](int i) { return a.v[i] - b.v[i]; });
}
inline I32 operator&(I32 a, I32 b) {
    return each<I32>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int n>
I32 shift_left(I32 a) {
    return each<I32>([&](int i) { return as<Ints>(as<Words>(a.v[i]) << n); });
}
template <int n>
I32 shift_right(I32 a) {
    return each<I32>([&](int i) { return as<Ints>(as<Words>(a.v[i]) >> n); });
}
template <int n>
I32 shift_right_signed(I32 a) {
    return each<I32>([&](int i) { return a.v[i] >> n; });
}
inline int32_t sum(I32 a) {
    const Ints s = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
    return s[0] + s[1] + s[2] + s[3];
}
inline F32 to_float(I32 a) {
    return each<F32>([&](int i) { return __builtin_convertvector(a.v[i], Floats); });
}
// For numbers below 2^22 in size: added to 1.5 * 2^23, they are rounded to the last bits of it. A
// NaN has no integer; what stands for it is not used.
inline I32 round_to_int(F32 a) {
    const Floats magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
    return each<I32>([&](int i) { return as<Ints>(a.v[i] + magic) - as<Ints>(magic); });
}
inline F32 bits_to_float(I32 a) {
    return as<F32>(a);
}
// Halves below 2^-14 are multiples of 2^-24; infinities and NaN keep the largest exponent.
inline F32 load_f16(const uint16_t* p) {
    const I32 wide = load_u16(p);
    return each<F32>([&](int i) {
        const Ints magnitude = wide.v[i] & 0x7FFF, sign = (wide.v[i] & 0x8000) << 16;
        const Floats small = __builtin_convertvector(magnitude, Floats) * 0x1p-24f;
        const Ints exponent = (magnitude > 0x7BFF) & 0x38000000;
        const Floats normal = as<Floats>((magnitude << 13) + 0x38000000 + exponent);
        return as<Floats>(as<Ints>(choose(magnitude < 0x400, small, normal)) | sign);
    });
}
inline F32 load_bf16(const uint16_t* p) {
    return bits_to_float(shift_left<16>(load_u16(p)));
}

// Not for what is below 2^-14 or not finite.
inline F32 load_f8(const uint8_t* p) {
    const I32 word = shift_right_signed<3>(shift_left<24>(load_u8(p)));
    return bits_to_float(word & set1(-0x70000001)) * set1(0x1p112f);  // the sign stood four times
}

inline U8 load_bytes(const uint8_t* p) {
    U8 r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void store_bytes(uint8_t* p, U8 a) {
    std::memcpy(p, &a, sizeof a);
}
inline U8 operator&(U8 a, U8 b) {
    return each<U8>([&](int i) { return a.v[i] & b.v[i]; });
}
inline U8 operator|(U8 a, U8 b) {
    return each<U8>([&](int i) { return a.v[i] | b.v[i]; });
}
inline U8 operator+(U8 a, U8 b) {
    return each<U8>([&](int i) { return a.v[i] + b.v[i]; });
}
inline U8 set_bytes(int x) {
    uint8_t bytes[64];
    std::memset(bytes, x, sizeof bytes);
    return load_bytes(bytes);
}
inline U8 lookup16(const int8_t* table, U8 index) {
    uint8_t bytes[64];
    store_bytes(bytes, index);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table[byte & 15]);
    return load_bytes(bytes);
}
inline I32 as_int(U8 a) {
    return as<I32>(a);
}
inline U8 as_bytes(I32 a) {
    return as<U8>(a);
}

// Lane i of m[j] becomes lane j of m[i].
inline void transpose(F32 (&m)[kLanes]) {
    float memory[kLanes][kLanes], turned[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) store(memory[i], m[i]);
    for (int i = 0; i < kLanes; ++i) {
        for (int j = 0; j < kLanes; ++j) turned[i][j] = memory[j][i];
    }
    for (int i = 0; i < kLanes; ++i) m[i] = load(turned[i]);
}

struct I16 {
    Shorts v[kParts];
};
inline I16 as_shorts(I32 a) {
    return as<I16>(a);
}
inline I32 as_int(I16 a) {
    return as<I32>(a);
}
inline I16 operator-(I16 a, I16 b) {
    return each<I16>(
        [&](int i) { return as<Shorts>(as<UnsignedShorts>(a.v[i]) - as<UnsignedShorts>(b.v[i])); });
}
template <int n>
I16 shift_left(I16 a) {
    return each<I16>([&](int i) { return as<Shorts>(as<UnsignedShorts>(a.v[i]) << n); });
}
// sums += products of codes below 128 and signed bytes, of which each two neighbours are added.
inline void add_pairs(I16& sums, U8 w, I32 x) {
    sums = each<I16>([&](int i) {
        const Shorts codes = as<Shorts>(w.v[i]), own = as<Shorts>(x.v[i]);
        const Shorts products = (codes & 255) * ((own << 8) >> 8) + (codes >> 8) * (own >> 8);
        return as<Shorts>(as<UnsignedShorts>(sums.v[i]) + as<UnsignedShorts>(products));
    });
}
// The same of signed bytes: at most 2 * 128 * 127, still an int16.
inline I16 signed_pairs(U8 w, I32 x) {
    return each<I16>([&](int i) {
        const Shorts codes = as<Shorts>(w.v[i]), own = as<Shorts>(x.v[i]);
        return ((codes << 8) >> 8) * ((own << 8) >> 8) + (codes >> 8) * (own >> 8);
    });
}
// Each two neighbours added.
inline I32 fours(I16 a) {
    return each<I32>([&](int i) {
        const Ints both = as<Ints>(a.v[i]);
        return ((both << 16) >> 16) + (both >> 16);
    });
}
inline I32 dot4_wide(I32 acc, U8 w, I32 x) {
    return acc + fours(signed_pairs(w, x));
}
// The even and the odd bytes, made 16 bits wide with their signs.
inline I16 even_bytes(U8 a) {
    return each<I16>([&](int i) { return (as<Shorts>(a.v[i]) << 8) >> 8; });
}
inline I16 odd_bytes(U8 a) {
    return each<I16>([&](int i) { return as<Shorts>(a.v[i]) >> 8; });
}
// acc += the two products of each lane, of numbers of 8 bits.
inline void add_twos(I32& acc, I16 w, I16 x) {
    acc = acc + fours(each<I16>([&](int i) { return w.v[i] * x.v[i]; }));
}

}  // namespace rocmforge::ROCMFORGE_ISA
