// add_experts: x[t] += or = the sum over i of shares[t][i] * parts[t][i] (add_experts.h).
//
// Threads: four neighbouring columns each. Grid (ceil(K / (4 * THREADS)), T).
// Limits: K a multiple of 4.
// Launched by rocmforge/gpu/ops/experts.py.
#include "add_experts.h"

KERNEL(add_experts, AddExperts, THREADS) {
    const int column = own_column();
    if (column >= a.columns) return;
    const u64 token = block_y();
    float sum[4];
    a.sum(token, column, sum);
    store_floats(a.x + token * a.columns + column, sum);
}
