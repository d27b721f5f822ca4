// The quantized blocks of GGUF (and of MXFP6) as they lie in a file, and how to read their codes:
// one header for the CPU backend and for the kernels.
//
// A weight is scale * (code - kZero) + offset, or scale * kLut[code]. Codes are unsigned and kBits
// wide; at 8 bits they are signed bytes. Each struct says its columns, its sub-block (columns that
// share a scale) and where its scale comes from. IQ1, IQ2, IQ3 and TQ are in grid_blocks.h.
// Sources: the layouts of ggml's formats, and OCP Microscaling Formats (MX) v1.0 for MXFP4 and
// MXFP6. rocmforge/cpu/blocks.h includes it once per instruction set and gives half_to_float and
// the namespace ROCMFORGE_ISA; for kernels, device.h gives the words. It knows nothing of SIMD,
// waves, packing or matmul.
#pragma once

#if defined(ROCMFORGE_ISA)
#define BLOCKS_BEGIN namespace rocmforge::ROCMFORGE_ISA {
#define BLOCKS_END }
#define BLOCKS_FUNCTION inline
#define BLOCKS_TABLE inline constexpr
#else
#include "device.h"
#define BLOCKS_BEGIN
#define BLOCKS_END
#define BLOCKS_FUNCTION DEVICE
#if defined(ROCMFORGE_HOST)
#define BLOCKS_TABLE static const
#else
#define BLOCKS_TABLE static __device__ const
#endif

DEVICE float half_to_float(uint16_t bits) {
    return to_float(f16{bits});
}
#endif

BLOCKS_BEGIN

enum class Scale {
    kHalf,     // one f16 a block
    kHalfInt,  // one f16 a block, times a small integer a sub-block, times kUnit where there is one
    kExponent,  // one power of two a block (E8M0), times kUnit
    kFloat8,    // one float of 8 bits a sub-block (E4M3 without a sign), times kUnit
};

BLOCKS_FUNCTION float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Low nibbles hold columns 0..15 of a group, high nibbles 16..31.
BLOCKS_FUNCTION void split_nibbles(const uint8_t* qs, uint8_t* out) {
    for (int i = 0; i < 16; ++i) out[i] = qs[i] & 15;
    for (int i = 0; i < 16; ++i) out[16 + i] = qs[i] >> 4;
}

BLOCKS_FUNCTION void add_fifth_bit(const uint8_t* qh, uint8_t* out) {
    uint32_t bits;
    memcpy(&bits, qh, 4);
    for (int i = 0; i < 32; ++i) out[i] |= ((bits >> i) & 1) << 4;
}

struct Q4_0 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 4, kZero = 8;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d;
    uint8_t qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { split_nibbles(qs, out); }
};
static_assert(sizeof(Q4_0) == 18, "4.5 bits a weight");

struct Q4_1 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = true;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d, m;
    uint8_t qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { split_nibbles(qs, out); }
};
static_assert(sizeof(Q4_1) == 20, "5 bits a weight");

struct Q5_0 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 5, kZero = 16;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d;
    uint8_t qh[4], qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const {
        split_nibbles(qs, out);
        add_fifth_bit(qh, out);
    }
};
static_assert(sizeof(Q5_0) == 22, "5.5 bits a weight");

struct Q5_1 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 5, kZero = 0;
    static constexpr bool kHasOffset = true;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d, m;
    uint8_t qh[4], qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const {
        split_nibbles(qs, out);
        add_fifth_bit(qh, out);
    }
};
static_assert(sizeof(Q5_1) == 24, "6 bits a weight");

struct Q8_0 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 8, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d;
    int8_t qs[32];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { memcpy(out, qs, 32); }
};
static_assert(sizeof(Q8_0) == 34, "8.5 bits a weight");

// Denser near 0, where most weights are.
struct NonLinear {
    static constexpr int8_t kLut[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
};

struct IQ4_NL : NonLinear {
    static constexpr int kColumns = 32, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalf;
    uint16_t d;
    uint8_t qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { split_nibbles(qs, out); }
};
static_assert(sizeof(IQ4_NL) == 18, "4.5 bits a weight");

struct IQ4_XS : NonLinear {
    static constexpr int kColumns = 256, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint16_t d, high;
    uint8_t low[4], qs[128];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const { split_nibbles(qs + 16 * g, out); }
    BLOCKS_FUNCTION int scale_code(int s) const {
        return ((low[s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4) - 32;
    }
};
static_assert(sizeof(IQ4_XS) == 136, "4.25 bits a weight");

// Halves of E2M1's values.
struct Float4 {
    static constexpr float kUnit = 0.5f;
    static constexpr int8_t kLut[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};

struct MXFP4 : Float4 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kExponent;
    static constexpr bool kMirrored = true;
    uint8_t e, qs[16];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { split_nibbles(qs, out); }
};
static_assert(sizeof(MXFP4) == 17, "4.25 bits a weight");

// Eight bytes hold 16 columns, the first eight in the low nibbles.
struct NVFP4 : Float4 {
    static constexpr int kColumns = 64, kSub = 16, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kFloat8;
    uint8_t e[4], qs[32];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        for (int i = 0; i < 32; ++i) {
            out[i] = (qs[16 * g + i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4)) & 15;
        }
    }
    // The scale of sub-block s as an f16, which holds it exactly. ggml ignores the highest bit, and
    // reads 127 as 0 where it is not set.
    BLOCKS_FUNCTION uint16_t half(int s) const {
        const int code = e[s] & 127, exponent = code >> 3, mantissa = code & 7;
        if (e[s] == 127) return 0;
        if (exponent) return static_cast<uint16_t>((exponent + 8) << 10 | mantissa << 7);
        if (!mantissa) return 0;
        const int top = mantissa >> 2 ? 2 : mantissa >> 1;  // mantissa * 2^-9 from its highest bit
        return static_cast<uint16_t>((6 + top) << 10 | (mantissa << (10 - top) & 1023));
    }
};
static_assert(sizeof(NVFP4) == 36, "4.5 bits a weight");

// Element i stands in bits [6i, 6i + 6) of the 24 bytes.
BLOCKS_FUNCTION void split_six_bits(const uint8_t* qs, uint8_t* out) {
    for (int i = 0; i < 8; ++i) {
        const uint32_t w = qs[3 * i] | qs[3 * i + 1] << 8 | qs[3 * i + 2] << 16;
        for (int j = 0; j < 4; ++j) out[4 * i + j] = (w >> (6 * j)) & 63;
    }
}

struct MXFP6_E2M3 {
    static constexpr int kColumns = 32, kSub = 32, kBits = 8, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kExponent;
    static constexpr float kUnit = 0.125f;
    uint8_t e, qs[24];
    // Eighths: at most 7.5 * 8 = 60, so a signed byte holds every element exactly.
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const {
        split_six_bits(qs, out);
        for (int i = 0; i < 32; ++i) {
            const int exponent = (out[i] >> 3) & 3, mantissa = out[i] & 7;
            const int eighths = exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
            out[i] = static_cast<uint8_t>(out[i] & 32 ? -eighths : eighths);
        }
    }
};
static_assert(sizeof(MXFP6_E2M3) == 25, "6.25 bits a weight");

// 2^(e - 128): half of what an E8M0 byte says, so that e = 255 is finite.
BLOCKS_FUNCTION float half_power_of_two(uint8_t e) {
    return float_of_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
BLOCKS_FUNCTION float not_a_number() {
    return float_of_bits(0x7fc00000u);
}

// Sixteenths reach 448 here, too many for a byte: packed as floats, of 8 bits or BF16, which hold
// every value exactly.
struct MXFP6_E3M2 {
    static constexpr int kColumns = 32, kSub = 32, kZero = 0;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kExponent;
    static constexpr float kUnit = 0.0625f;
    uint8_t e, qs[24];
    BLOCKS_FUNCTION void codes(int, uint8_t* out) const { split_six_bits(qs, out); }
    static BLOCKS_FUNCTION int sixteenths(int code) {
        const int exponent = (code >> 2) & 7, mantissa = code & 3;
        const int size = exponent ? (4 + mantissa) << (exponent - 1) : mantissa;
        return code & 32 ? -size : size;
    }
    BLOCKS_FUNCTION void values(float* out) const {
        uint8_t code[32];
        split_six_bits(qs, code);
        const float unit = e == 255 ? not_a_number() : half_power_of_two(e) * (2 * kUnit);
        for (int i = 0; i < 32; ++i) out[i] = unit * static_cast<float>(sixteenths(code[i]));
    }
};
static_assert(sizeof(MXFP6_E3M2) == 25, "6.25 bits a weight");

// The bits of group g, two a column, where four groups share 32 bytes.
BLOCKS_FUNCTION void split_pairs(const uint8_t* qs, int g, uint8_t* out) {
    const uint8_t* q = qs + 32 * (g / 4);
    const int shift = 2 * (g % 4);
    for (int i = 0; i < 32; ++i) out[i] = (q[i] >> shift) & 3;
}

struct Q2_K {
    static constexpr int kColumns = 256, kSub = 16, kBits = 2, kZero = 0;
    static constexpr bool kHasOffset = true;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint8_t scales[16], qs[64];
    uint16_t d, m;
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const { split_pairs(qs, g, out); }
    BLOCKS_FUNCTION int scale_code(int s) const { return scales[s] & 15; }
    BLOCKS_FUNCTION int min_code(int s) const { return scales[s] >> 4; }
};
static_assert(sizeof(Q2_K) == 84, "2.625 bits a weight");

struct Q3_K {
    static constexpr int kColumns = 256, kSub = 16, kBits = 3, kZero = 4;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        split_pairs(qs, g, out);
        for (int i = 0; i < 32; ++i) out[i] |= ((hmask[i] >> g) & 1) << 2;
    }
    BLOCKS_FUNCTION int scale_code(int s) const {
        const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
        const int high = (scales[8 + s % 4] >> (2 * (s / 4))) & 3;
        return (low | high << 4) - 32;
    }
};
static_assert(sizeof(Q3_K) == 110, "3.4375 bits a weight");

// Eight 6-bit scales and eight 6-bit mins in 12 bytes, as Q4_K and Q5_K store them.
BLOCKS_FUNCTION int six_bit_scale(const uint8_t* p, int s) {
    return s < 4 ? p[s] & 63 : (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
}
BLOCKS_FUNCTION int six_bit_min(const uint8_t* p, int s) {
    return s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) | (p[s] >> 6) << 4;
}

struct Q4_K {
    static constexpr int kColumns = 256, kSub = 32, kBits = 4, kZero = 0;
    static constexpr bool kHasOffset = true;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint16_t d, m;
    uint8_t scales[12], qs[128];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const uint8_t* q = qs + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int i = 0; i < 32; ++i) out[i] = (q[i] >> shift) & 15;
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return six_bit_scale(scales, s); }
    BLOCKS_FUNCTION int min_code(int s) const { return six_bit_min(scales, s); }
};
static_assert(sizeof(Q4_K) == 144, "4.5 bits a weight");

struct Q5_K {
    static constexpr int kColumns = 256, kSub = 32, kBits = 5, kZero = 0;
    static constexpr bool kHasOffset = true;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint16_t d, m;
    uint8_t scales[12], qh[32], qs[128];
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const uint8_t* q = qs + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int i = 0; i < 32; ++i) out[i] = ((q[i] >> shift) & 15) | ((qh[i] >> g) & 1) << 4;
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return six_bit_scale(scales, s); }
    BLOCKS_FUNCTION int min_code(int s) const { return six_bit_min(scales, s); }
};
static_assert(sizeof(Q5_K) == 176, "5.5 bits a weight");

struct Q6_K {
    static constexpr int kColumns = 256, kSub = 16, kBits = 6, kZero = 32;
    static constexpr bool kHasOffset = false;
    static constexpr Scale kScale = Scale::kHalfInt;
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
    BLOCKS_FUNCTION void codes(int g, uint8_t* out) const {
        const int half = g / 4, quarter = g % 4;  // 128 columns, and 32 columns of those
        const uint8_t* low = ql + 64 * half + 32 * (quarter % 2);
        const uint8_t* high = qh + 32 * half;
        const int low_shift = 4 * (quarter / 2), high_shift = 2 * quarter;
        for (int i = 0; i < 32; ++i) {
            out[i] = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
        }
    }
    BLOCKS_FUNCTION int scale_code(int s) const { return scales[s]; }
};
static_assert(sizeof(Q6_K) == 210, "6.5625 bits a weight");

BLOCKS_END

#include "grid_blocks.h"

BLOCKS_BEGIN

// Whether codes index a table instead of counting steps.
template <class Block, class = void>
constexpr bool HasLut = false;
template <class Block>
constexpr bool HasLut<Block, decltype(void(Block::kLut))> = true;

// Entries 4i..4i+3 of a format's table, as bytes of a word.
template <class Block, int i>
constexpr uint32_t kTableWord =
    static_cast<uint8_t>(Block::kLut[4 * i]) | static_cast<uint8_t>(Block::kLut[4 * i + 1]) << 8 |
    static_cast<uint8_t>(Block::kLut[4 * i + 2]) << 16 |
    static_cast<uint32_t>(static_cast<uint8_t>(Block::kLut[4 * i + 3])) << 24;

// Whether the second half of the table is the first one, negative, and 32 columns share a scale.
template <class Block, class = void>
constexpr bool IsMirrored = false;
template <class Block>
constexpr bool IsMirrored<Block, decltype(void(Block::kMirrored))> = true;

// What all scales of a format are multiplied with.
template <class Block, class = void>
constexpr float kUnitOf = 1.0f;
template <class Block>
constexpr float kUnitOf<Block, decltype(void(Block::kUnit))> = Block::kUnit;

// The bits of a block's f16 scale.
template <class Block>
BLOCKS_FUNCTION uint16_t half_bits(const Block& b) {
    return b.d;
}
BLOCKS_FUNCTION uint16_t half_bits(const IQ1_M& b) {
    return b.half();
}

// Scale of sub-block s, as a factor of (code - kZero) or of kLut[code].
template <class Block>
BLOCKS_FUNCTION float block_scale(const Block& b, int s) {
    if constexpr (Block::kScale == Scale::kExponent) {
        if (b.e == 255 && !HasLut<Block>) return not_a_number();  // OCP MX; ggml's MXFP4 has none
        return half_power_of_two(b.e) * (2 * Block::kUnit);
    } else if constexpr (Block::kScale == Scale::kFloat8) {
        return half_to_float(b.half(s)) * Block::kUnit;
    } else if constexpr (Block::kScale == Scale::kHalfInt) {
        return half_to_float(half_bits(b)) * static_cast<float>(b.scale_code(s)) * kUnitOf<Block>;
    } else {
        return half_to_float(b.d);
    }
}

// What is added to every weight of sub-block s; the K types store it negated.
template <class Block>
BLOCKS_FUNCTION float block_offset(const Block& b, int s) {
    if constexpr (!Block::kHasOffset) {
        return 0.0f;
    } else if constexpr (Block::kScale == Scale::kHalfInt) {
        return -half_to_float(b.m) * static_cast<float>(b.min_code(s));
    } else {
        return half_to_float(b.m);
    }
}

BLOCKS_END
