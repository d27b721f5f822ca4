// NVIDIA's matrix unit as it is, for kernels that make its operands in registers (PTX
// ISA 8.0, 9.7.13): one mma.m16n8k16 with f16 and sums in float. tile.h puts two of them side by
// side. A lane is `lane % 4` of line `lane / 4`. The host computes the same by exchanging words
// between lanes, so that the tests can run such kernels.
#pragma once

#include "device.h"

#if !defined(ROCMFORGE_AMD)

// d[m][n] += Σ_k a[m][k] · b[n][k], m and k below 16, n below 8. Lane 4 g + t holds, of
//   a: lines g and g + 8 in words 0 and 1, k = 2 t and 2 t + 1; words 2 and 3: the same, k + 8
//   b: line g in word 0, k = 2 t and 2 t + 1; word 1: k + 8
//   d: four values: rows g (0 and 1) and g + 8 (2 and 3), columns 2 t and 2 t + 1
DEVICE void mma_sync(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if defined(ROCMFORGE_CUDA)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const auto from = [](uint32_t low, uint32_t high, unsigned source, uint32_t (&words)[2]) {
        const u64 both = rocmforge_host->exchange(static_cast<u64>(high) << 32 | low, source);
        words[0] = static_cast<uint32_t>(both), words[1] = static_cast<uint32_t>(both >> 32);
    };
    const unsigned line = lane() / 4, column = lane() % 4 * 2;
    for (unsigned t = 0; t < 4; ++t) {
        uint32_t rows[2][2], columns[2][2];  // [row or column][k of 0 to 7, or of 8 to 15]
        from(a[0], a[2], 4 * line + t, rows[0]);
        from(a[1], a[3], 4 * line + t, rows[1]);
        from(b0, b1, 4 * column + t, columns[0]);
        from(b0, b1, 4 * column + 4 + t, columns[1]);
        for (int i = 0; i < 4; ++i) {
            for (int half = 0; half < 2; ++half) {
                const uint32_t x = rows[i / 2][half], y = columns[i % 2][half];
                d[i] += low_half(x) * low_half(y) + high_half(x) * high_half(y);
            }
        }
    }
#endif
}

// Of an 8 x 8 matrix of f16 of which lane 4 g + t holds columns 2 t and 2 t + 1 of row g, the same
// of the transposed matrix.
DEVICE uint32_t transposed(uint32_t two) {
#if defined(ROCMFORGE_HOST)
    const unsigned row = lane() % 4 * 2, column = lane() / 4;
    const u64 even = rocmforge_host->exchange(two, 4 * row + column / 2);
    const u64 odd = rocmforge_host->exchange(two, 4 * row + 4 + column / 2);
    const unsigned shift = 16 * (column % 2);
    return static_cast<uint32_t>((even >> shift & 0xffff) | (odd >> shift & 0xffff) << 16);
#else
    uint32_t result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(two));
    return result;
#endif
}

#endif
