// How a wave rounds activations to int8 in groups of 32 columns: x = scale * code. The memory
// layout is Q8 of rocmforge/gpu/arrays.py.
//
// A lane holds kValues neighbouring columns, so 32 / kValues neighbouring lanes hold a group; the
// first of them has a number that is a multiple of 32 / kValues. Waves of 32 and of 64 lanes do.
// The largest code is 127, or up to 2.4 % less: of four candidates, the one with the smallest error
// once the scale is fitted by least squares. The CPU backend does the same
// (rocmforge/cpu/panels.h).
#pragma once

#include "device.h"

constexpr int kGroup = 32;                // columns that share a scale
constexpr int kScaleCandidates = 4;       // scales tried
constexpr float kSmallestGroup = 1e-35f;  // a group of only smaller values counts as zeros

// The largest code of candidate k, as a part of 127.
DEVICE constexpr float candidate(int k) {
    return 1.0f - 0.008f * static_cast<float>(k);
}

template <int kValues>
struct Q8Values {
    int codes[kValues];
    float scale;    // the same in all lanes of a group, NaN where x holds NaN or an infinity
    uint32_t sums;  // of the codes of both halves of the group, int16, first half low; in all lanes
};

// The largest |x| of a group, in all its lanes; NaN counts as largest, then infinity.
template <int kLanes, int kValues>
DEVICE float largest_size(const float (&x)[kValues]) {
    uint32_t bits = 0;  // of |x|, which order like integers
    UNROLL
    for (int i = 0; i < kValues; ++i) {
        const uint32_t size = bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
        bits = size > bits ? size : bits;
    }
    const auto join = [&bits](uint32_t other) { bits = other > bits ? other : bits; };
    if constexpr (kLanes > 16) join(shuffle_xor<16>(bits));
    if constexpr (kLanes > 8) join(shuffle_xor<8>(bits));
    if constexpr (kLanes > 4) join(shuffle_xor<4>(bits));
    if constexpr (kLanes > 2) join(shuffle_xor<2>(bits));
    if constexpr (kLanes > 1) join(shuffle_xor<1>(bits));
    return bit_cast<float>(bits);
}

// Sums each of kCount values over kLanes neighbouring lanes. Shuffles take long, so those of all
// values are issued together.
template <int kLanes, int kCount>
DEVICE void sums_of_lanes(float (&values)[kCount]) {
    if constexpr (kLanes > 1) {
        float others[kCount];
        UNROLL
        for (int i = 0; i < kCount; ++i) others[i] = shuffle_xor<kLanes / 2>(values[i]);
        UNROLL
        for (int i = 0; i < kCount; ++i) values[i] += others[i];
        sums_of_lanes<kLanes / 2>(values);
    }
}

// Rounds a group. All lanes of the wave must call; lanes without a group pass zeros.
template <int kValues>
DEVICE Q8Values<kValues> q8_round(const float (&x)[kValues]) {
    static_assert(kValues == 1 || kValues == 4);
    constexpr int kLanes = kGroup / kValues;
    const float largest = largest_size<kLanes>(x);
    const bool usable = largest > kSmallestGroup && largest < infinity();  // NaN is not
    const float inverse = usable ? 127.0f / largest : 0.0f;
    float sums[2 * kScaleCandidates] = {};  // for each candidate x * code, then for each code^2
    UNROLL
    for (int k = 0; k < kScaleCandidates; ++k) {
        UNROLL
        for (int i = 0; i < kValues; ++i) {
            const float code = round_even(x[i] * (inverse * candidate(k)));
            sums[k] += x[i] * inverse * code;
            sums[kScaleCandidates + k] += code * code;
        }
    }
    sums_of_lanes<kLanes>(sums);
    // With the scale fitted, the error is |x|^2 - dot^2 / norm; the smallest is wanted.
    float dot = sums[0], norm = sums[kScaleCandidates], step = inverse;
    UNROLL
    for (int k = 1; k < kScaleCandidates; ++k) {
        const float new_dot = sums[k], new_norm = sums[kScaleCandidates + k];
        if (new_dot * new_dot * norm > dot * dot * new_norm) {
            dot = new_dot;
            norm = new_norm;
            step = inverse * candidate(k);
        }
    }
    Q8Values<kValues> out;
    int sum = 0;
    UNROLL
    for (int i = 0; i < kValues; ++i) {
        out.codes[i] = usable ? static_cast<int>(round_even(x[i] * step)) : 0;
        sum += out.codes[i];
    }
    out.scale = usable ? dot / norm * (largest * (1.0f / 127.0f)) : largest * 0.0f;
    sum = wave_sum<kLanes / 2>(sum);
    const int other = shuffle_xor<kLanes / 2>(sum);
    const bool second = lane() & (kLanes / 2);
    const int low = second ? other : sum, high = second ? sum : other;
    out.sums = (static_cast<uint32_t>(low) & 0xffffu) | static_cast<uint32_t>(high) << 16;
    return out;
}

// Four codes as bytes of a word, the first lowest.
DEVICE uint32_t pack_codes(int a, int b, int c, int d) {
    return (static_cast<uint32_t>(a) & 0xffu) | (static_cast<uint32_t>(b) & 0xffu) << 8 |
           (static_cast<uint32_t>(c) & 0xffu) << 16 | static_cast<uint32_t>(d) << 24;
}

// Writes what q8_round gave; `index` is that of the lane's first value in (rows, K).
template <int kValues>
DEVICE void q8_store(const Q8Values<kValues>& values, u64 index, int8_t* codes, float* scales,
                     uint32_t* sums) {
    if constexpr (kValues == 4) {
        const int (&c)[kValues] = values.codes;
        *reinterpret_cast<uint32_t*>(codes + index) = pack_codes(c[0], c[1], c[2], c[3]);
    } else {
        codes[index] = static_cast<int8_t>(values.codes[0]);
    }
    if (index % kGroup == 0) {
        scales[index / kGroup] = values.scale;
        sums[index / kGroup] = values.sums;
    }
}
