// The weight formats by number, and the matrix that `pack` makes for `matmul`.
//
// Shared by the op files, which are compiled once per instruction set, and by the bindings.
// packed_layout.h has the layout of a packed tile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rocmforge {

// Every format once, in the order of rocmforge/gguf/formats.py; enum, names and cases follow.
// Quantized formats have integer codes and a block of their name in kernels/blocks.h. Dense ones
// are kept as floats; each has cases of its own in pack.cpp, matmul.cpp and dequantize.cpp.
// clang-format off
#define ROCMFORGE_QUANTIZED_FORMATS(X)      \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) \
    X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) \
    X(IQ4_NL) X(IQ4_XS) X(IQ3_S) X(IQ3_XXS) \
    X(IQ2_S) X(IQ2_XS) X(IQ2_XXS)           \
    X(IQ1_M) X(IQ1_S) X(TQ2_0) X(TQ1_0)     \
    X(NVFP4) X(MXFP4) X(MXFP6_E2M3)
#define ROCMFORGE_FORMATS(X) \
    X(F32) X(F16) X(BF16)    \
    ROCMFORGE_QUANTIZED_FORMATS(X) X(MXFP6_E3M2)
// clang-format on

#define ROCMFORGE_VALUE(name) name,
#define ROCMFORGE_NAME(name) #name,

enum class Format : int {
    // BF16_PAIRS stands in no file: `pack` makes it of F32, F16 and BF16.
    ROCMFORGE_FORMATS(ROCMFORGE_VALUE) BF16_PAIRS,
};

constexpr const char* kFormatNames[] = {ROCMFORGE_FORMATS(ROCMFORGE_NAME)};
constexpr int kFormats = sizeof(kFormatNames) / sizeof(kFormatNames[0]);

#undef ROCMFORGE_VALUE
#undef ROCMFORGE_NAME

constexpr int64_t kTileRows = 16;

// A weight matrix (rows, columns), rows padded to a multiple of 16 with zeros, in tiles of 16 rows.
struct PackedView {
    const uint8_t* data;
    size_t tile_bytes;
    int64_t rows, columns;
    Format format;
};

}  // namespace rocmforge
