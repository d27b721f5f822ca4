// multiply_pairs: products of bfloat16 pairs, summed in float32. See multiply_pairs.h.
//
// It knows nothing of threads, tiles or how the pairs were rounded.
#include "multiply_pairs.h"

#include "matmul_kernels.h"

namespace rocmforge {

namespace ROCMFORGE_ISA {

namespace {

template <int width>
void multiply(const int32_t* w, int64_t pairs, const int32_t* x, float* acc_memory) {
    constexpr int chains = width >= 8 ? 1 : 8 / width;  // enough sums in flight to hide latency
    F32 acc[chains][width];
#pragma GCC unroll 8
    for (int c = 0; c < chains; ++c) {
#pragma GCC unroll 16
        for (int t = 0; t < width; ++t) acc[c][t] = c ? set1(0.0f) : load(acc_memory + t * kLanes);
    }
    int64_t k = 0;
    for (; k + chains <= pairs; k += chains) {
        if constexpr (width == 1) {
            prefetch(reinterpret_cast<const uint8_t*>(w + k * kLanes) + kAhead,
                     chains * kLanes * static_cast<int>(sizeof(int32_t)));
        }
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            const I32 row = load(w + (k + c) * kLanes);
#pragma GCC unroll 16
            for (int t = 0; t < width; ++t) {
                acc[c][t] = dot2(acc[c][t], row, set1(x[(k + c) * width + t]));
            }
        }
    }
    for (; k < pairs; ++k) {
        const I32 row = load(w + k * kLanes);
        for (int t = 0; t < width; ++t) acc[0][t] = dot2(acc[0][t], row, set1(x[k * width + t]));
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) {
        F32 total = acc[0][t];
#pragma GCC unroll 8
        for (int c = 1; c < chains; ++c) total = total + acc[c][t];
        store(acc_memory + t * kLanes, total);
    }
}

}  // namespace

}  // namespace ROCMFORGE_ISA

void multiply_pairs(int width, const int32_t* w, int64_t pairs, const int32_t* x, float* acc) {
    using namespace ROCMFORGE_ISA;
    visit_width(width, [&](auto constant) { multiply<constant.value>(w, pairs, x, acc); });
}

}  // namespace rocmforge
