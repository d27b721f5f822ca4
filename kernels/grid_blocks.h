// The blocks of IQ1, IQ2, IQ3 and TQ, as blocks.h describes its own. Included by blocks.h alone.
//
// IQ formats store the place of four or eight columns' magnitudes in a grid (grids.h). A column's
// code is the place of its magnitude among the format's, and above it its sign. TQ stores digits of
// base 3.
#pragma once

#include "grids.h"

BLOCKS_BEGIN

// ---- formats of grids -------------------------------------------------------------------------

BLOCKS_FUNCTION uint32_t little_endian(const uint8_t* p, int bytes) {
    uint32_t word = 0;
    for (int i = 0; i < bytes; ++i) word |= static_cast<uint32_t>(p[i]) << (8 * i);
    return word;
}

// `bits` a column from a grid's entry, and the sign of column i, bit i of `signs`, above them.
BLOCKS_FUNCTION void split_grid(uint32_t entry, int columns, int bits, uint32_t signs,
                                uint8_t* out) {
    for (int i = 0; i < columns; ++i) {
        const uint32_t place = entry >> (bits * i) & ((1u << bits) - 1);
        out[i] = static_cast<uint8_t>(place | (signs >> i & 1) << bits);
    }
}

// Eight signs of which seven are stored: their number is even.
BLOCKS_FUNCTION uint32_t even_signs(uint32_t seven) {
    const uint32_t four = seven ^ seven >> 4, two = four ^ four >> 2;
    return seven | ((two ^ two >> 1) & 1) << 7;
}

// 1 + 2n of a nibble n, of which a byte has two.
BLOCKS_FUNCTION int odd_scale(const uint8_t* scales, int s) {
    return 1 + 2 * (scales[s / 2] >> (4 * (s % 2)) & 15);
}

struct GridOf3Bits {
    static constexpr int kColumns = 256, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
};

struct IQ3_XXS : GridOf3Bits {
    static constexpr float kUnit = 0.25f;
    static constexpr int8_t kLut[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                        -4, -12, -20, -28, -36, -44, -52, -62};
    uint16_t d;
    uint8_t qs[64], signs[32];  // of 32 columns: four times seven signs, and the scale
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const uint32_t own = little_endian(signs + 4 * g, 4);
        for (int i = 0; i < 8; ++i) {
            const uint32_t eight = even_signs(own >> (7 * (i / 2)) & 127);
            split_grid(kIQ3XXSGrid[qs[8 * g + i]], 4, 3, eight >> (4 * (i % 2)), out + 4 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return 1 + 2 * (signs[4 * s + 3] >> 4); }
};
static_assert(sizeof(IQ3_XXS) == 98, "3.0625 bits a weight");

struct IQ3_S : GridOf3Bits {
    static constexpr int8_t kLut[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                        -1, -3, -5, -7, -9, -11, -13, -15};
    uint16_t d;
    uint8_t qs[64], qh[8], signs[32], scales[4];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int i = 0; i < 8; ++i) {
            const uint32_t at = qs[8 * g + i] | (qh[g] >> i & 1u) << 8;
            split_grid(kIQ3SGrid[at], 4, 3, signs[4 * g + i / 2] >> (4 * (i % 2)), out + 4 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return odd_scale(scales, s); }
};
static_assert(sizeof(IQ3_S) == 110, "3.4375 bits a weight");

template <int sub>
struct GridOf2Bits {
    static constexpr int kColumns = 256, kSub = sub, kBits = 3, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    static constexpr float kUnit = 0.125f;
    static constexpr int8_t kLut[16] = {8, 25, 43, 0, -8, -25, -43, 0};
};

struct IQ2_XXS : GridOf2Bits<32> {
    uint16_t d;
    uint8_t qs[64];  // of 32 columns: four places; four times seven signs, and the scale
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const uint32_t signs = little_endian(qs + 8 * g + 4, 4);
        for (int i = 0; i < 4; ++i) {
            const uint32_t eight = even_signs(signs >> (7 * i) & 127);
            split_grid(kIQ2XXSGrid[qs[8 * g + i]], 8, 2, eight, out + 8 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return 1 + 2 * (qs[8 * s + 7] >> 4); }
};
static_assert(sizeof(IQ2_XXS) == 66, "2.0625 bits a weight");

struct IQ2_XS : GridOf2Bits<16> {
    uint16_t d;
    uint8_t qs[64], scales[8];  // of 8 columns: the place, and seven signs above it
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int i = 0; i < 4; ++i) {
            const uint32_t own = little_endian(qs + 8 * g + 2 * i, 2);
            split_grid(kIQ2XSGrid[own & 511], 8, 2, even_signs(own >> 9), out + 8 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return odd_scale(scales, s); }
};
static_assert(sizeof(IQ2_XS) == 74, "2.3125 bits a weight");

struct IQ2_S : GridOf2Bits<16> {
    uint16_t d;
    uint8_t qs[32], signs[32], qh[8], scales[8];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int i = 0; i < 4; ++i) {
            const uint32_t at = qs[4 * g + i] | (qh[g] >> (2 * i) & 3u) << 8;
            split_grid(kIQ2SGrid[at], 8, 2, signs[4 * g + i], out + 8 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return odd_scale(scales, s); }
};
static_assert(sizeof(IQ2_S) == 82, "2.5625 bits a weight");

// Eighths of -1, 0 and 1, plus one, or minus one where the bit above their place is set.
template <int sub>
struct GridOfTernary {
    static constexpr int kColumns = 256, kSub = sub, kBits = 3, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    static constexpr float kUnit = 0.125f;
    static constexpr int8_t kLut[16] = {-7, 1, 9, 0, -9, -1, 7, 0};
};

struct IQ1_S : GridOfTernary<32> {
    uint16_t d;
    uint8_t qs[32], qh[16];  // qh of 32 columns: four times three bits of a place, scale, shift
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const uint32_t high = little_endian(qh + 2 * g, 2);
        for (int i = 0; i < 4; ++i) {
            const uint32_t at = qs[4 * g + i] | (high >> (3 * i) & 7) << 8;
            split_grid(kIQ1SGrid[at], 8, 2, high >> 15 ? 255 : 0, out + 8 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return 1 + 2 * (qh[2 * s + 1] >> 4 & 7); }
};
static_assert(sizeof(IQ1_S) == 50, "1.5625 bits a weight");

struct IQ1_M : GridOfTernary<16> {
    // qh of 16 columns: twice three bits of a place and the shift. scales of 64 columns: four times
    // three bits, and above them four bits of the block's f16.
    uint8_t qs[32], qh[16], scales[8];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int i = 0; i < 4; ++i) {
            const uint32_t own = qh[2 * g + i / 2] >> (4 * (i % 2));
            const uint32_t at = qs[4 * g + i] | (own & 7) << 8;
            split_grid(kIQ1SGrid[at], 8, 2, own & 8 ? 255 : 0, out + 8 * i);
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const {
        const uint32_t four = little_endian(scales + 2 * (s / 4), 2);
        return 1 + 2 * static_cast<int>(four >> (3 * (s % 4)) & 7);
    }
    BLOCKS_FUNCTION uint16_t half() const {
        uint32_t bits = 0;
        for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(scales[2 * i + 1] >> 4) << 4 * i;
        return static_cast<uint16_t>(bits);
    }
};
static_assert(sizeof(IQ1_M) == 56, "1.75 bits a weight");

// ---- ternary formats --------------------------------------------------------------------------

struct Ternary {
    static constexpr int kColumns = 256, kSub = 32, kBits = 2, kZero = 1;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    BLOCKS_FUNCTION int scale_code(int) const { return 1; }
};

struct TQ2_0 : Ternary {
    uint8_t qs[64];
    uint16_t d;
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const { split_pairs(qs, g, out); }
};
static_assert(sizeof(TQ2_0) == 66, "2.0625 bits a weight");

// Digit n of a byte that holds five digits of base 3 as a fraction: byte / 256 = 0.abcde.
BLOCKS_FUNCTION uint8_t ternary_digit(uint8_t byte, int n) {
    uint32_t rest = byte;
    for (int i = 0; i < n; ++i) rest = (3 * rest) & 255;
    return static_cast<uint8_t>(3 * rest >> 8);
}

// Digit n of the first 32 bytes is columns 32n.., of the next 16 bytes 160 + 16n.., of the last 4,
// which have four digits, 240 + 4n...
struct TQ1_0 : Ternary {
    uint8_t qs[52];
    uint16_t d;
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int h = 0; h < 2; ++h, out += 16) {
            const int half = 2 * g + h;
            const uint8_t* q = qs + (half < 10 ? 16 * h : 32);
            const int digit = half < 10 ? g : half - 10;
            for (int i = 0; i < 16; ++i) {
                const bool last = half == 15;
                out[i] = ternary_digit(last ? qs[48 + i % 4] : q[i], last ? i / 4 : digit);
            }
        }
    }
};
static_assert(sizeof(TQ1_0) == 54, "1.6875 bits a weight");

BLOCKS_END
