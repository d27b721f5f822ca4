// The inner loop of matmul for bfloat16 pairs, which needs a processor with AVX512-BF16.
//
// Compiled apart from the ops: those of AVX-512 run on processors without it. multiplies_pairs
// (ops.h) says whether it may be called.
#pragma once

#include <cstdint>

namespace rocmforge {

// acc [width][16] = x [pairs][width] times w [pairs][16], both pairs of bfloat16; width is 1, 2,
// 4, 8 or 16.
void multiply_pairs(int width, const int32_t* w, int64_t pairs, const int32_t* x, float* acc);

}  // namespace rocmforge
