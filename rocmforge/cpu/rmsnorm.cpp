// rmsnorm: out = x / sqrt(mean(x^2) + eps) * weight, over rows of `columns` floats.
//
// Sixteen partial sums of squares keep the rounding error of long rows small.
// May run in place.
#include <cmath>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

void rmsnorm(const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
             float* out, ThreadPool& pool) {
    const int64_t piece = (kPieceFloats + columns - 1) / columns;
    parallel_for(pool, rows, piece, [&](int64_t r) {
        const float* in = x + r * columns;
        float* to = out + r * columns;
        F32 squares = set1(0.0f);
        int64_t k = 0;
        for (; k + kLanes <= columns; k += kLanes) {
            const F32 a = load(in + k);
            squares = fma(a, a, squares);
        }
        double total = sum(squares);
        for (; k < columns; ++k) total += static_cast<double>(in[k]) * in[k];
        if (!std::isfinite(total)) {  // squares beyond float32, or a NaN that must stay
            total = 0.0;
            for (k = 0; k < columns; ++k) total += static_cast<double>(in[k]) * in[k];
        }
        const auto inverse =
            static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(columns) + eps));
        k = 0;
        for (; k + kLanes <= columns; k += kLanes) {
            store(to + k, load(in + k) * set1(inverse) * load(weight + k));
        }
        for (; k < columns; ++k) to[k] = in[k] * inverse * weight[k];
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
