// The inner loops of matmul: one tile of 16 weight rows against one panel of activations.
//
// multiply_tile runs one panel straight from the packed codes. For more panels, expand brings up to
// 512 columns of a tile to bytes, or to 16 bits, once, and gemm_panel reuses them panel by panel.
// dense_panel multiplies float32 activations with F32, F16, BF16 or MXFP6_E3M2 weights, or with
// what expand_exact made of quantized ones. matmul.cpp has threads, biases and outputs.
#pragma once

#include <type_traits>

#include "ops.h"
#include "packed_layout.h"
#include "panels.h"

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kChunkGroups = 16;  // groups of a tile expanded at once (8 KB as bytes)
// Bytes of weights to ask for before they are read: measured with AVX-512 on Zen 4 and with AVX2 on
// Zen 3.
constexpr int kAhead = kSumsOf16Bits ? 1024 : 4096;
constexpr int kExactGroups = 8;  // groups of a tile expanded to float32 at once (16 KB)

// Whether a panel of so many tokens asks for them. With AVX-512 on a Zen 4, panels of one or two do
// not: its own prefetcher is as fast or faster alone (docs/EXPERIMENTS.md).
template <int width>
bool asks_ahead() {
#if defined(__AVX512VNNI__)
    return width > 2 || !kIsZen4;
#else
    return true;
#endif
}

template <class Block>
constexpr bool kSigned = Block::kBits == 8 || HasLut<Block>;
// Blocks of 256 columns read coarse panels: llama.cpp's have one scale for 256 activations there.
template <class Block>
constexpr bool kCoarse = Block::kColumns == 256;

// What a dot product multiplies: codes that are unsigned and below 64, with activations; codes that
// are signed, plus kByteBias, with them; signed codes with biased activations; or both in 16 bits.
enum class Form { kNarrow, kWide, kBiasedTokens, kShorts };

template <class Block>
constexpr int largest_entry() {
    int largest = 0;
    if constexpr (HasLut<Block>) {
        for (int entry : Block::kLut) largest = std::max(largest, entry < 0 ? -entry : entry);
    }
    return largest;
}
// Entries so small are narrow codes, once 16 is added.
template <class Block>
constexpr bool kNarrowLut = kSumsOf16Bits && HasLut<Block> && largest_entry<Block>() < 16;
// What narrow codes are counted from while their products are added up. With sums of 16 bits it is
// their middle where they could leave them otherwise.
template <class Block>
constexpr int kMiddle =
    kNarrowLut<Block> || (kSumsOf16Bits && Block::kBits == 5) ? 16 : Block::kZero;
// How far a narrow code is from there at most.
template <class Block>
constexpr int kSpan =
    HasLut<Block> ? largest_entry<Block>()
                  : std::max(kMiddle<Block>, (1 << Block::kBits) - 1 - kMiddle<Block>);
template <class Block>
constexpr Form kStraight = kSigned<Block> && !kNarrowLut<Block> ? Form::kWide : Form::kNarrow;
template <class Block>
constexpr Form kExpanded = kBiasedTokens                                      ? Form::kBiasedTokens
                           : kSumsOf16Bits && kStraight<Block> == Form::kWide ? Form::kShorts
                                                                              : kStraight<Block>;

template <class Block, Form form>
void to_form(U8* codes) {
    constexpr int shift = form == Form::kWide                          ? kByteBias
                          : form == Form::kBiasedTokens                ? -Block::kZero
                          : form == Form::kNarrow && kNarrowLut<Block> ? kMiddle<Block>
                                                                       : 0;
    if constexpr (shift != 0) {
        for (int q = 0; q < kQuads; ++q) codes[q] = codes[q] + set_bytes(shift);
    }
}

// The offset of codes that are counted from their middle instead of from zero.
template <class Block>
F32 offset_from_middle(F32 scale, F32 offset) {
    constexpr int moved = kMiddle<Block> - Block::kZero;
    if constexpr (moved == 0) return offset;
    return fma(scale, set1(static_cast<float>(moved)), offset);
}

// Has these sums lie in memory at this place, so that the registers are free for what comes.
template <int n>
inline void hold_in_memory(F32* sums) {
    asm volatile("" : "+m"(*reinterpret_cast<F32(*)[n]>(sums)));
}

// Vectors of codes that are read each time anew, for want of registers.
struct StoredCodes {
    const uint8_t (*planes)[kPlane];

    U8 operator[](int i) const { return load_bytes(planes[i]); }
};

// A sub-block of a tile: codes after to_form, and -128 * their sum where activations are biased.
template <class Codes>
struct SubBlock {
    Codes codes;
    I32 start;
    F32 scale, offset;
};

// Whether a block's offsets are added before its products are known. That was measured as faster on
// AVX2, but not for one token of Q4_1.
template <class Block>
constexpr bool kOffsetsFirst = Block::kHasOffset && kCoarse<Block> && kSumsOf16Bits;

// acc [width] += sub-block `index` of a panel, counted from its first, times one of a tile; a
// coarse panel's scale is not in it yet.
template <class Block, int width, Form form, class Codes>
inline __attribute__((always_inline)) void add_sub_block(const SubBlock<Codes>& w, const Panel& p,
                                                         int64_t index, F32* acc) {
    constexpr int subs = Packed<Block>::kSubs, quads = kQuads / subs;
    static_assert(subs == 1 || kCoarse<Block> || !Block::kHasOffset,
                  "fine panels have no sums of 16 columns");
    constexpr int together = form == Form::kBiasedTokens ? 2 * kTogether : kTogether;
    constexpr int step = std::min(width, together);
    const int8_t* x = p.codes + index * width * Block::kSub;
    const int32_t* const start = (subs == 1 ? p.start : p.start16) + index * width;
    const float* const sum = (subs == 1 ? p.sum : p.sum16) + index * width;
#pragma GCC unroll 16
    for (int t = 0; t < width; t += step, x += 4 * step) {
        if constexpr (kOffsetsFirst<Block>) {
#pragma GCC unroll 4
            for (int i = 0; i < step; ++i) {
                acc[t + i] = fma(w.offset, set1(sum[t + i]), acc[t + i]);
            }
        }
        I32 dot[step];
#if defined(ROCMFORGE_VNNI)
        if constexpr (form == Form::kNarrow) {
            constexpr int shift = 7 - log2_of(Block::kZero);
#pragma GCC unroll 4
            for (int i = 0; i < step; ++i) {
                dot[i] = set1(Block::kZero ? start[t + i] >> shift : 0);
                dot[i] = dot_narrow<quads>(dot[i], w.codes, x + 4 * i, 4 * width);
            }
        } else {
#else
        if constexpr (form == Form::kNarrow) {
            static_assert(2 * 127 * quads * kSpan<Block> <= 32767, "sums of 16 bits overflow");
            dot_narrow<kMiddle<Block>, quads, step>(dot, w.codes, x, 4 * width, start + t);
        } else if constexpr (form == Form::kShorts) {
            const int32_t* const shorts = p.shorts + index * 2 * quads * width + t;
            dot_shorts<2 * quads, step>(dot, w.codes, shorts, width);
        } else {
#endif
            constexpr bool biased = form == Form::kBiasedTokens;
#pragma GCC unroll 4
            for (int i = 0; i < step; ++i) {
                dot[i] = biased ? w.start : set1(kByteBias ? start[t + i] : 0);
            }
#pragma GCC unroll 8
            for (int q = 0; q < quads; ++q) {
#pragma GCC unroll 4
                for (int i = 0; i < step; ++i) {
                    const I32 four = broadcast4(x + 4 * (q * width + i));
                    dot[i] = biased ? dot4_wide(dot[i], as_bytes(four), as_int(w.codes[q]))
                                    : dot4_wide(dot[i], w.codes[q], four);
                }
            }
        }
        if constexpr (kSumsOf16Bits && width > 2 && subs == 2) hold_in_memory<width>(acc);
#pragma GCC unroll 4
        for (int i = 0; i < step; ++i) {
            const F32 scale =
                kCoarse<Block> ? w.scale : w.scale * set1(p.scale[index / subs * width + t + i]);
            acc[t + i] = fma(to_float(dot[i]), scale, acc[t + i]);
            if constexpr (Block::kHasOffset && !kOffsetsFirst<Block>) {
                acc[t + i] = fma(w.offset, set1(sum[t + i]), acc[t + i]);
            }
        }
    }
}

// acc [width] += n groups of a panel, g0.., times those that add(i, sums) adds one by one.
template <class Block, int width, class Add>
inline __attribute__((always_inline)) void add_groups(const Panel& p, int64_t g0, int n, F32* acc,
                                                      Add add) {
    constexpr int step = kCoarse<Block> ? kCoarseGroups : 1;
    static_assert(Packed<Block>::kGroups % step == 0);
    for (int i = 0; i < n; i += step) {
        if constexpr (kCoarse<Block>) {
            F32 part[width];
#pragma GCC unroll 16
            for (int t = 0; t < width; ++t) part[t] = set1(0.0f);
#pragma GCC unroll 1
            for (int k = i; k < i + step; ++k) add(k, part);
            const float* const scale = p.scale + (g0 + i) * width;
#pragma GCC unroll 16
            for (int t = 0; t < width; ++t) acc[t] = fma(part[t], set1(scale[t]), acc[t]);
        } else {
            add(i, acc);
        }
    }
}

// out [width][16] = a panel times one tile, straight from the packed codes.
template <class Block, int width>
void multiply_tile(const uint8_t* tile, int64_t groups, const Panel& p, float* out) {
    using Layout = Packed<Block>;
    constexpr Form form = kStraight<Block>;
    constexpr int subs = Layout::kSubs;
    F32 acc[width];
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) acc[t] = set1(0.0f);
    for (int64_t g = 0; g < groups; g += Layout::kGroups, tile += Layout::kRecordBytes) {
        const Layout layout(tile);
        add_groups<Block, width>(p, g, Layout::kGroups, acc, [&](int i, F32* sums) {
            if (asks_ahead<width>()) {
                prefetch(tile + kAhead + i * Layout::kGroupBytes, Layout::kGroupBytes);
            }
            auto group = layout.group(tile, i);
            to_form<Block, form>(group.codes);
#pragma GCC unroll 2
            for (int s = 0; s < subs; ++s) {
                SubBlock<const U8*> w{
                    group.codes + s * kQuads / subs, set1(int32_t{0}), group.scale[s], {}};
                if constexpr (Block::kHasOffset) {
                    w.offset = offset_from_middle<Block>(w.scale, group.offset[s]);
                }
                add_sub_block<Block, width, form>(w, p, (g + i) * subs + s, sums);
            }
        });
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) store(out + t * kLanes, acc[t]);
}

// Vectors of codes of a group in the form that the multi-token kernel reads.
template <class Block>
constexpr int kExpandedPlanes = kExpanded<Block> == Form::kShorts ? 2 * kQuads : kQuads;

// Up to 512 columns of a tile in that form.
template <class Block>
struct Expanded {
    alignas(64) uint8_t codes[kChunkGroups][kExpandedPlanes<Block>][kPlane];
    alignas(64) uint8_t start[kChunkGroups][2][kPlane];  // int32, which load_bytes reads too
    alignas(64) float scale[kChunkGroups][2][kLanes];
    alignas(64) float offset[kChunkGroups][2][kLanes];
};

// Where the groups from g0 on lie in a tile.
template <class Block>
const uint8_t* record_of(const uint8_t* tile, int64_t g0) {
    return tile + g0 / Packed<Block>::kGroups * Packed<Block>::kRecordBytes;
}

template <class Block>
void expand(const uint8_t* tile, int64_t g0, int groups, Expanded<Block>& out) {
    using Layout = Packed<Block>;
    constexpr Form form = kExpanded<Block>;
    constexpr int subs = Layout::kSubs;
    const uint8_t* record = record_of<Block>(tile, g0);
    for (int g = 0; g < groups; record += Layout::kRecordBytes) {
        const Layout layout(record);
        for (int i = 0; i < Layout::kGroups; ++i, ++g) {
            auto group = layout.group(record, i);
            to_form<Block, form>(group.codes);
            for (int q = 0; q < kQuads; ++q) {
#if !defined(ROCMFORGE_VNNI)
                if constexpr (form == Form::kShorts) {
                    const U8 codes = group.codes[q];
                    store_bytes(out.codes[g][2 * q], as_bytes(as_int(even_bytes(codes))));
                    store_bytes(out.codes[g][2 * q + 1], as_bytes(as_int(odd_bytes(codes))));
                    continue;
                }
#endif
                store_bytes(out.codes[g][q], group.codes[q]);
            }
            for (int s = 0; s < subs; ++s) {
                if constexpr (kBiasedTokens) {
                    I32 sum = set1(int32_t{0});
                    for (int q = 0; q < kQuads / subs; ++q) {
                        const U8 codes = group.codes[s * kQuads / subs + q];
                        sum = dot4_wide(sum, set_bytes(kByteBias), as_int(codes));
                    }
                    store_bytes(out.start[g][s], as_bytes(set1(int32_t{0}) - sum));
                }
                store(out.scale[g][s], group.scale[s]);
                if constexpr (Block::kHasOffset) {
                    store(out.offset[g][s],
                          offset_from_middle<Block>(group.scale[s], group.offset[s]));
                }
            }
        }
    }
}

// The next piece of a tile, which the panels ask for in equal shares while they compute, each in so
// many steps.
class NextPiece {
  public:
    NextPiece(const uint8_t* piece, int bytes, int panels, int steps_of_each)
        : share(piece),
          steps(steps_of_each),
          each((bytes + panels * steps_of_each - 1) / (panels * steps_of_each)) {}

    void ask(int step) const { prefetch(share + step * each, each); }
    void next_panel() { share += steps * each; }

  private:
    const uint8_t* share;   // the panel's
    const int steps, each;  // each: bytes of a step
};

// acc [width][16] += the groups g0.. of a panel times an expanded piece of a tile; = with the
// first.
template <class Block, int width>
void gemm_panel(const Expanded<Block>& w, int groups, const Panel& p, int64_t g0,
                const NextPiece& next, float* acc_memory) {
    constexpr int subs = Packed<Block>::kSubs, planes = kExpandedPlanes<Block> / subs;
    F32 acc[width];
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) acc[t] = g0 ? load(acc_memory + t * kLanes) : set1(0.0f);
    add_groups<Block, width>(p, g0, groups, acc, [&](int i, F32* sums) {
        next.ask(i);
#pragma GCC unroll 2
        for (int s = 0; s < subs; ++s) {
#if defined(ROCMFORGE_VNNI)
            U8 codes[planes];
#pragma GCC unroll 8
            for (int q = 0; q < planes; ++q) codes[q] = load_bytes(w.codes[i][s * planes + q]);
            SubBlock<const U8*> own{codes, {}, load(w.scale[i][s]), {}};
#else
            const StoredCodes codes{w.codes[i] + s * planes};
            SubBlock<StoredCodes> own{codes, {}, load(w.scale[i][s]), {}};
#endif
            if constexpr (kBiasedTokens) own.start = as_int(load_bytes(w.start[i][s]));
            if constexpr (Block::kHasOffset) own.offset = load(w.offset[i][s]);
            add_sub_block<Block, width, kExpanded<Block>>(own, p, (g0 + i) * subs + s, sums);
        }
    });
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) store(acc_memory + t * kLanes, acc[t]);
}

// acc [width][16] += x [steps][width] times w [steps][16], or = where it is `fresh`: add(sum,
// load(w's row), x's element), at least `in_flight` sums at once to hide its latency.
template <int width, int in_flight, class Element, class X, class Load, class Add>
void multiply_panel(const Element* w, int64_t steps, const X* x, bool fresh, float* acc_memory,
                    Load load_row, Add add) {
    constexpr int chains = width >= in_flight ? 1 : in_flight / width;
    F32 acc[chains][width];
#pragma GCC unroll 8
    for (int c = 0; c < chains; ++c) {
#pragma GCC unroll 16
        for (int t = 0; t < width; ++t) {
            acc[c][t] = c || fresh ? set1(0.0f) : load(acc_memory + t * kLanes);
        }
    }
    int64_t k = 0;
    for (; k + chains <= steps; k += chains) {
        constexpr int bytes = chains * kLanes * static_cast<int>(sizeof(Element));
        if (width == 1 && asks_ahead<width>()) {
            prefetch(reinterpret_cast<const uint8_t*>(w + k * kLanes) + kAhead, bytes);
        }
#pragma GCC unroll 8
        for (int c = 0; c < chains; ++c) {
            const auto row = load_row(w + (k + c) * kLanes);
#pragma GCC unroll 16
            for (int t = 0; t < width; ++t) acc[c][t] = add(acc[c][t], row, x[(k + c) * width + t]);
        }
    }
    for (; k < steps; ++k) {
        const auto row = load_row(w + k * kLanes);
        for (int t = 0; t < width; ++t) acc[0][t] = add(acc[0][t], row, x[k * width + t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) {
        F32 total = acc[0][t];
#pragma GCC unroll 8
        for (int c = 1; c < chains; ++c) total = total + acc[c][t];
        store(acc_memory + t * kLanes, total);
    }
}

// acc [width][16] += x [columns][width] times w [columns][16], or = where it is `fresh`.
template <int width, class Element>
void dense_panel(const Element* w, int64_t columns, const float* x, bool fresh, float* acc) {
    multiply_panel<width, 4>(
        w, columns, x, fresh, acc, [](const Element* row) { return load_element(row); },
        [](F32 sum, F32 row, float value) { return fma(row, set1(value), sum); });
}

// The same for a whole tile of such elements, or of MXFP6_E3M2, whose blocks are scaled apart.
template <int width, class Element>
void dense_tile(const uint8_t* tile, int64_t columns, const float* x, float* out) {
    if constexpr (!std::is_same_v<Element, Float8>) {
        dense_panel<width>(reinterpret_cast<const Element*>(tile), columns, x, true, out);
    } else {
        F32 acc[width];
#pragma GCC unroll 16
        for (int t = 0; t < width; ++t) acc[t] = set1(0.0f);
        for (int64_t k = 0; k < columns; k += kGroup, tile += kFloat8Record) {
            alignas(64) float part[width * kLanes];
            const auto* elements = reinterpret_cast<const Float8*>(tile + kLanes);
            dense_panel<width>(elements, kGroup, x + k * width, true, part);
            const F32 scale = load_exponents(tile);
#pragma GCC unroll 16
            for (int t = 0; t < width; ++t) acc[t] = fma(load(part + t * kLanes), scale, acc[t]);
        }
#pragma GCC unroll 16
        for (int t = 0; t < width; ++t) store(out + t * kLanes, acc[t]);
    }
}

// Calls f with the panel's width as a compile-time constant.
template <class Function>
void visit_width(int width, Function&& f) {
    switch (width) {
        case 1:
            return f(std::integral_constant<int, 1>{});
        case 2:
            return f(std::integral_constant<int, 2>{});
        case 4:
            return f(std::integral_constant<int, 4>{});
#if defined(__AVX512VNNI__)
        case 8:
            return f(std::integral_constant<int, 8>{});
        case 16:
            return f(std::integral_constant<int, 16>{});
#endif
        default:
            return;
    }
}

template <class Block>
void expand_exact(const uint8_t* tile, int64_t g0, int groups, float* out) {
    using Layout = Packed<Block>;
    constexpr bool is_signed = kSigned<Block>;
    const uint8_t* record = tile + g0 / Layout::kGroups * Layout::kRecordBytes;
    for (int g = 0; g < groups; record += Layout::kRecordBytes) {
        const Layout layout(record);
        for (int i = 0; i < Layout::kGroups; ++i, ++g) {
            const auto group = layout.group(record, i);
            for (int q = 0; q < kQuads; ++q) {
                const int s = q * Layout::kSubs / kQuads;
                const I32 word = as_int(group.codes[q]);
                const I32 bytes[4] = {shift_left<24>(word), shift_left<16>(word),
                                      shift_left<8>(word), word};
                for (int b = 0; b < 4; ++b) {
                    const I32 code = is_signed
                                         ? shift_right_signed<24>(bytes[b])
                                         : shift_right<24>(bytes[b]) - set1(int32_t{Block::kZero});
                    F32 value = to_float(code) * group.scale[s];
                    if constexpr (Block::kHasOffset) value = value + group.offset[s];
                    store(out + ((g * kQuads + q) * 4 + b) * kLanes, value);
                }
            }
        }
    }
}

}  // namespace rocmforge::ROCMFORGE_ISA
