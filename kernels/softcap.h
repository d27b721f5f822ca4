// The formula of a soft cap, cap * tanh(x / cap), for the kernels that apply it.
#pragma once

#include "device.h"

DEVICE float soft_capped(float x, float cap) {
    return cap * (2.0f / (1.0f + fast_exp(-2.0f / cap * x)) - 1.0f);
}
