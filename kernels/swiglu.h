// The formula of SwiGLU, gate * sigmoid(gate) * up, for the kernels that apply it, and those of
// other activations.
#pragma once

#include "device.h"

DEVICE float swiglu(float gate, float up) {
    return gate / (1.0f + fast_exp(-gate)) * up;
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), with tanh(u) = 2 / (1 + e^-2u) - 1.
DEVICE float gelu(float x) {
    const float inner = x * (1.5957691216057308f + 0.0713548162726f * x * x);
    return x / (1.0f + fast_exp(-inner));
}

// gpt-oss: g = min(gate, 7), u = up between -7 and 7: g * sigmoid(1.702 g) * (u + 1).
DEVICE float clamped(float gate, float up) {
    const float g = minimum(gate, 7.0f), u = maximum(minimum(up, 7.0f), -7.0f);
    return g / (1.0f + fast_exp(-1.702f * g)) * (u + 1.0f);
}

// As numbered by rocmforge/gpu/ops/swiglu.py; the last has no up.
enum class Activation { Silu, Gelu, Clamped, GeluAlone };

template <Activation kActivation>
DEVICE float gated(float gate, float up) {
    if constexpr (kActivation == Activation::Gelu) return gelu(gate) * up;
    if constexpr (kActivation == Activation::Clamped) return clamped(gate, up);
    if constexpr (kActivation == Activation::GeluAlone) return gelu(gate);
    return swiglu(gate, up);
}

// Calls work.run<kActivation>().
template <class Work>
DEVICE void with_activation(int activation, const Work& work) {
    switch (static_cast<Activation>(activation)) {
        case Activation::Gelu:
            return work.template run<Activation::Gelu>();
        case Activation::Clamped:
            return work.template run<Activation::Clamped>();
        case Activation::GeluAlone:
            return work.template run<Activation::GeluAlone>();
        default:
            return work.template run<Activation::Silu>();
    }
}

struct GatedOnce {
    float gate, up;
    float& result;
    template <Activation kActivation>
    DEVICE void run() const {
        result = gated<kActivation>(gate, up);
    }
};
DEVICE float gated(int activation, float gate, float up) {
    float result;
    with_activation(activation, GatedOnce{gate, up, result});
    return result;
}
