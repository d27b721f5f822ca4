// layernorm: out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over each row of x.
//
//   x       (rows, columns) float
//   weight  (columns,) float
//   bias    (columns,) float, or null
//   out     (rows, columns) of the Dtype OUT (output.h); float may be x itself
// All are aligned to 16.
//
// Threads: SPAN threads take a row (rows.h). A thread keeps its first ITEMS vectors of x in
// registers and reads the others again. Grid (ceil(rows / kRows)).
// Limits: columns a multiple of VECTOR, and of 32 for Q8.
// Launched by rocmforge/gpu/ops/layernorm.py.
#include "rows.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct LayernormArgs {
    const float* x;
    const float* weight;
    const float* bias;
    Output out;
    int rows;
    int columns;
    float eps;
};

// This thread's vectors of a row: the first ITEMS from registers.
struct Vectors {
    const LayernormArgs& a;
    const RowPart part;
    float held[ITEMS][VECTOR];

    DEVICE explicit Vectors(const LayernormArgs& args) : a(args), part(args.rows, args.columns) {
        UNROLL
        for (int i = 0; i < ITEMS; ++i) load(i, held[i]);
    }

    DEVICE void load(int i, float (&x)[VECTOR]) const {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) x[j] = 0.0f;
        if (part.has(i)) load_floats(a.x + part.start + part.column(i), x);
    }

    // Calls take(i, vector i) for each vector; all threads of the block do so as often.
    template <class Take>
    DEVICE void each(const Take& take) const {
        UNROLL
        for (int i = 0; i < ITEMS; ++i) take(i, held[i]);
        for (int i = ITEMS; i < part.most_items(); ++i) {
            float x[VECTOR];
            load(i, x);
            take(i, x);
        }
    }
};

KERNEL(layernorm, LayernormArgs, THREADS) {
    SHARED float scratch[kWaves];
    const Vectors vectors(a);
    const RowPart& part = vectors.part;
    const float columns = static_cast<float>(a.columns);
    float sum = 0.0f, squares = 0.0f;
    vectors.each([&](int, const float (&x)[VECTOR]) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) sum += x[j];
    });
    const float mean = row_sum(sum, scratch) / columns;
    vectors.each([&](int i, const float (&x)[VECTOR]) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) {
            const float centred = part.has(i) ? x[j] - mean : 0.0f;
            squares += centred * centred;
        }
    });
    const float inverse = reciprocal_sqrt(row_sum(squares, scratch) / columns + a.eps);
    vectors.each([&](int i, const float (&x)[VECTOR]) {
        float weight[VECTOR] = {}, bias[VECTOR] = {}, y[VECTOR];
        if (part.has(i)) {
            load_floats(a.weight + part.column(i), weight);
            if (a.bias != nullptr) load_floats(a.bias + part.column(i), bias);
        }
        UNROLL
        for (int j = 0; j < VECTOR; ++j) y[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
        store_as<Dtype::OUT>(a.out, part.start + part.column(i), y, part.has(i));
    });
}
