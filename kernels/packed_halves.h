// Units of packed.h as f16 weights, scale * code + offset, two columns in a word.
//
// Codes become f16 exactly, as the last bits of 1024 + code, and so does their distance from the
// format's zero; formats with minima take the middle code as the zero. Scale and offset are rounded
// to f16, and one multiplication or FMA then rounds the weight. Weights outside the range of f16
// become ±65504; NaN stays NaN.
#pragma once

#include "halves.h"
#include "packed.h"

constexpr float kLargestHalf = 65504.0f;

// The number as f16, kept within the finite ones; NaN stays NaN.
DEVICE f16 to_finite_f16(float x) {
    return to_f16(x > kLargestHalf ? kLargestHalf : x < -kLargestHalf ? -kLargestHalf : x);
}
DEVICE uint32_t pack_finite_halves(float low, float high) {
    return to_finite_f16(low).bits | static_cast<uint32_t>(to_finite_f16(high).bits) << 16;
}

// The pair, with infinities replaced by the largest finite f16.
DEVICE uint32_t finite_halves(uint32_t pair) {
#if defined(ROCMFORGE_CUDA)
    uint32_t finite;
    asm("{\n\t.reg .b32 low;\n\tmax.NaN.f16x2 low, %1, %2;\n\tmin.NaN.f16x2 %0, low, %3;\n\t}"
        : "=r"(finite)
        : "r"(pair), "r"(0xfbfffbffu), "r"(0x7bff7bffu));
    return finite;
#else
    const uint32_t low = (pair & 0x7fffu) == 0x7c00u, high = (pair & 0x7fff0000u) == 0x7c000000u;
    return pair - low - (high << 16);
#endif
}

// pairs() gives a unit's weights: column 2i in the low half of word i.
template <class Block>
struct PackedHalves {
    using Weights = Packed<Block>;
    static constexpr int kPairs = Weights::kColumns / 2, kSubs = Weights::kSubs;
    // What is subtracted from the codes, as unsigned bytes. For formats with minima it is the
    // middle code, and the offset makes up for it: then scale * code and offset do not nearly
    // cancel, and lose less by rounding.
    static constexpr int kMiddle = Weights::kHasMins ? 1 << (Block::kBits - 1) : 0;
    static constexpr int kZero = Weights::kSigned ? 128 : Block::kZero + kMiddle;
    static constexpr uint32_t kFlip = Weights::kSigned ? 0x80808080u : 0;
    static constexpr int kTop = (1 << Block::kBits) - 1 - kZero;
    static constexpr int kLargest = kZero > kTop ? kZero : kTop;

    // What a unit's codes are multiplied with, and what is added, as numbers and as pairs of f16.
    struct Scales {
        float scale[kSubs], offset[kSubs];
        uint32_t scales[kSubs], offsets[kSubs];
        bool fits;  // whether all weights are finite f16

        // Makes the pairs finite.
        DEVICE void limit() {
            UNROLL
            for (int i = 0; i < kSubs; ++i) {
                scales[i] = pack_finite_halves(scale[i], scale[i]);
                offsets[i] = pack_finite_halves(offset[i], offset[i]);
            }
        }
    };

    static DEVICE Scales scales(const typename Weights::Unit& unit) {
        const auto exact = Weights::scales(unit);
        Scales s;
        s.fits = true;
        UNROLL
        for (int i = 0; i < kSubs; ++i) {
            const float scale = exact.scale[i];
            const float offset = Weights::kHasMins ? exact.offset[i] + kMiddle * scale : 0.0f;
            s.fits &=
                absolute(scale) * static_cast<float>(kLargest) + absolute(offset) <= kLargestHalf;
            s.scale[i] = scale, s.offset[i] = offset;
            s.scales[i] = pack_halves(scale, scale);
            s.offsets[i] = pack_halves(offset, offset);
        }
        return s;
    }

    // kCount pairs of the unit, from pair `first` on. Where the weights do not fit, finite_halves
    // has to follow.
    template <int kCount>
    static DEVICE void some(const typename Weights::Unit& unit, const Scales& s, int first,
                            uint32_t (&out)[kCount]) {
        uint32_t words[Weights::kWords];
        Weights::unpack(unit, words);
        const uint32_t zero = pack_halves(-1024.0f - kZero, -1024.0f - kZero);
        UNROLL
        for (int i = 0; i < kCount; ++i) {
            const uint32_t word = words[(first + i) / 2] ^ kFlip;
            const int sub = (first + i) / (kPairs / kSubs);
            out[i] = weights(i % 2 == 0 ? bytes_above_1024<0>(word) : bytes_above_1024<1>(word),
                             zero, s, sub);
        }
    }

    // Columns 4 `word` to 4 `word` + 3, 0 and 2 in out[0], 1 and 3 in out[1]. Where the
    // weights do not fit, finite_halves has to follow.
    static DEVICE void spread(const typename Weights::Unit& unit, const Scales& s, int word,
                              const Above& above, uint32_t (&out)[2]) {
        constexpr bool kPlain = Weights::kLowBits == 4 && !Weights::kHighBits && !Weights::kLookup;
        const int sub = word / (Weights::kWords / kSubs);
        float added = 1024.0f;  // to a code
        if constexpr (kPlain) {
            const uint32_t codes = unit.codes[word % 4];
            if (word < 4) {
                out[0] = (codes & 0x000f000fu) | above.of_1024;
                out[1] = (codes >> 8 & 0x000f000fu) | above.of_1024;
            } else {  // the exponent of 64 makes the fifth bit count one
                added = 64.0f;
                out[0] = (codes & 0x00f000f0u) | above.of_64;
                out[1] = (codes >> 8 & 0x00f000f0u) | above.of_64;
            }
        } else {
            uint32_t words[Weights::kWords];
            Weights::unpack(unit, words);
            spread_bytes(words[word] ^ kFlip, above, out);
        }
        const uint32_t zero = pack_halves(-added - kZero, -added - kZero);
        UNROLL
        for (int i = 0; i < 2; ++i) out[i] = weights(out[i], zero, s, sub);
    }

    static DEVICE void pairs(const typename Weights::Unit& unit, uint32_t (&out)[kPairs]) {
        Scales s = scales(unit);
        if (!s.fits) s.limit();
        some(unit, s, 0, out);
        if (!s.fits) {
            UNROLL
            for (int i = 0; i < kPairs; ++i) out[i] = finite_halves(out[i]);
        }
    }

  private:
    // Two weights of sub-block `sub`: `codes` with the negative of `zero` added to them.
    static DEVICE uint32_t weights(uint32_t codes, uint32_t zero, const Scales& s, int sub) {
        const uint32_t code = add_halves(codes, zero);
        return Weights::kHasMins ? multiply_add_halves(code, s.scales[sub], s.offsets[sub])
                                 : multiply_halves(code, s.scales[sub]);
    }
};

template <class Number>
struct DenseHalves {
    static constexpr int kPairs = Packed<Number>::kColumns / 2;
    struct Scales {
        static constexpr bool fits = true;  // some() sees to it
        DEVICE void limit() {}
    };

    static DEVICE Scales scales(const u32x4&) { return {}; }
    template <int kCount>
    static DEVICE void some(const u32x4& unit, const Scales&, int first, uint32_t (&out)[kCount]) {
        if constexpr (kSame<Number, F16>) {
            const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
            UNROLL
            for (int i = 0; i < kCount; ++i) out[i] = words[first + i];
        } else {
            float values[2 * kPairs];
            Packed<Number>::values(unit, values);
            UNROLL
            for (int i = 0; i < kCount; ++i) {
                const int at = 2 * (first + i);
                out[i] = pack_finite_halves(values[at], values[at + 1]);
            }
        }
    }
    static DEVICE void pairs(const u32x4& unit, uint32_t (&out)[kPairs]) { some(unit, {}, 0, out); }
};
template <>
struct PackedHalves<F32> : DenseHalves<F32> {};
template <>
struct PackedHalves<BF16> : DenseHalves<BF16> {};
template <>
struct PackedHalves<F16> : DenseHalves<F16> {};
