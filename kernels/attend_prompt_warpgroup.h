// How a block of attention_prompt.hip goes through its tokens on Hopper's matrix unit
// (warpgroup.h), which reads keys and values from LDS once for four waves.
//
// A warpgroup has 64 queries: S = Q K^T has a query's scores in four lanes of a wave, whose weights
// are the operand of O += P V as they are. Queries, keys and values lie in LDS in pieces of 16
// bytes: all rows' first eight dims, then all rows' next ones. So eight rows' pieces follow one
// another, and the unit takes keys with dims as k, and values with tokens as k. While a step is
// multiplied, the next one's copies are on their way.
#pragma once

#include "attend_prompt.h"
#include "warpgroup.h"

#if !defined(ROCMFORGE_WARPGROUP)
#error "WARPGROUP 1 needs sm_90a"
#endif

// Queries are down, tokens and dims across.
struct QueryLanes {
    using Map = TileC::Map;
    static constexpr int kQueries = 2, kFirst = 1, kEnd = 4;
    static CONSTEXPR int own(int v) { return v / 2 % 2; }
    static CONSTEXPR int query(int lane, int v) { return Map::row(lane, v); }
    static CONSTEXPR int other(int lane, int v) { return Map::column(lane, v); }
    static CONSTEXPR bool writes(int lane) { return lane % 4 == 0; }
};

#include "attend_prompt_state.h"

// Pieces from eight dims to the next, odd so that what lanes write is in different banks.
constexpr int kHalf = KEYS + 1, kQueryHalf = kQueries + 1;
// Of the keys or the values of a step, and of the queries.
constexpr int kTilePieces = kEights * kHalf, kQueryPieces = kEights * kQueryHalf;
constexpr int kMemoryPieces = kQueryPieces + 4 * kTilePieces;
constexpr int kCopies = (KEYS * kEights + kThreads - 1) / kThreads;
static_assert(TILES == 1 && WAVES % 4 == 0 && HEAD_DIM % 16 == 0 && kSame<KV, F16Pages>);
static_assert(Q_IN_LDS && LOAD_AHEAD && DIRECT);
static_assert(kMemoryPieces * 16 == LDS_BYTES);
static_assert(kQueryPieces >= WAVES * 16 * kLine / 4, "room for the outputs");

// Stores the block's queries in LDS, scaled and rounded. Rows without a query hold the last one
// times 0; nobody stores what comes of them.
DEVICE void load_queries(const AttentionPromptArgs& a, const Rows& rows, u32x4* lds) {
    const u64 row_stride = static_cast<u64>(a.heads) * HEAD_DIM;
    const float* const q = a.q + rows.start * row_stride + static_cast<u64>(rows.head) * HEAD_DIM;
    constexpr int kAll = kQueries * kEights / kThreads, kAtOnce = 4;
    static_assert(kAll * kThreads == kQueries * kEights && kAll % kAtOnce == 0);
    const int eight = thread_x() % kEights;
    ROLLED for (int first = 0; first < kAll; first += kAtOnce) {
        F32Pages::Eight loaded[kAtOnce];
        const auto row_of = [&](int i) {
            return static_cast<int>(thread_x() + (first + i) * kThreads) / kEights;
        };
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
            const int row = rows.first + minimum(row_of(i), rows.count - 1 - rows.first);
            loaded[i] = F32Pages::load_eight(q, nullptr, row * row_stride, 1, 8 * eight);
        }
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
            float x[8];
            F32Pages::widen(loaded[i], x);
            const float factor = rows.first + row_of(i) < rows.count ? a.scale : 0.0f;
            UNROLL for (int d = 0; d < 8; ++d) x[d] *= factor;
            lds[eight * kQueryHalf + row_of(i)] = pack_eight(x);
        }
    }
}

// A thread's share of the keys and values of a step: eight dims of kCopies tokens. It loads the
// numbers of their pages one step ahead. KEYS is a multiple of P, the tokens of a page; so a
// thread's tokens have the same places in their pages in each step.
struct StepCopies {
    const AttentionPromptArgs& a;
    const CacheReader& cache;
    uint32_t page_halves;  // of all KV heads
    int pages[kCopies];

    DEVICE StepCopies(const AttentionPromptArgs& a, const CacheReader& cache, int at)
        : a(a), cache(cache), page_halves((a.kv_heads * HEAD_DIM) << a.page_bits) {
        load_page_numbers(at);
    }

    static DEVICE int token(int i) { return (thread_x() + i * kThreads) / kEights; }
    static DEVICE int eight() { return thread_x() % kEights; }
    // Begins to copy the keys of a step to `keys` and the values to the pieces behind them. Loads
    // the next step's page numbers. Tokens past the end become zeros.
    DEVICE void start(int at, u32x4* keys) {
        static_assert(kThreads % kEights == 0 && KEYS % 64 == 0);
        UNROLL for (int i = 0; i < kCopies; ++i) {
            if (KEYS * kEights % kThreads != 0 && token(i) >= KEYS) continue;
            const uint32_t place = token(i) & ((1 << a.page_bits) - 1);
            const uint32_t in_page = ((cache.kv_head << a.page_bits) + place) * HEAD_DIM;
            const u64 from = static_cast<u64>(pages[i]) * page_halves + in_page + 8 * eight();
            u32x4* const to = keys + eight() * kHalf + token(i);
            const bool present = at + token(i) < cache.length;
            Transfer copy;
            copy.start(to, static_cast<const f16*>(a.k) + from, present);
            copy.start(to + kTilePieces, static_cast<const f16*>(a.v) + from, present);
        }
        Transfer::batch_started();
        load_page_numbers(at + KEYS);
    }

  private:
    DEVICE void load_page_numbers(int at) {
        UNROLL for (int i = 0; i < kCopies; ++i) {
            pages[i] = cache.table[minimum(at + token(i), cache.length - 1) >> a.page_bits];
        }
    }
};

// The sums of the tokens of a split.
DEVICE void attend(const AttentionPromptArgs& a, const Rows& rows, const Reach& reach,
                   const Split& split, const CacheReader& cache, u32x4* memory,
                   SoftmaxState (&states)[1], Outputs (&out)[1]) {
    u32x4* const steps = memory + kQueryPieces;
    // These numbers are equal in all lanes. A shuffle tells the compiler so; then it holds them,
    // and the operands below, in registers that the warp shares.
    const int group = shuffle(static_cast<int>(wave()) / 4 * 64, 0);  // the first query
    const int group_end = rows.first + group < rows.count
                              ? reach.before + minimum(rows.first + group + 64, rows.count)
                              : 0;
    const u64 queries = shuffle(warpgroup_operand(memory + group, kQueryHalf), 0);
    StepCopies copies(a, cache, split.first);
    copies.start(split.first, steps);
    load_queries(a, rows, memory);
    int turn = 0;
    for (int at = split.first; at < split.last; at += KEYS, turn ^= 1) {
        u32x4* const keys = steps + turn * 2 * kTilePieces;
        Transfer::wait<0>();
        lds_for_warpgroup();
        block_sync();
        // All waves are through with the step before, whose place the next one takes.
        u32x4* const next = steps + (1 - turn) * 2 * kTilePieces;
        copies.start(at + KEYS, next);
        if (at >= group_end) continue;
        Scores scores[1];
        UNROLL for (int t = 0; t < kKeyTiles; ++t) scores[0][t].clear();
        const u64 key_operand = shuffle(warpgroup_operand(keys, kHalf), 0);
        const u64 value_operand = shuffle(across_operand(keys + kTilePieces, kHalf), 0);
        registers_for_warpgroup();
        UNROLL for (int k = 0; k < kDimTiles; ++k) {
            warpgroup_mma(scores[0], queries + 2 * k * kQueryHalf, key_operand + 2 * k * kHalf);
        }
        warpgroup_started();
        warpgroup_wait<0>();
        hold_sums(scores[0]);
        weigh(a, reach, at, scores, states, out);
        TileA weights[kKeyTiles];
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int w = 0; w < 4; ++w) {
                const float* const two = scores[0][t].values + 2 * w;
                weights[t].words[w] = pack_halves(two[0], two[1]);
            }
        }
        registers_for_warpgroup();
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            warpgroup_mma_across(out[0], weights[t], value_operand + 16 * t);
        }
        warpgroup_started();
        warpgroup_wait<0>();
        hold_sums(out[0]);
    }
    Transfer::wait<0>();
    block_sync();  // the outputs go where queries and steps lie
}
