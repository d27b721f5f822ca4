// softcap: out = cap * tanh(x / cap), elementwise over n floats. May run in place.
#include "elements.h"
#include "isa_ops.h"
#include "swiglu.h"

namespace rocmforge::ROCMFORGE_ISA {

void softcap(const float* x, int64_t n, float cap, float* out, ThreadPool& pool) {
    map_elements(x, x, n, out, pool, [cap](F32 value, F32) { return soft_capped(value, cap); });
}

}  // namespace rocmforge::ROCMFORGE_ISA
