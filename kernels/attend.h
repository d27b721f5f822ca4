// Attention of one query a sequence (decode) over one split of its tokens, and the merge of splits.
// attention.hip and rope_attention.hip are kernels of it; attention.hip states the layouts.
//
// As in flash decoding, a block of WAVES waves takes one split of a sequence's tokens, and up to
// QUERIES query heads that share a KV head. It computes their softmax states (the largest score,
// and the sum of the weights exp(score - largest)) and the weighted sums of the values. A wave
// reads kStep tokens a step, and the waves take turns. TILES says whether it computes them on the
// matrix units.
#pragma once

#if TILES
#include "attend_tiles.h"
#else
#include "attend_lanes.h"
#endif

// The block's work, from its queries on. Where kLoaded, the first step is loaded already. Where
// EARLY is 1, a wave asks for the next keys and values while it computes.
template <bool kLoaded>
DEVICE void attend(const AttentionArgs& a, const Split& split, const HeadGroup& group,
                   const OwnQueries& q, Steps& steps, BlockStates& all) {
    WaveStates states;
    bool loaded = kLoaded;
    const auto unfinished = [&] { return steps.start < split.last; };
    while (unfinished()) {
        if (!loaded) {
            steps.load_keys();
            steps.load_values();
        }
        loaded = EARLY;
        steps.look_up_next();

        states.score(q, steps);
        steps.start += kRound;
        if (EARLY && unfinished()) steps.load_keys();
        states.weigh();
        states.accumulate(steps);
        if (EARLY && unfinished()) steps.load_values();
    }
    states.store(all);
    block_sync();
    finish(a, split, group, all);
}
