// swiglu: out = gate / (1 + exp(-gate)) * up, elementwise over n floats. May run in place.
#include "swiglu.h"

#include <cmath>

#include "isa_ops.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int64_t kPieceBlocks = 256;  // vectors that are worth another thread

}  // namespace

void swiglu(const float* gate, const float* up, int64_t n, float* out, ThreadPool& pool) {
    const int64_t blocks = n / kLanes;
    parallel_for(pool, blocks, kPieceBlocks, [&](int64_t b) {
        const int64_t at = b * kLanes;
        store(out + at, swiglu(load(gate + at), load(up + at)));
    });
    for (int64_t i = blocks * kLanes; i < n; ++i) {
        out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
