// rope: rotates pairs (a, b) of the first R dims of each head to (a cos - b sin, a sin + b cos).
//
//   x          (tokens, heads, dims) float; in place
//   cos, sin   (context, R / 2) float
//   positions  (tokens,) int: rows of cos and sin
// All are aligned to 16. INTERLEAVED 1: pairs are dims (2i, 2i + 1); 0: (i, i + R / 2).
//
// Threads: SPAN lanes take a head, a block takes kHeads heads of one token (heads.h).
// Grid (tokens, ceil(heads / kHeads)).
// Limits: dims at most SPAN * ITEMS * VECTOR; R even, at most dims.
// Launched by rocmforge/gpu/ops/rope.py.
#include "heads.h"

#if !defined(INTERLEAVED)
#error "INTERLEAVED has to be passed by the build"
#endif

struct RopeArgs {
    float* x;
    const float* cos;
    const float* sin;
    const int* positions;
    int heads;
    int dims;
    int rotated;
};

KERNEL(rope, RopeArgs, THREADS) {
    const u64 token = block_x();
    const bool valid = head_index() < a.heads;
    float* at = a.x + (token * a.heads + head_index()) * a.dims;
    const Angles<INTERLEAVED != 0> angles(a.cos, a.sin, a.positions[token], a.rotated);
    Head x, partners;
    load_head(at, a.dims, valid, x);
    load_partners<INTERLEAVED != 0>(at, a.rotated, valid, partners);
    if (valid) rotate(angles, a.rotated, partners, x);
    wave_sync();  // all lanes have read the head
    if (valid) store_head(at, a.dims, x);
}
