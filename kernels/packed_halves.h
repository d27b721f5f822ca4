// Units of packed.h as f16 weights, scale * code + offset, two columns in a word.
//
// Codes become f16 exactly, as the last bits of 1024 + code, and so does their distance from the
// format's zero; formats with minima take the middle code as the zero. Codes of E2M1, a float of 4
// bits, become f16 by moving their bits. Scale and offset are rounded to f16, and one
// multiplication or FMA then rounds the weight. Weights outside the range of f16 become ±65504; NaN
// stays NaN.
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
    // E2M1 has a sign, two bits of exponent and one of mantissa. Put where an f16 has these, a code
    // is 2^-14 of its number, also where that is subnormal, and 2^-15 of its entry in kLut. Scales
    // make up for it, and must fit an f16 then.
    static constexpr bool kFloat4 = __is_base_of(Float4, Block);
    static constexpr float kRaised = kFloat4 ? 32768.0f : 1.0f;
    static constexpr int kLargest = kFloat4 ? 1 : kZero > kTop ? kZero : kTop;

    // What a unit's codes are multiplied with, and what is added, as numbers and as pairs of f16.
    struct Scales {
        float scale[kSubs], offset[kSubs];
        uint32_t scales[kSubs], offsets[kSubs];
        bool fits;  // whether all weights are finite f16

        // Makes the pairs finite; finite() below has to follow then.
        DEVICE void limit() {
            UNROLL
            for (int i = 0; i < kSubs; ++i) {
                const float own = kFloat4 && !raises(scale[i]) ? scale[i] / kRaised : scale[i];
                scales[i] = pack_finite_halves(own, own);
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
            const float scale = exact.scale[i] * kRaised;
            const float offset = Weights::kHasMins ? exact.offset[i] + kMiddle * scale : 0.0f;
            s.fits &=
                absolute(scale) * static_cast<float>(kLargest) + absolute(offset) <= kLargestHalf;
            s.scale[i] = scale, s.offset[i] = offset;
            s.scales[i] = pack_halves(scale, scale);
            s.offsets[i] = pack_halves(offset, offset);
        }
        return s;
    }

    // kCount pairs of the unit, from pair `first` on, which is even. Where the weights do not fit,
    // finite() has to follow.
    template <int kCount>
    static DEVICE void some(const typename Weights::Unit& unit, const Scales& s, int first,
                            uint32_t (&out)[kCount]) {
        if constexpr (kFloat4) {
            UNROLL
            for (int i = 0; i < kCount; ++i) {
                const uint32_t bytes = float_bytes(unit, (first + i) / 2);
                out[i] =
                    multiply_halves(i % 2 == 0 ? bytes_on_top<0>(bytes) : bytes_on_top<1>(bytes),
                                    s.scales[(first + i) / (kPairs / kSubs)]);
            }
            return;
        }
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
    // weights do not fit, finite() has to follow.
    static DEVICE void spread(const typename Weights::Unit& unit, const Scales& s, int word,
                              const Above& above, uint32_t (&out)[2]) {
        constexpr bool kPlain = Weights::kLowBits == 4 && !Weights::kHighBits && !Weights::kLookup;
        const int sub = word / (Weights::kWords / kSubs);
        if constexpr (kFloat4) {
            const uint32_t bytes = float_bytes(unit, word);
            out[0] = multiply_halves(bytes << 8 & 0xff00ff00u, s.scales[sub]);
            out[1] = multiply_halves(bytes & 0xff00ff00u, s.scales[sub]);
            return;
        }
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

    // A pair that was made with limited scales: undoes what limit() did to the scale, and makes
    // infinities finite. It is number `number` of its unit.
    static DEVICE uint32_t finite(const typename Weights::Unit& unit, int number, uint32_t pair) {
        if constexpr (kFloat4) {
            const float scale = Weights::scales(unit).scale[number / (kPairs / kSubs)];
            if (!raises(scale * kRaised)) {
                pair = multiply_halves(pair, pack_halves(kRaised, kRaised));
            }
        }
        return finite_halves(pair);
    }

    static DEVICE void pairs(const typename Weights::Unit& unit, uint32_t (&out)[kPairs]) {
        Scales s = scales(unit);
        if (!s.fits) s.limit();
        some(unit, s, 0, out);
        if (!s.fits) {
            UNROLL
            for (int i = 0; i < kPairs; ++i) out[i] = finite(unit, i, out[i]);
        }
    }

  private:
    // Whether a scale that makes up for the codes fits an f16.
    static DEVICE bool raises(float scale) { return absolute(scale) <= kLargestHalf; }

    // Four codes of E2M1, columns 4 `word` and on, each as the high byte of an f16.
    static DEVICE uint32_t float_bytes(const typename Weights::Unit& unit, int word) {
        const uint32_t codes = unit.codes[word % 4];
        return word < 4 ? (codes << 4 & 0x80808080u) | (codes << 1 & 0x0e0e0e0eu)
                        : (codes & 0x80808080u) | (codes >> 3 & 0x0e0e0e0eu);
    }

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
    static DEVICE uint32_t finite(const u32x4&, int, uint32_t pair) { return pair; }
    static DEVICE void pairs(const u32x4& unit, uint32_t (&out)[kPairs]) { some(unit, {}, 0, out); }
};
template <>
struct PackedHalves<F32> : DenseHalves<F32> {};
template <>
struct PackedHalves<BF16> : DenseHalves<BF16> {};
template <>
struct PackedHalves<F16> : DenseHalves<F16> {};
