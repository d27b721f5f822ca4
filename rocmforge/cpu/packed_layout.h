// The packed layout of a quantized weight matrix: tiles of 16 rows, one row a 32-bit lane.
//
// A tile is a run of records, one for each block of columns (32 or 256). A record is
//   header   16 scales of the blocks (f16, or E8M0 bytes), then 16 offsets (f16) where there are
//            any; none in NVFP4
//   groups   for each 32 columns: 16 scales a sub-block (small integers of K and IQ types, f16 of
//            NVFP4), then the code bits
// Code bits of a group are planes of 64 bytes; byte 4r + b of a plane belongs to row r. Column 4q +
// b of the group (quad q of 0..7) lies in
//   8-bit codes      plane q
//   the low nibbles  plane q/2, bits 4(q%2)..
//   2-bit parts      plane q/4, bits 2(q%4)..    (Q2_K, TQ, low bits of 3 and high bits of 6)
//   1-bit parts      one plane, bit q            (the high bit of 3 and of 5)
// So a lane collects one row without horizontal sums. These formats grow:
//   Q4_K, Q5_K, Q3_K, IQ4_XS   small scales become bytes: 2.8, 2.3, 3.6 and 1.5 %
//   NVFP4                      its scales become f16: 11 %
//   MXFP6                      codes of E2M3 become bytes, those of E3M2 floats of 8 bits, which
//   lie
//                              as [column][16] behind the scales of 16 blocks: 32 %
//   IQ1, IQ2, IQ3, TQ          taken out of their grids and digits, which no product could read as
//                              fast as memory: 25 % (IQ3_S) to 112 % (IQ1_S), formats.py says each
// F32, F16 and BF16 lie as [column][16], pairs of BF16 as [column / 2][16][2].
#pragma once

#include "blocks.h"

namespace rocmforge::ROCMFORGE_ISA {

constexpr bool has_nibbles(int bits) {
    return bits >= 4 && bits <= 6;
}
constexpr bool has_pairs(int bits) {
    return bits == 2 || bits == 3 || bits == 6;
}
constexpr bool has_single(int bits) {
    return bits == 3 || bits == 5;
}

constexpr int kFloat8Record = kLanes + kGroup * kLanes;  // of MXFP6_E3M2

// The scales of 16 blocks from their E8M0 bytes. A code of 0 (2^-127) reads as zero: such weights
// are below 1e-36. Code 255 is NaN in OCP MX and 2^128 in ggml's MXFP4; it reads as infinity:
// products are not finite, but may have a sign.
inline F32 load_exponents(const uint8_t* p) {
    return bits_to_float(shift_left<23>(load_u8(p)));
}

template <class Block>
struct Packed {
    static constexpr int kSubs = kGroup / Block::kSub;
    static constexpr int kGroups = Block::kColumns / kGroup;
    // Q2_K keeps its 4-bit scale and 4-bit min in one byte, as in the file.
    static constexpr bool kSharedByte = Block::kHasOffset && kSubs == 2;
    static constexpr int kHeaderBytes = (Block::kScale == Scale::kFloat8     ? 0
                                         : Block::kScale == Scale::kExponent ? 16
                                                                             : 32) +
                                        (Block::kHasOffset ? 32 : 0);
    static constexpr int kScaleBytes =
        Block::kScale == Scale::kFloat8 ? 32 * kSubs
        : Block::kScale != Scale::kHalfInt
            ? 0
            : 16 * kSubs * (Block::kHasOffset && !kSharedByte ? 2 : 1);
    static constexpr int kGroupBytes = kScaleBytes + kPlane * Block::kBits;
    static constexpr int kRecordBytes = kHeaderBytes + kGroups * kGroupBytes;

    F32 header_scale, header_offset;

    struct Group {
        U8 codes[kQuads];
        F32 scale[kSubs], offset[kSubs];
    };

    explicit Packed(const uint8_t* record) {
        if constexpr (Block::kScale == Scale::kExponent) {
            header_scale = load_exponents(record) * set1(Block::kUnit);
        } else if constexpr (Block::kScale != Scale::kFloat8) {
            header_scale = load_f16(reinterpret_cast<const uint16_t*>(record));
            if constexpr (kUnitOf<Block> != 1.0f) header_scale = header_scale * set1(Block::kUnit);
        }
        if constexpr (Block::kHasOffset) {
            const F32 m = load_f16(reinterpret_cast<const uint16_t*>(record + kHeaderBytes - 32));
            header_offset = Block::kScale == Scale::kHalfInt ? set1(0.0f) - m : m;
        }
    }

    // Group g of the record: its scales, and its codes as unsigned bytes (signed at 8 bits and
    // from a table).
    Group group(const uint8_t* record, int g) const {
        Group out;
        const uint8_t* p = record + kHeaderBytes + g * kGroupBytes;
        for (int s = 0; s < kSubs; ++s) {
            if constexpr (Block::kScale == Scale::kFloat8) {
                const auto* halves = reinterpret_cast<const uint16_t*>(p) + 16 * s;
                out.scale[s] = load_f16(halves) * set1(Block::kUnit);
            } else if constexpr (Block::kScale != Scale::kHalfInt) {
                out.scale[s] = header_scale;
                if constexpr (Block::kHasOffset) out.offset[s] = header_offset;
            } else if constexpr (kSharedByte) {
                const I32 both = load_u8(p + 16 * s);
                out.scale[s] = header_scale * to_float(both & set1(int32_t{15}));
                out.offset[s] = header_offset * to_float(shift_right<4>(both));
            } else {
                out.scale[s] = header_scale * to_float(load_i8(p + 16 * s));
                if constexpr (Block::kHasOffset) {
                    out.offset[s] = header_offset * to_float(load_u8(p + 16 * (kSubs + s)));
                }
            }
        }
        load_codes(p + kScaleBytes, out.codes);
        if constexpr (HasLut<Block>) {
            for (U8& c : out.codes) c = lookup16(Block::kLut, c);
        }
        return out;
    }

  private:
    static void load_codes(const uint8_t* p, U8* w) {
        constexpr int bits = Block::kBits;
        if constexpr (bits == 8) {
            for (int q = 0; q < kQuads; ++q) w[q] = load_bytes(p + kPlane * q);
            return;
        }
        if constexpr (has_nibbles(bits)) {
            for (int i = 0; i < 4; ++i) {
                const U8 n = load_bytes(p + kPlane * i);
                w[2 * i] = bit_field<0, 0, 4>(n);
                w[2 * i + 1] = bit_field<4, 0, 4>(n);
            }
            p += 4 * kPlane;
        }
        if constexpr (has_pairs(bits)) {
            constexpr int to = bits == 6 ? 4 : 0;
            for (int i = 0; i < 2; ++i) {
                const U8 c = load_bytes(p + kPlane * i);
                const U8 part[4] = {bit_field<0, to, 2>(c), bit_field<2, to, 2>(c),
                                    bit_field<4, to, 2>(c), bit_field<6, to, 2>(c)};
                for (int f = 0; f < 4; ++f) {
                    w[4 * i + f] = bits == 6 ? w[4 * i + f] | part[f] : part[f];
                }
            }
            p += 2 * kPlane;
        }
        if constexpr (has_single(bits)) {
            constexpr int to = bits - 1;
            const U8 b = load_bytes(p);
            w[0] = w[0] | bit_field<0, to, 1>(b);
            w[1] = w[1] | bit_field<1, to, 1>(b);
            w[2] = w[2] | bit_field<2, to, 1>(b);
            w[3] = w[3] | bit_field<3, to, 1>(b);
            w[4] = w[4] | bit_field<4, to, 1>(b);
            w[5] = w[5] | bit_field<5, to, 1>(b);
            w[6] = w[6] | bit_field<6, to, 1>(b);
            w[7] = w[7] | bit_field<7, to, 1>(b);
        }
    }
};

// Calls f with the block type of a quantized format: visit(format, [](auto block) { ... }).
template <class Function>
void visit_block(Format format, Function&& f) {
#define ROCMFORGE_CASE(name) \
    case Format::name:       \
        return f(name{});
    switch (format) {
        ROCMFORGE_QUANTIZED_FORMATS(ROCMFORGE_CASE)
        case Format::F32:
        case Format::F16:
        case Format::BF16:
        case Format::MXFP6_E3M2:
        case Format::BF16_PAIRS:
            return;  // their callers handle them: they have no integer codes
    }
#undef ROCMFORGE_CASE
}

}  // namespace rocmforge::ROCMFORGE_ISA
