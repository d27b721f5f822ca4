// A mixture of experts, as its products on the matrix units see it: a block takes a group of up to
// TOKENS jobs of one expert, which group_experts.hip has put together.
//
// Job j = token * k + i is the product of a token with its expert number i. The matrices of the E
// experts, of N rows each, stand one below the other. Grid (row tiles of an expert, groups): the
// blocks of one group follow one another, and those of other groups of the same expert come next.
#pragma once

#include "batch_rows.h"

struct ExpertGroups {
    const int* order;   // the jobs, expert by expert
    const int* groups;  // (groups, 3): expert, first place in order, jobs
    int shared_by;      // jobs that read the same row of x, which follow one another: k, or 1
    int rows;           // N
};

// The jobs of a block's group. fetch() copies them to LDS, and the row of x that each of them
// reads.
struct Group {
    struct InLds {
        int jobs[TOKENS], rows[TOKENS];
    };
    int expert, count;  // no jobs: the block has no work
    const int* from;
    int shared_by;
    InLds* lds;

    // Reads what earlier launches wrote.
    DEVICE Group(const ExpertGroups& experts, InLds* lds) : shared_by(experts.shared_by), lds(lds) {
        const int* const own = experts.groups + 3 * static_cast<int>(block_y());
        expert = own[0];
        from = experts.order + own[1];
        count = own[2];
    }

    // All threads call it.
    DEVICE void fetch() const {
        for (int i = thread_x(); i < count; i += kThreads) {
            const int job = from[i];
            lds->jobs[i] = job;
            lds->rows[i] = quotient(job, shared_by);
        }
        block_sync();
    }
    // Job number `token`; past the last one, that one.
    DEVICE int job(int token) const { return lds->jobs[minimum(token, count - 1)]; }

    DEVICE bool has(int token) const { return token < count; }
    DEVICE int row(int token) const { return lds->rows[token]; }
};

// Whether tiles without a token are left out, by code of its own: measured on Hopper alone.
#if defined(ROCMFORGE_WARPGROUP)
constexpr bool kLeavesOut = true;
#else
constexpr bool kLeavesOut = false;
#endif

// Multiplies kUsed tiles of tokens, or half of them while they hold all tokens of the batch.
template <int kUsed>
DEVICE bool compute_used(const Batch& batch, const Group& group, const Lines& from, int rows,
                         Sums& sums, u32x4* lds) {
    if constexpr (kLeavesOut && kUsed > 1) {
        if (batch.tokens <= 8 * kUsed) {
            return compute_used<kUsed / 2>(batch, group, from, rows, sums, lds);
        }
    }
    const Part whole = {0, 0, steps_of(batch.columns)};
    return compute<FORMAT_0, kUsed>(batch, whole, group, from, rows, sums, lds);
}

// The sums of a block's jobs with rows of `from`, as compute() of batch_rows.h gives them.
DEVICE bool compute_group(const f16* x, int columns, const ExpertGroups& experts,
                          const Group& group, const Lines& from, Sums& sums, u32x4* lds) {
    const Batch batch = {x, nullptr, nullptr, group.count, columns, 1, 1};
    const int rows_end = (group.expert + 1) * experts.rows;
    return compute_used<kTokenTiles>(batch, group, from, rows_end, sums, lds);
}
