// One matrix times the activations of a few tokens, written as float: what a block of matmul or of
// swiglu_matmul does.
#pragma once

#include "dot_rows.h"

// out (T, N) = x W^T + bias, or that is added to out; the bias (N,) may be null.
struct Product {
    PackedMatrix matrix;
    const float* bias;
    float* out;
};

// Computes the kPassRows rows of block number `block`, of a matrix of `rows` rows.
template <class Format, class Source>
DEVICE void multiply_rows(const Product& p, int rows, int block, bool accumulate,
                          const Batch<Source>& batch, u32x4* lds) {
    const OwnProduct own;
    const int start = block * kPassRows, row = start + own.row;
    const bool present = own.writes && own.token < batch.tokens && row < rows;
    float* out = p.out + static_cast<u64>(own.token) * rows + row;
    float addend = 0.0f;  // bias and earlier output, loaded early
    if (present && p.bias) addend = p.bias[row];
    if (present && accumulate) addend += *out;
    const PackedMatrix matrices[1] = {p.matrix};
    dot_rows<Format, 1, 1>(matrices, start, rows, batch, lds, [&](int, const float (&products)[1]) {
        if (present) *out = addend + products[0];
    });
}
