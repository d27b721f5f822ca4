// Part of the softmax state of a query over some of its tokens, which is merged with those over the
// others: the largest score, the sum of the weights exp(score - largest), and the weighted sum of
// the values, in four of their dims.
#pragma once

#include "device.h"

constexpr float kLowest = -1e30f;  // the maximum of no scores; finite, so that no difference is NaN

struct FourDims {
    float largest = kLowest, total = 0.0f, out[4] = {};

    DEVICE void add(float other_largest, float other_total, const float (&other)[4]) {
        const float top = maximum(largest, other_largest);
        const float mine = fast_exp(largest - top), theirs = fast_exp(other_largest - top);
        largest = top;
        total = mine * total + theirs * other_total;
        UNROLL for (int i = 0; i < 4; ++i) out[i] = mine * out[i] + theirs * other[i];
    }
};
