// swiglu: out = gate * sigmoid(gate) * up, elementwise over n floats, or another activation.
// gelu: out = gelu(x). Formulas: swiglu.h. Both may run in place.
#include "swiglu.h"

#include "elements.h"
#include "isa_ops.h"

namespace rocmforge::ROCMFORGE_ISA {

void swiglu(const float* gate, const float* up, int64_t n, Activation activation, float* out,
            ThreadPool& pool) {
    map_elements(gate, up, n, out, pool, [&](F32 g, F32 u) { return gated(activation, g, u); });
}

void gelu(const float* x, int64_t n, float* out, ThreadPool& pool) {
    map_elements(x, x, n, out, pool, [](F32 value, F32) { return gelu(value); });
}

}  // namespace rocmforge::ROCMFORGE_ISA
