// How rows of a matrix, as a GGUF file has them, become codes and numbers. pack, dequantize and
// embed share it.
//
// A block of kRawThreads threads takes kRawColumns columns at a time. Quantized blocks come through
// LDS: their sizes are odd and their alignment is 2 bytes or none, so lanes cannot load them
// directly. Thread i decodes group i, which is 32 columns. Then each thread reads four columns at a
// time, in the order in which it stores them; other threads may have decoded them.
#pragma once

#include "packed.h"

constexpr int kRawThreads = 256;
constexpr int kRawColumns = 32 * kRawThreads;

// Copies bytes to LDS from the aligned address below them on, and returns where they begin there.
// The memory that holds `from` must begin at an address aligned to 16. A barrier must follow.
DEVICE int stage_bytes(const uint8_t* from, int nbytes, u32x4* lds) {
    const int shift = static_cast<int>(reinterpret_cast<u64>(from) % 16);
    const uint8_t* start = from - shift;
    const int whole = (shift + nbytes) / 16;
    for (int i = thread_x(); i < whole; i += kRawThreads) lds[i] = load<u32x4>(start + 16 * i);
    const int rest = 16 * whole + thread_x();
    if (rest < shift + nbytes) reinterpret_cast<uint8_t*>(lds)[rest] = start[rest];
    return shift;
}

// The number that a code stands for, in steps of the scale.
template <class Block>
DEVICE int number(int code) {
    if constexpr (HasLut<Block> || Block::kBits == 8) return static_cast<int8_t>(code);
    return code - Block::kZero;
}
template <>
DEVICE int number<MXFP6_E3M2>(int code) {
    return MXFP6_E3M2::sixteenths(code);
}

// Up to kRawColumns columns in LDS: their blocks, and their codes and scales.
template <class Block>
struct Raw {
    static constexpr int kColumns = Block::kColumns, kBytes = sizeof(Block);
    static constexpr int kGroups = kColumns / 32;  // of a block
    static constexpr int kSubs = 32 / Block::kSub;

    u32x4 bytes[kRawColumns / kColumns * kBytes / 16 + 2];
    uint32_t codes[kRawThreads][8];
    float scale[kRawThreads][kSubs], offset[kRawThreads][kSubs];

    // Loads and decodes `columns` columns from the start of a block. Begins with a barrier; another
    // one must follow before a thread reads what others decoded.
    DEVICE void fetch(const uint8_t* from, int columns) {
        block_sync();
        const int shift = stage_bytes(from, columns / kColumns * kBytes, bytes);
        block_sync();
        const int g = thread_x();
        if (32 * g >= columns) return;
        const Block& b = block(shift, g);
        uint8_t code[32];
        b.codes(g % kGroups, code);
        memcpy(codes[g], code, 32);
        for (int s = 0; s < kSubs; ++s) {
            scale[g][s] = block_scale(b, g % kGroups * kSubs + s);
            offset[g][s] = block_offset(b, g % kGroups * kSubs + s);
        }
    }
    DEVICE const Block& block(int shift, int group) const {
        const uint8_t* first = reinterpret_cast<const uint8_t*>(bytes) + shift;
        return reinterpret_cast<const Block*>(first)[group / kGroups];
    }
    // The weights of four columns from `column` on, which is a multiple of four.
    DEVICE void values(const uint8_t*, int column, int, float (&out)[4]) const {
        const int g = column / 32, word = column / 4 % 8, s = word * kSubs / 8;
        uint32_t four = codes[g][word];
        if constexpr (HasLut<Block>) {
            const uint32_t table[4] = {kTableWord<Block, 0>, kTableWord<Block, 1>,
                                       kTableWord<Block, 2>, kTableWord<Block, 3>};
            uint32_t unused;
            lookup16(table, four, four, unused);
        }
        UNROLL
        for (int i = 0; i < 4; ++i) {
            out[i] = scale[g][s] * static_cast<float>(number<Block>(four >> 8 * i & 255));
            if constexpr (Block::kHasOffset) out[i] += offset[g][s];
        }
    }
};

// Rows of plain numbers need no LDS: `from` is where the columns begin; those past the end are
// zeros.
template <class Number>
struct RawNumbers {
    static constexpr int kColumns = 1, kBytes = Number::kBytes;
    DEVICE void fetch(const uint8_t*, int) {}
    DEVICE void values(const uint8_t* from, int column, int columns, float (&out)[4]) const {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            out[i] = column + i < columns ? Number::value(from + (column + i) * kBytes) : 0.0f;
        }
    }
};
template <>
struct Raw<F32> : RawNumbers<F32> {};
template <>
struct Raw<F16> : RawNumbers<F16> {};
template <>
struct Raw<BF16> : RawNumbers<BF16> {};
