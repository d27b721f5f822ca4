// The best column of each part of a row of logits: argmax_parts writes it, argmax and sample read
// it.
#pragma once

#include "device.h"

constexpr int kParts = 512;  // of a row; PARTS of rocmforge/gpu/ops/argmax.py

// Vectors of a part; the last parts have fewer, or none. argmax_parts and sample have the same
// VECTOR (rocmforge/gpu/ops/argmax.py).
DEVICE int vectors_of_part(int vectors) {
    return (vectors + kParts - 1) / kParts;
}

// An unsigned integer that orders floats: NaN is lowest, -0 and 0 are the same.
DEVICE uint32_t order_key(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x + 0.0f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float from_order_key(uint32_t key) {
    return bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The best of some columns: the one with the larger number, then the lower column. `rank` is the
// number's order key, then the column, inverted.
struct alignas(16) Best {
    u64 rank;
    uint32_t nan;  // whether one of the columns is NaN
    uint32_t unused;

    DEVICE void add(float x, int column) {
        const uint32_t key = order_key(x);
        const u64 other = static_cast<u64>(key) << 32 | (0xffffffffu - column);
        rank = other > rank ? other : rank;
        nan |= key == 0;
    }
    DEVICE void add(const Best& other) {
        rank = other.rank > rank ? other.rank : rank;
        nan |= other.nan;
    }
    DEVICE float value() const { return from_order_key(static_cast<uint32_t>(rank >> 32)); }
    DEVICE int column() const {
        return static_cast<int>(0xffffffffu - static_cast<uint32_t>(rank));
    }

    // The best of kLanes neighbouring lanes, in each of them.
    template <unsigned kLanes = WAVE>
    DEVICE void join() {
        if constexpr (kLanes > 32) add(from_lane<(WAVE > 32 ? 32 : 1)>());
        if constexpr (kLanes > 16) add(from_lane<16>());
        if constexpr (kLanes > 8) add(from_lane<8>());
        if constexpr (kLanes > 4) add(from_lane<4>());
        if constexpr (kLanes > 2) add(from_lane<2>());
        if constexpr (kLanes > 1) add(from_lane<1>());
    }

  private:
    template <int kMask>
    DEVICE Best from_lane() const {
        return {shuffle_xor<kMask>(rank), shuffle_xor<kMask>(nan), 0};
    }
};
static_assert(sizeof(Best) == 16);
