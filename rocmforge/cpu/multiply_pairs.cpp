// multiply_pairs: products of bfloat16 pairs, summed in float32. See multiply_pairs.h.
#include "multiply_pairs.h"

#include "matmul_kernels.h"

namespace rocmforge {

void multiply_pairs(int width, const int32_t* w, int64_t pairs, const int32_t* x, float* acc) {
    using namespace ROCMFORGE_ISA;
    visit_width(width, [&](auto constant) {
        multiply_panel<constant.value, 8>(
            w, pairs, x, true, acc, [](const int32_t* row) { return load(row); },
            [](F32 sum, I32 row, int32_t value) { return dot2(sum, row, set1(value)); });
    });
}

}  // namespace rocmforge
