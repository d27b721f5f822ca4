// matmul_rmsnorm: out += x W^T + bias, a GEMV for one to eight rows of x (decode), and the RMSNorm
// of out but for a factor of each row, which the readers multiply by (row_scale.h).
//
//   x        (T, K): Q8 for quantized weights, float for dense ones, aligned to 16 (activations.h)
//   W        (N, K) of FORMAT_0, packed (packed.h)
//   bias     (N,) float, or null
//   out      (T, N) float, added to
//   norm     (N,) float
//   normed   (T, N) Q8: out * norm, aligned to 16
//   squares  (T, N / 32) float: the sums of out^2 of each group of 32 columns
//
// Threads: a block takes kGroupRows rows (dot_rows.h). Their products meet in LDS. There a wave
// takes neighbouring outputs, so that 32 lanes can round 32 of them to Q8 and add up their squares.
// Grid (N / kGroupRows, rounded up).
// Limits: T at most TOKENS; N a multiple of 32; K whole blocks of the format.
// Launched by rocmforge/gpu/ops/matmul.py.
#include "gemv.h"
#include "output.h"

struct MatmulRmsnormArgs {
    PackedMatrix matrix;
    const float* bias;
    float* out;
    const float* norm;
    Output normed;
    float* squares;
    int rows;
    Batch batch;
};

constexpr int kJobs = (TOKENS * kGroupRows + kThreads - 1) / kThreads;  // outputs of a thread

// An output that a thread finishes: row `at` of the block's.
struct Job {
    int token, at;
    bool present;

    DEVICE Job(const MatmulRmsnormArgs& a, int start, int i) {
        const int job = i * kThreads + static_cast<int>(thread_x());
        token = job / kGroupRows;
        at = job % kGroupRows;
        present = token < a.batch.tokens && start + at < a.rows;
    }
};

KERNEL_AHEAD(matmul_rmsnorm, MatmulRmsnormArgs, kThreads) {
    SHARED u32x4 lds[kRowsLds<FORMAT_0>];
    SHARED float results[TOKENS][kGroupRows];
    const int start = block_x() * kGroupRows;
    const OwnProduct own;
    float addend[kJobs], norm[kJobs];
    const auto begin = [&] {
        UNROLL
        for (int i = 0; i < kJobs; ++i) {
            const Job job(a, start, i);
            norm[i] = job.present ? a.norm[start + job.at] : 0.0f;
            addend[i] = job.present && a.bias ? a.bias[start + job.at] : 0.0f;
        }
        await_earlier();
        UNROLL
        for (int i = 0; i < kJobs; ++i) {
            const Job job(a, start, i);
            if (job.present)
                addend[i] += a.out[static_cast<u64>(job.token) * a.rows + start + job.at];
        }
    };
    const auto finish = [&](int first, const float (&products)[1]) {
        if (own.writes) results[own.token][first - start + own.row] = products[0];
    };
    const PackedMatrix matrices[1] = {a.matrix};
    dot_rows<FORMAT_0, 1, kGroupPasses>(matrices, start, a.rows, a.batch, lds, begin, finish);
    block_sync();
    UNROLL
    for (int i = 0; i < kJobs; ++i) {
        const Job job(a, start, i);
        const u64 at = static_cast<u64>(job.token) * a.rows + start + job.at;
        const float x = job.present ? addend[i] + results[job.token][job.at] : 0.0f;
        if (job.present) a.out[at] = x;
        const float squares = wave_sum<kGroup>(x * x);
        if (job.present && at % kGroup == 0) a.squares[at / kGroup] = squares;
        const float scaled[1] = {x * norm[i]};
        store_as<Dtype::Q8>(a.normed, at, scaled, job.present);
    }
}
