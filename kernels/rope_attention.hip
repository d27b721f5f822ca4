// rope_attention: rope of q and k, kv_append of k and v, and then attention, where each sequence
// has one new token. Where NORM is 1, RMSNorm of each head of q and k comes first.
//
//   attention    as attention.hip has it, but q is not rotated yet, and the pages do not have the
//                sequence's last token, number length - 1, yet
//   k, v         (S, G, D) float, aligned to 16
//   q_norm, k_norm  (D,) float weights, aligned to 16; null: no norm
//   cos, sin     (context, R / 2) float, aligned to 16
//   positions    (S,) int: rows of cos and sin
// INTERLEAVED 1: pairs are dims (2i, 2i + 1); 0: (i, i + R / 2).
//
// Each block rotates its own queries. The blocks of a sequence's last split write the last token to
// the pages: all that share a KV head write the same bytes. Where AHEAD is 1, the first step's keys
// and values are loaded before the wait for earlier launches, for earlier passes wrote them; if the
// last token is among them, it comes from LDS. The angles of the rotation never wait: nothing in a
// pass writes them.
//
// Grid and limits as attention.hip; R even, at most D.
// Launched by rocmforge/gpu/ops/rope_attention.py.
#include "append.h"
#include "attend.h"

#if !defined(INTERLEAVED) || !defined(NORM) || !defined(AHEAD)
#error "INTERLEAVED, NORM and AHEAD have to be passed by the build"
#endif

struct RopeAttentionArgs {
    AttentionArgs attention;
    const float* k;
    const float* v;
    const float* q_norm;
    const float* k_norm;
    const float* cos;
    const float* sin;
    const int* positions;
    int rotated;
    float eps;
};

constexpr bool kInterleaved = INTERLEAVED != 0;
static_assert(THREADS == kThreads);

struct Queries {
    // Rows begin in different banks of LDS: on matrix units neighbouring lanes read several.
    static constexpr int kStride = HEAD_DIM + 4;
    alignas(16) float of[QUERIES][kStride];  // rotated
};

// Normalizes and rotates the lane's part of a head that is at `from`, if it is one of q or k.
DEVICE void turn(const RopeAttentionArgs& a, const Angles<kInterleaved>& angles, const float* from,
                 const float* norm, bool exists, bool turned, Head& x) {
    Head partners;
    load_head(from, HEAD_DIM, exists, x);
    load_partners<kInterleaved>(from, a.rotated, exists && turned, partners);
    if constexpr (NORM) {
        normalize<kInterleaved>(norm, HEAD_DIM, a.rotated, a.eps, x, partners);
    }
    if (turned) rotate(angles, a.rotated, partners, x);
}

// The row of the pages to which a block appends the sequence's last token, if it does.
struct Appended {
    bool exists;
    u64 row;

    DEVICE Appended(const Split& split, const TokenRows& rows)
        : exists(split.length > 0 && split.last == split.length) {
        const int token = split.length - 1;
        row = exists ? rows.row(rows.page_of(token), token) : 0;
    }
};

// Rotates the block's queries; in a last split, also appends the last token. SPAN lanes
// take a head, in the order queries, key, value.
DEVICE void prepare(const RopeAttentionArgs& args, const Split& split, const HeadGroup& group,
                    const Appended& appended, const Angles<kInterleaved>& angles, Queries& queries,
                    Newest& newest) {
    const AttentionArgs& a = args.attention;
    const int heads = QUERIES + (appended.exists ? 2 : 0);
    for (int first = 0; first < heads; first += kHeads) {
        const int index = first + static_cast<int>(thread_x()) / SPAN;
        const bool query = index < QUERIES, key = index == QUERIES;
        const bool exists = query ? index < group.count : index < heads;
        const u64 head = query ? static_cast<u64>(split.s) * a.heads + group.first + index
                               : static_cast<u64>(split.s) * a.kv_heads + group.kv_head;
        const float* const from = (query ? a.q : key ? args.k : args.v) + head * HEAD_DIM;
        const float* const norm = query ? args.q_norm : key ? args.k_norm : nullptr;
        Head x;
        turn(args, angles, from, norm, exists, query || key, x);
        const bool appends = exists && !query;
        append_head<KV>(key ? a.k : a.v, key ? a.k_scales : a.v_scales, appended.row, HEAD_DIM, x,
                        appends);
        if constexpr (AHEAD) {
            append_head<KV>(key ? newest.keys : newest.values,
                            key ? newest.key_scales : newest.value_scales, 0, HEAD_DIM, x, appends);
        }
        if (!query || !exists) continue;
        store_head(queries.of[index], HEAD_DIM, x);
    }
}

KERNEL_RESIDENT(rope_attention, RopeAttentionArgs, kThreads, RESIDENT) {
    SHARED BlockStates states;
    SHARED Queries queries;
    SHARED Newest newest;
    const Split split(a.attention);
    if (split.index >= split.used) return;
    const HeadGroup group(a.attention);
    Steps steps(a.attention, split, group.kv_head);
    if (AHEAD && steps.start < split.last) {
        steps.load_keys();
        steps.load_values();
    }
    const Appended appended(split, steps);
    const Angles<kInterleaved> angles(a.cos, a.sin, a.positions[split.s], a.rotated);
    await_earlier();
    prepare(a, split, group, appended, angles, queries, newest);
    block_sync();
    if (AHEAD && steps.start < split.last) steps.replace(newest);

    OwnQueries q;
    q.load(queries.of[0], Queries::kStride, group.count, a.attention.scale);
    attend<AHEAD>(a.attention, split, group, q, steps, states);
}
