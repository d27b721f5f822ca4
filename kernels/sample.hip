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
// The row is not sorted. What top-k and top-p keep is all columns from one rank on (columns.h).
//   1. A histogram over how far logits lie below the top tells between which two bins that rank is.
//   2. The columns down to the deeper bin are listed in LDS, or if these are too many, only those
//      between the two bins.
//   3. find_rank searches the list, or the row where even that list was too long.
//   4. find_column draws from the list, or from the row where the list lacks some kept columns.
// The best columns of the row's parts come first (few.h). Where top-k keeps no more columns than
// there are groups of parts with columns, they tell what to list, and a list of few columns needs
// no search.
//
// Threads: a block takes a row; a thread reads every THREADS-th vector of VECTOR columns.
// Grid (rows).
// Limits: columns a multiple of VECTOR, at most 2^21.
// Launched by rocmforge/gpu/ops/sample.py.
#include "few.h"

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

// Step 2: lists the columns of the bins from the top one to the range's last. If these are too
// many, only those from the range's first bin on.
DEVICE List list_columns(const Row& row, const BinRange& range, u64 (&ranks)[kListed],
                         uint32_t& listed, SumScratch& scratch) {
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
                list_column(ranks, listed, column, logit);
            }
        });
        block_sums(above, kWaves, scratch);
        if (listed <= kListed) count = static_cast<int>(listed);
        if (from == range.first) break;
    }
    return {ranks, count, {above[0], above[1]}};
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
            Columns{row.logits, row.columns, list.ranks, in_list ? count : count_all, partial},
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
        Columns{row.logits, row.columns, list.ranks, list.count_all(), false}, scratch,
        [&](u64 sum) { return share_of(row.draw.uniform, sum); },
        [&](int candidate, float logit) -> u64 {
            const float weight = row.scale.weight(logit);
            const bool kept = rank_of(candidate, logit) >= lowest && weight >= row.draw.min_p;
            return kept ? static_cast<u64>(weight * kOne) : 0;
        });
}

KERNEL(sample, SampleArgs, THREADS) {
    SHARED uint32_t bins[kBins];
    SHARED u64 ranks[kListed];
    SHARED SumScratch scratch;
    SHARED Few few;
    SHARED int found[2];
    static_assert(sizeof(bins) + sizeof(ranks) + sizeof(scratch) + sizeof(few) + sizeof(found) <=
                  48 << 10);

    const Draw draw = a.draws[block_x()];
    const Best* const parts = a.parts + static_cast<u64>(block_x()) * kParts;
    const float* const logits = a.logits + static_cast<u64>(block_x()) * a.columns;
    const bool by_count = draw.top_k > 0 && draw.top_k < a.columns;
    sort_groups(parts, few);
    const Best best = {few.best[0], 0, 0};
    const float top = best.value();
    const bool refused = !(top > -infinity() && top < infinity());
    if (refused || !(draw.temperature > 0.0f)) {
        if (thread_x() == 0) give(a, refused ? -1 : best.column());
        return;
    }
    const bool by_weight = draw.top_p < 1.0;
    const float inverse = 1.0f / minimum(maximum(draw.temperature, 1e-30f), 1e30f);
    const Scale scale = {top, inverse, by_count ? kBinsPerLogit : kBinsPerDepth * inverse};
    const Row row = {logits, a.columns, draw, scale, by_count, by_weight};

    if (by_count && draw.top_k <= kGroups) {
        const List best_of_row = list_from_parts(row, parts, ranks, few);
        if (best_of_row.count >= 0) {  // inlined twice: what most draws run stands in one piece
            draw_from_few(row, best_of_row, 0, few, [&](int column) { give(a, column); });
            return;
        }
    }
    BinRange range = {0, kBins, 0};
    if (by_count || by_weight) range = find_bin_range(row, bins, found, scratch);
    if (draw.min_p > 0.0f && !by_count) {  // deeper bins hold only weights below min_p
        const float depth = minimum(-fast_log(draw.min_p), 100.0f);
        range.last = minimum(range.last, static_cast<int>(depth * kBinsPerDepth) + 2);
    }
    const List list = list_columns(row, range, ranks, few.listed, scratch);
    if (list.count_all() >= 0 && list.count <= kFew) {
        draw_from_few(row, list, range.total, few, [&](int column) { give(a, column); });
        return;
    }
    const u64 lowest = lowest_kept_rank(row, list, range.total, scratch);
    const int column = draw_column(row, list, lowest, scratch);
    if (thread_x() == 0) give(a, column);
}
