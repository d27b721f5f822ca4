// What experts give, added up in their shares, for add_experts and add_experts_rmsnorm.
#pragma once

#include "output.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

constexpr int kTogether = 8;  // parts loaded before they are added; past the end, the last again

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
        for (int first = 0; first < chosen; first += kTogether) {
            float share[kTogether], four[kTogether][4];
            UNROLL
            for (int i = 0; i < kTogether; ++i) {
                const u64 part = token * chosen + minimum(first + i, chosen - 1);
                share[i] = shares[part];
                load_floats(parts + part * columns + column, four[i]);
            }
            UNROLL
            for (int i = 0; i < kTogether; ++i) {
                if (first + i >= chosen) break;
                UNROLL
                for (int j = 0; j < 4; ++j) to[j] += share[i] * four[i][j];
            }
        }
    }
};

// The first of a thread's columns.
DEVICE int own_column() {
    return 4 * static_cast<int>(block_x() * THREADS + thread_x());
}
