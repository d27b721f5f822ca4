// simd.h on plain C++: arrays and loops, which the compiler vectorizes as it can. Included by
// simd.h alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kByteBias = 0;

struct F32 {
    float v[16];
};
struct I32 {
    int32_t v[16];
};
struct U8 {
    uint8_t v[64];
};

template <class Vector, class Function>
Vector each(Function f) {
    Vector r;
    constexpr int n = sizeof(r.v) / sizeof(r.v[0]);
    for (int i = 0; i < n; ++i) r.v[i] = f(i);
    return r;
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
    return each<F32>([&](int i) { return p[i]; });
}
inline void store(float* p, F32 a) {
    std::memcpy(p, a.v, sizeof a.v);
}
inline F32 set1(float x) {
    return each<F32>([&](int) { return x; });
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
    return each<F32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 min(F32 a, F32 b) {
    return each<F32>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 abs(F32 a) {
    return each<F32>([&](int i) { return std::fabs(a.v[i]); });
}
inline float sum(F32 a) {
    float s = 0;
    for (float x : a.v) s += x;
    return s;
}
inline float max_lane(F32 a) {
    float m = a.v[0];
    for (float x : a.v) m = x > m ? x : m;
    return m;
}
inline F32 load_f16(const uint16_t* p) {
    return each<F32>([&](int i) { return half_to_float(p[i]); });
}
// Of each lane, x where a > b (false where either is a NaN), else y.
inline F32 where_greater(F32 a, F32 b, F32 x, F32 y) {
    return each<F32>([&](int i) { return a.v[i] > b.v[i] ? x.v[i] : y.v[i]; });
}
inline void store_f16(uint16_t* p, F32 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
}

inline I32 set1(int32_t x) {
    return each<I32>([&](int) { return x; });
}
inline I32 load_u8(const uint8_t* p) {
    return each<I32>([&](int i) { return static_cast<int32_t>(p[i]); });
}
inline I32 load_i8(const uint8_t* p) {
    return each<I32>([&](int i) { return static_cast<int32_t>(static_cast<int8_t>(p[i])); });
}
inline void store(int32_t* p, I32 a) {
    std::memcpy(p, a.v, sizeof a.v);
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
    return each<I32>(
        [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n); });
}
template <int n>
I32 shift_right(I32 a) {
    return each<I32>(
        [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n); });
}
template <int n>
I32 shift_right_signed(I32 a) {
    return each<I32>([&](int i) { return a.v[i] >> n; });
}
inline int32_t sum(I32 a) {
    int32_t s = 0;
    for (int32_t x : a.v) s += x;
    return s;
}
inline F32 to_float(I32 a) {
    return each<F32>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I32 round_to_int(F32 a) {
    // A NaN has no integer; what stands for it is not used.
    return each<I32>([&](int i) {
        return std::isnan(a.v[i]) ? 0 : static_cast<int32_t>(std::nearbyint(a.v[i]));
    });
}
inline F32 bits_to_float(I32 a) {
    F32 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
inline F32 load_bf16(const uint16_t* p) {
    return bits_to_float(
        each<I32>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16); }));
}

inline U8 load_bytes(const uint8_t* p) {
    U8 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void store_bytes(uint8_t* p, U8 a) {
    std::memcpy(p, a.v, sizeof a.v);
}
inline U8 operator&(U8 a, U8 b) {
    return each<U8>([&](int i) { return static_cast<uint8_t>(a.v[i] & b.v[i]); });
}
inline U8 operator|(U8 a, U8 b) {
    return each<U8>([&](int i) { return static_cast<uint8_t>(a.v[i] | b.v[i]); });
}
inline U8 operator+(U8 a, U8 b) {
    return each<U8>([&](int i) { return static_cast<uint8_t>(a.v[i] + b.v[i]); });
}
inline U8 set_bytes(int x) {
    return each<U8>([&](int) { return static_cast<uint8_t>(x); });
}
inline U8 lookup16(const int8_t* table, U8 index) {
    return each<U8>([&](int i) { return static_cast<uint8_t>(table[index.v[i] & 15]); });
}
inline I32 as_int(U8 a) {
    I32 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
inline U8 as_bytes(I32 a) {
    U8 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}

inline I32 dot4_wide(I32 acc, U8 w, I32 x) {
    int8_t xs[64];
    std::memcpy(xs, x.v, sizeof xs);
    return each<I32>([&](int i) {
        int32_t s = acc.v[i];
        for (int b = 0; b < 4; ++b) s += static_cast<int8_t>(w.v[4 * i + b]) * xs[4 * i + b];
        return s;
    });
}
inline I32 dot4_narrow(I32 acc, U8 w, I32 x) {
    return dot4_wide(acc, w, x);
}

}  // namespace rocmforge::ROCMFORGE_ISA
