// A mixture of experts, as its products see it: which rows of the packed matrices a block takes,
// and which rows of the activations.
//
// Job j = token * k + i is the product of a token with its expert number i. The matrices of the E
// experts, of N rows each, stand one below the other. A block takes one job; where GATHER is 1, up
// to TOKENS jobs of one expert, which group_experts.hip has put together.
#pragma once

#include "gemv.h"

struct Experts {
    const int* of;      // (T, k): the expert of each job
    const int* groups;  // of group_experts.hip, where GATHER is 1
    int chosen;         // k
    int rows;           // N
};

#if !defined(BLOCKS)
#error "BLOCKS, for which a multiprocessor has registers, has to be passed by the build"
#endif

constexpr int kOutputs = (TOKENS * kGroupRows + kThreads - 1) / kThreads;  // that a thread finishes

// One of them: row `at` of the block's rows, which is row `row` of the packed matrix.
struct JobOutput {
    int token, at, row;
    bool present;
};

// Grid (ceil(N / kGroupRows), k, T), or (ceil(N / kGroupRows), groups). Groups are read, so that it
// comes after await_earlier(). Where GATHER is 0 it may come before, if the launch in front does
// not write the experts.
struct Jobs {
    int expert, first, end;  // rows of the packed matrix: those of the block begin at first
    Batch batch;             // the rows of x that they read; none: the block has no work

    DEVICE Jobs(const Experts& experts, const Batch& all) : batch(all) {
#if GATHER
        const int* const group = experts.groups + 3 * static_cast<int>(block_y());
        expert = group[0];
        batch.jobs += group[1];
        batch.tokens = group[2];
#else
        batch.job = block_z() * experts.chosen + block_y();
        batch.tokens = 1;
        expert = load_from_l2(experts.of + batch.job);
#endif
        first = expert * experts.rows + static_cast<int>(block_x()) * kGroupRows;
        end = (expert + 1) * experts.rows;
    }

    DEVICE JobOutput output(int i) const {
        const int number = i * kThreads + static_cast<int>(thread_x());
        const int token = number / kGroupRows, at = number % kGroupRows;
        return {token, at, first + at, token < batch.tokens && first + at < end};
    }

    // Where it belongs in out (T * k, N).
    DEVICE u64 at(const Experts& experts, const JobOutput& output) const {
        return static_cast<u64>(batch.number(output.token)) * experts.rows +
               (output.row - expert * experts.rows);
    }
};

// What is added to the rows of a block, a float each or nothing, on its way to LDS. CUDA copies it
// past the registers: values that wait there for the end of the products would be spilled.
struct Addends {
    float lds[kGroupRows];

    // `held` is the thread's; arrive() comes after the products and before a block_sync().
    struct Held {
        float of[(kGroupRows + kThreads - 1) / kThreads];
    };
    DEVICE void start(Held& held, const float* bias, const Jobs& jobs) {
        for_own([&](int i, int at) {
            const int row = jobs.first + at;
            const bool present = bias && row < jobs.end;
#if defined(ROCMFORGE_CUDA)
            copy_near_to_lds(lds + at, bias + row, present);
#else
            held.of[i] = present ? bias[row] : 0.0f;
#endif
        });
        Transfer::batch_started();
    }
    DEVICE void arrive(const Held& held) {
#if defined(ROCMFORGE_CUDA)
        Transfer::wait<0>();
#else
        for_own([&](int i, int at) { lds[at] = held.of[i]; });
#endif
    }

  private:
    template <class Do>
    static DEVICE void for_own(const Do& act) {
        UNROLL
        for (int i = 0; i < (kGroupRows + kThreads - 1) / kThreads; ++i) {
            const int at = i * kThreads + static_cast<int>(thread_x());
            if (at < kGroupRows) act(i, at);
        }
    }
};
