// Activations as matmul reads them: panels of a few tokens, interleaved, rounded to int8 or dense.
//
// A panel holds its tokens side by side for each group of 32 columns, so that a kernel walks one
// pointer. It knows nothing of weights.
#pragma once

#include <algorithm>

#include "blocks.h"

namespace rocmforge::ROCMFORGE_ISA {

// Tokens a kernel handles at once, and those of them whose sums grow in turns to hide an addition's
// latency: what the vector registers hold beside the weights.
#if defined(__AVX512VNNI__)
constexpr int kMaxWidth = 16, kTogether = 2;
#else
constexpr int kMaxWidth = 4, kTogether = 1;
#endif
constexpr int64_t kTokenBlock = 256;  // tokens that reuse one expansion of a tile
constexpr int kScaleCandidates = 4;   // scales tried when rounding activations
constexpr float kSmallest = 1e-35f;   // activations of a scale that are all smaller count as zeros
constexpr int kCoarseGroups = 4;      // groups of one scale in a coarse panel

// Tokens of the next panel when `left` are left: a power of two, padded up where that wastes
// little.
inline int panel_width(int64_t left) {
    if (left >= kMaxWidth) return kMaxWidth;
    int up = 1;
    while (up < left) up *= 2;
    return (up - left) * 8 <= up * 3 ? up : up / 2;
}

template <class Function>
void for_each_panel(int64_t first, int64_t last, Function&& f) {
    for (int64_t t = first; t < last;) {
        const int width = panel_width(last - t);
        f(t, width);
        t += width;
    }
}

inline int64_t padded_tokens(int64_t tokens) {
    int64_t padded = 0;
    for (int64_t t = 0; t < tokens; t += kTokenBlock) {
        for_each_panel(t, std::min(t + kTokenBlock, tokens),
                       [&](int64_t, int width) { padded += width; });
    }
    return padded;
}

// Whether so many tokens are one panel, which is multiplied straight from the packed codes.
inline bool one_panel(int64_t tokens) {
    return panel_width(tokens) >= tokens;
}

// Bytes that one token takes in a group of an int8 panel: see Panel.
constexpr size_t kPanelBytes = 32 + 4 + 2 * 4 + 4 + 2 * 4 + 4;

// Rounded activations of `width` tokens: codes [group][quad][token][4], the others [group][token],
// or [group][sub-block][token] for the two halves of a group. `start` is -128 * sum(codes): the
// accumulator's start for biased weights. A fine panel has a scale for each group of 32, a coarse
// one for each four of them, and its sums are still to be scaled.
struct Panel {
    int8_t* codes;     // [groups][8][width][4], xor 0x80 if biased
    float* scale;      // [groups][width]
    int32_t* start;    // [groups][width]
    int32_t* start16;  // [groups][2][width]     coarse only
    float* sum;        // [groups][width]        sum(codes), times the scale if fine
    float* sum16;      // [groups][2][width]     coarse only

    Panel(uint8_t* memory, int64_t groups, int width) {
        const size_t n = static_cast<size_t>(groups) * static_cast<size_t>(width);
        codes = reinterpret_cast<int8_t*>(memory);
        scale = reinterpret_cast<float*>(memory + 32 * n);
        start = reinterpret_cast<int32_t*>(scale + n);
        start16 = start + n;
        sum = reinterpret_cast<float*>(start16 + 2 * n);
        sum16 = sum + n;
    }
};

// Rounds n groups of 32 activations of one token, the groups g0.., to x = scale * code; null is a
// token of zeros. The largest code of a scale is 127 or up to 2.4 % less, whichever of four leaves
// the smallest error once the scale is refitted by least squares: of 32, 5 to 9 % less error than
// scale = max|x| / 127. A group is a lane here, so that nothing is summed across more than four
// lanes. `biased` codes are xor 0x80; sums are of those that are not.
template <bool coarse>
void quantize_groups(const float* x, const Panel& p, int64_t g0, int n, int width, int t,
                     bool biased) {
    const auto add_up = [](F32 a) { return coarse ? sum4(a) : a; };
    F32 columns[kGroup];
    for (int half = 0; half < 2; ++half) {
        F32 block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            block[i] = x && i < n ? load(x + (g0 + i) * kGroup + half * kLanes) : set1(0.0f);
        }
        transpose(block);
        for (int i = 0; i < kLanes; ++i) columns[half * kLanes + i] = block[i];
    }
    // `strange` is zero, unless x holds a NaN or an infinity, which must not be rounded away.
    F32 largest = set1(0.0f), strange = set1(0.0f);
    for (const F32& column : columns) {
        largest = max(largest, abs(column));
        strange = fma(column, set1(0.0f), strange);
    }
    if constexpr (coarse) largest = max4(largest);
    const F32 inverse = where_greater(largest, set1(kSmallest), set1(127.0f) / largest, set1(0.0f));
    for (F32& column : columns) column = column * inverse;
    F32 scale = set1(0.0f), best = set1(0.0f), factor = set1(0.0f);
    for (int k = 0; k < kScaleCandidates; ++k) {
        const F32 step = set1(1.0f - 0.008f * static_cast<float>(k));
        F32 dot = set1(0.0f), norm = set1(0.0f);
        for (const F32& column : columns) {
            const F32 code = to_float(round_to_int(column * step));
            dot = fma(column, code, dot);
            norm = fma(code, code, norm);
        }
        dot = add_up(dot);
        norm = add_up(norm);
        // The error is |x|^2 - dot^2 / norm.
        const F32 gain = dot * dot, known = best * norm;
        factor = where_greater(gain, known, step, factor);
        scale = where_greater(gain, known, dot / norm / inverse, scale);
        best = where_greater(gain, known, gain / norm, best);
    }
    I32 sums[2] = {set1(int32_t{0}), set1(int32_t{0})};
    alignas(64) int32_t words[kGroup / 4][kLanes], halves[2][kLanes];
    for (int q = 0; q < kGroup / 4; ++q) {
        I32 word = set1(int32_t{0});
        for (int b = 3; b >= 0; --b) {
            const F32 scaled = columns[4 * q + b] * factor;  // a NaN becomes 0
            const I32 code = round_to_int(where_greater(factor, set1(0.0f), scaled, set1(0.0f)));
            sums[q / 4] = sums[q / 4] + code;
            word = shift_left<8>(word) + (code & set1(int32_t{255}));
        }
        store(words[q], word);
    }
    store(halves[0], sums[0]);
    store(halves[1], sums[1]);
    alignas(64) float scales[kLanes];
    store(scales, scale + add_up(strange));
    const uint32_t flip = biased ? 0x80808080u : 0;
    for (int i = 0; i < n; ++i) {
        const int64_t g = g0 + i, at = g * width + t;
        for (int q = 0; q < kGroup / 4; ++q) {
            const uint32_t word = static_cast<uint32_t>(words[q][i]) ^ flip;
            std::memcpy(p.codes + ((g * (kGroup / 4) + q) * width + t) * 4, &word, 4);
        }
        const int32_t sa = halves[0][i], sb = halves[1][i];
        p.scale[at] = scales[i];
        p.start[at] = -128 * (sa + sb);
        p.sum[at] = (coarse ? 1.0f : scales[i]) * static_cast<float>(sa + sb);
        if constexpr (coarse) {
            const int64_t half = 2 * g * width + t;
            p.start16[half] = -128 * sa;
            p.start16[half + width] = -128 * sb;
            p.sum16[half] = static_cast<float>(sa);
            p.sum16[half + width] = static_cast<float>(sb);
        }
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
