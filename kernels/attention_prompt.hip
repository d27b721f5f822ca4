// attention_prompt: out = softmax(scale * q k^T) v with a causal mask, for many queries per
// sequence (prefill), through the paged KV cache, on the matrix units. Query j of n stands at
// position length - n + j of its sequence and sees the tokens up to there, or the last `window` of
// them. Scores may have a soft cap, and heads a sink, as in attend.h.
//
//   q           (T, H, D) float, aligned to 16; scaled, then rounded to f16
//   k, v        (pages, G, P, D), and k_scales, v_scales: see pages.h; used as f16
//   page_table  (S, max_pages) int: the page that holds tokens i * P to i * P + P - 1
//   lengths     (S,) int: tokens of each sequence, the new ones among them
//   starts      (S + 1,) int: the row of q at which each sequence begins, and T
//   outputs     (splits, T, H, D) float, aligned to 16: each split's weighted sum of values, not
//   yet
//               divided
//   stats       (splits, T, H, 2) float: each split's largest score and sum of weights
//   arrivals    (S, blocks, H) counters that hold 0, before and after
//   out         (T, H * D) float or f16, aligned to 16
// T queries of all sequences, S sequences, H query heads, G KV heads, D dims, P tokens of a page.
// With one split, outputs, stats and arrivals are not needed.
//
// This is flash attention. A block takes kQueries queries of one head, TILES times 16 per wave, and
// goes through the tokens KEYS at a time. LDS holds the keys of a step row by row, and its values
// transposed or, where DIRECT is 1, row by row. A wave computes the scores S^T = K Q^T, whose
// columns are its queries. It updates the softmax state of each column, which turns the scores into
// weights, and adds O^T += V^T P^T; as_operand of tile.h makes the weights an operand of that
// product. While the wave computes, the next keys or values are on their way from memory: to
// registers, or where DIRECT is 1, to LDS.
//
// Where WARPGROUP is 1 (attend_prompt_warpgroup.h), four waves together have 64 queries, on
// Hopper's unit. They compute S = Q K^T and O += P V, with queries down. LDS holds the block's
// queries, and keys and values of two steps.
//
// Where few queries give few blocks, several blocks share the tokens that the same queries see, as
// splits of at least LEAST tokens. The block of the splits that ends last merges what they have.
//
// Grid (H, blocks, S * splits) with blocks = ceil(most queries of a sequence / kQueries). The
// blocks of the last queries, which see the most tokens, come first; blocks without queries or
// tokens exit at once. Limits: D a multiple of 8 up to 256; P a power of two, at least 16. DIRECT:
// pages of f16, D a multiple of 16, and a matrix unit that can transpose what it loads (NVIDIA's).
// WARPGROUP: D 64 or 128, P at most KEYS, sm_90a.
// Launched by rocmforge/gpu/ops/attention_prompt.py.
#include "attend_prompt.h"
#if WARPGROUP
#include "attend_prompt_warpgroup.h"
#else
#include "attend_prompt_tiles.h"
#endif
#include "attend_prompt_out.h"

KERNEL_RESIDENT(attention_prompt, AttentionPromptArgs, kThreads, BLOCKS) {
    await_earlier();
    SHARED_BY_LAUNCH(u32x4, memory, kMemoryPieces);
    const Rows rows(a);
    if (rows.first < 0) return;
    const Reach reach(a, rows);
    const Split split(a, reach);
    if (split.index >= split.used) return;
    const CacheReader cache = {a.page_table + static_cast<u64>(rows.s) * a.max_pages, reach.length,
                               a.kv_heads, rows.head / (a.heads / a.kv_heads), a.page_bits};
    Outputs out[TILES];
    SoftmaxState states[TILES];
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int i = 0; i < kDimTiles; ++i) out[q][i].clear();
        states[q].clear();
    }
    attend(a, rows, reach, split, cache, memory, states, out);
    finish(a, states, out, memory);
}
