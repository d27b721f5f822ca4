// attention: out[s][h] = softmax(scale * q[s][h] k^T) v over the tokens of sequence s, with one
// query per sequence (decode), through the paged KV cache. attend.h says how.
//
//   q           (S, H, D) float, aligned to 16
//   k, v        (pages, G, P, D), and k_scales, v_scales (pages, G, P, D / 32): see pages.h
//   page_table  (S, max_pages) int: the page that holds tokens i * P to i * P + P - 1
//   lengths     (S,) int: tokens of each sequence; 0 gives an output of zeros
//   outputs     (S, H, splits, D) float: each split's weighted sum of values, not yet divided
//   stats       (S, H, splits, 2) float: each split's largest score and sum of weights
//   sinks       (H,) float: one more score of each head, without a value; null: none
//   arrivals    (S, G * ceil(H / G / QUERIES)) counters that hold 0, before and after; none is
//               needed for one split
//   out         (S, H * D) float, f16 or Q8 (output.h), aligned to 16; Q8 needs D to be a multiple
//               of 32
// S sequences, H query heads, G KV heads, D dims, P tokens of a page.
//
// Grid (splits, G * ceil(H / G / QUERIES), S).
// Limits: D a multiple of 8 up to 256; P a power of two, at least 16; at most kMaxSplits splits.
// Launched by rocmforge/gpu/ops/attention.py.
#include "attend.h"

// The scaled queries of the block's heads. Heads past the last one repeat it.
DEVICE void load_queries(const AttentionArgs& a, int s, const HeadGroup& group,
                         float (&q)[QUERIES][8]) {
    const int dim = lane_idle() ? 0 : lane_dim();
    UNROLL for (int h = 0; h < QUERIES; ++h) {
        const float* from = a.q + (static_cast<u64>(s) * a.heads + group.first) * HEAD_DIM + dim;
        F32Pages::widen(
            F32Pages::load_eight(from, nullptr, minimum(h, group.count - 1), HEAD_DIM, 0), q[h]);
        UNROLL for (int i = 0; i < 8; ++i) q[h][i] = lane_idle() ? 0.0f : q[h][i] * a.scale;
    }
}

KERNEL_RESIDENT(attention, AttentionArgs, kThreads, RESIDENT) {
    SHARED BlockStates states;
    await_earlier();
    const Split split(a);
    if (split.index >= split.used) return;
    const HeadGroup group(a);
    Steps steps(a, split, group.kv_head);
    float q[QUERIES][8];
    load_queries(a, split.s, group, q);
    attend<false>(a, split, group, q, steps, states);
}
