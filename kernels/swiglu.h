// The formula of SwiGLU, gate * sigmoid(gate) * up, for the kernels that apply it.
#pragma once

#include "device.h"

DEVICE float swiglu(float gate, float up) {
    return gate / (1.0f + fast_exp(-gate)) * up;
}
