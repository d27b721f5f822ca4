// group_experts: brings the jobs (experts.h) of each expert together, in groups of up to `size`.
//
//   experts  (jobs,) int: the expert of each job, below E
//   order    (jobs,) int: the jobs, expert by expert; those of one expert in any order
//   groups   (most, 3) int: expert, first place in order, and jobs of each group; groups that are
//            not needed have no jobs
//
// Threads: one block, in which each thread has an expert. Grid (1).
// Limits: E at most THREADS; most at least the groups there are: jobs / size + E are enough.
// Launched by rocmforge/gpu/ops/experts.py.
#include "device.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

struct GroupExpertsArgs {
    const int* experts;
    int* order;
    int* groups;
    int jobs, most, size;
};

// Jobs, and groups of them.
struct Count {
    int jobs, groups;
};

// Calls f(job, its expert) for the jobs of this thread. Several loads are on their way at a time.
template <class Function>
DEVICE void each_job(const GroupExpertsArgs& a, Function f) {
    constexpr int kAtOnce = 8;
    for (int first = thread_x(); first < a.jobs; first += kAtOnce * THREADS) {
        int experts[kAtOnce];
        UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
            experts[i] = a.experts[minimum(first + i * THREADS, a.jobs - 1)];
        }
        UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
            const int job = first + i * THREADS;
            if (job < a.jobs) f(job, experts[i]);
        }
    }
}

KERNEL(group_experts, GroupExpertsArgs, THREADS) {
    SHARED uint32_t counted[THREADS];
    SHARED Count sums[2][THREADS];
    const int own = thread_x();
    counted[own] = 0;
    block_sync();
    each_job(a, [&](int, int expert) { shared_add(&counted[expert], 1); });
    block_sync();
    const int jobs = static_cast<int>(counted[own]), groups = (jobs + a.size - 1) / a.size;

    // Sums over this expert and all before it.
    int at = 0;
    sums[at][own] = {jobs, groups};
    block_sync();
    for (int step = 1; step < THREADS; step *= 2) {
        Count sum = sums[at][own];
        if (own >= step) {
            sum.jobs += sums[at][own - step].jobs;
            sum.groups += sums[at][own - step].groups;
        }
        at = 1 - at;
        sums[at][own] = sum;
        block_sync();
    }
    const int first = sums[at][own].jobs - jobs, first_group = sums[at][own].groups - groups;
    const int total = sums[at][THREADS - 1].groups;

    counted[own] = static_cast<uint32_t>(first);
    block_sync();
    each_job(a, [&](int job, int expert) { a.order[shared_add(&counted[expert], 1)] = job; });
    for (int i = 0; i < groups; ++i) {
        int* const group = a.groups + 3 * (first_group + i);
        group[0] = own;
        group[1] = first + i * a.size;
        group[2] = minimum(a.size, jobs - i * a.size);
    }
    for (int i = total + own; i < a.most; i += THREADS) a.groups[3 * i + 2] = 0;
}
