// How a block of THREADS threads reads the columns of one row of logits, and how it finds columns
// there without sorting: by their rank, or by a running sum.
//
// Ranks order the columns by their logits; of equal logits, the lower column has the higher rank.
// Each search takes a measure, which gives every column a whole number, and finds where the sum of
// these numbers reaches a target. A sum of whole numbers does not depend on the order in which
// threads add them.
#pragma once

#include "output.h"
#include "parts.h"

#if !defined(THREADS) || !defined(VECTOR) || !defined(AHEAD)
#error "THREADS, VECTOR and AHEAD have to be passed by the build"
#endif

constexpr int kWaves = THREADS / WAVE;
constexpr int kColumnBits = 22, kRankBits = 32 + kColumnBits;
constexpr u64 kColumnMask = (1u << kColumnBits) - 1;
static_assert(THREADS % 64 == 0 && kWaves <= 32 && (VECTOR == 1 || VECTOR == 4));

DEVICE u64 rank_of(int column, float logit) {
    return static_cast<u64>(order_key(logit)) << kColumnBits | (kColumnMask - column);
}
DEVICE int column_of(u64 rank) {
    return static_cast<int>(kColumnMask - (rank & kColumnMask));
}
DEVICE float logit_of(u64 rank) {
    return from_order_key(static_cast<uint32_t>(rank >> kColumnBits));
}

// Calls f(column, logit) for this thread's share of columns first to last - 1 of a row. Threads
// read whole vectors, so f gets a few neighbours of these columns too.
template <class F>
DEVICE void for_each_of_row(const float* logits, int first, int last, F f) {
    constexpr int kStep = THREADS * VECTOR;
    const int own = first / VECTOR * VECTOR + static_cast<int>(thread_x()) * VECTOR;
    for (int base = own; base < last; base += AHEAD * kStep) {
        float x[AHEAD][VECTOR] = {};
        UNROLL
        for (int i = 0; i < AHEAD; ++i) {
            if (base + i * kStep < last) load_floats(logits + base + i * kStep, x[i]);
        }
        UNROLL
        for (int i = 0; i < AHEAD; ++i) {
            if (base + i * kStep >= last) continue;
            UNROLL
            for (int j = 0; j < VECTOR; ++j) f(base + i * kStep + j, x[i][j]);
        }
    }
}

// The columns that a search looks at: those of a list in LDS, in any order, or the whole row.
struct Columns {
    const float* logits;
    int columns;  // of the row
    const u64* ranks;
    int count;     // of the list; below 0: search the whole row
    bool partial;  // whether the rank will be compared with columns that the list lacks

    // Calls f(column, logit) for columns first to last - 1, and perhaps for others.
    template <class F>
    DEVICE void for_each(int first, int last, F f) const {
        if (count < 0) {
            for_each_of_row(logits, first, last, f);
            return;
        }
        for (int i = static_cast<int>(thread_x()); i < count; i += THREADS) {
            f(column_of(ranks[i]), logit_of(ranks[i]));
        }
    }
    // How many waves have columns to look at.
    DEVICE int waves() const {
        return count < 0 ? kWaves : minimum((count + WAVE - 1) / WAVE, kWaves);
    }
};

// LDS for block_sums.
struct SumScratch {
    u64 partial[kWaves][4];
    u64 total[4];
};

// Sums over the block of what its first `waves` waves hold; all threads get them.
template <int kSums>
DEVICE void block_sums(u64 (&sums)[kSums], int waves, SumScratch& scratch) {
    if (static_cast<int>(wave()) < waves) {
        UNROLL
        for (int i = 0; i < kSums; ++i) {
            sums[i] = wave_sum(sums[i]);
            if (lane() == 0) scratch.partial[wave()][i] = sums[i];
        }
    }
    block_sync();
    if (wave() == 0) {
        const int w = static_cast<int>(lane());
        UNROLL
        for (int i = 0; i < kSums; ++i) {
            const u64 sum = wave_sum(w < waves ? scratch.partial[w < kWaves ? w : 0][i] : 0);
            if (lane() == 0) scratch.total[i] = sum;
        }
    }
    block_sync();
    UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = scratch.total[i];
}

// Finds the rank down to which the measures, from the highest rank on, add up to a target. The
// result may be lower than that rank if no column with a measure lies between them. It is 0 if all
// measures together do not reach the target. target_of(sum of all) gives the target, at least 1;
// measure(rank, logit) gives the number of a column.
template <class Target, class Measure>
DEVICE u64 find_rank(const Columns& columns, SumScratch& scratch, Target target_of,
                     Measure measure) {
    u64 rank = 0, target = 0;
    u64 reached = 0,
        above = 0;  // sums from `rank` up, and from the next higher rank that was tried
    for (int shift = kRankBits - 2; shift >= 0; shift -= 2) {
        if (shift == kColumnBits - 2) {  // the logit is known; done if only one column has it
            if (reached - above == measure(rank | kColumnMask, logit_of(rank))) break;
        }
        u64 sums[4] = {};
        columns.for_each(0, columns.columns, [&](int column, float logit) {
            const u64 r = rank_of(column, logit), m = measure(r, logit);
            UNROLL
            for (int i = 0; i < 3; ++i) {
                sums[i] += r >= rank + (static_cast<u64>(i + 1) << shift) ? m : 0;
            }
            sums[3] += m;
        });
        block_sums(sums, columns.waves(), scratch);
        if (target == 0) {
            target = target_of(sums[3]);
            if (sums[3] < target) return 0;
        }
        const int digit = (sums[0] >= target) + (sums[1] >= target) + (sums[2] >= target);
        rank += static_cast<u64>(digit) << shift;
        if (digit > 0) reached = digit == 1 ? sums[0] : digit == 2 ? sums[1] : sums[2];
        if (digit < 3) above = digit == 0 ? sums[0] : digit == 1 ? sums[1] : sums[2];
        if (reached == target && !columns.partial) break;
    }
    return rank;
}

// Finds the first column at which the running sum of the measures, in the order of the columns,
// reaches target_of(sum of all), a number from 1 to that sum.
template <class Target, class Measure>
DEVICE int find_column(const Columns& columns, SumScratch& scratch, Target target_of,
                       Measure measure) {
    int first = 0, last = columns.columns;
    u64 target = 0;
    do {
        const int quarter = (last - first + 3) / 4;
        u64 sums[4] = {};
        columns.for_each(first, last, [&](int column, float logit) {
            const u64 m = column >= first && column < last ? measure(column, logit) : 0;
            UNROLL
            for (int i = 0; i < 3; ++i) sums[i] += column < first + (i + 1) * quarter ? m : 0;
            sums[3] += m;
        });
        block_sums(sums, columns.waves(), scratch);
        if (target == 0) target = target_of(sums[3]);
        const int part = (sums[0] < target) + (sums[1] < target) + (sums[2] < target);
        if (part > 0) target -= part == 1 ? sums[0] : part == 2 ? sums[1] : sums[2];
        first += part * quarter;
        last = minimum(first + quarter, last);
    } while (last - first > 1);
    return first;
}

// Finds the bins, of kBins in LDS, at which the running sum of value(bin) reaches each of two
// targets; kBins where it does not.
template <int kBins, class Value>
DEVICE void find_bins(const u64 (&targets)[2], int* found, SumScratch& scratch, Value value) {
    constexpr int kOwn = kBins / THREADS;
    static_assert(kBins % THREADS == 0);
    const int first = static_cast<int>(thread_x()) * kOwn;
    u64 sum = 0;
    for (int i = 0; i < kOwn; ++i) sum += value(first + i);
    u64 prefix = wave_prefix(sum);  // sum of all bins up to this thread's last one
    if (lane() == WAVE - 1) scratch.partial[wave()][0] = prefix;
    if (thread_x() < 2) found[thread_x()] = kBins;
    block_sync();
    for (unsigned w = 0; w < wave(); ++w) prefix += scratch.partial[w][0];
    UNROLL
    for (int t = 0; t < 2; ++t) {
        u64 running = prefix - sum;
        if (running >= targets[t] || prefix < targets[t]) continue;
        int bin = first;
        while ((running += value(bin)) < targets[t]) ++bin;
        found[t] = bin;
    }
    block_sync();
}
