// attention: out[s][h] = softmax(scale * q[s][h] k^T) v over the tokens of sequence s, with one
// query per sequence (decode), through the paged KV cache. attend.h says how.
//
//   q           (S, H, D) float, aligned to 16
//   k, v        (pages, G, P, D), and k_scales, v_scales: see pages.h
//   page_table  (S, max_pages) int: the page that holds tokens i * P to i * P + P - 1
//   lengths     (S,) int: tokens of each sequence; 0 gives an output of zeros
//   outputs     (S, H, splits, D) float: each split's weighted sum of values, not yet divided
//   stats       (S, H, splits, 2) float: each split's largest score and sum of weights
//   sinks       (H,) float: one more score of each head, without a value; null: none
//   arrivals    (S, G * ceil(H / G / QUERIES)) counters that hold 0, before and after; none is
//               needed for one split
//   out         (S, H * D) of a Dtype (output.h), aligned to 16; Q8 needs D to be a multiple
//               of 32
// S sequences, H query heads, G KV heads, D dims, P tokens of a page.
//
// Grid (splits, G * ceil(H / G / QUERIES), S).
// Limits: D a multiple of 8 up to 256; P a power of two, at least 16.
// Launched by rocmforge/gpu/ops/attention.py.
#include "attend.h"

KERNEL_RESIDENT(attention, AttentionArgs, kThreads, RESIDENT) {
    SHARED BlockStates states;
    await_earlier();
    const Split split(a);
    if (split.index >= split.used) return;
    const HeadGroup group(a);
    Steps steps(a, split, group.kv_head);
    const u64 head = static_cast<u64>(split.s) * a.heads + group.first;
    OwnQueries q;
    q.load(a.q + head * HEAD_DIM, HEAD_DIM, group.count, a.scale);
    attend<false>(a, split, group, q, steps, states);
}
