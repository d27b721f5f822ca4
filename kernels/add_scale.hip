// add_scale: out = x + scale * y, element by element.
//
//   x, y, out  (count,) float, aligned to 16; out may be x or y
//
// Threads: four neighbouring elements each (elements.h). Grid (ceil(count / (4 * THREADS))).
// Limits: count below 2^31.
// Launched by rocmforge/gpu/ops/add_scale.py.
#include "elements.h"

struct AddScaleArgs {
    const float* x;
    const float* y;
    float* out;
    int count;
    float scale;
};

KERNEL(add_scale, AddScaleArgs, THREADS) {
    const u64 count = static_cast<u64>(a.count);
    float x[kVector], y[kVector];
    load_elements(a.x, first_element(), count, x);
    load_elements(a.y, first_element(), count, y);
    UNROLL
    for (int i = 0; i < kVector; ++i) x[i] += a.scale * y[i];
    store_elements<Dtype::F32>({a.out, nullptr, nullptr}, first_element(), count, x);
}
