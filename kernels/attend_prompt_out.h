// How a block of attention_prompt.hip ends: it writes outputs, or its part of them where several
// splits share the tokens, and the last one merges the parts.
#pragma once

#include "attend_prompt_state.h"

// Number of a row of the block's head in q and out, and for split i in outputs and stats.
DEVICE u64 head_row(const AttentionPromptArgs& a, const Rows& rows, int row, int i = 0) {
    return (static_cast<u64>(i) * a.tokens + rows.start + row) * a.heads + rows.head;
}

DEVICE void write_four(const AttentionPromptArgs& a, u64 to, const float (&four)[4], bool valid) {
    if (a.dtype == static_cast<int>(Dtype::F16)) {
        store_as<Dtype::F16>(a.out, to, four, valid);
    } else if (a.dtype == static_cast<int>(Dtype::Permuted)) {
        store_as<Dtype::Permuted>(a.out, to, four, valid);
    } else {
        store_as<Dtype::F32>(a.out, to, four, valid);
    }
}

// Writes the outputs of 16 dims of the 16 rows from `first` on, times `factor`, through the wave's
// own `lines` in LDS, so that neighbouring lanes write neighbours. Those of one split of several go
// to its part of `outputs`.
DEVICE void store_tile(const AttentionPromptArgs& a, const Rows& rows, const Split& split,
                       int first, int i, const TileC& tile, const float (&factor)[kOwn],
                       float* lines) {
    wave_sync();
    UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
        lines[QueryLanes::query(lane(), v) * kLine + QueryLanes::other(lane(), v)] =
            tile.values[v] * factor[QueryLanes::own(v)];
    }
    wave_sync();
    for (int n = lane(); n < 16 * 4; n += WAVE) {
        const int row = first + n / 4, dim = 16 * i + n % 4 * 4;
        const bool valid = row < rows.count && dim < HEAD_DIM;
        float four[4];
        load_floats(lines + n / 4 * kLine + n % 4 * 4, four);
        if (split.used > 1) {
            const u64 to = head_row(a, rows, row, split.index) * HEAD_DIM + dim;
            if (valid) store_floats(a.outputs + to, four);
        } else {
            write_four(a, head_row(a, rows, row) * HEAD_DIM + dim, four, valid);
        }
    }
}

// Writes the softmax states of the 16 rows from `first` on, of one split of several.
DEVICE void store_stats(const AttentionPromptArgs& a, const Rows& rows, const Split& split,
                        int first, const SoftmaxState& state) {
    if (!QueryLanes::writes(lane())) return;  // the other lanes hold the same
    UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
        const int c = QueryLanes::own(v), row = first + QueryLanes::query(lane(), v);
        if (row >= rows.count) continue;
        float* const to = a.stats + 2 * head_row(a, rows, row, split.index);
        to[0] = state.largest[c];
        to[1] = state.total[c];
    }
}

// Writes the outputs of the block's rows, from what all splits left.
DEVICE void merge_splits(const AttentionPromptArgs& a, const Rows& rows, const Split& split) {
    constexpr int kFours = HEAD_DIM / 4;
    constexpr int kAtOnce = HEAD_DIM > 128 ? 1 : 8;  // gfx11 would spill with 256 dims
    const int count = minimum(kQueries, rows.count - rows.first) * kFours;
    for (int n = thread_x(); n < count; n += kAtOnce * kThreads) {
        FourDims merged[kAtOnce];
        const auto place = [&](int i) { return minimum(n + i * kThreads, count - 1); };
        const auto row_of = [&](int i, int other) {
            return head_row(a, rows, rows.first + place(i) / kFours, other);
        };
        const auto four_of = [&](int i, int other) {
            return row_of(i, other) * HEAD_DIM + place(i) % kFours * 4;
        };
        for (int other = 0; other < split.used; ++other) {
            UNROLL for (int i = 0; i < kAtOnce; ++i) {
                const float* const stats = a.stats + 2 * row_of(i, other);
                float four[4];
                load_floats(a.outputs + four_of(i, other), four);
                merged[i].add(stats[0], stats[1], four);
            }
        }
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
            const float nothing[4] = {};
            if (a.sinks != nullptr) merged[i].add(a.sinks[rows.head], 1.0f, nothing);
            UNROLL for (int d = 0; d < 4; ++d) merged[i].out[d] /= merged[i].total;
            write_four(a, four_of(i, 0), merged[i].out, n + i * kThreads < count);
        }
    }
}

// Writes what the block's waves have; the block that ends last of several splits merges theirs. All
// threads call it.
DEVICE void finish(const AttentionPromptArgs& a, SoftmaxState (&states)[TILES],
                   const Outputs (&out)[TILES], u32x4* memory) {
    const Rows rows(a);  // computed anew: kept since the start, they would take scarce registers
    const Reach reach(a, rows);
    const Split split(a, reach);
    // Without other splits the sums become factors: out / total is stored.
    const auto add = [](float x, float y) { return x + y; };
    float* const lines = reinterpret_cast<float*>(memory) + wave() * 16 * kLine;
    UNROLL for (int q = 0; q < TILES; ++q) {
        SoftmaxState& state = states[q];
        const int first = reach.wave_first + 16 * q;
        float factor[kOwn];
        UNROLL for (int c = 0; c < kOwn; ++c) {
            float total = state.total[c] = over_lanes(state.total[c], add);
            factor[c] = 1.0f;
            if (split.used > 1) continue;
            if (a.sinks != nullptr) {
                const float sink = a.sinks[rows.head], top = maximum(state.largest[c], sink);
                factor[c] = fast_exp(state.largest[c] - top);
                total = total * factor[c] + fast_exp(sink - top);
            }
            factor[c] /= total;
        }
        if (split.used > 1) store_stats(a, rows, split, first, state);
        UNROLL for (int i = 0; i < kDimTiles; ++i) {
            store_tile(a, rows, split, first, i, out[q][i], factor, lines);
        }
    }
    if (split.used == 1) return;
    uint32_t* const arrivals =
        a.arrivals + (static_cast<u64>(rows.s) * a.blocks + block_y()) * a.heads + rows.head;
    if (last_to_arrive(arrivals, split.used, reinterpret_cast<uint32_t*>(memory))) {
        merge_splits(a, rows, split);
    }
}
