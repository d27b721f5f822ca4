// softmax: out = exp(x - max(x)) / sum(exp(x - max(x))), over rows of `columns` floats.
//
// May run in place. Attention has its own running form and does not call it.
#include <algorithm>
#include <cmath>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

void softmax(const float* x, int64_t rows, int64_t columns, float* out, ThreadPool& pool) {
    const int64_t piece = (kPieceFloats + columns - 1) / columns;
    parallel_for(pool, rows, piece, [&](int64_t r) {
        const float* in = x + r * columns;
        float* to = out + r * columns;
        float largest = in[0];
        for (int64_t k = 1; k < columns; ++k) largest = std::max(largest, in[k]);
        F32 sums = set1(0.0f);
        int64_t k = 0;
        for (; k + kLanes <= columns; k += kLanes) {
            const F32 e = exp(load(in + k) - set1(largest));
            store(to + k, e);
            sums = sums + e;
        }
        float total = sum(sums);
        for (; k < columns; ++k) total += to[k] = std::exp(in[k] - largest);
        const float inverse = 1.0f / total;
        for (k = 0; k < columns; ++k) to[k] *= inverse;
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
