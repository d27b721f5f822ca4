// quantize: out = x in another dtype: int8 in groups of 32 columns (q8.h), or f16.
//
//   x    (rows, columns) float, aligned to 16
//   out  (rows, columns) of the Dtype OUT (output.h), not float, aligned to 16
//
// Threads: four neighbouring elements each (elements.h). Grid (ceil(rows * columns / (4 *
// THREADS))).
// Limits: columns a multiple of 32 for Q8 and Permuted; rows * columns below 2^34.
// Launched by rocmforge/gpu/ops/quantize.py.
#include "elements.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct QuantizeArgs {
    const float* x;
    Output out;
    int rows;
    int columns;
};

KERNEL(quantize, QuantizeArgs, THREADS) {
    const u64 count = static_cast<u64>(a.rows) * static_cast<u64>(a.columns);
    float x[kVector];
    load_elements(a.x, first_element(), count, x);
    if constexpr (Dtype::OUT == Dtype::Permuted) {
        const uint32_t vector = block_x() * THREADS + thread_x(), of_row = a.columns / kVector;
        const uint32_t row = vector / of_row, column = vector % of_row * kVector;
        const bool inside = first_element() < count;
        store_as<Dtype::OUT>(a.out, permuted_row(row, a.columns) + column, x, inside);
    } else {
        store_elements<Dtype::OUT>(a.out, first_element(), count, x);
    }
}
