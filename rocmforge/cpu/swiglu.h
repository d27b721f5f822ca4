// The formulas of gated feed-forward parts, for the ops (swiglu.cpp) and for the product of gate
// and up that ends with one (matmul.cpp).
#pragma once

#include "ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

// 1 / (1 + e^-x).
inline F32 sigmoid(F32 x) {
    return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - x));
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), with tanh(u) = 2 sigmoid(2 u) - 1.
inline F32 gelu(F32 x) {
    const F32 inner = fma(x * x, set1(0.0713548162726f), set1(1.5957691216057308f));
    return x * sigmoid(x * inner);
}

// gpt-oss: g = min(gate, 7), u = up between -7 and 7: g * sigmoid(1.702 g) * (u + 1).
inline F32 clamped(F32 gate, F32 up) {
    const F32 g = min(set1(7.0f), gate);  // this order keeps a NaN
    const F32 u = min(set1(7.0f), max(set1(-7.0f), up));
    return g * sigmoid(g * set1(1.702f)) * (u + set1(1.0f));
}

// cap * tanh(x / cap).
inline F32 soft_capped(F32 x, float cap) {
    return set1(cap) * (set1(2.0f) * sigmoid(x * set1(2.0f / cap)) - set1(1.0f));
}

inline F32 gated(Activation activation, F32 gate, F32 up) {
    switch (activation) {
        case Activation::Gelu:
            return gelu(gate) * up;
        case Activation::Clamped:
            return clamped(gate, up);
        default:
            return gate * sigmoid(gate) * up;
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
