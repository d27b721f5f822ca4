// The formula of SwiGLU, for the op (swiglu.cpp) and for the product of gate and up that ends with
// it (matmul.cpp).
#pragma once

#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

// gate * sigmoid(gate) * up.
inline F32 swiglu(F32 gate, F32 up) {
    const F32 sigmoid = set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - gate));
    return gate * sigmoid * up;
}

}  // namespace rocmforge::ROCMFORGE_ISA
