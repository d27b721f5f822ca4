// argmax: out = the column of the largest number of each row; among equals, the lowest column.
//
// Two kernels, so that many blocks read one long row: argmax_parts finds the best column of each
// part of a row, argmax the best of the parts.
//
//   logits  (rows, columns) float, aligned to 16; NaN never wins, a row of only NaN gives 0
//   parts   (rows, kParts) Best, aligned to 16: parts.h
//   out     (rows,) int
//
// argmax_parts: kPartLanes neighbouring lanes take one part, which is a run of columns; each reads
// every kPartLanes-th vector of VECTOR columns. Grid (kParts * kPartLanes / THREADS, rows).
// argmax: a wave takes a row. Grid (rows).
// Limits: columns a multiple of VECTOR.
// Launched by rocmforge/gpu/ops/argmax.py; argmax_parts also by rocmforge/gpu/ops/sample.py.
#include "output.h"
#include "parts.h"

#if !defined(THREADS) || !defined(VECTOR) || !defined(AHEAD)
#error "THREADS, VECTOR and AHEAD have to be passed by the build"
#endif
constexpr int kPartLanes = 16;  // LANES of rocmforge/gpu/ops/argmax.py
static_assert(kParts * kPartLanes % THREADS == 0 && kParts % WAVE == 0);

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
    const u64 row = block_y();
    const float* logits = a.logits + row * a.columns;
    const int thread = static_cast<int>(block_x() * THREADS + thread_x());
    const int part = thread / kPartLanes, own = thread % kPartLanes;
    const int vectors = a.columns / VECTOR, share = vectors_of_part(vectors);
    const int last = minimum((part + 1) * share, vectors);
    Best best = {0, 0, 0};
    for (int from = part * share + own; from < last; from += AHEAD * kPartLanes) {
        float x[AHEAD][VECTOR];
        int at[AHEAD];
        UNROLL
        for (int k = 0; k < AHEAD; ++k) {
            at[k] = minimum(from + k * kPartLanes, last - 1) * VECTOR;  // the last one, again
            load_floats(logits + at[k], x[k]);
        }
        UNROLL
        for (int k = 0; k < AHEAD; ++k) {
            UNROLL
            for (int j = 0; j < VECTOR; ++j) best.add(x[k][j], at[k] + j);
        }
    }
    best.join<kPartLanes>();
    if (own == 0) a.parts[row * kParts + part] = best;
}

KERNEL(argmax, ArgmaxArgs, WAVE) {
    const u64 row = block_x();
    const Best* const parts = a.parts + row * kParts;
    Best best = {0, 0, 0};
    UNROLL
    for (int i = 0; i < kParts / WAVE; ++i) best.add(parts[i * WAVE + lane()]);
    best.join();
    if (lane() == 0) a.out[row] = best.column();
}
