// attention_prompt: causal softmax(scale * q k^T) v for many queries a sequence, through the paged
// KV cache, on the matrix units. Query j of n of a sequence stands at position length - n + j.
//
//   q           (T, H, D) float, aligned to 16; rounded to f16 with the scale in it
//   k, v        (pages, G, P, D) and k_scales, v_scales: see pages.h; used as f16
//   page_table  (S, max_pages) int; lengths (S,) int, tokens with the new ones; starts (S + 1,) int
//   out         (T, H * D) float or f16
//
// A block has kQueries queries of one head, 16 a wave, and takes KEYS tokens a step: keys lie in
// LDS as they come, values transposed. A wave computes S^T = K Q^T, whose columns are its queries,
// keeps each column's running maximum and sum, and adds O^T += V^T P^T: the sums of the first
// product become an operand of the second in registers (tile.h). While it computes, the next keys
// or values are on their way. Grid: (H, ceil(most queries / kQueries), S); the last queries, which
// see most, go first; blocks without queries exit at once. Limits: D a multiple of 8 up to 256; P a
// power of two, at least 16. Launched by gpu/ops/attention_prompt.py.
#include "forms.h"
#include "pages.h"
#include "tile.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(KEYS) || !defined(WAVES) || \
    !defined(Q_IN_LDS) || !defined(LOAD_AHEAD)
#error "HEAD_DIM, KV, KEYS, WAVES, Q_IN_LDS and LOAD_AHEAD have to be passed by the build"
#endif

CONSTEXPR int largest_of(int a, int b, int c) {
    const int d = a > b ? a : b;
    return c > d ? c : d;
}

constexpr int kThreads = WAVES * WAVE;
constexpr int kQueries = WAVES * 16;
constexpr int kDims = (HEAD_DIM + 15) / 16 * 16;
constexpr int kEights = HEAD_DIM / 8;
constexpr int kStride = kDims + 8;  // of queries and keys: lines of a tile begin in different banks
constexpr int kKeyTiles = KEYS / 16;
constexpr int kDimTiles = kDims / 16;
constexpr int kValueStride = KEYS + 8;
constexpr int kKeyHalves = KEYS * kStride;
constexpr int kQueryHalves = kQueries * kStride;
constexpr int kTileHalves = kKeyHalves + kDims * (kValueStride + 1);
constexpr int kLine = 16 + 4;  // floats between the outputs of two queries
constexpr int kLineHalves = WAVES * 16 * kLine * 2;
// One memory serves the queries, the steps and the outputs, one after another.
constexpr int kStepHalves = largest_of(kTileHalves, kLineHalves, Q_IN_LDS ? 0 : kQueryHalves);
constexpr int kMemoryHalves = kStepHalves + (Q_IN_LDS ? kQueryHalves : 0) + WAVES * kExchangeHalves;
constexpr int kKeyLoads = (KEYS * kEights + kThreads - 1) / kThreads;
constexpr int kValueLoads = (KEYS / 2 * kEights + kThreads - 1) / kThreads;
constexpr float kLowest = -1e30f;  // a maximum over nothing; finite, so that differences are
static_assert(HEAD_DIM % 8 == 0 && KEYS % 16 == 0);
static_assert(kMemoryHalves * 2 <= 48 * 1024);

using Map = TileC::Map;
constexpr int kColumns = Map::kColumns;  // queries that a lane has sums of

// Joins what the lanes that have sums of the same queries hold.
template <int kMask = Map::kColumnLanes, class Join>
DEVICE float over_column(float value, Join join) {
    if constexpr (kMask < WAVE) {
        return over_column<2 * kMask>(join(value, shuffle_xor<kMask>(value)), join);
    } else {
        return value;
    }
}

// Where a dim's tokens begin in the transposed values. Rows of a tile, and what the lanes of one
// store hold, lie in different banks.
DEVICE int value_row(int dim) {
    return dim * kValueStride + dim / 8 * 8;
}

struct AttentionPromptArgs {
    const float* q;
    const void* k;
    const void* v;
    const void* k_scales;
    const void* v_scales;
    const int* page_table;
    const int* lengths;
    const int* starts;
    Output out;
    int heads, kv_heads, page_bits, max_pages, form;  // a number of Form
    float scale;
};

// The cache as one head of one sequence sees it. Tokens past the end are read as the last one, so
// that what no query sees is a number too.
struct Tokens {
    const int* table;
    int length, kv_heads, g, page_bits;

    DEVICE KV::Eight eight(const void* pages, const void* scales, int token, int dim) const {
        const int t = least(token, length - 1);
        const u64 page = static_cast<u64>(table[t >> page_bits]) * kv_heads + g;
        const u64 row = (page << page_bits) + (t & ((1 << page_bits) - 1));
        return KV::load_eight(pages, scales, row, HEAD_DIM, dim);
    }
};

KERNEL(attention_prompt, AttentionPromptArgs, kThreads) {
    SHARED u32x4 memory[kMemoryHalves / 8];
    f16* const keys = reinterpret_cast<f16*>(memory);
    f16* const values = keys + kKeyHalves;
    f16* const all_queries = keys + (Q_IN_LDS ? kStepHalves : 0);
    f16* const own_queries = all_queries + wave() * 16 * kStride;
    f16* const exchange = keys + kMemoryHalves - (WAVES - wave()) * kExchangeHalves;

    const int head = block_x(), s = block_z(), thread = thread_x();
    const int start = a.starts[s], queries = a.starts[s + 1] - start;
    const int first =
        ((queries + kQueries - 1) / kQueries - 1 - static_cast<int>(block_y())) * kQueries;
    if (first < 0) return;

    const int length = a.lengths[s], before = length - queries;
    const int reach = before + least(first + kQueries, queries);
    const int mine = first + static_cast<int>(wave()) * 16;
    const int my_reach = mine < queries ? before + least(mine + 16, queries) : 0;
    const Tokens tokens = {a.page_table + static_cast<u64>(s) * a.max_pages, length, a.kv_heads,
                           head / (a.heads / a.kv_heads), a.page_bits};

    KV::Eight key_eights[kKeyLoads], value_eights[kValueLoads][2];
    const auto load_keys = [&](int at) {
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = least(thread + i * kThreads, KEYS * kEights - 1);
            key_eights[i] = tokens.eight(a.k, a.k_scales, at + n / kEights, n % kEights * 8);
        }
    };
    const auto store_keys = [&] {
        UNROLL for (int i = 0; i < kKeyLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            if (n < KEYS * kEights) {
                *reinterpret_cast<u32x4*>(keys + n / kEights * kStride + n % kEights * 8) =
                    KV::halves(key_eights[i]);
            }
        }
    };
    // Four threads take four pairs of tokens, then come the dims.
    const auto load_values = [&](int at) {
        UNROLL for (int i = 0; i < kValueLoads; ++i) {
            const unsigned n = least(thread + i * kThreads, KEYS / 2 * kEights - 1);
            const int dim = n / 4 % kEights * 8, token = at + (n % 4 + n / 4 / kEights * 4) * 2;
            value_eights[i][0] = tokens.eight(a.v, a.v_scales, token, dim);
            value_eights[i][1] = tokens.eight(a.v, a.v_scales, token + 1, dim);
        }
    };
    const auto store_values = [&] {
        UNROLL for (int i = 0; i < kValueLoads; ++i) {
            const unsigned n = thread + i * kThreads;
            const int dim = n / 4 % kEights * 8, token = (n % 4 + n / 4 / kEights * 4) * 2;
            if (n < KEYS / 2 * kEights) {
                const u32x4 even = KV::halves(value_eights[i][0]);
                const u32x4 odd = KV::halves(value_eights[i][1]);
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
    };

    const u64 row_stride = static_cast<u64>(a.heads) * HEAD_DIM;
    const float* const q = a.q + start * row_stride + static_cast<u64>(head) * HEAD_DIM;
    for (int n = thread; n < kQueries * (kDims / 8); n += kThreads) {
        const int row = n / (kDims / 8), dim = n % (kDims / 8) * 8;
        u32x4 words = {};
        if (dim < HEAD_DIM && first + row < queries) {
            float eight[8];
            F32Pages::widen(F32Pages::load_eight(q, nullptr, (first + row) * row_stride, 1, dim),
                            eight);
            UNROLL for (int i = 0; i < 8; ++i) eight[i] *= a.scale;
            words = pack_eight(eight);
        }
        *reinterpret_cast<u32x4*>(all_queries + row * kStride + dim) = words;
    }
    block_sync();
    TileB query_tiles[Q_IN_LDS ? 1 : kDimTiles];
    if constexpr (!Q_IN_LDS) {
        UNROLL for (int k = 0; k < kDimTiles; ++k) query_tiles[k].load(own_queries + 16 * k,
                                                                       kStride);
        block_sync();
    }
    // Dims past the head's are zero in queries and keys, and their outputs are not stored.
    if constexpr (kDims > HEAD_DIM) {
        for (int token = thread; token < KEYS; token += kThreads) {
            *reinterpret_cast<u32x4*>(keys + token * kStride + HEAD_DIM) = {};
        }
    }

    TileC out[kDimTiles];
    UNROLL for (int i = 0; i < kDimTiles; ++i) out[i].clear();
    float largest[kColumns], total[kColumns];
    int visible[kColumns];
    UNROLL for (int v = 0; v < Map::kValues; ++v) {
        const int c = Map::column_index(v);
        largest[c] = kLowest;
        total[c] = 0.0f;
        visible[c] = before + least(mine + Map::column(lane(), v), queries - 1) + 1;
    }

    load_keys(0);
    store_keys();
    block_sync();
    for (int at = 0; at < reach; at += KEYS) {
        TileC scores[kKeyTiles];
        if constexpr (LOAD_AHEAD) load_values(at);
        if (at < my_reach) {
            UNROLL for (int t = 0; t < kKeyTiles; ++t) {
                scores[t].clear();
                UNROLL for (int k = 0; k < kDimTiles; ++k) {
                    TileA key_tile;
                    key_tile.load(keys + 16 * t * kStride + 16 * k, kStride);
                    if constexpr (Q_IN_LDS) query_tiles[0].load(own_queries + 16 * k, kStride);
                    scores[t].mma(key_tile, query_tiles[Q_IN_LDS ? 0 : k]);
                }
            }
            if (at + KEYS > before + mine + 1) {  // some token comes after some query
                UNROLL for (int t = 0; t < kKeyTiles; ++t) {
                    UNROLL for (int v = 0; v < Map::kValues; ++v) {
                        const int token = at + 16 * t + Map::row(lane(), v);
                        if (token >= visible[Map::column_index(v)])
                            scores[t].values[v] = -infinity();
                    }
                }
            }
            float top[kColumns], factor[kColumns];
            UNROLL for (int c = 0; c < kColumns; ++c) top[c] = largest[c];
            UNROLL for (int t = 0; t < kKeyTiles; ++t) {
                UNROLL for (int v = 0; v < Map::kValues; ++v) {
                    top[Map::column_index(v)] =
                        larger(top[Map::column_index(v)], scores[t].values[v]);
                }
            }
            UNROLL for (int c = 0; c < kColumns; ++c) {
                top[c] = over_column(top[c], larger);
                factor[c] = fast_exp(largest[c] - top[c]);
                largest[c] = top[c];
                total[c] *= factor[c];
            }
            UNROLL for (int t = 0; t < kKeyTiles; ++t) {
                UNROLL for (int v = 0; v < Map::kValues; ++v) {
                    const int c = Map::column_index(v);
                    scores[t].values[v] = fast_exp(scores[t].values[v] - top[c]);
                    total[c] += scores[t].values[v];
                }
            }
            UNROLL for (int i = 0; i < kDimTiles; ++i) {
                UNROLL for (int v = 0; v < Map::kValues; ++v) {
                    out[i].values[v] *= factor[Map::column_index(v)];
                }
            }
        }
        if constexpr (!LOAD_AHEAD) load_values(at);
        store_values();
        block_sync();
        if constexpr (LOAD_AHEAD) load_keys(at + KEYS);
        if (at < my_reach) {
            UNROLL for (int t = 0; t < kKeyTiles; ++t) {
                const TileB weights = as_operand(scores[t], exchange);
                UNROLL for (int i = 0; i < kDimTiles; ++i) {
                    TileA value_tile;
                    value_tile.load_from([&](int row, int eight) {
                        return values + value_row(row) + value_row(16 * i) + 16 * t + 8 * eight;
                    });
                    out[i].mma(value_tile, weights);
                }
            }
        }
        if constexpr (!LOAD_AHEAD) load_keys(at + KEYS);
        store_keys();
        block_sync();
    }

    // Through LDS, so that lanes store neighbours: 16 dims of the wave's queries at a time.
    const auto add = [](float x, float y) { return x + y; };
    UNROLL for (int c = 0; c < kColumns; ++c) total[c] = 1.0f / over_column(total[c], add);
    float* const lines = reinterpret_cast<float*>(memory) + wave() * 16 * kLine;
    UNROLL for (int i = 0; i < kDimTiles; ++i) {
        wave_sync();
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            lines[Map::column(lane(), v) * kLine + Map::row(lane(), v)] =
                out[i].values[v] * total[Map::column_index(v)];
        }
        wave_sync();
        for (int n = lane(); n < 16 * 4; n += WAVE) {
            const int query = mine + n / 4, dim = 16 * i + n % 4 * 4;
            const bool valid = query < queries && dim < HEAD_DIM;
            const u64 to = (start + query) * row_stride + head * HEAD_DIM + dim;
            float four[4];
            load_floats(lines + n / 4 * kLine + n % 4 * 4, four);
            if (a.form == static_cast<int>(Form::F16)) {
                store_form<Form::F16>(a.out, to, four, valid);
            } else {
                store_form<Form::F32>(a.out, to, four, valid);
            }
        }
    }
}
