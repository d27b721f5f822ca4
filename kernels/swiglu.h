// The formula of SwiGLU, for the kernels that apply it. It knows no layout.
#pragma once

#include "device.h"

DEVICE float swiglu(float gate, float up) {
    return gate / (1.0f + fast_exp(-gate)) * up;
}
