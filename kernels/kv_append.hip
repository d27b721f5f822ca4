// kv_append: writes the keys and values of new tokens into the pages of one layer's KV cache.
//
//   k, v                (tokens, heads, dims) float, aligned to 16
//   k_pages, v_pages    (pages, heads, page_size, dims) of the dtype KV, aligned to 16: pages.h
//   k_scales, v_scales  as pages.h has them
//   pages, offsets      (tokens,) int: page and slot of each token; a token whose page is below 0
//                       is not written
//
// Threads: SPAN lanes take a head, a block takes kHeads heads of one token, the heads of k before
// those of v (heads.h). Grid (tokens, ceil(2 * heads / kHeads)).
// Limits: dims at most SPAN * ITEMS * VECTOR; a multiple of 32 for Q8Pages.
// Launched by rocmforge/gpu/ops/kv_append.py.
#include "append.h"

#if !defined(KV)
#error "KV has to be passed by the build"
#endif

struct KvAppendArgs {
    const float* k;
    const float* v;
    void* k_pages;
    void* v_pages;
    void* k_scales;
    void* v_scales;
    const int* pages;
    const int* offsets;
    int heads;
    int dims;
    int page_size;
};

KERNEL(kv_append, KvAppendArgs, THREADS) {
    const u64 token = block_x();
    const bool key = head_index() < a.heads;
    const int head = key ? head_index() : head_index() - a.heads;
    const int page = a.pages[token];
    const bool valid = head < a.heads && page >= 0;
    const u64 row = (static_cast<u64>(page) * a.heads + head) * a.page_size + a.offsets[token];
    Head x;
    load_head((key ? a.k : a.v) + (token * a.heads + head) * a.dims, a.dims, valid, x);
    append_head<KV>(key ? a.k_pages : a.v_pages, key ? a.k_scales : a.v_scales, row, a.dims, x,
                    valid);
}
