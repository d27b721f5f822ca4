// What a block does with a few columns of a row of logits: each is compared with all of them, which
// takes fewer barriers than a search.
#pragma once

#include "columns.h"

constexpr int kFew = 256;    // most of them
constexpr int kHelpers = 8;  // neighbouring lanes that compare one of them, each with an eighth
static_assert(THREADS % kHelpers == 0 && kFew % WAVE == 0);

// LDS for them.
struct Few {
    u64 ranks[kFew];    // in any order
    u64 weights[kFew];  // from the highest rank on, as the rest
    float logits[kFew];
    int ids[kFew];
    u64 reached;  // weight of those that may be drawn
    int kept;     // their number
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
