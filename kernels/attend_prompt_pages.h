// Keys and values on their way from the cache into LDS, for attention_prompt.hip: straight there
// where DIRECT is 1, else through registers.
#pragma once

#include "attend_prompt.h"

CONSTEXPR int largest_of(int a, int b, int c) {
    const int d = a > b ? a : b;
    return c > d ? c : d;
}

constexpr int kStride = kDims + 8;  // of queries and keys; a tile's lines begin in different banks
constexpr int kValueStride = KEYS + 8;
constexpr int kKeyHalves = KEYS * kStride;
constexpr int kQueryHalves = kQueries * kStride;
constexpr int kTileHalves = kKeyHalves + (DIRECT ? kKeyHalves : kDims * (kValueStride + 1));
constexpr int kLineHalves = WAVES * 16 * kLine * 2;
// The same LDS holds first the queries, then the steps, then the outputs.
constexpr int kStepHalves = largest_of(kTileHalves, kLineHalves, Q_IN_LDS ? 0 : kQueryHalves);
constexpr int kLaunchHalves = kStepHalves + (Q_IN_LDS ? kQueryHalves : 0);
constexpr int kMemoryHalves = kLaunchHalves + WAVES * kExchangeHalves;
constexpr int kMemoryPieces = kMemoryHalves / 8;
constexpr int kKeyLoads = (KEYS * kEights + kThreads - 1) / kThreads;
constexpr int kValueLoads = (KEYS / 2 * kEights + kThreads - 1) / kThreads;
static_assert(kLaunchHalves * 2 == LDS_BYTES);
static_assert(!DIRECT || (kSame<KV, F16Pages> && HEAD_DIM % 16 == 0 && LOAD_AHEAD));

#if DIRECT
// A thread's share of the keys or of the values of a step: eight dims of a token each.
template <const void* AttentionPromptArgs::* kPages>
struct Copies {
    const int thread = thread_x();
    Transfer eights[kKeyLoads];

    DEVICE void load(const AttentionPromptArgs& a, const CacheReader& cache, int at, f16* lds) {
        const f16* const pages = static_cast<const f16*>(a.*kPages);
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            if (n >= KEYS * kEights) continue;
            const int token = n / kEights, dim = n % kEights * 8;
            const f16* const from = pages + cache.row(at + token) * HEAD_DIM + dim;
            eights[i].start(reinterpret_cast<u32x4*>(lds + token * kStride + dim), from, true);
        }
        Transfer::batch_started();
    }
    DEVICE void store(f16* lds) {
        Transfer::wait<0>();
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            if (n >= KEYS * kEights) continue;
            eights[i].land(reinterpret_cast<u32x4*>(lds + n / kEights * kStride + n % kEights * 8));
        }
    }
};
using KeyLoads = Copies<&AttentionPromptArgs::k>;
using ValueLoads = Copies<&AttentionPromptArgs::v>;

// The values of the 16 tokens from `token` on, in the 16 dims from `dim` on, as V^T.
DEVICE void load_values(TileA& tile, const f16* values, int token, int dim) {
    tile.load_transposed(values + token * kStride + dim, kStride);
}
#else
// A thread's share of the keys of a step: eight dims of a token each.
struct KeyLoads {
    const int thread = thread_x();
    KV::Eight eights[kKeyLoads];

    DEVICE void load(const AttentionPromptArgs& a, const CacheReader& cache, int at, f16*) {
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = minimum(thread + i * kThreads, KEYS * kEights - 1);
            eights[i] = cache.eight(a.k, a.k_scales, at + n / kEights, n % kEights * 8);
        }
    }

    DEVICE void store(f16* keys) const {
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            if (n < KEYS * kEights) {
                *reinterpret_cast<u32x4*>(keys + n / kEights * kStride + n % kEights * 8) =
                    KV::halves(eights[i]);
            }
        }
    }
};

// Where a dim's tokens begin in the transposed values. The pad after every 8 dims puts rows of a
// tile, and what the lanes of one store hold, into different banks.
DEVICE int value_row(int dim) {
    return dim * kValueStride + dim / 8 * 8;
}

// A thread's share of the values of a step: eight dims of two neighbouring tokens each. Four
// threads take four pairs of tokens, the next four threads the next dims.
struct ValueLoads {
    const int thread = thread_x();
    KV::Eight eights[kValueLoads][2];

    DEVICE void load(const AttentionPromptArgs& a, const CacheReader& cache, int at, f16*) {
        UNROLL for (int i = 0; i < kValueLoads; ++i) {
            const unsigned n = minimum(thread + i * kThreads, KEYS / 2 * kEights - 1);
            const int dim = n / 4 % kEights * 8, token = at + (n % 4 + n / 4 / kEights * 4) * 2;
            eights[i][0] = cache.eight(a.v, a.v_scales, token, dim);
            eights[i][1] = cache.eight(a.v, a.v_scales, token + 1, dim);
        }
    }

    // Transposed: the two tokens of a dim become one word.
    DEVICE void store(f16* values) const {
        UNROLL for (int i = 0; i < kValueLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            const int dim = n / 4 % kEights * 8, token = (n % 4 + n / 4 / kEights * 4) * 2;
            if (n < KEYS / 2 * kEights) {
                const u32x4 even = KV::halves(eights[i][0]), odd = KV::halves(eights[i][1]);
                const uint32_t low[4] = {even.x, even.y, even.z, even.w};
                const uint32_t high[4] = {odd.x, odd.y, odd.z, odd.w};
                UNROLL for (int d = 0; d < 8; ++d) {
                    const uint32_t two = d % 2 ? low[d / 2] >> 16 | (high[d / 2] & 0xffff0000u)
                                               : (low[d / 2] & 0xffffu) | high[d / 2] << 16;
                    f16* const to = values + value_row(dim) + d * kValueStride + token;
                    *reinterpret_cast<uint32_t*>(to) = two;
                }
            }
        }
    }
};

// The values of the 16 tokens from `token` on, in the 16 dims from `dim` on, as V^T.
DEVICE void load_values(TileA& tile, const f16* values, int token, int dim) {
    tile.load_from([&](int row, int eight) {
        return values + value_row(row) + value_row(dim) + token + 8 * eight;
    });
}
#endif
