// The weight formats by number, and the matrix that `pack` makes for `matmul`.
//
// Shared by the op files, which are compiled once per instruction set, and by the bindings.
// It knows nothing of how a packed tile looks inside: packed.h does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rocmforge {

enum class Format : int {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    BF16_PAIRS,  // in no file: what `pack` can make of F32, F16 and BF16
};

constexpr const char* kFormatNames[] = {
    "F32",  "F16",  "BF16", "Q4_0", "Q4_1",   "Q5_0",  "Q5_1",       "Q8_0",       "Q2_K",
    "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "MXFP6_E2M3", "MXFP6_E3M2",
};
constexpr int kFormats = sizeof(kFormatNames) / sizeof(kFormatNames[0]);

constexpr int64_t kTileRows = 16;

// A weight matrix (rows, columns), rows padded to a multiple of 16 with zeros, in tiles of 16 rows.
struct PackedView {
    const uint8_t* data;
    size_t tile_bytes;
    int64_t rows, columns;
    Format format;
};

}  // namespace rocmforge
