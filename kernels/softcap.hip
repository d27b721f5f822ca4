// softcap: x = cap * tanh(scale * x / cap), element by element; x = scale * x where cap is 0.
//
//   x  (rows, columns) float, aligned to 16
//
// Threads: four neighbouring elements each (elements.h). Grid (ceil(rows * columns / (4 *
// THREADS))).
// Launched by rocmforge/gpu/ops/softcap.py.
#include "elements.h"
#include "softcap.h"

struct SoftcapArgs {
    float* x;
    int rows;
    int columns;
    float scale;
    float cap;
};

KERNEL(softcap, SoftcapArgs, THREADS) {
    const u64 count = static_cast<u64>(a.rows) * static_cast<u64>(a.columns);
    float x[kVector];
    load_elements(a.x, first_element(), count, x);
    UNROLL
    for (int i = 0; i < kVector; ++i) {
        x[i] *= a.scale;
        if (a.cap > 0.0f) x[i] = soft_capped(x[i], a.cap);
    }
    store_elements<Dtype::F32>({a.x, nullptr, nullptr}, first_element(), count, x);
}
