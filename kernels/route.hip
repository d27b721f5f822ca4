// route: which experts each token goes to, and how much their results count.
//
//   scores   (T, E) float
//   bias     (E,) float, or null: for choosing alone, it is added to the scores, or to their
//            sigmoid
//   experts  (T, k) int: those of the largest scores, the largest first, of equal ones the lowest
//   shares   (T, k) float: scale * softmax of the scores over all E, or scale * sigmoid(score);
//            `normalized`: divided by their sum
//
// Threads: a wave takes a token; a lane holds every WAVE-th score, HELD at most. Grid (T).
// Limits: E at most HELD * WAVE; k at most E and WAVE. NaN is chosen last.
// Launched by rocmforge/gpu/ops/experts.py.
#include "device.h"
#include "parts.h"

#if !defined(HELD)
#error "HELD has to be passed by the build"
#endif

struct RouteArgs {
    const float* scores;
    const float* bias;
    int* experts;
    float* shares;
    int count, chosen, normalized, sigmoid;
    float scale;
};

// What a score counts before it is divided.
DEVICE float odds(const RouteArgs& a, float score, float largest) {
    return a.sigmoid ? 1.0f / (1.0f + fast_exp(-score)) : fast_exp(score - largest);
}

KERNEL(route, RouteArgs, WAVE) {
    const u64 token = block_x();
    const int own = lane();
    float scores[HELD], largest = -infinity(), total = 0.0f;
    UNROLL
    for (int n = 0; n < HELD; ++n) {
        const int e = n * WAVE + own;
        scores[n] = e < a.count ? a.scores[token * a.count + e] : -infinity();
        largest = maximum(largest, scores[n]);
    }
    largest = wave_max(largest);
    Best ranks[HELD];  // of no rank: not there, or taken
    UNROLL
    for (int n = 0; n < HELD; ++n) {
        const int e = n * WAVE + own;
        ranks[n] = {0, 0, 0};
        if (e >= a.count) continue;
        const float odd = odds(a, scores[n], largest);
        total += odd;
        ranks[n].add(a.bias ? (a.sigmoid ? odd : scores[n]) + a.bias[e] : scores[n], e);
        scores[n] = odd;
    }
    total = wave_sum(total);

    int expert = 0;  // the lane's own, of the chosen
    float share = 0.0f, kept = 0.0f;
    for (int i = 0; i < a.chosen; ++i) {
        Best best = {0, 0, 0};
        UNROLL
        for (int n = 0; n < HELD; ++n) best.add(ranks[n]);
        best.join();
        const int found = best.column();
        float odd = 0.0f;
        UNROLL
        for (int n = 0; n < HELD; ++n) {
            if (n != found / WAVE) continue;
            odd = scores[n];
            if (found % WAVE == own) ranks[n] = {0, 0, 0};
        }
        odd = shuffle(odd, found % WAVE);
        kept += odd;
        if (own == i) expert = found, share = odd;
    }
    if (own >= a.chosen) return;
    const float whole = a.normalized ? kept : a.sigmoid ? 1.0f : total;
    a.experts[token * a.chosen + own] = expert;
    a.shares[token * a.chosen + own] = share * (a.scale / whole);
}
