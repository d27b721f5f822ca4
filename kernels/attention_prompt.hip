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
// Where few queries give few blocks, several blocks share the tokens that the same queries see, as
// splits of at least LEAST tokens. The block of the splits that ends last merges what they have.
//
// Grid (H, blocks, S * splits) with blocks = ceil(most queries of a sequence / kQueries). The
// blocks of the last queries, which see the most tokens, come first; blocks without queries or
// tokens exit at once. Limits: D a multiple of 8 up to 256; P a power of two, at least 16. DIRECT:
// pages of f16, D a multiple of 16, and a matrix unit that can transpose what it loads (NVIDIA's).
// Launched by rocmforge/gpu/ops/attention_prompt.py.
#include "four_dims.h"
#include "output.h"
#include "pages.h"
#include "softcap.h"
#include "tile.h"

#if !defined(HEAD_DIM) || !defined(KV) || !defined(KEYS) || !defined(WAVES) || !defined(TILES) || \
    !defined(Q_IN_LDS) || !defined(LOAD_AHEAD) || !defined(DIRECT) || !defined(LEAST) ||          \
    !defined(LDS_BYTES)
#error "HEAD_DIM, KV, KEYS, WAVES, TILES, Q_IN_LDS, LOAD_AHEAD, DIRECT, LEAST, LDS_BYTES missing"
#endif

CONSTEXPR int largest_of(int a, int b, int c) {
    const int d = a > b ? a : b;
    return c > d ? c : d;
}

constexpr int kThreads = WAVES * WAVE;
constexpr int kWaveQueries = TILES * 16;
constexpr int kQueries = WAVES * kWaveQueries;
constexpr int kDims = (HEAD_DIM + 15) / 16 * 16;
constexpr int kEights = HEAD_DIM / 8;
constexpr int kStride = kDims + 8;  // of queries and keys; a tile's lines begin in different banks
constexpr int kKeyTiles = KEYS / 16;
constexpr int kDimTiles = kDims / 16;
constexpr int kValueStride = KEYS + 8;
constexpr int kKeyHalves = KEYS * kStride;
constexpr int kQueryHalves = kQueries * kStride;
constexpr int kTileHalves = kKeyHalves + (DIRECT ? kKeyHalves : kDims * (kValueStride + 1));
constexpr int kLine = 16 + 4;  // floats between the outputs of two queries
constexpr int kLineHalves = WAVES * 16 * kLine * 2;
// The same LDS holds first the queries, then the steps, then the outputs.
constexpr int kStepHalves = largest_of(kTileHalves, kLineHalves, Q_IN_LDS ? 0 : kQueryHalves);
constexpr int kLaunchHalves = kStepHalves + (Q_IN_LDS ? kQueryHalves : 0);
constexpr int kMemoryHalves = kLaunchHalves + WAVES * kExchangeHalves;
constexpr int kKeyLoads = (KEYS * kEights + kThreads - 1) / kThreads;
constexpr int kValueLoads = (KEYS / 2 * kEights + kThreads - 1) / kThreads;
static_assert(HEAD_DIM % 8 == 0 && KEYS % 16 == 0 && kLaunchHalves * 2 == LDS_BYTES);
static_assert(!DIRECT || (kSame<KV, F16Pages> && HEAD_DIM % 16 == 0 && LOAD_AHEAD));

using Map = TileC::Map;
constexpr int kColumns = Map::kColumns;  // queries that a lane holds sums of

struct AttentionPromptArgs {
    const float* q;
    const void* k;
    const void* v;
    const void* k_scales;
    const void* v_scales;
    const int* page_table;
    const int* lengths;
    const int* starts;
    float* outputs;
    float* stats;
    uint32_t* arrivals;
    const float* sinks;
    Output out;
    int tokens, heads, kv_heads, page_bits, max_pages;
    int blocks, splits, dtype;  // blocks: of the grid in y; dtype: a number of Dtype
    int window;
    float scale, softcap;
};

// The queries that a block takes: row `first` and the next ones of sequence s, for one head. Rows
// are counted from the sequence's first query; `start` is the first query's row in q and out.
struct Rows {
    int head, s, start, count, first;

    DEVICE explicit Rows(const AttentionPromptArgs& a) {
        head = block_x();
        s = block_z() / a.splits;
        start = a.starts[s];
        count = a.starts[s + 1] - start;
        const int blocks = (count + kQueries - 1) / kQueries;
        first = (blocks - 1 - static_cast<int>(block_y())) * kQueries;
    }
};

// The wave's rows, and the tokens that rows see: row j sees tokens 0 to `before` + j.
struct Reach {
    int length, before;
    int block_end, wave_end;  // no row of the block, or of the wave, sees this token or later ones
    int begin;                // of the first step that rows of the block see
    int wave_first;           // row

    DEVICE Reach(const AttentionPromptArgs& a, const Rows& rows) {
        length = a.lengths[rows.s];
        before = length - rows.count;
        block_end = before + minimum(rows.first + kQueries, rows.count);
        const int hidden = a.window > 0 ? maximum(before + rows.first + 1 - a.window, 0) : 0;
        begin = hidden / KEYS * KEYS;
        wave_first = rows.first + static_cast<int>(wave()) * kWaveQueries;
        wave_end =
            wave_first < rows.count ? before + minimum(wave_first + kWaveQueries, rows.count) : 0;
    }
};

// The tokens first to last - 1, which a block takes of those that its rows see: split number
// `index` of `used`. All but the last have the same number of steps.
struct Split {
    int index, used, first, last;

    DEVICE Split(const AttentionPromptArgs& a, const Reach& reach) {
        const int steps = (reach.block_end - reach.begin + KEYS - 1) / KEYS;
        const int own = maximum((steps + a.splits - 1) / a.splits, (LEAST + KEYS - 1) / KEYS);
        index = block_z() % a.splits;
        used = (steps + own - 1) / own;
        first = reach.begin + index * own * KEYS;
        last = minimum(first + own * KEYS, reach.block_end);
    }
};

// ---- keys and values: from the cache into LDS ---------------------------------------------------

// The cache as one head of one sequence sees it. Tokens past the end are read as the last one: no
// query sees them, but what they hold must be a number.
struct CacheReader {
    const int* table;
    int length, kv_heads, kv_head, page_bits;

    DEVICE u64 row(int token) const {
        const int t = minimum(token, length - 1);
        const u64 page = static_cast<u64>(table[t >> page_bits]) * kv_heads + kv_head;
        return (page << page_bits) + (t & ((1 << page_bits) - 1));
    }
    DEVICE KV::Eight eight(const void* pages, const void* scales, int token, int dim) const {
        return KV::load_eight(pages, scales, row(token), HEAD_DIM, dim);
    }
};

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

// ---- queries -----------------------------------------------------------------------------------

// Stores the block's queries in LDS, scaled and rounded; zeros where there is no query or no dim.
DEVICE void load_queries(const AttentionPromptArgs& a, const Rows& rows, f16* lds) {
    const u64 row_stride = static_cast<u64>(a.heads) * HEAD_DIM;
    const float* const q = a.q + rows.start * row_stride + static_cast<u64>(rows.head) * HEAD_DIM;
    for (int n = thread_x(); n < kQueries * (kDims / 8); n += kThreads) {
        const int row = n / (kDims / 8), dim = n % (kDims / 8) * 8;
        u32x4 words = {};
        if (dim < HEAD_DIM && rows.first + row < rows.count) {
            const u64 at = (rows.first + row) * row_stride;
            float eight[8];
            F32Pages::widen(F32Pages::load_eight(q, nullptr, at, 1, dim), eight);
            UNROLL for (int i = 0; i < 8; ++i) eight[i] *= a.scale;
            words = pack_eight(eight);
        }
        *reinterpret_cast<u32x4*>(lds + row * kStride + dim) = words;
    }
}

// The wave's queries as operands: all of them in registers, or 16 dims at a time, read from LDS.
using QueryTiles = TileB[Q_IN_LDS ? 1 : kDimTiles][TILES];

DEVICE void load_query_tiles(const f16* queries, int k, TileB (&tiles)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        tiles[q].load(queries + 16 * q * kStride + 16 * k, kStride);
    }
}

// ---- one step: score, mask, softmax, accumulate ------------------------------------------------

using Scores = TileC[kKeyTiles];   // tokens down, queries across
using Outputs = TileC[kDimTiles];  // dims down, queries across: sums of weight * value

// scores = K Q^T of a step.
DEVICE void score(const f16* keys, const f16* queries, QueryTiles& query_tiles,
                  Scores (&scores)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int t = 0; t < kKeyTiles; ++t) scores[q][t].clear();
    }
    const auto multiply = [&](int t, int k) {
        TileA key_tile;
        key_tile.load(keys + 16 * t * kStride + 16 * k, kStride);
        UNROLL for (int q = 0; q < TILES; ++q) {
            scores[q][t].mma(key_tile, query_tiles[Q_IN_LDS ? 0 : k][q]);
        }
    };
    UNROLL for (int k = 0; k < kDimTiles; ++k) {
        if constexpr (Q_IN_LDS) load_query_tiles(queries, k, query_tiles[0]);
        UNROLL for (int t = 0; t < kKeyTiles; ++t) multiply(t, k);
    }
}

// Scores of tokens that a query must not see become -infinity: those that come after it, and those
// before its window. Query 0 of the tile sees `visible` tokens, each next one a token more, and
// none more than `length`.
DEVICE void mask(int at, int visible, int length, int window, Scores& scores) {
    UNROLL for (int t = 0; t < kKeyTiles; ++t) {
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            const int token = at + 16 * t + Map::row(lane(), v);
            const int end = minimum(visible + Map::column(lane(), v), length);
            if (token >= end || (window > 0 && token < end - window)) {
                scores[t].values[v] = -infinity();
            }
        }
    }
}

DEVICE void cap(float softcap, Scores (&scores)[TILES]) {
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                scores[q][t].values[v] = soft_capped(scores[q][t].values[v], softcap);
            }
        }
    }
}

// Joins the values of the lanes that hold sums of the same queries.
template <int kMask = Map::kColumnLanes, class Join>
DEVICE float over_column(float value, Join join) {
    if constexpr (kMask < WAVE) {
        return over_column<2 * kMask>(join(value, shuffle_xor<kMask>(value)), join);
    } else {
        return value;
    }
}

// The softmax state of 16 queries of the wave over the tokens so far. `largest` is the same in all
// lanes of a query; `total` is the lane's own part of the sum of the weights.
struct SoftmaxState {
    float largest[kColumns], total[kColumns];

    // Takes the scores of KEYS more tokens. They become the weights exp(score - largest). Where
    // `largest` grows, the outputs so far are scaled down: seldom, once the first steps are done.
    DEVICE void add_scores(Scores& scores, Outputs& out) {
        const auto max = [](float x, float y) { return maximum(x, y); };
        float top[kColumns], factor[kColumns];
        bool grown = false;
        UNROLL for (int c = 0; c < kColumns; ++c) top[c] = largest[c];
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                top[Map::column_index(v)] = maximum(top[Map::column_index(v)], scores[t].values[v]);
            }
        }
        UNROLL for (int c = 0; c < kColumns; ++c) {
            top[c] = over_column(top[c], max);
            factor[c] = fast_exp(largest[c] - top[c]);
            grown |= top[c] > largest[c];
            largest[c] = top[c];
            total[c] *= factor[c];
            top[c] *= kLog2OfE;
        }
        UNROLL for (int t = 0; t < kKeyTiles; ++t) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                const int c = Map::column_index(v);
                scores[t].values[v] = fast_exp2(scores[t].values[v] * kLog2OfE - top[c]);
                total[c] += scores[t].values[v];
            }
        }
        if (!any_lane(grown)) return;
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            UNROLL for (int v = 0; v < Map::kValues; ++v) {
                out[i].values[v] *= factor[Map::column_index(v)];
            }
        }
    }
};

// out += weight * value over the tokens of the step.
DEVICE void accumulate(const Scores (&weights)[TILES], const f16* values, f16* exchange,
                       Outputs (&out)[TILES]) {
    UNROLL for (int t = 0; t < kKeyTiles; ++t) {
        TileB weight_tiles[TILES];
        UNROLL for (int q = 0; q < TILES; ++q) {
            weight_tiles[q] = as_operand(weights[q][t], exchange);
        }
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            TileA value_tile;
            load_values(value_tile, values, 16 * t, 16 * i);
            UNROLL for (int q = 0; q < TILES; ++q) out[q][i].mma(value_tile, weight_tiles[q]);
        }
    }
}

// ---- outputs -----------------------------------------------------------------------------------

// Number of a row of the block's head in q and out, and for split i in outputs and stats.
DEVICE u64 head_row(const AttentionPromptArgs& a, const Rows& rows, int row, int i = 0) {
    return (static_cast<u64>(i) * a.tokens + rows.start + row) * a.heads + rows.head;
}

DEVICE void write_four(const AttentionPromptArgs& a, u64 to, const float (&four)[4], bool valid) {
    if (a.dtype == static_cast<int>(Dtype::F16)) {
        store_as<Dtype::F16>(a.out, to, four, valid);
    } else {
        store_as<Dtype::F32>(a.out, to, four, valid);
    }
}

// Writes the outputs of 16 dims of the 16 rows from `first` on, times `factor`, through the wave's
// own `lines` in LDS, so that neighbouring lanes write neighbours. Those of one split of several go
// to its part of `outputs`.
DEVICE void store_tile(const AttentionPromptArgs& a, const Rows& rows, const Split& split,
                       int first, int i, const TileC& tile, const float (&factor)[kColumns],
                       float* lines) {
    wave_sync();
    UNROLL for (int v = 0; v < Map::kValues; ++v) {
        lines[Map::column(lane(), v) * kLine + Map::row(lane(), v)] =
            tile.values[v] * factor[Map::column_index(v)];
    }
    wave_sync();
    for (int n = lane(); n < 16 * 4; n += WAVE) {
        const int row = first + n / 4, dim = 16 * i + n % 4 * 4;
        const bool valid = row < rows.count && dim < HEAD_DIM;
        float four[4];
        load_floats(lines + n / 4 * kLine + n % 4 * 4, four);
        if (split.used > 1) {
            const u64 to = head_row(a, rows, row, split.index) * HEAD_DIM + dim;
            if (valid) store_floats(a.outputs + to, four);
        } else {
            write_four(a, head_row(a, rows, row) * HEAD_DIM + dim, four, valid);
        }
    }
}

// Writes the softmax states of the 16 rows from `first` on, of one split of several.
DEVICE void store_stats(const AttentionPromptArgs& a, const Rows& rows, const Split& split,
                        int first, const SoftmaxState& state) {
    if (lane() >= Map::kColumnLanes) return;  // the other lanes hold the same
    UNROLL for (int v = 0; v < Map::kValues; ++v) {
        const int c = Map::column_index(v), row = first + Map::column(lane(), v);
        if (row >= rows.count) continue;
        float* const to = a.stats + 2 * head_row(a, rows, row, split.index);
        to[0] = state.largest[c];
        to[1] = state.total[c];
    }
}

// Writes the outputs of the block's rows, from what all splits left.
DEVICE void merge_splits(const AttentionPromptArgs& a, const Rows& rows, const Split& split) {
    constexpr int kFours = HEAD_DIM / 4;
    constexpr int kAtOnce = HEAD_DIM > 128 ? 1 : 8;  // gfx11 would spill with 256 dims
    const int count = minimum(kQueries, rows.count - rows.first) * kFours;
    for (int n = thread_x(); n < count; n += kAtOnce * kThreads) {
        FourDims merged[kAtOnce];
        const auto place = [&](int i) { return minimum(n + i * kThreads, count - 1); };
        const auto row_of = [&](int i, int other) {
            return head_row(a, rows, rows.first + place(i) / kFours, other);
        };
        const auto four_of = [&](int i, int other) {
            return row_of(i, other) * HEAD_DIM + place(i) % kFours * 4;
        };
        for (int other = 0; other < split.used; ++other) {
            UNROLL for (int i = 0; i < kAtOnce; ++i) {
                const float* const stats = a.stats + 2 * row_of(i, other);
                float four[4];
                load_floats(a.outputs + four_of(i, other), four);
                merged[i].add(stats[0], stats[1], four);
            }
        }
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
            const float nothing[4] = {};
            if (a.sinks != nullptr) merged[i].add(a.sinks[rows.head], 1.0f, nothing);
            UNROLL for (int d = 0; d < 4; ++d) merged[i].out[d] /= merged[i].total;
            write_four(a, four_of(i, 0), merged[i].out, n + i * kThreads < count);
        }
    }
}

// Writes what the block's waves have; the block that ends last of several splits merges theirs. All
// threads call it.
DEVICE void finish(const AttentionPromptArgs& a, SoftmaxState (&states)[TILES],
                   const Outputs (&out)[TILES], u32x4* memory) {
    const Rows rows(a);  // computed anew: kept since the start, they would take scarce registers
    const Reach reach(a, rows);
    const Split split(a, reach);
    // Without other splits the sums become factors: out / total is stored.
    const auto add = [](float x, float y) { return x + y; };
    float* const lines = reinterpret_cast<float*>(memory) + wave() * 16 * kLine;
    UNROLL for (int q = 0; q < TILES; ++q) {
        SoftmaxState& state = states[q];
        const int first = reach.wave_first + 16 * q;
        float factor[kColumns];
        UNROLL for (int c = 0; c < kColumns; ++c) {
            float total = state.total[c] = over_column(state.total[c], add);
            factor[c] = 1.0f;
            if (split.used > 1) continue;
            if (a.sinks != nullptr) {
                const float sink = a.sinks[rows.head], top = maximum(state.largest[c], sink);
                factor[c] = fast_exp(state.largest[c] - top);
                total = total * factor[c] + fast_exp(sink - top);
            }
            factor[c] /= total;
        }
        if (split.used > 1) store_stats(a, rows, split, first, state);
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            store_tile(a, rows, split, first, i, out[q][i], factor, lines);
        }
    }
    if (split.used == 1) return;
    uint32_t* const arrivals =
        a.arrivals + (static_cast<u64>(rows.s) * a.blocks + block_y()) * a.heads + rows.head;
    if (last_to_arrive(arrivals, split.used, reinterpret_cast<uint32_t*>(memory))) {
        merge_splits(a, rows, split);
    }
}

KERNEL(attention_prompt, AttentionPromptArgs, kThreads) {
    SHARED_BY_LAUNCH(u32x4, memory, kMemoryHalves / 8);
    f16* const keys = reinterpret_cast<f16*>(memory);
    f16* const values = keys + kKeyHalves;
    f16* const all_queries = keys + (Q_IN_LDS ? kStepHalves : 0);
    f16* const queries = all_queries + wave() * kWaveQueries * kStride;
    f16* const exchange = keys + kMemoryHalves - (WAVES - wave()) * kExchangeHalves;

    const Rows rows(a);
    if (rows.first < 0) return;
    const Reach reach(a, rows);
    const Split split(a, reach);
    if (split.index >= split.used) return;
    const CacheReader cache = {a.page_table + static_cast<u64>(rows.s) * a.max_pages, reach.length,
                               a.kv_heads, rows.head / (a.heads / a.kv_heads), a.page_bits};
    KeyLoads key_loads;
    ValueLoads value_loads;

    load_queries(a, rows, all_queries);
    block_sync();
    QueryTiles query_tiles;
    if constexpr (!Q_IN_LDS) {
        UNROLL for (int k = 0; k < kDimTiles; ++k) load_query_tiles(queries, k, query_tiles[k]);
        block_sync();  // the keys take the queries' place
    }
    // Dims past the head's are zero in queries and keys, and their outputs are not stored.
    if constexpr (kDims > HEAD_DIM) {
        for (int token = thread_x(); token < KEYS; token += kThreads) {
            *reinterpret_cast<u32x4*>(keys + token * kStride + HEAD_DIM) = {};
        }
    }

    Outputs out[TILES];
    SoftmaxState states[TILES];
    UNROLL for (int q = 0; q < TILES; ++q) {
        UNROLL for (int i = 0; i < kDimTiles; ++i) out[q][i].clear();
        UNROLL for (int c = 0; c < kColumns; ++c) {
            states[q].largest[c] = kLowest;
            states[q].total[c] = 0.0f;
        }
    }

    key_loads.load(a, cache, split.first, keys);
    key_loads.store(keys);
    block_sync();
    for (int at = split.first; at < split.last; at += KEYS) {
        Scores scores[TILES];
        if constexpr (LOAD_AHEAD) value_loads.load(a, cache, at, values);
        if (at < reach.wave_end) {
            score(keys, queries, query_tiles, scores);
            if (a.softcap > 0.0f) cap(a.softcap, scores);
            // Only where some token of the step comes after the wave's first query, or lies before
            // the window of its last one.
            const int visible = reach.before + reach.wave_first + 1;  // to the wave's first query
            if (at + KEYS > visible || (a.window > 0 && at < reach.wave_end - a.window)) {
                UNROLL for (int q = 0; q < TILES; ++q) {
                    mask(at, visible + 16 * q, reach.length, a.window, scores[q]);
                }
            }
            UNROLL for (int q = 0; q < TILES; ++q) states[q].add_scores(scores[q], out[q]);
        }
        if constexpr (!LOAD_AHEAD) value_loads.load(a, cache, at, values);
        value_loads.store(values);
        block_sync();
        if constexpr (LOAD_AHEAD) key_loads.load(a, cache, at + KEYS, keys);
        if (at < reach.wave_end) accumulate(scores, values, exchange, out);
        if constexpr (!LOAD_AHEAD) key_loads.load(a, cache, at + KEYS, keys);
        key_loads.store(keys);
        block_sync();
    }
    finish(a, states, out, memory);
}
