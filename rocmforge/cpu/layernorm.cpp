// layernorm: out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, over rows of `columns`
// floats. May run in place.
#include <cmath>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

void layernorm(const NormArgs& args) {
    const int64_t columns = args.columns, piece = (kPieceFloats + columns - 1) / columns;
    parallel_for(args.pool, args.rows, piece, [&](int64_t r) {
        const float* x = args.x + r * columns;
        float* out = args.out + r * columns;
        double total = 0.0, squares = 0.0;
        for (int64_t k = 0; k < columns; ++k) total += x[k];
        const double mean = total / static_cast<double>(columns);
        for (int64_t k = 0; k < columns; ++k) squares += (x[k] - mean) * (x[k] - mean);
        const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(columns) + args.eps);
        for (int64_t k = 0; k < columns; ++k) {
            const double normal = (x[k] - mean) * inverse * args.weight[k];
            out[k] = static_cast<float>(normal + (args.bias ? args.bias[k] : 0.0f));
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
