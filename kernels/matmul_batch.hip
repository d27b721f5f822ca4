// matmul_batch: out = x W^T + bias, or that is added to out: a GEMM for 9 to 2,048 rows of x
// (batched decode, prompts), with up to three matrices W in one launch.
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
// with kEven, the product of blocks and these steps below 2^31; T N below 2^32. Rows past the end
// are computed from the data of the last one and not stored. Launched by
// rocmforge/gpu/ops/matmul_batch.py.
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

    // Sums past the last row or token get what the last one gets, since nobody stores them: with a
    // branch for each sum, each load waits for the one before, and NVRTC takes twice as long.
    template <class Format>
    DEVICE void run(const Product& p, int rows, int band) const {
        const int first = band * kRows + static_cast<int>(wave()) % ROW_WAVES * kWaveRows;
        const int tokens = a.batch.tokens;
        const Lines from = lines_of(p.matrix, first);
        Sums sums;
        if (!compute<Format>(a.batch, part, Neighbours{tokens}, from, rows, sums, lds)) return;
        // Below 2^32, so that one instruction makes an address of it.
        const auto at = [=](int row, int token) {
            return static_cast<uint32_t>(token) * static_cast<uint32_t>(rows) + row;
        };
        // All loads come before the first store, so that none waits for another.
        if (a.accumulate) {
            sums.each(TOKENS, [&](int m, int n, float& y) {
                const int row = first + m, token = first_token() + n;
                y += p.out[at(minimum(row, rows - 1), minimum(token, tokens - 1))];
            });
        }
        if (p.bias != nullptr) {
            sums.each(TOKENS,
                      [&](int m, int, float& y) { y += p.bias[minimum(first + m, rows - 1)]; });
        }
        sums.each(TOKENS, [&](int m, int n, float& y) {
            const int row = first + m, token = first_token() + n;
            if (row < rows && token < tokens) p.out[at(row, token)] = y;
        });
    }
};

KERNEL_RESIDENT(matmul_batch, MatmulBatchArgs, kThreads, BLOCKS) {
    ROCMFORGE_BATCH_LDS(lds);
    each_part(a.batch, [&](const Part& part) {
        own_product(a.products, part.band, RowProducts{a, part, lds});
    });
}
