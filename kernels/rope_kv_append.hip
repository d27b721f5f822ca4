// rope_kv_append: rope of q, in place, and of k, then kv_append of k and v. Where NORM is 1,
// RMSNorm of each head of q and k comes first.
//
//   q                   (tokens, heads, dims) float; in place
//   k, v                (tokens, kv_heads, dims) float; not changed
//   q_norm, k_norm      (dims,) float weights; null: no norm
//   cos, sin            (context, R / 2) float
//   positions           (tokens,) int: rows of cos and sin
//   k_pages, v_pages    (pages, kv_heads, page_size, dims) of the dtype KV: pages.h
//   k_scales, v_scales  as pages.h has them
//   pages, offsets      (tokens,) int: page and slot of each token; a token whose page is below 0
//                       is not written
// All are aligned to 16. INTERLEAVED 1: pairs are dims (2i, 2i + 1); 0: (i, i + R / 2).
//
// Threads: SPAN lanes take a head, a block takes kHeads heads of one token, in the order q, k, v
// (heads.h). Grid (tokens, ceil((heads + 2 * kv_heads) / kHeads)).
// Limits: dims at most SPAN * ITEMS * VECTOR, and a multiple of 32 for Q8Pages; R even, at most
// dims.
// Launched by rocmforge/gpu/ops/rope_kv_append.py.
#include "append.h"

#if !defined(INTERLEAVED) || !defined(NORM) || !defined(KV)
#error "INTERLEAVED, NORM and KV have to be passed by the build"
#endif

struct RopeKvAppendArgs {
    float* q;
    const float* k;
    const float* v;
    const float* q_norm;
    const float* k_norm;
    const float* cos;
    const float* sin;
    const int* positions;
    void* k_pages;
    void* v_pages;
    void* k_scales;
    void* v_scales;
    const int* pages;
    const int* offsets;
    int heads;
    int kv_heads;
    int dims;
    int rotated;
    int page_size;
    float eps;
};

constexpr bool kInterleaved = INTERLEAVED != 0;

KERNEL(rope_kv_append, RopeKvAppendArgs, THREADS) {
    const u64 token = block_x();
    const int page = a.pages[token];
    const bool query = head_index() < a.heads;
    const bool key = !query && head_index() < a.heads + a.kv_heads;
    const int head = head_index() - (query ? 0 : a.heads + (key ? 0 : a.kv_heads));
    const int heads = query ? a.heads : a.kv_heads;
    const bool exists = head < heads;
    const u64 at = (token * heads + head) * a.dims;
    const float* from = (query ? a.q : key ? a.k : a.v) + at;

    Head x, partners;
    load_head(from, a.dims, exists, x);
    load_partners<kInterleaved>(from, a.rotated, exists && (query || key), partners);
    if constexpr (NORM) {
        normalize<kInterleaved>(query ? a.q_norm
                                : key ? a.k_norm
                                      : nullptr,
                                a.dims, a.rotated, a.eps, x, partners);
    }
    if (query || key) {
        const Angles<kInterleaved> angles(a.cos, a.sin, a.positions[token], a.rotated);
        rotate(angles, a.rotated, partners, x);
    }
    wave_sync();  // all lanes have read the head
    if (query) store_head(a.q + at, a.dims, x);
    const u64 row = (static_cast<u64>(page) * heads + head) * a.page_size + a.offsets[token];
    append_head<KV>(key ? a.k_pages : a.v_pages, key ? a.k_scales : a.v_scales, row, a.dims, x,
                    exists && !query && page >= 0);
}
