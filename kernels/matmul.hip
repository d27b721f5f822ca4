// y (T, N) = x · Wᵀ + bias, or y += it, for a few tokens and up to three matrices of the same x.
//
//   x     (T, K), T up to TOKENS: Q8 for quantized weights, float for dense ones (dot_rows.h)
//   W     (N, K) of FORMAT_0, FORMAT_1 and FORMAT_2, all quantized or all dense: streams of
//   packed.h;
//         K a multiple of their blocks
//   bias  (N,) float, or null
//   out   (T, N) float; += if `accumulate`, which may be x's own residual stream
// Blocks take the rows of one matrix after the other, kPassRows of dot_rows.h each: those below
// ends[0] the first one's, those below ends[1] the second one's. Rows from N on are not written.
// Launched by rocmforge/gpu/ops/matmul.py.
#include "product.h"

struct MatmulArgs {
    Product products[3];
    int rows[3];
    int ends[3];
    int accumulate;
    Batch<Input> batch;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

constexpr int kLds = kLarger<Activations<FORMAT_0>::kLds,
                             kLarger<Activations<FORMAT_1>::kLds, Activations<FORMAT_2>::kLds>>;

KERNEL(matmul, MatmulArgs, kThreads) {
    SHARED u32x4 lds[kLds];
    const int block = block_x();
    if constexpr (kSame<FORMAT_0, FORMAT_1> && kSame<FORMAT_0, FORMAT_2>) {
        const bool first = block < a.ends[0], second = block < a.ends[1];
        const Product p = first ? a.products[0] : second ? a.products[1] : a.products[2];
        const int rows = first ? a.rows[0] : second ? a.rows[1] : a.rows[2];
        const int start = first ? 0 : second ? a.ends[0] : a.ends[1];
        multiply_rows<FORMAT_0>(p, rows, block - start, a.accumulate, a.batch, lds);
    } else if (block < a.ends[0]) {
        multiply_rows<FORMAT_0>(a.products[0], a.rows[0], block, a.accumulate, a.batch, lds);
    } else if (block < a.ends[1]) {
        multiply_rows<FORMAT_1>(a.products[1], a.rows[1], block - a.ends[0], a.accumulate, a.batch,
                                lds);
    } else {
        multiply_rows<FORMAT_2>(a.products[2], a.rows[2], block - a.ends[1], a.accumulate, a.batch,
                                lds);
    }
}
