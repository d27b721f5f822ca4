// pack: the packed streams of a weight matrix (packed.h) from the rows that a GGUF file holds.
// MXFP6_E3M2 becomes BF16, which is exact.
//
//   raw     (rows, row bytes) blocks of FORMAT, aligned to 16
//   codes, high, scales, supers
//           the streams, each from where the first of these rows begins; streams that the format
//           lacks are not touched
//   groups  groups of 32 columns in these rows
//   factor  of all weights of NVFP4: its scales take it with them, rounded to f16
//
// Threads: a block takes 256 groups, a thread one of them. The raw blocks come through LDS (raw.h).
// A lane writes 16, 8, 4 or fewer bytes of each stream, beside its neighbours'.
// Grid (ceil(groups / 256)).
// Limits: the rows are whole blocks of FORMAT.
// Launched by rocmforge/gpu/ops/pack.py.
#include "raw.h"

struct PackArgs {
    const uint8_t* raw;
    uint8_t *codes, *high, *scales, *supers;
    int groups;
    float factor;
};

// Gathers 2 bits of each byte of four words, bits `from` and from + 1: those of word j become bits
// 2j and 2j + 1 of the same byte.
DEVICE uint32_t pairs(const uint32_t* w, int from) {
    uint32_t bits = 0;
    UNROLL
    for (int j = 0; j < 4; ++j) bits |= (w[j] >> from & 0x03030303u) << 2 * j;
    return bits;
}

template <class P>
DEVICE void write_codes(const uint32_t (&w)[8], uint8_t* out) {
    if constexpr (P::kLowBits == 8) {
        u32x4* halves = reinterpret_cast<u32x4*>(out);
        halves[0] = {w[0], w[1], w[2], w[3]};
        halves[1] = {w[4], w[5], w[6], w[7]};
    } else if constexpr (P::kLowBits == 4) {
        uint32_t packed[4];
        UNROLL
        for (int j = 0; j < 4; ++j) {
            packed[j] = (w[j] & 0x0f0f0f0fu) | (w[j + 4] & 0x0f0f0f0fu) << 4;
        }
        *reinterpret_cast<u32x4*>(out) = {packed[0], packed[1], packed[2], packed[3]};
    } else {
        *reinterpret_cast<u32x2*>(out) = {pairs(w, 0), pairs(w + 4, 0)};
    }
}

template <class P>
DEVICE void write_high(const uint32_t (&w)[8], uint8_t* out) {
    if constexpr (P::kHighBits == 2) {
        *reinterpret_cast<u32x2*>(out) = {pairs(w, 4), pairs(w + 4, 4)};
    } else {
        uint32_t bits = 0;
        UNROLL
        for (int j = 0; j < 8; ++j) bits |= (w[j] >> P::kLowBits & 0x01010101u) << j;
        *reinterpret_cast<uint32_t*>(out) = bits;
    }
}

template <class Block>
DEVICE void write_scale_and_min(const Block& b, uint8_t* out) {
    uint16_t* halves = reinterpret_cast<uint16_t*>(out);
    halves[0] = half_bits(b);
    if constexpr (Block::kHasOffset) halves[1] = b.m;
}

// Thread t writes what the streams hold of group first + t.
template <class Block>
DEVICE void write(const Raw<Block>& raw, int count, u64 first, const PackArgs& a) {
    using P = Packed<Block>;
    const int t = thread_x();
    if (t >= count) return;
    const u64 group = first + t;
    uint32_t words[8];
    memcpy(words, raw.codes[t], 32);
    write_codes<P>(words, a.codes + group * (4 * P::kLowBits));
    if constexpr (P::kHighBits != 0) write_high<P>(words, a.high + group * (4 * P::kHighBits));
    const Block& block = raw.block(0, t);
    uint8_t* scales = a.scales + group * P::kScaleBytes;
    if constexpr (Block::kScale == Scale::kExponent) {
        scales[0] = block.e;
    } else if constexpr (Block::kScale == Scale::kHalf) {
        write_scale_and_min(block, scales);
    } else if constexpr (Block::kScale == Scale::kFloat8) {
        uint16_t* halves = reinterpret_cast<uint16_t*>(scales);
        for (int i = 0; i < P::kSubs; ++i) {
            const f16 scale{block.half(t % raw.kGroups * P::kSubs + i)};
            halves[i] = to_f16(to_float(scale) * a.factor).bits;
        }
    } else {
        const int in_block = t % raw.kGroups;
        UNROLL
        for (int i = 0; i < P::kSubs; ++i) {
            const int sub = in_block * P::kSubs + i;
            scales[i] = static_cast<uint8_t>(block.scale_code(sub));
            if constexpr (P::kNibbles) {
                scales[i] |= static_cast<uint8_t>(block.min_code(sub) << 4);
            } else if constexpr (Block::kHasOffset) {
                scales[1] = static_cast<uint8_t>(block.min_code(sub));
            }
        }
        if (in_block == 0) write_scale_and_min(block, a.supers + group / 8 * P::kSuperBytes);
    }
}

// Writes BF16 numbers instead of streams, four columns a thread at a time.
template <>
DEVICE void write(const Raw<MXFP6_E3M2>& raw, int count, u64 first, const PackArgs& a) {
    u32x2* out = reinterpret_cast<u32x2*>(a.codes + first * 64);
    block_sync();
    for (int quad = thread_x(); quad < 8 * count; quad += kRawThreads) {
        float x[4];
        raw.values(nullptr, 4 * quad, 32 * count, x);
        uint32_t bits[4];
        for (int i = 0; i < 4; ++i) bits[i] = bit_cast<uint32_t>(x[i]) >> 16;
        out[quad] = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
    }
}

KERNEL(pack, PackArgs, kRawThreads) {
    SHARED Raw<FORMAT> raw;
    const int first = block_x() * kRawThreads;
    const int count = minimum(a.groups - first, kRawThreads);
    raw.fetch(a.raw + static_cast<u64>(first / raw.kGroups) * raw.kBytes, 32 * count);
    write<FORMAT>(raw, count, first, a);
}
