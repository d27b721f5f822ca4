// simd.h on AVX2 with FMA and F16C, and perhaps AVX-VNNI: two 256-bit registers a vector. Included
// by simd.h alone.
//
// What each function means is the same on every set; simd.h says what a vector is.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace rocmforge::ROCMFORGE_ISA {

#if defined(ROCMFORGE_VNNI)
constexpr int kByteBias = 128;  // as in simd_avx512.h
#else
constexpr int kByteBias = 0;
#endif

struct F32 {
    __m256 a, b;
};
struct I32 {
    __m256i a, b;
};
struct U8 {
    __m256i a, b;
};

inline F32 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, F32 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F32 set1(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline F32 operator+(F32 x, F32 y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline F32 operator-(F32 x, F32 y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline F32 operator*(F32 x, F32 y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline F32 operator/(F32 x, F32 y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline F32 fma(F32 x, F32 y, F32 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F32 max(F32 x, F32 y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline F32 min(F32 x, F32 y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline F32 abs(F32 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
// Of each four neighbouring lanes, their sum or largest, in all four.
inline F32 sum4(F32 x) {
    const auto of_half = [](__m256 half) {
        const __m256 pairs = _mm256_add_ps(half, _mm256_permute_ps(half, 0xB1));
        return _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0x4E));
    };
    return {of_half(x.a), of_half(x.b)};
}
inline F32 max4(F32 x) {
    const auto of_half = [](__m256 half) {
        const __m256 pairs = _mm256_max_ps(half, _mm256_permute_ps(half, 0xB1));
        return _mm256_max_ps(pairs, _mm256_permute_ps(pairs, 0x4E));
    };
    return {of_half(x.a), of_half(x.b)};
}
// Of each lane, x where a > b (false where either is a NaN), else y.
inline F32 where_greater(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_GT_OQ)),
            _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_GT_OQ))};
}
inline float sum(F32 x) {
    const __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
inline float max_lane(F32 x) {
    const __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
// Lane i of m[j] becomes lane j of m[i], for eight vectors of eight.
inline void transpose(__m256 (&m)[8]) {
    __m256 by_two[8], by_four[8];
    for (int i = 0; i < 8; i += 2) {
        by_two[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        by_two[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; ++j) {
            by_four[i + 2 * j] = _mm256_shuffle_ps(by_two[i + j], by_two[i + j + 2], 0x44);
            by_four[i + 2 * j + 1] = _mm256_shuffle_ps(by_two[i + j], by_two[i + j + 2], 0xEE);
        }
    }
    for (int i = 0; i < 4; ++i) {
        m[i] = _mm256_permute2f128_ps(by_four[i], by_four[i + 4], 0x20);
        m[i + 4] = _mm256_permute2f128_ps(by_four[i], by_four[i + 4], 0x31);
    }
}
// The same for sixteen of sixteen: its quarters, of which two change places.
inline void transpose(F32 (&m)[kLanes]) {
    __m256 quarters[4][8];
    for (int i = 0; i < 8; ++i) {
        quarters[0][i] = m[i].a;
        quarters[1][i] = m[i].b;
        quarters[2][i] = m[i + 8].a;
        quarters[3][i] = m[i + 8].b;
    }
    for (auto& quarter : quarters) transpose(quarter);
    for (int i = 0; i < 8; ++i) {
        m[i] = {quarters[0][i], quarters[2][i]};
        m[i + 8] = {quarters[1][i], quarters[3][i]};
    }
}
inline __m128i load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline F32 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
}
inline void store_f16(uint16_t* p, F32 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                     _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 load_bf16(const uint16_t* p) {
    const auto widen = [](__m128i h) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    };
    return {widen(load128(p)), widen(load128(p + 8))};
}

inline F32 load_f8(const uint8_t* p) {
    const __m128i bytes = load128(p), none = _mm_setzero_si128();
    return {_mm256_cvtph_ps(_mm_unpacklo_epi8(none, bytes)),
            _mm256_cvtph_ps(_mm_unpackhi_epi8(none, bytes))};
}

inline I32 set1(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline I32 load_u8(const uint8_t* p) {
    const __m128i b = load128(p);
    return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}
inline I32 load_i8(const uint8_t* p) {
    const __m128i b = load128(p);
    return {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
}
inline void store(int32_t* p, I32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline I32 operator+(I32 x, I32 y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline I32 operator-(I32 x, I32 y) {
    return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
inline I32 operator&(I32 x, I32 y) {
    return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
template <int n>
I32 shift_left(I32 x) {
    return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
template <int n>
I32 shift_right(I32 x) {
    return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
template <int n>
I32 shift_right_signed(I32 x) {
    return {_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)};
}
inline int32_t sum(I32 x) {
    const __m256i s = _mm256_add_epi32(x.a, x.b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xB1)));
}
inline F32 to_float(I32 x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
inline I32 round_to_int(F32 x) {
    return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
inline F32 bits_to_float(I32 x) {
    return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}

inline U8 load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void store_bytes(uint8_t* p, U8 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.b);
}
inline U8 operator&(U8 x, U8 y) {
    return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
inline U8 operator|(U8 x, U8 y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
inline U8 operator+(U8 x, U8 y) {
    return {_mm256_add_epi8(x.a, y.a), _mm256_add_epi8(x.b, y.b)};
}
inline U8 set_bytes(int x) {
    const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
    return {v, v};
}
inline U8 lookup16(const int8_t* table, U8 index) {
    const __m256i lut = _mm256_broadcastsi128_si256(load128(table));
    return {_mm256_shuffle_epi8(lut, index.a), _mm256_shuffle_epi8(lut, index.b)};
}
inline I32 as_int(U8 x) {
    return {x.a, x.b};
}
inline U8 as_bytes(I32 x) {
    return {x.a, x.b};
}

#if defined(ROCMFORGE_VNNI)

// acc + sum over the 4 bytes of each lane of w * x. Narrow: w in 0..127. Wide: w, or what stands in
// its place, is biased.
inline I32 dot4_narrow(I32 acc, U8 w, I32 x) {
    return {_mm256_dpbusd_avx_epi32(acc.a, w.a, x.a), _mm256_dpbusd_avx_epi32(acc.b, w.b, x.b)};
}
inline I32 dot4_wide(I32 acc, U8 w, I32 x) {
    return dot4_narrow(acc, w, x);
}

#else

struct I16 {
    __m256i a, b;
};
inline I16 as_shorts(I32 x) {
    return {x.a, x.b};
}
inline I32 as_int(I16 x) {
    return {x.a, x.b};
}
inline I16 operator-(I16 x, I16 y) {
    return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)};
}
template <int n>
I16 shift_left(I16 x) {
    return {_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)};
}
// sums += products of bytes, unsigned and signed, of which each two neighbours are added; those two
// must fit int16. In assembly: GCC computes many products before it adds the first, and then keeps
// sums in memory, where each waits for the one before. Both halves are multiplied before either is
// added: so an addition does not follow its own product directly.
inline void add_pairs(I16& sums, U8 w, I32 x) {
    __m256i a, b;
    asm("vpmaddubsw %6, %4, %2\n\tvpmaddubsw %7, %5, %3\n\tvpaddw %2, %0, %0\n\tvpaddw %3, %1, %1"
        : "+x"(sums.a), "+x"(sums.b), "=&x"(a), "=&x"(b)
        : "x"(w.a), "x"(w.b), "x"(x.a), "x"(x.b));
}
// Each two neighbours added.
inline I32 fours(I16 x) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(x.a, ones), _mm256_madd_epi16(x.b, ones)};
}
// acc + sum over the 4 bytes of each lane of w * x. The sign moves from the weight to the
// activation; activations stay within -127..127, and |w| <= 128 then keeps every pair inside int16.
inline I32 dot4_wide(I32 acc, U8 w, I32 x) {
    const auto products = [](__m256i codes, __m256i tokens) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(tokens, codes));
    };
    return acc + fours({products(w.a, x.a), products(w.b, x.b)});
}
// The even and the odd bytes, made 16 bits wide with their signs.
inline I16 even_bytes(U8 x) {
    const auto widen = [](__m256i bytes) {
        return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    };
    return {widen(x.a), widen(x.b)};
}
inline I16 odd_bytes(U8 x) {
    return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)};
}
// acc += the two products of each lane. In assembly, as above.
inline void add_twos(I32& acc, I16 w, I16 x) {
    __m256i a, b;
    asm("vpmaddwd %6, %4, %2\n\tvpmaddwd %7, %5, %3\n\tvpaddd %2, %0, %0\n\tvpaddd %3, %1, %1"
        : "+x"(acc.a), "+x"(acc.b), "=&x"(a), "=&x"(b)
        : "x"(w.a), "x"(w.b), "x"(x.a), "x"(x.b));
}

#endif

}  // namespace rocmforge::ROCMFORGE_ISA
