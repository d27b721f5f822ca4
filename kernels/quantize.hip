// quantize: out = x in another dtype: int8 in groups of 32 columns (q8.h), or f16.
//
//   x    (rows, columns) float, aligned to 16
//   out  (rows, columns) of the Dtype OUT (output.h), not float, aligned to 16
//
// Threads: four neighbouring elements each (elements.h). Grid (ceil(rows * columns / (4 *
// THREADS))).
// Limits: columns a multiple of 32 for Q8.
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
    store_elements<Dtype::OUT>(a.out, first_element(), count, x);
}
