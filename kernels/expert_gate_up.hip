// expert_gate_up: out[t][i] = the activation (swiglu.h) of x[t] gate^T + gate_bias and x[t] up^T +
// up_bias, with the matrices of expert experts[t][i].
//
//   x              (T, K): Q8 for quantized weights, float for dense ones, aligned to 16
//   gate, up       (E * N, K) of FORMAT_0 and FORMAT_1, both quantized or both dense, packed: the
//                  experts one below the other
//   gate_bias, up_bias  (E * N,) float, or null
//   experts        (T, k) int, each below E
//   out            (T, k, N) float
//
// Threads: a block takes kPassRows rows of both matrices of one expert for one token, or for
// several tokens where GATHER is 1 (experts.h, dot_rows.h). Limits: K whole blocks of the formats;
// TOKENS 1 where GATHER is 0. Launched by rocmforge/gpu/ops/experts.py.
#define EXPERTS
#include "experts.h"
#include "swiglu.h"

struct ExpertGateUpArgs {
    PackedMatrix gate, up;
    const float* gate_bias;
    const float* up_bias;
    float* out;
    int activation;
    Experts experts;
    Batch batch;
};

struct Finish {
    const ExpertGateUpArgs& a;
    const Jobs& jobs;
    const OwnProduct own;

    DEVICE void store(float gate, float up) const {
        const int row = jobs.first + own.row;
        if (!own.writes || own.token >= jobs.batch.tokens || row >= jobs.end) return;
        if (a.gate_bias) gate += a.gate_bias[row];
        if (a.up_bias) up += a.up_bias[row];
        a.out[jobs.at(a.experts, own.token, row)] = gated(a.activation, gate, up);
    }
};

// Matrices of two formats are read one after the other, of one format together.
template <class Gate, class Up>
struct Both {
    static DEVICE void run(const ExpertGateUpArgs& a, const Jobs& jobs, u32x4* lds,
                           const Finish& finish) {
        float held = 0.0f;
        const auto begin = [] {};
        const auto gates = [&](int, const float (&products)[1]) { held = products[0]; };
        const auto ups = [&](int, const float (&products)[1]) { finish.store(held, products[0]); };
        const PackedMatrix gate[1] = {a.gate}, up[1] = {a.up};
        dot_rows<Gate, 1, 1>(gate, jobs.first, jobs.end, jobs.batch, lds, begin, gates);
        block_sync();
        dot_rows<Up, 1, 1>(up, jobs.first, jobs.end, jobs.batch, lds, begin, ups);
    }
};
template <class Format>
struct Both<Format, Format> {
    static DEVICE void run(const ExpertGateUpArgs& a, const Jobs& jobs, u32x4* lds,
                           const Finish& finish) {
        const auto begin = [] {};
        const auto end = [&](int, const float (&products)[2]) {
            finish.store(products[0], products[1]);
        };
        const PackedMatrix both[2] = {a.gate, a.up};
        dot_rows<Format, 2, 1>(both, jobs.first, jobs.end, jobs.batch, lds, begin, end);
    }
};

KERNEL_AHEAD(expert_gate_up, ExpertGateUpArgs, kThreads) {
    SHARED u32x4 lds[kLarger<Activations<FORMAT_0>::kLds, Activations<FORMAT_1>::kLds>];
    await_earlier();
    const Jobs jobs(a.experts, a.batch);
    if (jobs.batch.tokens == 0) return;
    Both<FORMAT_0, FORMAT_1>::run(a, jobs, lds, {a, jobs, OwnProduct()});
}
