// Activations as matmul reads them: panels of a few tokens, interleaved, rounded to int8 or dense.
//
// A panel holds its tokens side by side for each group of 32 columns, so that a kernel walks one
// pointer.
#pragma once

#include <algorithm>

#include "blocks.h"

namespace rocmforge::ROCMFORGE_ISA {

// Tokens a kernel handles at once, and those of them whose sums grow in turns, twice as many where
// activations are biased: what the vector registers hold beside the weights. In turns they hide an
// addition's latency and, on AVX2, share what is loaded of the weights.
#if defined(__AVX512VNNI__)
constexpr int kMaxWidth = 16, kTogether = 2;
#elif defined(__AVX2__) && !defined(ROCMFORGE_VNNI)
constexpr int kMaxWidth = 4, kTogether = 4;
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

inline int count_panels(int64_t tokens) {
    int panels = 0;
    for_each_panel(0, tokens, [&](int64_t, int) { ++panels; });
    return panels;
}

inline int64_t padded_tokens(int64_t tokens) {
    int64_t padded = 0;
    for (int64_t t = 0; t < tokens; t += kTokenBlock) {
        for_each_panel(t, std::min(t + kTokenBlock, tokens),
                       [&](int64_t, int width) { padded += width; });
    }
    return padded;
}

// Whether the panels of so many tokens are multiplied straight from the packed codes: one, or two
// of the widest. More of them share an expansion of the codes.
inline bool is_straight(int64_t tokens) {
    return panel_width(tokens) >= tokens || (kMaxWidth == kLanes && tokens <= 2 * kMaxWidth);
}

// Bytes that one token takes in a group of an int8 panel: see Panel.
constexpr size_t kPanelBytes = 32 + 4 + 2 * 4 + 4 + 2 * 4 + 4 + (kSumsOf16Bits ? 64 : 0);

// Rounded activations of `width` tokens: codes [group][quad][token][4], the others [group][token],
// or [group][sub-block][token] for the two halves of a group. `start` is what accumulators start
// from: -128 * sum(codes), for biased weights, or what start_of makes of codes whose products are
// added up in 16 bits. A fine panel has a scale for each group of 32, a coarse one for each four of
// them, and its sums are still to be scaled.
struct Panel {
    int8_t* codes;     // [groups][8][width][4], xor 0x80 if biased
    float* scale;      // [groups][width]
    int32_t* start;    // [groups][width]
    int32_t* start16;  // [groups][2][width]
    float* sum;        // [groups][width]        sum(codes), times the scale if fine
    float* sum16;      // [groups][2][width]     coarse only
#if !defined(ROCMFORGE_VNNI)
    int32_t* shorts;  // [groups][8][2][width]  the even codes in 16 bits each, then the odd ones
#endif

    Panel(uint8_t* memory, int64_t groups, int width) {
        const size_t n = static_cast<size_t>(groups) * static_cast<size_t>(width);
        codes = reinterpret_cast<int8_t*>(memory);
        scale = reinterpret_cast<float*>(memory + 32 * n);
        start = reinterpret_cast<int32_t*>(scale + n);
        start16 = start + n;
        sum = reinterpret_cast<float*>(start16 + 2 * n);
        sum16 = sum + n;
#if !defined(ROCMFORGE_VNNI)
        shorts = reinterpret_cast<int32_t*>(sum16 + 2 * n);
#endif
    }
};

// The k-th factor that is tried on columns whose largest is 127.
constexpr float candidate(int k) {
    return 1.0f - 0.008f * static_cast<float>(k);
}

// Of each factor, dot(x, codes) and dot(codes, codes) of some columns x.
struct Trial {
    F32 dot[kScaleCandidates], norm[kScaleCandidates];
};

inline Trial operator+(Trial a, const Trial& b) {
    for (int k = 0; k < kScaleCandidates; ++k) {
        a.dot[k] = a.dot[k] + b.dot[k];
        a.norm[k] = a.norm[k] + b.norm[k];
    }
    return a;
}
inline Trial sum4(Trial a) {
    for (int k = 0; k < kScaleCandidates; ++k) {
        a.dot[k] = sum4(a.dot[k]);
        a.norm[k] = sum4(a.norm[k]);
    }
    return a;
}

// max|x| of 32 columns, in each lane.
inline F32 largest_of(const F32* columns) {
    F32 largest = set1(0.0f);
    for (int i = 0; i < kGroup; ++i) largest = max(largest, abs(columns[i]));
    return largest;
}

// 127 / largest, the factor that makes the largest 127; 0 where all count as zeros.
inline F32 inverse_of(F32 largest) {
    return where_greater(largest, set1(kSmallest), set1(127.0f) / largest, set1(0.0f));
}

// Multiplies 32 columns by `inverse`, and tries the factors on them.
inline Trial scale_and_try(F32* columns, F32 inverse) {
    Trial out;
    for (int k = 0; k < kScaleCandidates; ++k) out.dot[k] = out.norm[k] = set1(0.0f);
    for (int i = 0; i < kGroup; ++i) {
        const F32 column = columns[i] = columns[i] * inverse;
#pragma GCC unroll 4
        for (int k = 0; k < kScaleCandidates; ++k) {
            const F32 code = to_float(round_to_int(column * set1(candidate(k))));
            out.dot[k] = fma(column, code, out.dot[k]);
            out.norm[k] = fma(code, code, out.norm[k]);
        }
    }
    return out;
}

// x = value * code, code = round(127 * x / max|x| * factor). The largest code of a scale is 127 or
// up to 2.4 % less, whichever of four leaves the smallest error once the scale is refitted by least
// squares: of 32, 5 to 9 % less error than scale = max|x| / 127.
struct Rounding {
    F32 value, factor;

    Rounding(const Trial& t, F32 largest) : factor(set1(0.0f)) {
        F32 dot = set1(0.0f), norm = set1(1.0f);
        for (int k = 0; k < kScaleCandidates; ++k) {
            // The error is |x|^2 - dot^2 / norm.
            const F32 gain = t.dot[k] * t.dot[k] * norm, known = dot * dot * t.norm[k];
            factor = where_greater(gain, known, set1(candidate(k)), factor);
            norm = where_greater(gain, known, t.norm[k], norm);
            dot = where_greater(gain, known, t.dot[k], dot);
        }
        const F32 strange = t.dot[0] * set1(0.0f);  // a NaN if x holds one or an infinity
        value = dot / norm * (largest * set1(1.0f / 127.0f)) + strange;
    }
};

// Four columns as the bytes of a word, plus `bias`, and their sum added to `sum`.
inline I32 round_four(const F32* columns, F32 factor, int bias, I32& sum) {
    I32 word = set1(int32_t{0});
    for (int b = 3; b >= 0; --b) {
        const F32 scaled = columns[b] * factor;  // a NaN becomes 0
        const I32 code = round_to_int(where_greater(factor, set1(0.0f), scaled, set1(0.0f)));
        sum = sum + code;
        word = shift_left<8>(word) + ((code + set1(bias)) & set1(int32_t{255}));
    }
    return word;
}

// 16 columns of 16 vectors; null is one of zeros.
template <class Row>
void load_columns(Row row, F32* columns) {
    F32 block[kLanes];
    for (int i = 0; i < kLanes; ++i) block[i] = row(i) ? load(row(i)) : set1(0.0f);
    transpose(block);
    std::copy_n(block, kLanes, columns);
}

#if !defined(ROCMFORGE_VNNI)
// Of the words [8][16] of n groups of a token, what sums of 16 bits start from, and, where they are
// asked for, the codes in 16 bits.
inline void store_for_16_bits(const int32_t (*words)[kLanes], const Panel& p, int64_t g0, int n,
                              int width, int t, bool shorts) {
    U8 codes[kQuads];
    for (int q = 0; q < kQuads; ++q) {
        codes[q] = load_bytes(reinterpret_cast<const uint8_t*>(words[q]));
    }
    alignas(64) int32_t starts[3][kLanes], wide[2 * kQuads][kLanes];
    store(starts[0], start_of<kQuads / 2>(codes));
    store(starts[1], start_of<kQuads / 2>(codes + kQuads / 2));
    store(starts[2], start_of<kQuads>(codes));
    for (int q = 0; shorts && q < kQuads; ++q) {
        store(wide[2 * q], as_int(even_bytes(codes[q])));
        store(wide[2 * q + 1], as_int(odd_bytes(codes[q])));
    }
    for (int i = 0; i < n; ++i) {
        const int64_t g = g0 + i;
        for (int half = 0; half < 2; ++half) {
            p.start16[(2 * g + half) * width + t] = starts[half][i];
        }
        p.start[g * width + t] = starts[2][i];
        int32_t* const to = p.shorts + g * 2 * kQuads * width + t;
        for (int k = 0; shorts && k < 2 * kQuads; ++k) to[k * width] = wide[k][i];
    }
}
#endif

// Rounds n <= 16 groups of 32 activations of one token, the groups g0.., to x = scale * code; null
// is a token of zeros. A group is a lane, so that nothing is summed across more than four lanes.
template <bool coarse>
void quantize_groups(const float* x, const Panel& p, int64_t g0, int n, int width, int t,
                     bool biased, [[maybe_unused]] bool shorts) {
    F32 columns[kGroup];
    for (int k = 0; k < kGroup; k += kLanes) {
        const auto row = [&](int i) { return x && i < n ? x + (g0 + i) * kGroup + k : nullptr; };
        load_columns(row, columns + k);
    }
    F32 largest = largest_of(columns);
    if constexpr (coarse) largest = max4(largest);
    Trial trial = scale_and_try(columns, inverse_of(largest));
    if constexpr (coarse) trial = sum4(trial);
    const Rounding rounding(trial, largest);
    I32 sums[2] = {set1(int32_t{0}), set1(int32_t{0})};
    alignas(64) int32_t words[kQuads][kLanes], halves[2][kLanes];
    for (int q = 0; q < kQuads; ++q) {
        store(words[q],
              round_four(columns + 4 * q, rounding.factor, biased ? 128 : 0, sums[q / 4]));
    }
    store(halves[0], sums[0]);
    store(halves[1], sums[1]);
    alignas(64) float scales[kLanes];
    store(scales, rounding.value);
    for (int i = 0; i < n; ++i) {
        const int64_t g = g0 + i, at = g * width + t;
        for (int q = 0; q < kQuads; ++q) {
            std::memcpy(p.codes + ((g * kQuads + q) * width + t) * 4, &words[q][i], 4);
        }
        const int32_t sa = halves[0][i], sb = halves[1][i];
        p.scale[at] = scales[i];
        if constexpr (!kSumsOf16Bits) p.start[at] = -128 * (sa + sb);
        p.sum[at] = (coarse ? 1.0f : scales[i]) * static_cast<float>(sa + sb);
        const int64_t half = 2 * g * width + t;
        if constexpr (!kSumsOf16Bits) {
            p.start16[half] = -128 * sa;
            p.start16[half + width] = -128 * sb;
        }
        if constexpr (coarse) {
            p.sum16[half] = static_cast<float>(sa);
            p.sum16[half + width] = static_cast<float>(sb);
        }
    }
#if !defined(ROCMFORGE_VNNI)
    store_for_16_bits(words, p, g0, n, width, t, shorts);
#endif
}

// The same for a panel of 16 tokens x[16] and the groups of one scale, g..: a token is a lane.
template <bool coarse>
void quantize_tokens(const float* const* x, const Panel& p, int64_t g, bool biased) {
    constexpr int groups = coarse ? kCoarseGroups : 1;
    F32 columns[groups * kGroup], largest = set1(0.0f);
    for (int k = 0; k < groups * kGroup; k += kLanes) {
        const auto row = [&](int i) { return x[i] ? x[i] + g * kGroup + k : nullptr; };
        load_columns(row, columns + k);
    }
    for (int i = 0; i < groups; ++i) largest = max(largest, largest_of(columns + i * kGroup));
    const F32 inverse = inverse_of(largest);
    Trial trials[groups];
    for (int i = 0; i < groups; ++i) trials[i] = scale_and_try(columns + i * kGroup, inverse);
    // In the order of sum4: a token does not feel how many there are.
    static_assert(kCoarseGroups == 4);
    if constexpr (coarse) trials[0] = (trials[0] + trials[1]) + (trials[2] + trials[3]);
    const Rounding rounding(trials[0], largest);
    const auto starts = [](I32 sum) { return set1(int32_t{0}) - shift_left<7>(sum); };
    const F32* own = columns;
    for (int64_t last = g + groups; g < last; ++g, own += kGroup) {
        I32 sums[2] = {set1(int32_t{0}), set1(int32_t{0})};
        for (int q = 0; q < kQuads; ++q) {
            const I32 word =
                round_four(own + 4 * q, rounding.factor, biased ? 128 : 0, sums[q / 4]);
            store_bytes(reinterpret_cast<uint8_t*>(p.codes) + (g * kQuads + q) * kPlane,
                        as_bytes(word));
        }
        const I32 sum = sums[0] + sums[1];
        store(p.scale + g * kLanes, rounding.value);
        store(p.start + g * kLanes, starts(sum));
        store(p.sum + g * kLanes, coarse ? to_float(sum) : rounding.value * to_float(sum));
        for (int half = 0; half < 2; ++half) {
            store(p.start16 + (2 * g + half) * kLanes, starts(sums[half]));
            if (coarse) store(p.sum16 + (2 * g + half) * kLanes, to_float(sums[half]));
        }
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
