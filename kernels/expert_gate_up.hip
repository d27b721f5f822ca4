// expert_gate_up: out[t][i] = the activation (swiglu.h) of x[t] gate^T + gate_bias and x[t] up^T +
// up_bias, with the matrices of expert experts[t][i].
//
//   x              (T, K): Q8 for quantized weights, float for dense ones, aligned to 16
//   gate, up       (E * N, K) of FORMAT_0 and FORMAT_1, both quantized or both dense, packed: the
//                  experts one below the other
//   gate_bias, up_bias  (E * N,) float, or null
//   experts        (T, k) int, each below E
//   out            (T, k, N) float or Q8 as OUT says (output.h), aligned to 16; Q8 needs N to be a
//                  multiple of 32
//
// Threads: a block takes kGroupRows rows of both matrices of one expert for one token, or for
// several tokens where GATHER is 1 (experts.h, dot_rows.h). The products meet in LDS. There a wave
// takes neighbouring outputs, so that 32 lanes can round 32 of them to Q8.
// Limits: K whole blocks of the formats; TOKENS 1 where GATHER is 0.
// Launched by rocmforge/gpu/ops/experts.py.
#define EXPERTS
#include "experts.h"
#include "output.h"
#include "swiglu.h"

#if !defined(OUT)
#error "OUT has to be passed by the build"
#endif

struct ExpertGateUpArgs {
    PackedMatrix gate, up;
    const float* gate_bias;
    const float* up_bias;
    Output out;
    int activation;
    Experts experts;
    Batch batch;
};

struct Results {
    float gate[TOKENS][kGroupRows], up[TOKENS][kGroupRows];
};

// Matrices of two formats are read one after the other, of one format together.
template <class Gate, class Up>
struct Both {
    template <class Begin>
    static DEVICE void run(const ExpertGateUpArgs& a, const Jobs& jobs, u32x4* lds,
                           Results& results, const Begin& begin) {
        const OwnProduct own;
        const auto gates = [&](int first, const float (&products)[1]) {
            const int at = first - jobs.first + own.row;
            if (own.writes) results.gate[own.token][at] = products[0];
        };
        const auto ups = [&](int first, const float (&products)[1]) {
            const int at = first - jobs.first + own.row;
            if (own.writes) results.up[own.token][at] = products[0];
        };
        const PackedMatrix gate[1] = {a.gate}, up[1] = {a.up};
        dot_rows<Gate, 1, kGroupPasses>(gate, jobs.first, jobs.end, jobs.batch, lds, begin, gates);
        block_sync();
        dot_rows<Up, 1, kGroupPasses>(up, jobs.first, jobs.end, jobs.batch, lds, [] {}, ups);
    }
};
template <class Format>
struct Both<Format, Format> {
    template <class Begin>
    static DEVICE void run(const ExpertGateUpArgs& a, const Jobs& jobs, u32x4* lds,
                           Results& results, const Begin& begin) {
        const OwnProduct own;
        const auto end = [&](int first, const float (&products)[2]) {
            const int at = first - jobs.first + own.row;
            if (!own.writes) return;
            results.gate[own.token][at] = products[0];
            results.up[own.token][at] = products[1];
        };
        const PackedMatrix both[2] = {a.gate, a.up};
        dot_rows<Format, 2, kGroupPasses>(both, jobs.first, jobs.end, jobs.batch, lds, begin, end);
    }
};

constexpr int kLds = kLarger<kRowsLds<FORMAT_0>, kRowsLds<FORMAT_1>>;

KERNEL_RESIDENT(expert_gate_up, ExpertGateUpArgs, kThreads, BLOCKS) {
    SHARED u32x4 lds[kLds];
    SHARED Results results;
    SHARED Addends gate_bias, up_bias;
    await_earlier();
    const Jobs jobs(a.experts, a.batch);
    if (jobs.batch.tokens == 0) return;
    Addends::Held gate_held, up_held;
    const auto begin = [&] {
        gate_bias.start(gate_held, a.gate_bias, jobs);
        up_bias.start(up_held, a.up_bias, jobs);
    };
    Both<FORMAT_0, FORMAT_1>::run(a, jobs, lds, results, begin);
    gate_bias.arrive(gate_held);
    up_bias.arrive(up_held);
    block_sync();
    UNROLL
    for (int i = 0; i < kOutputs; ++i) {
        const JobOutput to = jobs.output(i);
        float x[1] = {0.0f};
        u64 at = 0;
        if (to.present) {
            const float gate = results.gate[to.token][to.at] + gate_bias.lds[to.at];
            const float up = results.up[to.token][to.at] + up_bias.lds[to.at];
            x[0] = gated(a.activation, gate, up);
            at = jobs.at(a.experts, to);
        }
        store_as<Dtype::OUT>(a.out, at, x, to.present);
    }
}
