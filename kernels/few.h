// What a block does with a few columns of a row of logits: each is compared with all of them, which
// takes fewer barriers than a search. Its code is met cold, once a step: so its loops are ROLLED.
// With top-k of more than about 60 the list is often longer than kFew.
#pragma once

#include "draws.h"

constexpr int kFew = 256;    // most of them
constexpr int kHelpers = 8;  // neighbouring lanes that compare one of them, each with an eighth
constexpr float kLeastFinite = -0x1.fffffep127f;
static_assert(THREADS % kHelpers == 0 && kParts <= kFew);

// LDS for them.
struct Few {
    u64 ranks[kFew];    // in any order
    u64 weights[kFew];  // from the highest rank on, as the rest
    float logits[kFew];
    int ids[kFew];
    u64 reached;       // weight of those that may be drawn
    int kept;          // number of those that top-p keeps
    u64 best[kParts];  // ranks of the parts' best columns, from the highest on
    int parts[kParts];
};

// Calls use(i, sum) once for each i below `count`, with the sum of value(i, j) over all j below it.
// All threads must call.
template <class Sum, class Value, class Use>
DEVICE void compare_few(int count, Value value, Use use) {
    const int helper = static_cast<int>(thread_x()) % kHelpers;
    ROLLED
    for (int first = 0; first < count; first += THREADS / kHelpers) {
        const int i = first + static_cast<int>(thread_x()) / kHelpers;
        Sum sum = 0;
        if (i < count) {
            ROLLED
            for (int j = helper; j < count; j += kHelpers) sum += value(i, j);
        }
        sum = wave_sum<kHelpers>(sum);
        if (i < count && helper == 0) use(i, sum);
    }
}

// Calls use(i, place) once for each of the first `count` ranks: `place` of them are higher.
template <class Use>
DEVICE void place_few(const Few& few, int count, Use use) {
    compare_few<uint32_t>(
        count, [&](int i, int j) -> uint32_t { return few.ranks[j] > few.ranks[i]; },
        [&](int i, uint32_t place) { use(i, static_cast<int>(place)); });
}

// Lists the columns that top-k keeps, and perhaps more, where the top_k best of the parts' best
// columns are known: the least of these is a floor, since at least top_k columns reach it, and only
// their parts have columns that rank as high. There is no list where fewer parts have columns, or
// where too many columns reach the floor.
DEVICE List list_from_parts(const Row& row, const Best* parts, float (&values)[kListed],
                            int (&ids)[kListed], uint32_t& listed, Few& few) {
    for (int i = static_cast<int>(thread_x()); i < kParts; i += THREADS) {
        few.ranks[i] = parts[i].rank;
        few.best[i] = 0;
    }
    if (thread_x() == 0) listed = 0;
    block_sync();
    place_few(few, kParts, [&](int part, int place) {
        if (few.ranks[part] == 0) return;  // parts without columns share a place
        few.parts[place] = part;
        few.best[place] = few.ranks[part];
    });
    block_sync();
    const Best least = {few.best[row.draw.top_k - 1], 0, 0};
    if (least.rank == 0) return {values, ids, -1, {0, 0}};
    const float floor = maximum(least.value(), kLeastFinite);  // -infinity is never drawn
    ROLLED
    for (int i = static_cast<int>(wave()); i < row.draw.top_k; i += kWaves) {
        const Part part(few.parts[i], row.columns / VECTOR);
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
                if (top < floor || from + k * WAVE >= part.last) continue;
                UNROLL
                for (int j = 0; j < VECTOR; ++j) {
                    if (x[k][j] < floor) continue;
                    list_column(values, ids, listed, (from + k * WAVE) * VECTOR + j, x[k][j]);
                }
            }
        }
    }
    block_sync();
    return {values, ids, listed <= kListed ? static_cast<int>(listed) : -1, {0, 0}};
}

// How many of the first `count` columns top-p keeps, and the weight of those that min-p keeps too;
// the weights of the others become zero. `total` is the weight of the whole row, where top-p alone
// cuts. One wave must call.
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
    for (int i = first; i < last && above < target; ++i) {
        above += few.weights[i];
        if (row.scale.weight(few.logits[i]) < row.draw.min_p) few.weights[i] = 0;
        reached += few.weights[i];
        ++kept;
    }
    reached = wave_sum(reached);
    kept = wave_sum(kept);
    if (lane() == 0) few.reached = reached, few.kept = kept;
}

// Calls give(column) once, with the column that is drawn from a list of up to kFew columns, all
// that may be drawn; `total` as of keep_few.
template <class Give>
DEVICE void draw_from_few(const Row& row, const List& list, u64 total, Few& few, Give give) {
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
            if (reached >= share && reached - few.weights[i] < share) give(few.ids[i]);
        });
}
