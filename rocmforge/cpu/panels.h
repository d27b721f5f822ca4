// Activations as matmul reads them: panels of a few tokens, interleaved, rounded to int8 or dense.
//
// A panel holds its tokens side by side for each group of 32 columns, so that a kernel walks one
// pointer. It knows nothing of weights but the bias that their bytes carry (kByteBias).
#pragma once

#include <algorithm>

#include "blocks.h"

namespace rocmforge::ROCMFORGE_ISA {

// Tokens a kernel handles at once: what the vector registers hold beside the weights.
#if defined(__AVX512VNNI__)
constexpr int kMaxWidth = 16;
#else
constexpr int kMaxWidth = 4;
#endif
constexpr int64_t kTokenBlock = 128;  // tokens that reuse one expansion of a tile
constexpr int kScaleCandidates = 4;   // scales tried when rounding 32 activations
constexpr float kSmallest = 1e-35f;   // 32 activations that are all smaller count as zeros

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

// Bytes that one token takes in a group of an int8 panel: see Panel.
constexpr size_t kPanelBytes = 32 + 4 + 2 * 4 + 4 + 2 * 4 + 4;

// Rounded activations of `width` tokens: [group][token] each, [group][sub-block][token] for the two
// halves of a group. `start` is -128 * sum(codes): the accumulator's start for biased weights.
struct Panel {
    int8_t* codes;     // [groups][width][32]
    float* scale;      // [groups][width]
    int32_t* start;    // [groups][width]
    int32_t* start16;  // [groups][2][width]
    float* sum;        // [groups][width]   scale * sum(codes)
    float* sum16;      // [groups][2][width]

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

// Rounds 32 activations to x = scale * code. The largest code is 127 or up to 2.4 % less, whichever
// of four leaves the smallest error once the scale is refitted by least squares: 5 to 9 % less
// error than scale = max|x| / 127.
inline void quantize_group(const float* x, const Panel& p, int64_t g, int width, int t) {
    const int64_t at = g * width + t;
    const F32 a = load(x), b = load(x + kLanes);
    const float largest = max_lane(max(abs(a), abs(b)));
    const float inverse = largest > kSmallest ? 127.0f / largest : 0.0f;
    const F32 na = a * set1(inverse), nb = b * set1(inverse);  // -127..127
    I32 qa = set1(int32_t{0}), qb = qa;
    float scale = 0.0f, best = 0.0f;
    for (int k = 0; k < kScaleCandidates; ++k) {
        const F32 step = set1(1.0f - 0.008f * static_cast<float>(k));
        const I32 ca = round_to_int(na * step), cb = round_to_int(nb * step);
        const F32 fa = to_float(ca), fb = to_float(cb);
        const float dot = sum(fma(na, fa, nb * fb)), norm = sum(fma(fa, fa, fb * fb));
        if (dot * dot > best * norm) {  // the error is |x|^2 - dot^2 / norm
            best = dot * dot / norm;
            scale = dot / norm / inverse;
            qa = ca;
            qb = cb;
        }
    }
    // Adds zero, unless x holds a NaN or an infinity, which must not be rounded away.
    scale += sum(a * set1(0.0f) + b * set1(0.0f));
    store_i8(p.codes + at * kGroup, qa);
    store_i8(p.codes + at * kGroup + kLanes, qb);
    const int32_t sa = ROCMFORGE_ISA::sum(qa), sb = ROCMFORGE_ISA::sum(qb);
    const int64_t half = 2 * g * width + t;
    p.scale[at] = scale;
    p.start[at] = -128 * (sa + sb);
    p.start16[half] = -128 * sa;
    p.start16[half + width] = -128 * sb;
    p.sum[at] = scale * static_cast<float>(sa + sb);
    p.sum16[half] = scale * static_cast<float>(sa);
    p.sum16[half + width] = scale * static_cast<float>(sb);
}

}  // namespace rocmforge::ROCMFORGE_ISA
