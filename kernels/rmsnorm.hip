// rmsnorm: out = x / sqrt(mean(x^2) + eps) * weight over each row of x, or that added to `base`.
//
//   x         (rows, columns) float
//   base      (rows, columns) float, or null; may be out
//   weight    (columns,) float
//   out       (rows, columns) of the Dtype OUT (output.h); float may be x itself
// All are aligned to 16.
//
// Threads: SPAN threads take a row (rows.h). A thread keeps its first ITEMS vectors of x in
// registers and reads the others twice. Grid (ceil(rows / kRows)).
// Limits: columns a multiple of VECTOR, and of 32 for Q8 and Permuted; sums of squares below 3e38.
// Launched by rocmforge/gpu/ops/rmsnorm.py.
#include "rows.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct RmsnormArgs {
    const float* x;
    const float* base;
    const float* weight;
    Output out;
    int rows;
    int columns;
    float eps;
};

// Loads a vector of x. Zeros where the thread has none.
DEVICE void load_vector(const RmsnormArgs& a, const RowPart& part, int i, float (&x)[VECTOR]) {
    UNROLL
    for (int j = 0; j < VECTOR; ++j) x[j] = 0.0f;
    if (part.has(i)) load_floats(a.x + part.start + part.column(i), x);
}

DEVICE void load_weight(const RmsnormArgs& a, const RowPart& part, int i, float (&weight)[VECTOR]) {
    UNROLL
    for (int j = 0; j < VECTOR; ++j) weight[j] = 0.0f;
    if (part.has(i)) load_floats(a.weight + part.column(i), weight);
}

DEVICE void store_normalized(const RmsnormArgs& a, const RowPart& part, int i, float inverse,
                             const float (&weight)[VECTOR], float (&x)[VECTOR]) {
    UNROLL
    for (int j = 0; j < VECTOR; ++j) x[j] *= inverse * weight[j];
    if (a.base != nullptr && part.has(i)) {
        float more[VECTOR];
        load_floats(a.base + part.start + part.column(i), more);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) x[j] += more[j];
    }
    const u64 start =
        Dtype::OUT == Dtype::Permuted ? permuted_row(part.row, a.columns) : part.start;
    store_as<Dtype::OUT>(a.out, start + part.column(i), x, part.has(i));
}

KERNEL_AHEAD(rmsnorm, RmsnormArgs, THREADS) {
    SHARED float scratch[kWaves];
    const RowPart part(a.rows, a.columns);
    float held[ITEMS][VECTOR],
        weight[ITEMS][VECTOR];  // the weights come from memory: they go first
    UNROLL
    for (int i = 0; i < ITEMS; ++i) load_weight(a, part, i, weight[i]);
    await_earlier();
    float squares = 0.0f;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        load_vector(a, part, i, held[i]);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) squares += held[i][j] * held[i][j];
    }
    for (int i = ITEMS; i < part.most_items(); ++i) {
        float x[VECTOR];
        load_vector(a, part, i, x);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) squares += x[j] * x[j];
    }
    const float mean = row_sum(squares, scratch) / static_cast<float>(a.columns);
    const float inverse = reciprocal_sqrt(mean + a.eps);
    UNROLL
    for (int i = 0; i < ITEMS; ++i) store_normalized(a, part, i, inverse, weight[i], held[i]);
    for (int i = ITEMS; i < part.most_items(); ++i) {
        float x[VECTOR], more[VECTOR];
        load_vector(a, part, i, x);
        load_weight(a, part, i, more);
        store_normalized(a, part, i, inverse, more, x);
    }
}
