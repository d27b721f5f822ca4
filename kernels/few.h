// How a block finds the few columns of a row of logits that top-k keeps, by the best columns of the
// row's parts, and draws from a few: each is compared with all of them, which takes fewer barriers
// than a search. Its code is met cold, once a step: so its loops are ROLLED.
#pragma once

#include "draws.h"

constexpr int kFew = 256;    // most of them
constexpr int kHelpers = 8;  // neighbouring lanes that compare one of them, each with an eighth
constexpr int kGroups = 64;  // of neighbouring parts of a row; a short one has fewer with columns
constexpr int kPartsOfGroup = kParts / kGroups;
constexpr int kListAhead = 2;  // vectors of columns to list that a thread has in flight
constexpr float kLeastFinite = -0x1.fffffep127f;
static_assert(THREADS % kHelpers == 0 && kFew <= kListed);
// The lanes of a group are in one wave, and whole waves look at parts.
static_assert(kParts % 64 == 0 && kPartsOfGroup * kGroups == kParts &&
              (kPartsOfGroup & (kPartsOfGroup - 1)) == 0 && kPartsOfGroup <= 32);

// LDS for them.
struct Few {
    u64 groups[kGroups];   // the groups' best columns: ranks as Best has them, not as rank_of
    u64 best[kGroups];     // the same, from the highest on; 0 where groups have no column
    int parts[kParts];     // those that have columns to list
    uint32_t parts_found;  // how many
    uint32_t listed;       // columns in the list
    u64 ranks[kFew];       // as of rank_of, from the highest on, as their weights
    u64 weights[kFew];
    u64 reached;  // weight of those that may be drawn
    int kept;     // number of those that top-p keeps
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
DEVICE void place_few(const u64* ranks, int count, Use use) {
    compare_few<uint32_t>(
        count, [&](int i, int j) -> uint32_t { return ranks[j] > ranks[i]; },
        [&](int i, uint32_t place) { use(i, static_cast<int>(place)); });
}

// Finds the groups' best columns, and which of these are the best. A group with NaN comes first,
// and its number is NaN. All threads must call.
DEVICE void sort_groups(const Best* parts, Few& few) {
    ROLLED
    for (int i = static_cast<int>(thread_x()); i < kParts; i += THREADS) {
        Best group = parts[i];
        group.join<kPartsOfGroup>();
        if (i % kPartsOfGroup == 0) {
            few.groups[i / kPartsOfGroup] = group.nan ? ~u64{0} : group.rank;
        }
    }
    ROLLED
    for (int i = static_cast<int>(thread_x()); i < kGroups; i += THREADS) few.best[i] = 0;
    if (thread_x() == 0) few.parts_found = few.listed = 0;
    block_sync();
    place_few(few.groups, kGroups, [&](int group, int place) {
        // Groups without columns share a place.
        if (few.groups[group] != 0) few.best[place] = few.groups[group];
    });
    block_sync();
}

// Lists the columns that top-k keeps, and perhaps more, where the top_k best of the groups' best
// columns are known: the least of these is a floor, since at least top_k columns reach it, and only
// parts whose best column reaches it have columns that rank as high. There is no list where fewer
// groups have columns, or where more than kFew columns reach the floor, as is often so with top-k
// of more than about 60. All threads must call.
DEVICE List list_from_parts(const Row& row, const Best* parts, u64 (&ranks)[kListed], Few& few) {
    const Best least = {few.best[row.draw.top_k - 1], 0, 0};
    if (least.rank == 0) return {ranks, -1, {0, 0}};
    const float floor = maximum(least.value(), kLeastFinite);  // -infinity is never drawn
    ROLLED
    for (int i = static_cast<int>(thread_x()); i < kParts; i += THREADS) {
        if (parts[i].rank >> 32 < order_key(floor)) continue;
        few.parts[shared_add(&few.parts_found, 1)] = i;
    }
    block_sync();
    const uint32_t vectors = row.columns / VECTOR, share = vectors_of_part(vectors);
    const uint32_t count = few.parts_found * share;
    ROLLED
    for (uint32_t from = thread_x(); from < count; from += kListAhead * THREADS) {
        float x[kListAhead][VECTOR];
        uint32_t vector[kListAhead];
        UNROLL
        for (int k = 0; k < kListAhead; ++k) {
            const uint32_t i = from + k * THREADS;
            vector[k] = i < count ? few.parts[i / share] * share + i % share : vectors;
            if (vector[k] < vectors) load_floats(row.logits + vector[k] * VECTOR, x[k]);
        }
        UNROLL
        for (int k = 0; k < kListAhead; ++k) {
            if (vector[k] >= vectors) continue;
            float top = x[k][0];
            UNROLL
            for (int j = 1; j < VECTOR; ++j) top = maximum(top, x[k][j]);
            if (!(top >= floor)) continue;
            // Read again, since a rolled loop cannot index registers: few vectors come so far.
            ROLLED
            for (uint32_t column = vector[k] * VECTOR; column < (vector[k] + 1) * VECTOR;
                 ++column) {
                const float logit = row.logits[column];
                if (logit >= floor) list_column(ranks, few.listed, column, logit);
            }
        }
    }
    block_sync();
    return {ranks, few.listed <= kFew ? static_cast<int>(few.listed) : -1, {0, 0}};
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
        if (row.scale.weight(logit_of(few.ranks[i])) < row.draw.min_p) few.weights[i] = 0;
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
    place_few(list.ranks, list.count, [&](int i, int place) {
        few.ranks[place] = list.ranks[i];
        few.weights[place] = row.scale.fixed(logit_of(list.ranks[i]));
    });
    block_sync();
    if (wave() == 0) {
        keep_few(row, row.by_count ? minimum(row.draw.top_k, list.count) : list.count, total, few);
    }
    block_sync();
    const u64 share = share_of(row.draw.uniform, few.reached);
    compare_few<u64>(
        few.kept,
        [&](int i, int j) -> u64 {
            return column_of(few.ranks[j]) <= column_of(few.ranks[i]) ? few.weights[j] : 0;
        },
        [&](int i, u64 reached) {
            if (reached >= share && reached - few.weights[i] < share) give(column_of(few.ranks[i]));
        });
}
