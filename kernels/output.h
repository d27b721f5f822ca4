// Vectors of floats in memory, and the dtypes in which an op writes activations: float, f16, int8.
//
// Permuted is f16, for Hopper's matrix units with packed weights (batch_warpgroup.h): of each
// 128 columns, the words of two columns of the four groups of 32 alternate. So 16 bytes are the
// same word of four groups. A row takes whole 128 columns of memory; kernels that write other
// widths use permuted_row(), and nothing is written or read behind a row's columns.
//
// The dtype is the macro OUT or an argument. rocmforge/gpu/ops/output.py passes it, and the three
// pointers of Output.
#pragma once

#include "q8.h"

enum class Dtype { F32, F16, Q8, Permuted };

// Where activations go. Only Q8 has scales and sums; rocmforge/gpu/arrays.py gives the shapes.
struct Output {
    void* values;  // float, f16, or int8 codes
    float* scales;
    uint32_t* sums;
};

// Loads or stores kValues neighbouring floats; four need an address aligned to 16.
template <int kValues>
DEVICE void load_floats(const float* from, float (&to)[kValues]) {
    if constexpr (kValues == 4) {
        const u32x4 v = load<u32x4>(from);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        UNROLL
        for (int i = 0; i < 4; ++i) to[i] = bit_cast<float>(words[i]);
    } else {
        UNROLL
        for (int i = 0; i < kValues; ++i) to[i] = from[i];
    }
}
template <int kValues>
DEVICE void store_floats(float* to, const float (&from)[kValues]) {
    if constexpr (kValues == 4) {
        *reinterpret_cast<u32x4*>(to) = {bit_cast<uint32_t>(from[0]), bit_cast<uint32_t>(from[1]),
                                         bit_cast<uint32_t>(from[2]), bit_cast<uint32_t>(from[3])};
    } else {
        UNROLL
        for (int i = 0; i < kValues; ++i) to[i] = from[i];
    }
}

// The nearest number within the range of f16; infinities and NaN stay what they are.
DEVICE float clamp_to_f16(float x) {
    constexpr float kLargest = 65504.0f;
    if (x > kLargest && x < infinity()) return kLargest;
    return x < -kLargest && x > -infinity() ? -kLargest : x;
}

// Columns from a permuted row to the next, and the index at which one begins.
DEVICE int permuted_columns(int columns) {
    return (columns + 127) & ~127;
}
DEVICE u64 permuted_row(u64 row, int columns) {
    return row * permuted_columns(columns);
}

// Where an element is that would be the one of number `index`.
DEVICE u64 permuted(u64 index) {
    return (index & ~127ull) | (index & 30) << 2 | (index >> 5 & 3) << 1 | (index & 1);
}

// Writes a lane's values from element `index` on. For Q8 all lanes of the wave must call, and hold
// groups as q8.h says; a lane without values passes zeros and `valid` false.
template <Dtype kDtype, int kValues>
DEVICE void store_as(const Output& out, u64 index, const float (&x)[kValues], bool valid) {
    if constexpr (kDtype == Dtype::Q8) {
        const Q8Values<kValues> rounded = q8_round(x);
        if (valid) {
            q8_store(rounded, index, static_cast<int8_t*>(out.values), out.scales, out.sums);
        }
    } else if constexpr (kDtype == Dtype::F32) {
        if (valid) store_floats(static_cast<float*>(out.values) + index, x);
    } else if (valid) {
        constexpr bool kPermutes = kDtype == Dtype::Permuted;
        const auto place = [&](int i) {
            return static_cast<f16*>(out.values) + (kPermutes ? permuted(index + i) : index + i);
        };
        if constexpr (kValues == 4) {
            uint32_t* const words = reinterpret_cast<uint32_t*>(place(0));
            const auto pair = [&](int i) {
                return pack_halves(clamp_to_f16(x[i]), clamp_to_f16(x[i + 1]));
            };
            if constexpr (kPermutes) {  // words of the other groups lie between
                words[0] = pair(0);
                words[4] = pair(2);
            } else {
                *reinterpret_cast<u32x2*>(words) = {pair(0), pair(2)};
            }
        } else {
            UNROLL
            for (int i = 0; i < kValues; ++i) *place(i) = to_f16(clamp_to_f16(x[i]));
        }
    }
}
