// The packed layout of a weight matrix (N, K) in device memory, and how one lane reads it.
//
// A matrix is up to four streams of bytes, each aligned to 256, without padding between rows. A
// group is 32 columns. Unpacked, a group is eight words; word w holds columns 4w to 4w + 3, a byte
// each. The streams are:
//   codes   4 bits a column (Q4_*, Q5_*, Q6_K, IQ4_*, IQ3_*, NVFP4, MXFP4), 16 bytes a group:
//             byte i is column i in the low nibble and column i + 16 in the high one, so word j of
//             the four gives words j and j + 4
//           2 bits (Q2_K, Q3_K, IQ2_*, IQ1_*, TQ*), 8 bytes a group:
//             bits 2j.. of half m's bytes are word 4m + j
//           8 bits (Q8_0; MXFP6_E2M3 as eighths), 32 bytes a group:
//             signed bytes in order
//   high    the bits above those of `codes`:
//           1 bit (Q5_*, Q3_K, IQ2_*, IQ1_*), 4 bytes a group:
//             bit w of each byte belongs to word w
//           2 bits (Q6_K), 8 bytes a group: as the 2-bit codes
//   scales  of a group: f16 d (Q4_0 Q5_0 Q8_0 IQ4_NL) | f16 d, m (Q4_1 Q5_1) | E8M0 byte (MX) |
//           u8 scale, min (Q4_K Q5_K) | 4 bits scale, min, of each sub-block (Q2_K) |
//           i8 scale 0, 1 (Q3_K Q6_K IQ2_S IQ2_XS IQ1_M) | f16 scale 0, 1 (NVFP4) |
//           i8 scale (IQ4_XS IQ3_* IQ2_XXS IQ1_S TQ*)
//   supers  of 256 columns: f16 d, dmin (Q2_K Q4_K Q5_K) | f16 d (all others of 256 columns)
// F32, F16 and BF16 have only `codes`: row by row, K numbers each.
//
// weight = scale * code + offset, where the offset includes the format's zero. A *unit* is what a
// lane loads at once: a group, but half a group of 8-bit codes, and 16 bytes of dense numbers.
// Units are numbered through the matrix: unit u of row n is n * (K / kColumns) + u.
#pragma once

#include "blocks.h"

// The streams of a matrix, as they stand in a kernel's arguments; those that a format lacks are
// null.
struct PackedMatrix {
    const uint8_t *codes, *high, *scales, *supers;
};

template <class Block>
struct Packed {
    static constexpr bool kDense = false;
    static constexpr int kBits = Block::kBits;
    static constexpr int kLowBits = kBits == 8 ? 8 : kBits < 4 ? 2 : 4;
    static constexpr int kHighBits = kBits - kLowBits;
    static constexpr int kColumns = kBits == 8 ? 16 : 32;
    static constexpr int kWords = kColumns / 4;
    static constexpr int kSubs = Block::kSub == 16 ? 2 : 1;  // each has kWords / kSubs words
    static constexpr bool kLookup = HasLut<Block>;
    static constexpr bool kSigned = kBits == 8 || kLookup;  // words hold signed bytes
    static constexpr bool kHasOffset = Block::kHasOffset || Block::kZero != 0;
    static constexpr bool kHasSupers = Block::kScale == Scale::kHalfInt;
    static constexpr bool kHasMins = Block::kHasOffset;
    static constexpr int kCodesBytes = kColumns * kLowBits / 8;  // of a unit
    static constexpr int kHighBytes = kColumns * kHighBits / 8;
    static constexpr bool kNibbles = kHasMins && kSubs == 2;  // scale and min share a byte
    static constexpr int kScaleBytes =                        // of a group
        (Block::kScale == Scale::kHalf     ? 2
         : Block::kScale == Scale::kFloat8 ? 2 * kSubs
                                           : kSubs) *
        (kHasMins && !kNibbles ? 2 : 1);
    static constexpr int kSuperBytes = kHasMins ? 4 : 2;

    // A unit as it was loaded. Nothing is decoded yet, so that many can be in flight.
    struct Unit {
        uint32_t codes[kCodesBytes / 4], high[kHighBytes ? kHighBytes / 4 : 1];
        uint32_t scale, super;
    };
    struct Scales {
        float scale[kSubs], offset[kSubs];
    };

    // The matrix from a unit on. From there, units at constant distances (multiples of 8) have
    // constant addresses.
    static DEVICE PackedMatrix from(const PackedMatrix& m, u64 unit) {
        const u64 group = kColumns == 32 ? unit : unit / 2;
        return {m.codes + unit * kCodesBytes, m.high + unit * kHighBytes,
                m.scales + group * kScaleBytes, m.supers + unit / 8 * kSuperBytes};
    }

    static DEVICE Unit load(const PackedMatrix& m, u64 unit) {
        Unit u;
        if constexpr (kCodesBytes == 16) {
            const u32x4 v = load_once(m.codes + unit * 16);
            u.codes[0] = v.x, u.codes[1] = v.y, u.codes[2] = v.z, u.codes[3] = v.w;
        } else {
            const u32x2 v = ::load<u32x2>(m.codes + unit * 8);
            u.codes[0] = v.x, u.codes[1] = v.y;
        }
        if constexpr (kHighBytes == 8) {
            const u32x2 v = ::load<u32x2>(m.high + unit * 8);
            u.high[0] = v.x, u.high[1] = v.y;
        } else if constexpr (kHighBytes == 4) {
            u.high[0] = ::load<uint32_t>(m.high + unit * 4);
        }
        const u64 group = kColumns == 32 ? unit : unit / 2;
        u.scale = load_bytes<kScaleBytes>(m.scales, group);
        if constexpr (kHasSupers) u.super = load_bytes<kSuperBytes>(m.supers, unit / 8);
        return u;
    }

    // The codes, one a byte, in the order of the columns: signed if kSigned, else 0 to 2^kBits - 1.
    static DEVICE void unpack(const Unit& u, uint32_t (&w)[kWords]) {
        if constexpr (kLookup && kBits == 4) {
            const uint32_t table[4] = {kTableWord<Block, 0>, kTableWord<Block, 1>,
                                       kTableWord<Block, 2>, kTableWord<Block, 3>};
            UNROLL
            for (int j = 0; j < 4; ++j) lookup16(table, u.codes[j], w[j], w[j + 4]);
        } else if constexpr (kLowBits == 8) {
            UNROLL
            for (int j = 0; j < kWords; ++j) w[j] = u.codes[j];
        } else if constexpr (kLowBits == 4) {
            UNROLL
            for (int j = 0; j < 4; ++j) {
                w[j] = u.codes[j] & 0x0f0f0f0fu;
                w[j + 4] = u.codes[j] >> 4 & 0x0f0f0f0fu;
            }
        } else {
            UNROLL
            for (int j = 0; j < 8; ++j) w[j] = u.codes[j / 4] >> 2 * (j % 4) & 0x03030303u;
        }
        if constexpr (kHighBits != 0) {
            constexpr uint32_t mask = (kHighBits == 1 ? 0x01010101u : 0x03030303u) << kLowBits;
            UNROLL
            for (int j = 0; j < 8; ++j) {
                const uint32_t high = u.high[kHighBits == 1 ? 0 : j / 4];
                const int from = kHighBits == 1 ? j : 2 * (j % 4);
                w[j] |= (from < kLowBits ? high << (kLowBits - from) : high >> (from - kLowBits)) &
                        mask;
            }
        }
        if constexpr (kLookup && kBits == 3) {
            const uint32_t table[2] = {kTableWord<Block, 0>, kTableWord<Block, 1>};
            UNROLL
            for (int j = 0; j < 8; ++j) w[j] = lookup8(table, w[j]);
        }
    }

    static DEVICE Scales scales(const Unit& u) {
        Scales s;
        if constexpr (Block::kScale == Scale::kExponent) {
            const float scale =
                half_power_of_two(static_cast<uint8_t>(u.scale)) * (2 * Block::kUnit);
            s.scale[0] = !kLookup && u.scale == 255 ? not_a_number() : scale;
        } else if constexpr (Block::kScale == Scale::kHalf) {
            s.scale[0] = low_half(u.scale);
        } else if constexpr (Block::kScale == Scale::kFloat8) {
            s.scale[0] = Block::kUnit * low_half(u.scale);
            s.scale[1] = Block::kUnit * high_half(u.scale);
        } else {
            UNROLL
            for (int i = 0; i < kSubs; ++i) {
                s.scale[i] = low_half(u.super) * small_scale(u.scale, i);
                if constexpr (kUnitOf<Block> != 1.0f) s.scale[i] *= Block::kUnit;
            }
        }
        UNROLL
        for (int i = 0; i < kSubs; ++i) {
            if constexpr (!kHasMins) {
                s.offset[i] = static_cast<float>(-Block::kZero) * s.scale[i];
            } else if constexpr (Block::kScale == Scale::kHalf) {
                s.offset[i] = high_half(u.scale);
            } else {
                s.offset[i] = -high_half(u.super) * small_min(u.scale, i);
            }
        }
        return s;
    }

  private:
    template <int kBytes>
    static DEVICE uint32_t load_bytes(const uint8_t* p, u64 i) {
        // With more tokens registers are scarce, and a widened number takes a whole one: 173
        // instead of 165 in gate_up_swiglu of Q8_0, which costs one of three blocks.
#if defined(TOKENS) && TOKENS <= 4
        if constexpr (kBytes < 4) return load_widened<kBytes>(p + kBytes * i);
#endif
        if constexpr (kBytes == 1) return p[i];
        if constexpr (kBytes == 2) return ::load<uint16_t>(p + 2 * i);
        if constexpr (kBytes == 4) return ::load<uint32_t>(p + 4 * i);
    }
    // The integer scale and min of sub-block i; scales are signed where there are no mins.
    static DEVICE float small_scale(uint32_t word, int i) {
        const uint8_t byte = static_cast<uint8_t>(word >> 8 * i);
        if constexpr (!kHasMins) return static_cast<float>(static_cast<int8_t>(byte));
        return static_cast<float>(kNibbles ? byte & 15 : byte);
    }
    static DEVICE float small_min(uint32_t word, int i) {
        return static_cast<float>(kNibbles ? word >> (8 * i + 4) & 15 : word >> 8);
    }
};

// ---- dense formats --------------------------------------------------------------------------

struct F32 {
    static constexpr int kBytes = 4;
    static DEVICE void values(const u32x4& v, float (&out)[4]) {
        out[0] = bit_cast<float>(v.x), out[1] = bit_cast<float>(v.y);
        out[2] = bit_cast<float>(v.z), out[3] = bit_cast<float>(v.w);
    }
    static DEVICE float value(const void* p) { return load<float>(p); }
};
struct F16 {
    static constexpr int kBytes = 2;
    static DEVICE void values(const u32x4& v, float (&out)[8]) {
        out[0] = low_half(v.x), out[1] = high_half(v.x), out[2] = low_half(v.y);
        out[3] = high_half(v.y), out[4] = low_half(v.z), out[5] = high_half(v.z);
        out[6] = low_half(v.w), out[7] = high_half(v.w);
    }
    static DEVICE float value(const void* p) { return to_float(f16{load<uint16_t>(p)}); }
};
struct BF16 {
    static constexpr int kBytes = 2;
    static DEVICE void values(const u32x4& v, float (&out)[8]) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        UNROLL
        for (int i = 0; i < 4; ++i) {
            out[2 * i] = bit_cast<float>(words[i] << 16);
            out[2 * i + 1] = bit_cast<float>(words[i] & 0xffff0000u);
        }
    }
    static DEVICE float value(const void* p) { return bf16_to_float(load<uint16_t>(p)); }
};

// A unit is 16 bytes, aligned to 16 only if the row's bytes are a multiple of 16.
template <class Number>
struct PackedDense {
    static constexpr bool kDense = true;
    static constexpr int kColumns = 16 / Number::kBytes;
    using Unit = u32x4;
    static DEVICE PackedMatrix from(const PackedMatrix& m, u64 unit) {
        return {m.codes + unit * 16, nullptr, nullptr, nullptr};
    }
    static DEVICE Unit load(const PackedMatrix& m, u64 unit) {
        return load_once(m.codes + unit * 16);
    }
    // kColumns columns from `first` on of a row of `columns` numbers, at any alignment; zeros past
    // its end.
    static DEVICE Unit load_row(const PackedMatrix& m, u64 row, int columns, int first) {
        uint32_t words[4] = {0, 0, 0, 0};
        UNROLL
        for (int i = 0; i < kColumns; ++i) {
            if (first + i >= columns) continue;
            const u64 at = row * columns + first + i;
            if constexpr (Number::kBytes == 4) {
                words[i] = ::load<uint32_t>(m.codes + 4 * at);
            } else {
                words[i / 2] |= static_cast<uint32_t>(::load<uint16_t>(m.codes + 2 * at))
                                << 16 * (i % 2);
            }
        }
        return {words[0], words[1], words[2], words[3]};
    }
    static DEVICE void values(const Unit& u, float (&out)[kColumns]) { Number::values(u, out); }
};
template <>
struct Packed<F32> : PackedDense<F32> {};
template <>
struct Packed<F16> : PackedDense<F16> {};
template <>
struct Packed<BF16> : PackedDense<BF16> {};
