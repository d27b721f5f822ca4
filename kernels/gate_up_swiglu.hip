// gate_up_swiglu: out = g * sigmoid(g) * u with g = x gate^T and u = x up^T: two GEMVs for one to
// eight rows of x (decode), with SwiGLU at their end. Rows of x may lack a factor (row_scale.h).
//
//   x         (T, K): Q8 for quantized weights, or f16 where matrix units multiply, float for dense
//             ones, aligned to 16 (gemv_input.h)
//   gate, up  (N, K) of FORMAT_0 and FORMAT_1, both quantized or both dense, packed (packed.h)
//   out       (T, N) float, f16 or Q8 as OUT says (output.h), aligned to 16; Q8 needs N to be a
//             multiple of 32, and dot products of lanes
//   squares   (T, K / 32) float, where SCALED is 1: x is multiplied by the factor of its row
//
// Threads: a block takes kGroupRows rows, the same ones of gate and of up (gemv.h). It reads
// matrices of one format together, others one after the other. The products meet in LDS. There a
// wave takes neighbouring outputs, so that 32 lanes can round 32 of them to Q8.
// Grid (ceil(N / kGroupRows)).
// Limits: T at most TOKENS; K whole blocks of both formats.
// Launched by rocmforge/gpu/ops/matmul.py.
#include "output.h"
#include "row_scale.h"
#include "swiglu.h"

struct GateUpArgs {
    PackedMatrix gate, up;
    Output out;
    int rows;
    Batch batch;
    Squares squares;
};

// results[t][r] = the output of row `start` + r. With two formats, the lane that reads g there is
// the one that wrote it.
template <class Gate, class Up>
struct Both {
    static DEVICE void run(const GateUpArgs& a, RowScale& scale, int start, u32x4* lds,
                           float (&results)[TOKENS][kGroupRows]) {
        const OwnProduct own;
        const auto begin = [&] {
            await_earlier();
            scale.load();
        };
        const auto staged = [&] { scale.store(); };
        const auto gates = [&](int first, const float (&products)[1]) {
            const float factor = scale.of(own.token);
            if (own.writes) results[own.token][first - start + own.row] = factor * products[0];
        };
        const auto ups = [&](int first, const float (&products)[1]) {
            const float factor = scale.of(own.token);
            float& result = results[own.token][first - start + own.row];
            if (own.writes) result = swiglu(result, factor * products[0]);
        };
        const PackedMatrix gate[1] = {a.gate}, up[1] = {a.up};
        dot_rows<Gate, 1, kGroupPasses>(gate, start, a.rows, a.batch, lds, begin, gates, staged);
        block_sync();
        dot_rows<Up, 1, kGroupPasses>(up, start, a.rows, a.batch, lds, [] {}, ups);
    }
};
template <class Format>
struct Both<Format, Format> {
    static DEVICE void run(const GateUpArgs& a, RowScale& scale, int start, u32x4* lds,
                           float (&results)[TOKENS][kGroupRows]) {
        const OwnProduct own;
        const auto begin = [&] {
            await_earlier();
            scale.load();
        };
        const auto staged = [&] { scale.store(); };
        const auto finish = [&](int first, const float (&products)[2]) {
            const float factor = scale.of(own.token);
            float& result = results[own.token][first - start + own.row];
            if (own.writes) result = swiglu(factor * products[0], factor * products[1]);
        };
        const PackedMatrix both[2] = {a.gate, a.up};
        dot_rows<Format, 2, kGroupPasses>(both, start, a.rows, a.batch, lds, begin, finish, staged);
    }
};

constexpr int kLds = kLarger<kRowsLds<FORMAT_0>, kRowsLds<FORMAT_1>>;

static_assert(!kMatrixUnits || Dtype::OUT != Dtype::Q8, "blocks have no groups of 32 rows");

KERNEL_RESIDENT(gate_up_swiglu, GateUpArgs, kThreads, kResident) {
    SHARED u32x4 lds[kLds];
    SHARED float results[TOKENS][kGroupRows], factors[TOKENS];
    const int start = block_x() * kGroupRows;
    RowScale scale(a.squares, a.batch, factors);
    Both<FORMAT_0, FORMAT_1>::run(a, scale, start, lds, results);
    block_sync();
    const int count = a.batch.tokens * kGroupRows;
    for (int at = wave() * WAVE; at < count; at += kThreads) {
        const int job = at + lane(), token = job / kGroupRows, row = start + job % kGroupRows;
        const bool present = job < count && row < a.rows;
        const float x[1] = {present ? results[token][job % kGroupRows] : 0.0f};
        store_as<Dtype::OUT>(a.out, static_cast<u64>(token) * a.rows + row, x, present);
    }
}
