// rmsnorm: out = x / sqrt(mean(x^2) + eps) * weight over each row of x. Where there is a residual,
// x += residual comes first.
//
//   x         (rows, columns) float; with a residual, the sum is stored back
//   residual  (rows, columns) float, or null
//   weight    (columns,) float
//   out       (rows, columns) float, f16 or Q8 as OUT says (output.h); float may be x itself
// All are aligned to 16.
//
// Threads: SPAN threads take a row (rows.h). A thread keeps its first ITEMS vectors of x in
// registers and reads the others twice. Grid (ceil(rows / kRows)).
// Limits: columns a multiple of VECTOR, and of 32 for Q8; sums of squares below 3e38.
// Launched by rocmforge/gpu/ops/rmsnorm.py.
#include "rows.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct RmsnormArgs {
    float* x;
    const float* residual;
    const float* weight;
    Output out;
    int rows;
    int columns;
    float eps;
};

// Loads a vector of x; adds the residual and stores the sum. Zeros where the thread has none.
DEVICE void load_vector(const RmsnormArgs& a, const RowPart& part, int i, float (&x)[VECTOR]) {
    UNROLL
    for (int j = 0; j < VECTOR; ++j) x[j] = 0.0f;
    if (!part.has(i)) return;
    const u64 at = part.start + part.column(i);
    load_floats(a.x + at, x);
    if (a.residual != nullptr) {
        float more[VECTOR];
        load_floats(a.residual + at, more);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) x[j] += more[j];
        store_floats(a.x + at, x);
    }
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
    store_as<Dtype::OUT>(a.out, part.start + part.column(i), x, part.has(i));
}

KERNEL(rmsnorm, RmsnormArgs, THREADS) {
    SHARED float scratch[kWaves];
    const RowPart part(a.rows, a.columns);
    float held[ITEMS][VECTOR], weight[ITEMS][VECTOR];  // loaded early, beside x
    float squares = 0.0f;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        load_vector(a, part, i, held[i]);
        load_weight(a, part, i, weight[i]);
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
        float x[VECTOR] = {}, more[VECTOR];
        if (part.has(i)) load_floats(a.x + part.start + part.column(i), x);
        load_weight(a, part, i, more);
        store_normalized(a, part, i, inverse, more, x);
    }
}
