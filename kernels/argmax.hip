// argmax: out = the column of the largest number of each row; among equals, the lowest column.
//
// Two kernels, so that many blocks read one long row: argmax_parts finds the best column of each
// part of a row, argmax the best of the parts.
//
//   logits  (rows, columns) float, aligned to 16; NaN never wins, a row of only NaN gives 0
//   parts   (rows, kParts) Best, aligned to 16: parts.h
//   out     (rows,) int
//
// argmax_parts: a block takes one part, which is a run of columns; a thread reads every THREADS-th
// vector of VECTOR columns of it. Grid (kParts, rows).
// argmax: a wave takes a row. Grid (rows).
// Limits: columns a multiple of VECTOR.
// Launched by rocmforge/gpu/ops/argmax.py; argmax_parts also by rocmforge/gpu/ops/sample.py.
#include "output.h"
#include "parts.h"

#if !defined(THREADS) || !defined(VECTOR)
#error "THREADS and VECTOR have to be passed by the build"
#endif

struct ArgmaxPartsArgs {
    const float* logits;
    Best* parts;
    int columns;
};

struct ArgmaxArgs {
    const Best* parts;
    int* out;
};

KERNEL(argmax_parts, ArgmaxPartsArgs, THREADS) {
    SHARED Best scratch[THREADS / WAVE];
    const u64 row = block_y();
    const float* logits = a.logits + row * a.columns;
    const Part part(static_cast<int>(block_x()), a.columns / VECTOR);
    Best best = {0, 0, 0};
    for (int i = part.first + static_cast<int>(thread_x()); i < part.last; i += THREADS) {
        float x[VECTOR];
        load_floats(logits + static_cast<u64>(i) * VECTOR, x);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) best.add(x[j], i * VECTOR + j);
    }
    best.join();
    if (lane() == 0) scratch[wave()] = best;
    block_sync();
    if (thread_x() != 0) return;
    for (int i = 1; i < THREADS / WAVE; ++i) best.add(scratch[i]);
    a.parts[row * kParts + block_x()] = best;
}

KERNEL(argmax, ArgmaxArgs, WAVE) {
    const u64 row = block_x();
    const Best best = best_of_parts(a.parts + row * kParts);
    if (lane() == 0) a.out[row] = best.column();
}
