// matmul: out = x W^T + bias, or that is added to out: a GEMV for one to eight rows of x (decode),
// with up to three matrices W in one launch. Rows of x may lack a factor (row_scale.h).
//
//   x     (T, K): Q8 for quantized weights, or f16 where matrix units multiply, float for dense
//         ones, aligned to 16 (gemv_input.h)
//   W     (N, K) of FORMAT_0, FORMAT_1 and FORMAT_2, all quantized or all dense, packed (packed.h)
//   bias  (N,) float, or null
//   out   (T, N) float; with `accumulate` it is added to
//   squares  (T, K / 32) float, where SCALED is 1: x is multiplied by the factor of its row
//
// Threads: a block takes kPassRows rows of one matrix (gemv.h, products.h). Rows past the end
// are not written. Grid (ends[2]).
// Limits: T at most TOKENS; K whole blocks of the formats.
// Launched by rocmforge/gpu/ops/matmul.py.
#include "products.h"
#include "row_scale.h"

struct MatmulArgs {
    Products products;
    int accumulate;
    Batch batch;
    Squares squares;
};

// Computes kPassRows rows of a matrix of `rows` rows.
struct RowProducts {
    const MatmulArgs& a;
    u32x4* lds;
    float (&factors)[TOKENS];

    template <class Format>
    DEVICE void run(const Product& p, int rows, int block) const {
        const OwnProduct own;
        const int start = block * kPassRows, row = start + own.row;
        const bool present = own.writes && own.token < a.batch.tokens && row < rows;
        float* out = p.out + static_cast<u64>(own.token) * rows + row;
        float bias = 0.0f, before = 0.0f;  // the output before; both are loaded early
        RowScale scale(a.squares, a.batch, factors);
        const auto begin = [&] {
            await_earlier();
            scale.load();
            if (present && p.bias) bias = p.bias[row];
            if (present && a.accumulate) before = *out;
        };
        const PackedMatrix matrices[1] = {p.matrix};
        const auto finish = [&](int, const float (&products)[1]) {
            if (present) *out = bias + before + scale.of(own.token) * products[0];
        };
        const auto staged = [&] { scale.store(); };
        dot_rows<Format, 1, 1>(matrices, start, rows, a.batch, lds, begin, finish, staged);
    }
};

constexpr int kLds = kLarger<kRowsLds<FORMAT_0>, kLarger<kRowsLds<FORMAT_1>, kRowsLds<FORMAT_2>>>;

KERNEL_RESIDENT(matmul, MatmulArgs, kThreads, kResident) {
    SHARED u32x4 lds[kLds];
    SHARED float factors[TOKENS];
    own_product(a.products, block_x(), RowProducts{a, lds, factors});
}
