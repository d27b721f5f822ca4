// What experts give, added up in their shares, for add_experts and add_experts_rmsnorm.
#pragma once

#include "output.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

//   parts   (T, k, K) float, aligned to 16
//   shares  (T, k) float
//   x       (T, K) float, aligned to 16
struct AddExperts {
    const float* parts;
    const float* shares;
    float* x;
    int chosen, columns;
    int accumulate;  // else x is only written

    // Four neighbouring columns of x[token] with all that is added to them, or of the sum alone.
    DEVICE void sum(u64 token, int column, float (&to)[4]) const {
        UNROLL
        for (int j = 0; j < 4; ++j) to[j] = 0.0f;
        if (accumulate) load_floats(x + token * columns + column, to);
        for (int i = 0; i < chosen; ++i) {
            const u64 part = token * chosen + i;
            float four[4];
            load_floats(parts + part * columns + column, four);
            UNROLL
            for (int j = 0; j < 4; ++j) to[j] += shares[part] * four[j];
        }
    }
};

// The first of a thread's columns.
DEVICE int own_column() {
    return 4 * static_cast<int>(block_x() * THREADS + thread_x());
}
