// The activations of a GEMV: up to TOKENS (at most 8) rows of x in LDS, as the lanes read them that
// multiply packed weights with them.
//
// LDS holds one chunk of the columns at a time, in SLOTS slots of 32 bytes. A slot is 32 columns of
// int8 and their scale, or 8 columns of float. Where a unit of weights (packed.h) meets a whole
// slot, the halves of all slots lie in two arrays, so that neighbouring lanes read neighbouring
// banks. Where a unit meets half a slot, the slots lie one after another.
#pragma once

#include "gemv_input.h"
#include "packed.h"

constexpr int kPassRows = kThreads / LANES * ROWS;  // of a matrix, in a pass of a block
constexpr int kStep = LANES * UNITS;                // units of a row, at a time
constexpr int kZippedTokens = 2;  // each takes twice the multiplications, which a lookup costs once
static_assert(LANES <= WAVE && LANES % 8 == 0 && TOKENS <= 8 && TOKENS * ROWS <= LANES);
static_assert((LANES & (LANES - 1)) == 0, "sums over lanes are of powers of two");

// Four floats, zeros where the row has none left. Rows are aligned to 16 only if their columns are
// a multiple of 4.
DEVICE u32x4 four_floats(const float* x, int left, int columns) {
    if (columns % 4 == 0 && left > 0) return load<u32x4>(x);
    uint32_t words[4] = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < 4; ++i) {
        if (i < left) words[i] = bit_cast<uint32_t>(x[i]);
    }
    return {words[0], words[1], words[2], words[3]};
}

// What a slot has beside its columns: nothing if they are float; else their scale and, if the
// format has offsets, the scale times the sum of the codes, of the slot or of each half of it.
template <class Format, bool kDense = Packed<Format>::kDense>
struct SlotScales {
    static constexpr int kWords = !Packed<Format>::kHasOffset  ? 1
                                  : Packed<Format>::kSubs == 1 ? 2
                                                               : 4;
};
template <class Format>
struct SlotScales<Format, true> {
    static constexpr int kWords = 0;
};

template <class Format>
struct Activations {
    using P = Packed<Format>;
    static constexpr int kSlotColumns = P::kDense ? 8 : 32;
    static constexpr int kSlotUnits = kSlotColumns / P::kColumns;  // a unit has 32 bytes, or 16
    static constexpr int kScaleWords = SlotScales<Format>::kWords;
    // Columns c and c + 16 lie side by side, as their codes do in nibbles (dot_nibbles).
    static constexpr bool kZipped =
        kSelectsNibbles && IsMirrored<Format> && TOKENS <= kZippedTokens;
    static constexpr int kChunk = SLOTS * kSlotUnits / TOKENS / kStep * kStep;  // units of a row
    static constexpr int kChunkSlots = kChunk / kSlotUnits;
    static constexpr int kLds = SLOTS * (2 * 16 + 4 * kScaleWords) / 16;  // in pieces of 16 bytes
    static_assert(kChunk > 0, "SLOTS is too small for the tokens and units in flight");

    u32x4* lds;

    // Fills LDS with `count` units of each row from unit `first` on, and with zeros up to a
    // multiple of kStep.
    DEVICE void stage(const Batch& batch, int first, int count) const {
        constexpr int kTokenThreads = kThreads / TOKENS;
        const int token = thread_x() / kTokenThreads, own = thread_x() % kTokenThreads;
        const int slots = (count + kStep - 1) / kStep * (kStep / kSlotUnits);
        const int full = token < batch.tokens ? (count + kSlotUnits - 1) / kSlotUnits : 0;
        const int start = first * P::kColumns;
        const int end = minimum(batch.columns - start, full * kSlotColumns);
        const uint32_t row = batch.row(token) * batch.columns + start;
        for (int slot = own; slot < slots; slot += kTokenThreads) {
            const int column = slot * kSlotColumns;
            fill_slot(batch, token * kChunkSlots + slot, row + column, end - column);
        }
    }

    // Piece i, 16 bytes, of the activations that a unit of weights is multiplied with.
    DEVICE u32x4 piece(int token, int unit, int i) const {
        if constexpr (kSlotUnits == 2) return lds[token * kChunk + unit];
        return lds[half(token * kChunk + unit, i)];
    }
    // The scales beside them: the scale, then for each offset the scale times the sum of the codes.
    DEVICE void scales(int token, int unit, float* words) const {
        const int at = token * kChunkSlots + unit / kSlotUnits;
        if constexpr (kScaleWords == 4) {
            const u32x4 v = reinterpret_cast<const u32x4*>(scale_words())[at];
            words[0] = bit_cast<float>(v.x), words[1] = bit_cast<float>(v.y);
            words[2] = bit_cast<float>(v.z);
        } else if constexpr (kScaleWords == 2) {
            const u32x2 v = reinterpret_cast<const u32x2*>(scale_words())[at];
            words[0] = bit_cast<float>(v.x), words[1] = bit_cast<float>(v.y);
        } else {
            words[0] = scale_words()[at];
        }
    }

  private:
    // Copies the numbers of one slot, from number `index` of x (T, K) on. `left` numbers are left
    // in their row; that may be none, or below 0. Zeros fill the rest of the slot.
    DEVICE void fill_slot(const Batch& batch, int slot, uint32_t index, int left) const {
        const Input& in = batch.in;
        u32x4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
        float scale = 0.0f;
        uint32_t sum = 0;
        if (left > 0) {
            if constexpr (P::kDense) {
                const float* from = reinterpret_cast<const float*>(in.x) + index;
                low = four_floats(from, left, batch.columns);
                high = four_floats(from + 4, left - 4, batch.columns);
            } else {
                low = load<u32x4>(in.x + index);
                high = load<u32x4>(in.x + index + 16);
                scale = in.scales[index / 32];
                if constexpr (kScaleWords > 1) sum = in.sums[index / 32];
            }
        }
        if constexpr (kZipped) {
            const u32x2 a = zip_bytes(low.x, high.x), b = zip_bytes(low.y, high.y);
            const u32x2 c = zip_bytes(low.z, high.z), d = zip_bytes(low.w, high.w);
            low = {a.x, a.y, b.x, b.y}, high = {c.x, c.y, d.x, d.y};
        }
        store_half(slot, 0, low);
        store_half(slot, 1, high);
        store_scales(slot, scale, sum);
    }

    DEVICE void store_half(int slot, int i, u32x4 bytes) const { lds[half(slot, i)] = bytes; }

    // `sums` is a word of Q8: the sums of the codes of both halves of a slot.
    DEVICE void store_scales(int slot, float scale, uint32_t sums) const {
        const int first = static_cast<int16_t>(sums), second = static_cast<int>(sums) >> 16;
        if constexpr (kScaleWords == 4) {
            reinterpret_cast<u32x4*>(scale_words())[slot] = {
                bit_cast<uint32_t>(scale), bit_cast<uint32_t>(scale * static_cast<float>(first)),
                bit_cast<uint32_t>(scale * static_cast<float>(second)), 0};
        } else if constexpr (kScaleWords == 2) {
            reinterpret_cast<u32x2*>(scale_words())[slot] = {
                bit_cast<uint32_t>(scale),
                bit_cast<uint32_t>(scale * static_cast<float>(first + second))};
        } else if constexpr (kScaleWords == 1) {
            scale_words()[slot] = scale;
        }
    }

    DEVICE float* scale_words() const { return reinterpret_cast<float*>(lds + 2 * SLOTS); }
    static DEVICE int half(int slot, int i) {
        return kSlotUnits == 2 ? 2 * slot + i : i * SLOTS + slot;
    }
};
