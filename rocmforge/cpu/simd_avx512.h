// simd.h on AVX-512 with VNNI: one 512-bit register a vector. Included by simd.h alone.
//
// What each function means is the same on every set; simd.h says what a vector is.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace rocmforge::ROCMFORGE_ISA {

// vpdpbusd multiplies unsigned by signed bytes. Straight from the codes, signed ones are biased by
// 128, and the sum starts at -128 * sum(activations). For many tokens the activations are biased,
// and it starts at -128 * sum(weights), which the tokens share.
constexpr int kByteBias = 128;

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};
struct U8 {
    __m512i v;
};

inline F32 load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32 a) {
    _mm512_storeu_ps(p, a.v);
}
inline F32 set1(float x) {
    return {_mm512_set1_ps(x)};
}
inline F32 operator+(F32 a, F32 b) {
    return {_mm512_add_ps(a.v, b.v)};
}
inline F32 operator-(F32 a, F32 b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline F32 operator*(F32 a, F32 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline F32 operator/(F32 a, F32 b) {
    return {_mm512_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
    return {_mm512_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
    return {_mm512_min_ps(a.v, b.v)};
}
inline F32 abs(F32 a) {
    return {_mm512_abs_ps(a.v)};
}
inline float sum(F32 a) {
    return _mm512_reduce_add_ps(a.v);
}
inline float max_lane(F32 a) {
    return _mm512_reduce_max_ps(a.v);
}
// Of each four neighbouring lanes, their sum or largest, in all four.
inline F32 sum4(F32 a) {
    const __m512 pairs = _mm512_add_ps(a.v, _mm512_permute_ps(a.v, 0xB1));
    return {_mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4E))};
}
inline F32 max4(F32 a) {
    const __m512 pairs = _mm512_max_ps(a.v, _mm512_permute_ps(a.v, 0xB1));
    return {_mm512_max_ps(pairs, _mm512_permute_ps(pairs, 0x4E))};
}
// Of each lane, x where a > b (false where either is a NaN), else y.
inline F32 where_greater(F32 a, F32 b, F32 x, F32 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
// Lane i of m[j] becomes lane j of m[i].
inline void transpose(F32 (&m)[16]) {
    __m512 a[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(m[i].v, m[i + 1].v);
        a[i + 1] = _mm512_unpackhi_ps(m[i].v, m[i + 1].v);
    }
    __m512 b[16];  // b[i + j]: column 4k + j of rows i.., in its part of 128 bits k
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
        b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512 low = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88);  // parts 0 and 2
        const __m512 high = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xDD);
        const __m512 low2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
        const __m512 high2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xDD);
        m[j].v = _mm512_shuffle_f32x4(low, low2, 0x88);
        m[j + 4].v = _mm512_shuffle_f32x4(high, high2, 0x88);
        m[j + 8].v = _mm512_shuffle_f32x4(low, low2, 0xDD);
        m[j + 12].v = _mm512_shuffle_f32x4(high, high2, 0xDD);
    }
}
inline F32 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 load_bf16(const uint16_t* p) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

inline F32 load_f8(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(wide, 8))};
}

inline I32 set1(int32_t x) {
    return {_mm512_set1_epi32(x)};
}
inline I32 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline I32 load_i8(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline I32 load(const int32_t* p) {
    return {_mm512_loadu_si512(p)};
}
inline void store(int32_t* p, I32 a) {
    _mm512_storeu_si512(p, a.v);
}
inline I32 operator+(I32 a, I32 b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
inline I32 operator-(I32 a, I32 b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
inline I32 operator&(I32 a, I32 b) {
    return {_mm512_and_si512(a.v, b.v)};
}
template <int n>
I32 shift_left(I32 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
I32 shift_right(I32 a) {
    return {_mm512_srli_epi32(a.v, n)};
}
template <int n>
I32 shift_right_signed(I32 a) {
    return {_mm512_srai_epi32(a.v, n)};
}
inline int32_t sum(I32 a) {
    return _mm512_reduce_add_epi32(a.v);
}
inline F32 to_float(I32 a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
inline I32 round_to_int(F32 a) {
    return {_mm512_cvtps_epi32(a.v)};
}
inline F32 bits_to_float(I32 a) {
    return {_mm512_castsi512_ps(a.v)};
}

inline U8 load_bytes(const uint8_t* p) {
    return {_mm512_loadu_si512(p)};
}
inline void store_bytes(uint8_t* p, U8 a) {
    _mm512_storeu_si512(p, a.v);
}
inline U8 operator&(U8 a, U8 b) {
    return {_mm512_and_si512(a.v, b.v)};
}
inline U8 operator|(U8 a, U8 b) {
    return {_mm512_or_si512(a.v, b.v)};
}
inline U8 operator+(U8 a, U8 b) {
    return {_mm512_add_epi8(a.v, b.v)};
}
inline U8 set_bytes(int x) {
    return {_mm512_set1_epi8(static_cast<char>(x))};
}
inline U8 lookup16(const int8_t* table, U8 index) {
    const __m512i lut =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm512_shuffle_epi8(lut, index.v)};
}
inline I32 as_int(U8 a) {
    return {a.v};
}
inline U8 as_bytes(I32 a) {
    return {a.v};
}

// acc + sum over the 4 bytes of each lane of w * x. Narrow: w in 0..127. Wide: w, or what stands in
// its place, is biased.
inline I32 dot4_narrow(I32 acc, U8 w, I32 x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
}
inline I32 dot4_wide(I32 acc, U8 w, I32 x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
}

#if defined(__AVX512BF16__)
// acc + the sum over both bfloat16 of each lane of w * x.
inline F32 dot2(F32 acc, I32 w, I32 x) {
    const auto pair = [](I32 a) { return reinterpret_cast<__m512bh>(a.v); };
    return {_mm512_dpbf16_ps(acc.v, pair(w), pair(x))};
}
#endif

}  // namespace rocmforge::ROCMFORGE_ISA
