// swiglu: out = gate * sigmoid(gate) * up, element by element, or another activation (swiglu.h).
//
//   gate, up  (rows, columns) float
//   out       (rows, columns) of the Dtype OUT (output.h); float may be gate or up
// All are aligned to 16.
//
// Threads: four neighbouring elements each (elements.h). Grid (ceil(rows * columns / (4 *
// THREADS))).
// Limits: columns a multiple of 32 for Q8.
// Launched by rocmforge/gpu/ops/swiglu.py.
#include "elements.h"
#include "swiglu.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct SwigluArgs {
    const float* gate;
    const float* up;
    Output out;
    int rows;
    int columns;
    int activation;
};

KERNEL(swiglu, SwigluArgs, THREADS) {
    const u64 count = static_cast<u64>(a.rows) * static_cast<u64>(a.columns);
    float gate[kVector], up[kVector];
    load_elements(a.gate, first_element(), count, gate);
    load_elements(a.up, first_element(), count, up);
    UNROLL
    for (int i = 0; i < kVector; ++i) gate[i] = gated(a.activation, gate[i], up[i]);
    store_elements<Dtype::OUT>(a.out, first_element(), count, gate);
}
