// matmul_batch: out = x W^T + bias, or that is added to out: a GEMM for 9 to 1,024 rows of x
// (batched decode, short prompts), for routers up to 2,048, with up to three matrices W in one
// launch.
//
//   x         (T, K) f16, aligned to 16; PERMUTED as output.h says
//   W         (N, K) of FORMAT_0, FORMAT_1 and FORMAT_2, packed (packed.h)
//   bias      (N,) float, or null
//   out       (T, N) float; with `accumulate` it is added to
//   partials  kBandFloats floats for each place of batch_parts.h and tile of tokens, aligned to 16,
//             where blocks share bands
//   arrivals  a counter for each band and tile of tokens, which holds 0, where blocks share bands
//
// Threads: a block takes TOKENS tokens and its share of the steps of all bands, which have kRows
// rows of one matrix (batch_rows.h, products.h). Grid: of batch_parts.h. Limits: K a multiple of
// 32; at most as many blocks as steps of all bands, without kEven also at least as many as bands;
// with kEven, the product of blocks and these steps below 2^31. Rows past the end are computed from
// the data of the last one and not stored. Launched by rocmforge/gpu/ops/matmul_batch.py.
#include "batch_rows.h"
#include "products.h"

struct MatmulBatchArgs {
    Batch batch;
    Products products;
    int accumulate;
};

// Computes a part of a band of a matrix of `rows` rows.
struct RowProducts {
    const MatmulBatchArgs& a;
    const Part& part;
    u32x4* lds;

    // Calls f(where it goes, its row, sum) for the sums that have a place.
    template <class Function>
    DEVICE void each(const Product& p, int rows, int first, Sums& sums, Function f) const {
        sums.each_tile([&](TileC& sum, int at) {
            sum.each([&](int m, int n, float& y) {
                const int row = first + at / kTokenTiles * 16 + m;
                const int token = first_token() + at % kTokenTiles * 16 + n;
                if (row >= rows || token >= a.batch.tokens) return;
                f(p.out + static_cast<u64>(token) * rows + row, row, y);
            });
        });
    }

    template <class Format>
    DEVICE void run(const Product& p, int rows, int band) const {
        const int first = band * kRows + static_cast<int>(wave()) % ROW_WAVES * kWaveRows;
        const Lines from = lines_of(p.matrix, first);
        Sums sums;
        const Neighbours tokens = {a.batch.tokens};
        if (!compute<Format>(a.batch, part, tokens, from, rows, sums, lds)) return;
        // All loads come before the first store, so that none waits for another.
        if (a.accumulate) {
            each(p, rows, first, sums, [](const float* out, int, float& y) { y += *out; });
        }
        if (p.bias != nullptr) {
            const float* const bias = p.bias;
            each(p, rows, first, sums, [=](float*, int row, float& y) { y += bias[row]; });
        }
        each(p, rows, first, sums, [](float* out, int, float& y) { *out = y; });
    }
};

KERNEL_RESIDENT(matmul_batch, MatmulBatchArgs, kThreads, BLOCKS) {
    ROCMFORGE_BATCH_LDS(lds);
    each_part(a.batch, [&](const Part& part) {
        own_product(a.products, part.band, RowProducts{a, part, lds});
    });
}
