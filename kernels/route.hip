// route: which experts each token goes to, and how much their results count.
//
//   scores   (T, E) float
//   bias     (E,) float, or null: for choosing alone, it is added to the scores, or to their
//            sigmoid
//   experts  (T, k) int: those of the largest scores, the largest first, of equal ones the lowest
//   shares   (T, k) float: scale * softmax of the scores over all E, or scale * sigmoid(score);
//            `normalized`: divided by their sum
//
// Threads: a block takes a token, a thread one expert. An expert's place is the number of experts
// with a larger score, so that no thread waits for the one chosen before. Grid (T).
// Limits: E at most THREADS, k at most E. NaN is chosen last.
// Launched by rocmforge/gpu/ops/experts.py.
#include "parts.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

struct RouteArgs {
    const float* scores;
    const float* bias;
    int* experts;
    float* shares;
    int count, chosen, normalized, sigmoid;
    float scale;
};

constexpr int kWaves = THREADS / WAVE;

KERNEL(route, RouteArgs, THREADS) {
    SHARED u32x4 fours[THREADS / 4];
    SHARED float tops[kWaves], totals[kWaves], kept[THREADS];
    uint32_t* const keys = reinterpret_cast<uint32_t*>(fours);
    const u64 token = block_x();
    const int own = thread_x();
    const bool present = own < a.count;
    const float score = present ? a.scores[token * a.count + own] : -infinity();
    const float top = wave_max(score);
    if (lane() == 0) tops[wave()] = top;
    block_sync();
    float largest = tops[0];
    for (int i = 1; i < kWaves; ++i) largest = maximum(largest, tops[i]);

    // What a score counts before it is divided.
    const float odd = a.sigmoid ? 1.0f / (1.0f + fast_exp(-score)) : fast_exp(score - largest);
    const float total = wave_sum(present ? odd : 0.0f);
    if (lane() == 0) totals[wave()] = total;
    uint32_t key = 0;  // of nothing, as of NaN
    if (present) key = order_key(a.bias ? (a.sigmoid ? odd : score) + a.bias[own] : score);
    keys[own] = key;
    block_sync();
    int place = 0;
    for (int i = 0; i < THREADS / 4; ++i) {
        const u32x4 four = fours[i];
        const uint32_t others[4] = {four.x, four.y, four.z, four.w};
        UNROLL
        for (int j = 0; j < 4; ++j) {
            // Of equal keys, none of which is the largest word, that of a lower expert counts more.
            const uint32_t lower = static_cast<uint32_t>(4 * i + j - own) >> 31;
            place += others[j] + lower > key;
        }
    }
    const bool chosen = present && place < a.chosen;
    if (chosen) kept[place] = odd;
    block_sync();
    if (!chosen) return;
    float whole = 0.0f;
    if (a.normalized) {
        for (int i = 0; i < a.chosen; ++i) whole += kept[i];
    } else if (a.sigmoid) {
        whole = 1.0f;
    } else {
        for (int i = 0; i < kWaves; ++i) whole += totals[i];
    }
    a.experts[token * a.chosen + place] = own;
    a.shares[token * a.chosen + place] = odd * (a.scale / whole);
}
