// The formula of SwiGLU, for the op and for the matmul that ends with it.
#pragma once

#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

// gate * sigmoid(gate) * up.
inline F32 swiglu(F32 gate, F32 up) {
    const F32 sigmoid = set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - gate));
    return gate * sigmoid * up;
}

}  // namespace rocmforge::ROCMFORGE_ISA
