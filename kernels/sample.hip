// sample: draws a column of each row of logits. Temperature, top-k, top-p and min-p leave some
// columns; out is the first of these at which the running sum of the weights exp((logit - top) /
// temperature) exceeds the draw's share `uniform` of their total.
//
//   logits  (rows, columns) float, aligned to 16
//   parts   (rows, kParts) Best, aligned to 16: what argmax_parts found
//   draws   (rows,) Draw, aligned to 16: the parameters of each row
//   out     (rows,) int; -1 where the row holds NaN or +inf, or nothing but -inf
//   host    (rows,) int, the same in page-locked memory of the host; or null
//
// Nothing is sorted. What top-k and top-p keep is all columns from one rank on (columns.h).
//   1. A histogram over how far logits lie below the top tells between which two bins that rank is.
//   2. The columns down to the deeper bin are listed in LDS, or if these are too many, only those
//      between the two bins.
//   3. find_rank searches the list, or the row where even that list was too long.
//   4. find_column draws from the list, or from the row where the list lacks some kept columns.
// Where top-k keeps no more columns than there are parts, steps 1 and 2 are shorter: it keeps none
// below the one of that rank among the parts' best, so the columns down to it are the list. For a
// list of few columns steps 3 and 4 are shorter: each is compared with all of them (few.h).
// Threads: a block takes a row; a thread reads every THREADS-th vector of VECTOR columns.
// Grid (rows).
// Limits: columns a multiple of VECTOR, at most 2^21.
// Launched by rocmforge/gpu/ops/sample.py.
#include "columns.h"
#include "few.h"

constexpr int kBins = 2048;
constexpr int kListed = 4096;            // most columns of the list in LDS
constexpr float kBinsPerLogit = 64.0f;   // of a histogram of counts
constexpr float kBinsPerDepth = 128.0f;  // of weights: depth is (top - logit) / temperature
constexpr float kOne = 0x1p42f;          // the weight of the top logit
constexpr float kBinOne = 0x1p14f;       // what a weight at the upper edge of a bin adds to it

struct Draw {
    double uniform;  // in [0, 1)
    double top_p;
    float temperature;
    float min_p;
    int top_k;
    int unused;
};
static_assert(sizeof(Draw) == 32);

struct SampleArgs {
    const float* logits;
    const Best* parts;
    const Draw* draws;
    int* out;
    int* host;
    int columns;
};

// Writes the token of the block's row.
DEVICE void give(const SampleArgs& a, int token) {
    a.out[block_x()] = token;
    if (a.host != nullptr) a.host[block_x()] = token;
}

// The weight of a logit, and its bin in the histogram.
struct Scale {
    float top;
    float inverse;  // 1 / temperature
    float bins_per_logit;

    DEVICE float weight(float logit) const { return fast_exp((logit - top) * inverse); }
    DEVICE u64 fixed(float logit) const { return static_cast<u64>(weight(logit) * kOne); }
    // kBins if the logit lies below all bins.
    DEVICE int bin(float logit) const {
        const float at = (top - logit) * bins_per_logit;
        return at < static_cast<float>(kBins) ? static_cast<int>(at) : kBins;
    }
    // The weight relative to the one at its bin's upper edge, in fixed point, rounded down.
    DEVICE uint32_t part_of_bin(float logit, int bin) const {
        const float edge = static_cast<float>(bin) * (1.0f / kBinsPerDepth);
        return static_cast<uint32_t>(fast_exp((logit - top) * inverse + edge) * kBinOne);
    }
    // The weight of a bin that has this sum of such parts.
    static DEVICE u64 weight_of_bin(uint32_t parts, int bin) {
        const float edge = fast_exp(static_cast<float>(bin) * (-1.0f / kBinsPerDepth));
        return static_cast<u64>(static_cast<float>(parts) * edge * (kOne / kBinOne));
    }
};

// share * total rounded up to a whole number from 1 to total.
DEVICE u64 part_of(double share, u64 total) {
    const double goal = share * static_cast<double>(total);
    u64 part = static_cast<u64>(goal);
    if (static_cast<double>(part) < goal || part == 0) ++part;
    return part < total ? part : total;
}

// The least running sum, up to `total`, that exceeds this share of it.
DEVICE u64 share_of(double share, u64 total) {
    const u64 passed = static_cast<u64>(share * static_cast<double>(total));
    return passed < total ? passed + 1 : total;
}

// One row of logits and how to draw from it.
struct Row {
    const float* logits;
    int columns;
    Draw draw;
    Scale scale;
    bool by_count, by_weight;  // whether top-k, and whether top-p, leaves anything out
};

// The bins between which the last kept column lies; they may hold it themselves.
struct BinRange {
    int first, last;
    u64 total;  // weight of the whole row, where top-p alone cuts
};

// Step 1: a histogram of the row, and where in it top-k, or else top-p, stops.
DEVICE BinRange find_bin_range(const Row& row, uint32_t (&bins)[kBins], int (&found)[2],
                               SumScratch& scratch) {
    const Scale& scale = row.scale;
    const bool by_count = row.by_count;
    for (int i = static_cast<int>(thread_x()); i < kBins; i += THREADS) bins[i] = 0;
    block_sync();
    u64 sums[1] = {};
    for_each_of_row(row.logits, 0, row.columns, [&](int, float logit) {
        const int bin = scale.bin(logit);
        if (!by_count) sums[0] += scale.fixed(logit);
        if (bin < kBins) shared_add(&bins[bin], by_count ? 1 : scale.part_of_bin(logit, bin));
    });
    block_sums(sums, kWaves, scratch);
    const u64 total = sums[0];
    u64 targets[2];
    targets[0] = targets[1] = static_cast<u64>(row.draw.top_k);
    if (!by_count) {  // the bins' parts are rounded down, by at most one in 16000
        const double goal = row.draw.top_p * static_cast<double>(total);
        targets[0] = static_cast<u64>(goal * (1 - 1e-4));
        targets[1] = static_cast<u64>(goal * (1 + 2e-5)) + 1;
    }
    find_bins<kBins>(targets, found, scratch, [&](int bin) -> u64 {
        return by_count ? bins[bin] : Scale::weight_of_bin(bins[bin], bin);
    });
    return {found[0], found[1], total};
}

// Columns of the row that were copied to LDS, in any order.
struct List {
    const float* values;
    const int* ids;
    int count;     // below 0: there is no list, because it was too long or no bin limits it
    u64 above[2];  // count and weight of the columns whose bins lie before the list's
    // The length of the list if it has every column that may be drawn, else -1: read the row.
    DEVICE int count_all() const { return above[0] == 0 ? count : -1; }
};

// Step 2: lists the columns of the bins from the top one to the range's last. If these are too
// many, only those from the range's first bin on.
DEVICE List list_columns(const Row& row, const BinRange& range, float (&values)[kListed],
                         int (&ids)[kListed], uint32_t& listed, SumScratch& scratch) {
    int count = -1;
    u64 above[2] = {};
    for (int from = 0; range.last < kBins && count < 0; from = range.first) {
        block_sync();  // every thread has read the list's length of the round before
        if (thread_x() == 0) listed = 0;
        above[0] = above[1] = 0;
        block_sync();
        for_each_of_row(row.logits, 0, row.columns, [&](int column, float logit) {
            const int bin = row.scale.bin(logit);
            if (bin < from) {
                above[0] += 1;
                above[1] += row.scale.fixed(logit);
            } else if (bin <= range.last) {
                const uint32_t slot = shared_add(&listed, 1);
                if (slot < kListed) {
                    values[slot] = logit;
                    ids[slot] = column;
                }
            }
        });
        block_sums(above, kWaves, scratch);
        if (listed <= kListed) count = static_cast<int>(listed);
        if (from == range.first) break;
    }
    return {values, ids, count, {above[0], above[1]}};
}

// Steps 1 and 2 by the parts' best columns: only the top_k parts with the best ones can have
// columns that top-k keeps. There is no list where too many are as large as these best ones, or
// some that count have no columns.
DEVICE List list_from_parts(const Row& row, const Best* parts, float (&values)[kListed],
                            int (&ids)[kListed], uint32_t& listed, Few& few) {
    for (int i = static_cast<int>(thread_x()); i < kParts; i += THREADS) {
        few.ranks[i] = parts[i].rank;
        few.weights[i] = 0;  // stays where parts without columns share a place
    }
    if (thread_x() == 0) listed = 0;
    block_sync();
    place_few(few, kParts, [&](int part, int place) {
        few.ids[place] = part;
        few.weights[place] = few.ranks[part];
    });
    block_sync();
    const Best least = {few.weights[row.draw.top_k - 1], 0, 0};
    if (least.rank == 0) return {values, ids, -1, {0, 0}};
    const float smallest = least.value();
    ROLLED
    for (int i = static_cast<int>(wave()); i < row.draw.top_k; i += kWaves) {
        const Part part(few.ids[i], row.columns / VECTOR);
        ROLLED
        for (int from = part.first + static_cast<int>(lane()); from < part.last;
             from += AHEAD * WAVE) {
            float x[AHEAD][VECTOR];
            UNROLL
            for (int k = 0; k < AHEAD; ++k) {
                load_floats(row.logits + minimum(from + k * WAVE, part.last - 1) * VECTOR, x[k]);
            }
            UNROLL
            for (int k = 0; k < AHEAD; ++k) {
                float top = x[k][0];
                UNROLL
                for (int j = 1; j < VECTOR; ++j) top = maximum(top, x[k][j]);
                if (top < smallest || from + k * WAVE >= part.last) continue;
                UNROLL
                for (int j = 0; j < VECTOR; ++j) {
                    if (x[k][j] < smallest) continue;
                    const uint32_t slot = shared_add(&listed, 1);
                    if (slot >= kListed) continue;
                    values[slot] = x[k][j];
                    ids[slot] = (from + k * WAVE) * VECTOR + j;
                }
            }
        }
    }
    block_sync();
    return {values, ids, listed <= kListed ? static_cast<int>(listed) : -1, {0, 0}};
}

// Step 3: the rank of the last column that top-k, and then top-p, keeps; 0 where they keep all.
DEVICE u64 lowest_kept_rank(const Row& row, const List& list, u64 total, SumScratch& scratch) {
    const bool by_count = row.by_count, by_weight = row.by_weight;
    const int count = list.count, count_all = list.count_all();
    u64 lowest = 0;
    for (int step = by_count ? 0 : 1; step < (by_weight ? 2 : 1); ++step) {
        const bool counting = step == 0;
        const bool in_list = count >= 0 && counting == by_count;
        const u64 above = !in_list ? 0 : counting ? list.above[0] : list.above[1];
        const bool partial = in_list && count_all < 0;
        const u64 rank = find_rank(
            Columns{row.logits, row.columns, list.values, list.ids, in_list ? count : count_all,
                    partial},
            scratch,
            [&](u64 sum) -> u64 {
                if (counting) return static_cast<u64>(row.draw.top_k) - above;
                return part_of(row.draw.top_p, by_count ? sum : total) - above;
            },
            [&](u64 candidate, float logit) -> u64 {
                if (candidate < lowest) return 0;
                return counting ? 1 : row.scale.fixed(logit);
            });
        lowest = rank > lowest ? rank : lowest;
    }
    return lowest;
}

// Step 4: the column at which the running sum of the kept weights exceeds its share.
DEVICE int draw_column(const Row& row, const List& list, u64 lowest, SumScratch& scratch) {
    return find_column(
        Columns{row.logits, row.columns, list.values, list.ids, list.count_all(), false}, scratch,
        [&](u64 sum) { return share_of(row.draw.uniform, sum); },
        [&](int candidate, float logit) -> u64 {
            const float weight = row.scale.weight(logit);
            const bool kept = rank_of(candidate, logit) >= lowest && weight >= row.draw.min_p;
            return kept ? static_cast<u64>(weight * kOne) : 0;
        });
}

// How many of the first `count` columns in `few` may be drawn, and their weight. `total` is that of
// the whole row, where top-p alone cuts. One wave must call.
DEVICE void keep_few(const Row& row, int count, u64 total, Few& few) {
    const int each = (count + static_cast<int>(WAVE) - 1) / static_cast<int>(WAVE);
    const int first = static_cast<int>(lane()) * each, last = minimum(first + each, count);
    u64 own = 0;
    ROLLED
    for (int i = first; i < last; ++i) own += few.weights[i];
    u64 above = wave_prefix(own);
    if (row.by_count) total = shuffle(above, WAVE - 1);
    const u64 target = row.by_weight ? part_of(row.draw.top_p, total) : ~u64{0};
    above -= own;
    u64 reached = 0;
    int kept = 0;
    ROLLED
    for (int i = first; i < last; ++i) {
        if (above >= target || row.scale.weight(few.logits[i]) < row.draw.min_p) break;
        above += few.weights[i];
        reached += few.weights[i];
        ++kept;
    }
    reached = wave_sum(reached);
    kept = wave_sum(kept);
    if (lane() == 0) few.reached = reached, few.kept = kept;
}

// Steps 3 and 4 of a list of up to kFew columns, all that may be drawn.
DEVICE void draw_from_few(const SampleArgs& a, const Row& row, const List& list, u64 total,
                          Few& few) {
    ROLLED
    for (int i = static_cast<int>(thread_x()); i < list.count; i += THREADS) {
        few.ranks[i] = rank_of(list.ids[i], list.values[i]);
    }
    block_sync();
    place_few(few, list.count, [&](int i, int place) {
        few.weights[place] = row.scale.fixed(list.values[i]);
        few.logits[place] = list.values[i];
        few.ids[place] = list.ids[i];
    });
    block_sync();
    if (wave() == 0) {
        keep_few(row, row.by_count ? minimum(row.draw.top_k, list.count) : list.count, total, few);
    }
    block_sync();
    const u64 share = share_of(row.draw.uniform, few.reached);
    compare_few<u64>(
        few.kept,
        [&](int i, int j) -> u64 { return few.ids[j] <= few.ids[i] ? few.weights[j] : 0; },
        [&](int i, u64 reached) {
            if (reached >= share && reached - few.weights[i] < share) give(a, few.ids[i]);
        });
}

KERNEL(sample, SampleArgs, THREADS) {
    SHARED uint32_t bins[kBins];
    SHARED float values[kListed];
    SHARED int ids[kListed];
    SHARED SumScratch scratch;
    SHARED Few few;
    SHARED int found[2];
    SHARED uint32_t listed;

    const Draw draw = a.draws[block_x()];
    const Best* const parts = a.parts + static_cast<u64>(block_x()) * kParts;
    const float* const logits = a.logits + static_cast<u64>(block_x()) * a.columns;
    const bool by_count = draw.top_k > 0 && draw.top_k < a.columns;
    const Best best = best_of_parts(parts);
    const float top = best.value();
    const bool refused = best.nan || !(top > -infinity() && top < infinity());
    if (refused || !(draw.temperature > 0.0f)) {
        if (thread_x() == 0) give(a, refused ? -1 : best.column());
        return;
    }
    const bool by_weight = draw.top_p < 1.0;
    const float inverse = 1.0f / minimum(maximum(draw.temperature, 1e-30f), 1e30f);
    const Scale scale = {top, inverse, by_count ? kBinsPerLogit : kBinsPerDepth * inverse};
    const Row row = {logits, a.columns, draw, scale, by_count, by_weight};

    List list = {values, ids, -1, {0, 0}};
    BinRange range = {0, kBins, 0};
    if (by_count && draw.top_k <= kParts) {
        list = list_from_parts(row, parts, values, ids, listed, few);
    }
    if (list.count < 0) {
        if (by_count || by_weight) range = find_bin_range(row, bins, found, scratch);
        if (draw.min_p > 0.0f && !by_count) {  // deeper bins hold only weights below min_p
            const float depth = minimum(-fast_log(draw.min_p), 100.0f);
            range.last = minimum(range.last, static_cast<int>(depth * kBinsPerDepth) + 2);
        }
        list = list_columns(row, range, values, ids, listed, scratch);
    }
    if (list.count_all() >= 0 && list.count <= kFew) {
        draw_from_few(a, row, list, range.total, few);
        return;
    }
    const u64 lowest = lowest_kept_rank(row, list, range.total, scratch);
    const int column = draw_column(row, list, lowest, scratch);
    if (thread_x() == 0) give(a, column);
}
