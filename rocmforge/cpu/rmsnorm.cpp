// rmsnorm: out = or += x / sqrt(mean(x^2) + eps) * weight, over rows of `columns` floats.
//
// Sixteen partial sums of squares keep the rounding error of long rows small.
// May run in place.
#include <cmath>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

void rmsnorm(const NormArgs& args) {
    const int64_t columns = args.columns, piece = (kPieceFloats + columns - 1) / columns;
    const float* weight = args.weight;
    parallel_for(args.pool, args.rows, piece, [&](int64_t r) {
        const float* in = args.x + r * columns;
        float* to = args.out + r * columns;
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
            static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(columns) + args.eps));
        k = 0;
        for (; k + kLanes <= columns; k += kLanes) {
            const F32 value = load(in + k) * set1(inverse) * load(weight + k);
            store(to + k, args.accumulate ? load(to + k) + value : value);
        }
        for (; k < columns; ++k) {
            const float value = in[k] * inverse * weight[k];
            to[k] = args.accumulate ? to[k] + value : value;
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
