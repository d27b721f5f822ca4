// How threads share the elements of an op that works element by element: four neighbouring elements
// a thread, THREADS threads a block. An array counts as one long row, so only its last thread may
// have fewer than four.
#pragma once

#include "output.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

constexpr int kVector = 4;

// First element of this thread.
DEVICE u64 first_element() {
    return (static_cast<u64>(block_x()) * THREADS + thread_x()) * kVector;
}

// Up to four elements from `index` on; zeros beyond `count`.
DEVICE void load_elements(const float* from, u64 index, u64 count, float (&to)[kVector]) {
    if (index + kVector <= count) {
        load_floats(from + index, to);
        return;
    }
    UNROLL
    for (int i = 0; i < kVector; ++i) to[i] = index + i < count ? from[index + i] : 0.0f;
}

// Writes up to four elements in a dtype. For Q8, `count` is a multiple of 32, so a thread has four
// or none.
template <Dtype kDtype>
DEVICE void store_elements(const Output& out, u64 index, u64 count, const float (&x)[kVector]) {
    if constexpr (kDtype == Dtype::Q8) {
        store_as<kDtype>(out, index, x, index < count);
    } else if (index + kVector <= count) {
        store_as<kDtype>(out, index, x, true);
    } else {
        UNROLL
        for (int i = 0; i < kVector; ++i) {
            const float one[1] = {x[i]};
            store_as<kDtype>(out, index + i, one, index + i < count);
        }
    }
}
