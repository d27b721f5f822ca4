// matmul: out = x W^T + bias, or that is added to out: a GEMV for one to eight rows of x (decode),
// with up to three matrices W in one launch.
//
//   x     (T, K): Q8 for quantized weights, float for dense ones, aligned to 16 (activations.h)
//   W     (N, K) of FORMAT_0, FORMAT_1 and FORMAT_2, all quantized or all dense, packed (packed.h)
//   bias  (N,) float, or null
//   out   (T, N) float; with `accumulate` it is added to
//
// Threads: a block takes kPassRows rows of one matrix (dot_rows.h). Blocks below ends[0] take the
// first matrix, those below ends[1] the second, the others the third. Rows past the end are not
// written. Grid (ends[2]).
// Limits: T at most TOKENS; K whole blocks of the formats.
// Launched by rocmforge/gpu/ops/matmul.py.
#include "dot_rows.h"

// out (T, N) = x W^T + bias, or that is added to out; the bias (N,) may be null.
struct Product {
    PackedMatrix matrix;
    const float* bias;
    float* out;
};

// Computes the kPassRows rows of block number `block`, of a matrix of `rows` rows.
template <class Format>
DEVICE void multiply_rows(const Product& p, int rows, int block, bool accumulate,
                          const Batch& batch, u32x4* lds) {
    const OwnProduct own;
    const int start = block * kPassRows, row = start + own.row;
    const bool present = own.writes && own.token < batch.tokens && row < rows;
    float* out = p.out + static_cast<u64>(own.token) * rows + row;
    float addend = 0.0f;  // bias and earlier output, loaded early
    const auto begin = [&] {
        await_earlier();
        if (present && p.bias) addend = p.bias[row];
        if (present && accumulate) addend += *out;
    };
    const PackedMatrix matrices[1] = {p.matrix};
    const auto finish = [&](int, const float (&products)[1]) {
        if (present) *out = addend + products[0];
    };
    dot_rows<Format, 1, 1>(matrices, start, rows, batch, lds, begin, finish);
}

struct MatmulArgs {
    Product products[3];
    int rows[3];
    int ends[3];
    int accumulate;
    Batch batch;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

constexpr int kLds = kLarger<Activations<FORMAT_0>::kLds,
                             kLarger<Activations<FORMAT_1>::kLds, Activations<FORMAT_2>::kLds>>;

KERNEL_AHEAD(matmul, MatmulArgs, kThreads) {
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
