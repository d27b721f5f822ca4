// How threads share rows: SPAN neighbouring threads take a row, so a block takes THREADS / SPAN
// rows.
//
// SPAN is THREADS, or a power of two from 8 to 32, which lies within one wave, of 32 or of 64
// lanes. Thread i of a row has its vectors i, i + SPAN, … of VECTOR columns and keeps the first
// ITEMS of them in registers. rocmforge/gpu/ops/rows.py chooses these constants.
#pragma once

#include "output.h"

#if !defined(THREADS) || !defined(SPAN) || !defined(ITEMS) || !defined(VECTOR)
#error "THREADS, SPAN, ITEMS and VECTOR have to be passed by the build"
#endif

static_assert(SPAN == THREADS || SPAN == 8 || SPAN == 16 || SPAN == 32);
static_assert(THREADS % 64 == 0 && THREADS <= 1024 && (VECTOR == 1 || VECTOR == 4));

constexpr int kRows = THREADS / SPAN;
constexpr int kWaves = THREADS / WAVE;

// This thread's part of a row of a (rows, columns) array.
struct RowPart {
    int row;
    bool inside;  // whether the row exists
    u64 start;    // element at which the row begins
    int vectors;  // of a row
    int first;    // this thread's first vector

    DEVICE RowPart(int rows, int columns) {
        row = static_cast<int>(block_x()) * kRows + static_cast<int>(thread_x()) / SPAN;
        inside = row < rows;
        start = static_cast<u64>(row) * static_cast<u64>(columns);
        vectors = columns / VECTOR;
        first = static_cast<int>(thread_x()) % SPAN;
    }

    // Whether this thread has a vector i, and the vector's first column.
    DEVICE bool has(int i) const { return inside && first + i * SPAN < vectors; }
    DEVICE int column(int i) const { return (first + i * SPAN) * VECTOR; }

    // The most vectors that a thread has; the same for all threads of a block.
    DEVICE int most_items() const { return (vectors + SPAN - 1) / SPAN; }
};

// Sum and maximum over the threads of a row; all threads of the block must call.
DEVICE float row_sum(float value, float* scratch) {
    if constexpr (SPAN < THREADS) {
        return wave_sum<SPAN>(value);
    } else {
        return block_sum<THREADS>(value, scratch);
    }
}
DEVICE float row_max(float value, float* scratch) {
    if constexpr (SPAN < THREADS) {
        return wave_max<SPAN>(value);
    } else {
        return block_max<THREADS>(value, scratch);
    }
}
