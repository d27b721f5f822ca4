// Which experts a token goes to, and how much their results count: for route and rmsnorm_route.
//
//   bias     (E,) float, or null: for choosing alone, it is added to the scores, or to their
//            sigmoid
//   experts  (T, k) int: those of the largest scores, the largest first, of equal ones the lowest
//   shares   (T, k) float: scale * softmax of the scores over all E, or scale * sigmoid(score);
//            `normalized`: divided by their sum
//
// A thread has one expert. Its place is the number of experts with a larger score, so that no
// thread waits for the one chosen before. Limits: k at most E. NaN is chosen last.
#pragma once

#include "parts.h"

struct Choice {
    const float* bias;
    int* experts;
    float* shares;
    int count, chosen, normalized, sigmoid;
    float scale;
};

// LDS for E of at most kPlaces, which is a multiple of WAVE.
template <int kPlaces>
struct ChoiceLds {
    u32x4 keys[kPlaces / 4];
    float tops[kPlaces / WAVE], totals[kPlaces / WAVE], kept[kPlaces];
};

// Chooses for a token, where each thread has the score of its expert. All threads of the block must
// call, kPlaces or more.
template <int kPlaces>
DEVICE void choose_experts(const Choice& a, float score, u64 token, ChoiceLds<kPlaces>& lds) {
    constexpr int kWaves = kPlaces / WAVE;
    uint32_t* const keys = reinterpret_cast<uint32_t*>(lds.keys);
    const int own = thread_x();
    const bool inside = own < kPlaces, present = own < a.count;
    const float top = wave_max(present ? score : -infinity());
    if (inside && lane() == 0) lds.tops[wave()] = top;
    block_sync();
    float largest = lds.tops[0];
    for (int i = 1; i < kWaves; ++i) largest = maximum(largest, lds.tops[i]);

    // What a score counts before it is divided.
    const float odd = a.sigmoid ? 1.0f / (1.0f + fast_exp(-score)) : fast_exp(score - largest);
    const float total = wave_sum(present ? odd : 0.0f);
    if (inside && lane() == 0) lds.totals[wave()] = total;
    uint32_t key = 0;  // of nothing, as of NaN
    if (present) key = order_key(a.bias ? (a.sigmoid ? odd : score) + a.bias[own] : score);
    if (inside) keys[own] = key;
    block_sync();
    int place = 0;
    for (int i = 0; i < kPlaces / 4; ++i) {
        const u32x4 four = lds.keys[i];
        const uint32_t others[4] = {four.x, four.y, four.z, four.w};
        UNROLL
        for (int j = 0; j < 4; ++j) {
            // Of equal keys, none of which is the largest word, that of a lower expert counts more.
            const uint32_t lower = static_cast<uint32_t>(4 * i + j - own) >> 31;
            place += others[j] + lower > key;
        }
    }
    const bool chosen = present && place < a.chosen;
    if (chosen) lds.kept[place] = odd;
    block_sync();
    if (!chosen) return;
    float whole = 0.0f;
    if (a.normalized) {
        for (int i = 0; i < a.chosen; ++i) whole += lds.kept[i];
    } else if (a.sigmoid) {
        whole = 1.0f;
    } else {
        for (int i = 0; i < kWaves; ++i) whole += lds.totals[i];
    }
    a.experts[token * a.chosen + place] = own;
    a.shares[token * a.chosen + place] = odd * (a.scale / whole);
}
