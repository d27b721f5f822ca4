// One matrix times the activations of a few tokens, into float: what a block of matmul or of
// swiglu_matmul does. It knows no source of activations.
#pragma once

#include "dot_rows.h"

// out (T, N) = or += x W^T + bias; the bias (N,) may be null.
struct Product {
    PackedMatrix matrix;
    const float* bias;
    float* out;
};

// Block number `block` of a matrix of `rows` rows takes kPassRows of them.
template <class Format, class Source>
DEVICE void multiply_rows(const Product& p, int rows, int block, bool accumulate,
                          const Batch<Source>& batch, u32x4* lds) {
    const Part part;
    const int start = block * kPassRows, row = start + part.row;
    const bool present = part.writes && part.token < batch.tokens && row < rows;
    float* out = p.out + static_cast<u64>(part.token) * rows + row;
    float known = 0.0f;  // asked for early: bias and what is there already
    if (present && p.bias) known = p.bias[row];
    if (present && accumulate) known += *out;
    const PackedMatrix matrices[1] = {p.matrix};
    dot_rows<Format, 1, 1>(matrices, start, rows, batch, lds, [&](int, const float (&products)[1]) {
        if (present) *out = known + products[0];
    });
}
