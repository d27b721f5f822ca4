// Up to three products x W^T in one launch, whose matrices W are of FORMAT_0, FORMAT_1 and
// FORMAT_2: the first blocks take the first matrix, those from ends[0] on the second, those from
// ends[1] on the third. rocmforge/gpu/ops/products.py fills it.
#pragma once

#include "packed.h"

// out (T, N) = x W^T + bias; the bias (N,) may be null.
struct Product {
    PackedMatrix matrix;
    const float* bias;
    float* out;
};
struct Products {
    Product of[3];
    int rows[3];
    int ends[3];
};

// For block number `block` of all, calls work.run<Format>(product, its rows, number of this block
// among those of the product).
template <class Work>
DEVICE void own_product(const Products& all, int block, const Work& work) {
    const bool first = block < all.ends[0], second = block < all.ends[1];
    if constexpr (kSame<FORMAT_0, FORMAT_1> && kSame<FORMAT_0, FORMAT_2>) {
        const Product p = first ? all.of[0] : second ? all.of[1] : all.of[2];
        const int rows = first ? all.rows[0] : second ? all.rows[1] : all.rows[2];
        const int start = first ? 0 : second ? all.ends[0] : all.ends[1];
        work.template run<FORMAT_0>(p, rows, block - start);
    } else if (first) {
        work.template run<FORMAT_0>(all.of[0], all.rows[0], block);
    } else if (second) {
        work.template run<FORMAT_1>(all.of[1], all.rows[1], block - all.ends[0]);
    } else {
        work.template run<FORMAT_2>(all.of[2], all.rows[2], block - all.ends[1]);
    }
}
