// softmax: out = exp(x - max(x)) / sum(exp(x - max(x))) over each row of x.
//
//   x, out  (rows, columns) float, aligned to 16; may be the same
//
// A row with NaN or +inf, or of nothing but -inf, becomes NaN.
// Threads: SPAN threads take a row (rows.h). A thread keeps its first ITEMS vectors of x in
// registers and reads the others three times. Grid (ceil(rows / kRows)).
// Limits: columns a multiple of VECTOR.
// Launched by rocmforge/gpu/ops/softmax.py.
#include "rows.h"

struct SoftmaxArgs {
    const float* x;
    float* out;
    int rows;
    int columns;
};

// Loads a vector of x; -inf where the thread has none.
DEVICE void load_vector(const SoftmaxArgs& a, const RowPart& part, int i, float (&x)[VECTOR]) {
    UNROLL
    for (int j = 0; j < VECTOR; ++j) x[j] = -infinity();
    if (part.has(i)) load_floats(a.x + part.start + part.column(i), x);
}

KERNEL(softmax, SoftmaxArgs, THREADS) {
    SHARED float scratch[kWaves];
    const RowPart part(a.rows, a.columns);
    float held[ITEMS][VECTOR];
    float largest = -infinity();
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        load_vector(a, part, i, held[i]);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) largest = maximum(largest, held[i][j]);
    }
    for (int i = ITEMS; i < part.most_items(); ++i) {
        float x[VECTOR];
        load_vector(a, part, i, x);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) largest = maximum(largest, x[j]);
    }
    largest = row_max(largest, scratch);

    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) {
            held[i][j] = fast_exp(held[i][j] - largest);
            sum += held[i][j];
        }
    }
    for (int i = ITEMS; i < part.most_items(); ++i) {
        float x[VECTOR];
        load_vector(a, part, i, x);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) sum += fast_exp(x[j] - largest);
    }
    const float share = 1.0f / row_sum(sum, scratch);

    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) held[i][j] *= share;
        if (part.has(i)) store_floats(a.out + part.start + part.column(i), held[i]);
    }
    for (int i = ITEMS; i < part.most_items(); ++i) {
        float x[VECTOR];
        load_vector(a, part, i, x);
        UNROLL
        for (int j = 0; j < VECTOR; ++j) x[j] = fast_exp(x[j] - largest) * share;
        if (part.has(i)) store_floats(a.out + part.start + part.column(i), x);
    }
}
