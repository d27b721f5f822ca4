// The loop of the ops that work element by element.
#pragma once

#include "simd.h"
#include "threads.h"

namespace rocmforge::ROCMFORGE_ISA {

constexpr int64_t kPieceBlocks = 256;  // vectors that are worth another thread

// out[i] = f(a[i], b[i]), vector by vector.
template <class Function>
void map_elements(const float* a, const float* b, int64_t n, float* out, ThreadPool& pool,
                  Function&& f) {
    const int64_t blocks = n / kLanes, first = blocks * kLanes;
    parallel_for(pool, blocks, kPieceBlocks, [&](int64_t block) {
        const int64_t at = block * kLanes;
        store(out + at, f(load(a + at), load(b + at)));
    });
    if (first == n) return;
    alignas(64) float rest_a[kLanes] = {}, rest_b[kLanes] = {};
    const auto rest = static_cast<size_t>(n - first) * sizeof(float);
    std::memcpy(rest_a, a + first, rest);
    std::memcpy(rest_b, b + first, rest);
    store(rest_a, f(load(rest_a), load(rest_b)));
    std::memcpy(out + first, rest_a, rest);
}

}  // namespace rocmforge::ROCMFORGE_ISA
