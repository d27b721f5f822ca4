// route: which experts each token goes to, and how much their results count.
//
//   scores   (T, E) float
//   bias     (E,) float, or null: for choosing alone, it is added to the scores, or to their
//   sigmoid experts  (T, k) int: those of the largest scores, the largest first, of equal ones the
//   lowest shares   (T, k) float: scale * softmax of the scores over all E, or scale *
//   sigmoid(score);
//            `normalized`: divided by their sum
//
// Threads: a wave takes a token; a lane has every WAVE-th expert. Grid (T).
// Limits: E at most 32 * WAVE; k at most E. NaN is chosen last.
// Launched by rocmforge/gpu/ops/experts.py.
#include "device.h"
#include "parts.h"

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
    const float* const scores = a.scores + token * a.count;
    float largest = -infinity(), total = 0.0f;
    for (int e = lane(); e < a.count; e += WAVE) largest = maximum(largest, scores[e]);
    largest = wave_max(largest);
    for (int e = lane(); e < a.count; e += WAVE) total += odds(a, scores[e], largest);
    total = wave_sum(total);

    uint32_t taken = 0;  // of the lane's experts
    float kept = 0.0f;
    for (int i = 0; i < a.chosen; ++i) {
        Best best = {0, 0, 0};
        for (int n = 0, e = lane(); e < a.count; ++n, e += WAVE) {
            if (taken >> n & 1) continue;
            float rank = scores[e];
            if (a.bias) rank = (a.sigmoid ? odds(a, rank, largest) : rank) + a.bias[e];
            best.add(rank, e);
        }
        best.join();
        const int expert = best.column();
        if (expert % WAVE == static_cast<int>(lane())) taken |= 1u << expert / WAVE;
        const float share = odds(a, scores[expert], largest);
        kept += share;
        if (lane() == 0) {
            a.experts[token * a.chosen + i] = expert;
            a.shares[token * a.chosen + i] = share;
        }
    }
    const float whole = a.normalized ? kept : a.sigmoid ? 1.0f : total;
    if (lane() != 0) return;
    for (int i = 0; i < a.chosen; ++i) a.shares[token * a.chosen + i] *= a.scale / whole;
}
