// Up to three matrices in one launch, of FORMAT_0, FORMAT_1 and FORMAT_2 where kernels read them
// packed: the first blocks take the first matrix, those from ends[0] on the second, those from
// ends[1] on the third. rocmforge/gpu/ops/products.py fills it.
#pragma once

#include "packed.h"

// out (T, N) = x W^T + bias; the bias (N,) may be null. unpack.hip writes the matrix itself to out.
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

// Which of the products block, or band, number `number` belongs to.
DEVICE int product_of(const Products& all, int number) {
    return number < all.ends[0] ? 0 : number < all.ends[1] ? 1 : 2;
}

#if defined(FORMAT_2)
// For block, or band, number `number` of all products, calls work.run<Format>(product, its rows,
// number among those of the product). Matrices of one format that follow one another share its
// code: multiprocessors wait long for instructions that they run for the first time.
template <class Work>
DEVICE void own_product(const Products& all, int number, const Work& work) {
    constexpr bool kFirstTwo = kSame<FORMAT_0, FORMAT_1>, kLastTwo = kSame<FORMAT_1, FORMAT_2>;
    const bool first = number < all.ends[0], second = number < all.ends[1];
    const Product p = first ? all.of[0] : second ? all.of[1] : all.of[2];
    const int rows = first ? all.rows[0] : second ? all.rows[1] : all.rows[2];
    const int own = number - (first ? 0 : second ? all.ends[0] : all.ends[1]);
    if ((kFirstTwo && kLastTwo) || first || (kFirstTwo && second)) {
        work.template run<FORMAT_0>(p, rows, own);
        return;
    }
    if constexpr (!kFirstTwo && !kLastTwo) {
        if (second) {
            work.template run<FORMAT_1>(p, rows, own);
            return;
        }
    }
    work.template run<FORMAT_2>(p, rows, own);
}
#endif
