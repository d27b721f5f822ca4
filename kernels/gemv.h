// GEMV: products of rows of packed weights with up to TOKENS (at most 8) rows of activations, by
// dot products of lanes (dot_rows.h), or with four LANES by NVIDIA's matrix units (matrix_rows.h).
// Both have dot_rows(), kPassRows, OwnProduct, kMatrixUnits, kResident, the blocks for which CUDA
// keeps registers on a multiprocessor, and kRowsLds<Format>, the pieces of 16 bytes that dot_rows()
// needs in LDS.
#pragma once

#if !defined(LANES)
#error "LANES has to be passed by the build"
#endif
#if LANES == 4
#include "matrix_rows.h"
#else
#include "dot_rows.h"
#endif

template <class Format, int kMatrices, int kPasses, class Begin, class Finish>
DEVICE void dot_rows(const PackedMatrix (&matrices)[kMatrices], int start, int rows,
                     const Batch& batch, u32x4* lds, const Begin& begin, const Finish& finish) {
    dot_rows<Format, kMatrices, kPasses>(matrices, start, rows, batch, lds, begin, finish, [] {});
}

// For blocks that take whole groups of 32 rows; those of matrix units need not.
constexpr int kGroupPasses = kPassRows < 32 && !kMatrixUnits ? 32 / kPassRows : 1;
constexpr int kGroupRows = kGroupPasses * kPassRows;
static_assert(kMatrixUnits || kGroupRows % 32 == 0, "a block owns whole groups of 32 rows");
