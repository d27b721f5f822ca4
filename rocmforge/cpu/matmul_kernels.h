// The inner loops of matmul: one tile of 16 weight rows against one panel of activations.
//
// multiply_tile runs one panel straight from the packed codes. For more panels, expand brings up to
// 512 columns of a tile to bytes once, and gemm_panel reuses them panel by panel. dense_panel
// multiplies float32 activations with F32, F16 or BF16 weights, or with what expand_exact made of
// quantized ones. It knows nothing of threads, biases or outputs.
#pragma once

#include <type_traits>

#include "packed.h"
#include "panels.h"

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kChunkGroups = 16;  // groups of a tile expanded to bytes at once (8 KB)
constexpr int kAhead = 4096;      // bytes of weights to ask for before they are read
constexpr int kExactGroups = 8;   // groups of a tile expanded to float32 at once (16 KB)

constexpr int log2_of(int x) {
    return x <= 1 ? 0 : 1 + log2_of(x / 2);
}

// The dot product takes codes in its *narrow* form, unsigned and below 64, or *wide*: signed, plus
// kByteBias. Signed codes are wide. Expanded ones with a zero point are too where bytes are biased,
// for what the sums of many tokens start at then needs no shift.
template <class Block>
constexpr bool kSigned = Block::kBits == 8 || HasLut<Block>;
template <class Block>
constexpr bool kExpandedWide = kSigned<Block> || (kByteBias && Block::kZero);

template <class Block, bool wide>
void to_form(U8* codes) {
    constexpr int shift = kByteBias - Block::kZero;
    if constexpr (wide && shift != 0) {
        for (int q = 0; q < kQuads; ++q) codes[q] = codes[q] + set_bytes(shift);
    }
}

// acc [width] += group g of a panel times 32 columns of a tile: codes after to_form, and the scale
// and offset of each sub-block.
template <class Block, int width, bool wide>
inline __attribute__((always_inline)) void add_group(const U8* codes, const F32* scale,
                                                     const F32* offset, const Panel& p, int64_t g,
                                                     F32* acc) {
    constexpr int subs = Packed<Block>::kSubs, quads = kQuads / subs;
    constexpr bool together = subs > 1 && width > 1;  // sub-blocks, before their common x scale
    const int8_t* x = p.codes + g * width * kGroup;
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) {
        const F32 x_scale = set1(p.scale[g * width + t]);
        F32 value;
#pragma GCC unroll 2
        for (int s = 0; s < subs; ++s) {
            const int64_t at = subs == 1 ? g * width + t : (2 * g + s) * width + t;
            const int32_t* const start = subs == 1 ? p.start : p.start16;  // -128 * sum
            const int8_t* const own = x + 4 * (s * quads * width + t);
            I32 dot;
            if constexpr (wide) {
                dot = set1(kByteBias ? start[at] : 0);
#pragma GCC unroll 8
                for (int q = 0; q < quads; ++q) {
                    dot = dot4_wide(dot, codes[s * quads + q], broadcast4(own + 4 * q * width));
                }
            } else {
                constexpr int shift = 7 - log2_of(Block::kZero);
                dot = set1(Block::kZero ? start[at] >> shift : 0);
                dot = dot_narrow<Block::kBits, quads>(dot, codes + s * quads, own, 4 * width);
            }
            if constexpr (together) {
                value = s == 0 ? to_float(dot) * scale[0] : fma(to_float(dot), scale[s], value);
            } else {
                acc[t] = fma(to_float(dot), scale[s] * x_scale, acc[t]);
            }
            if constexpr (Block::kHasOffset) {
                acc[t] = fma(offset[s], set1((subs == 1 ? p.sum : p.sum16)[at]), acc[t]);
            }
        }
        if constexpr (together) acc[t] = fma(value, x_scale, acc[t]);
    }
}

// out [width][16] = a panel times one tile, straight from the packed codes.
template <class Block, int width>
void multiply_tile(const uint8_t* tile, int64_t groups, const Panel& p, float* out) {
    using Layout = Packed<Block>;
    constexpr bool wide = kSigned<Block>;
    F32 acc[width];
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) acc[t] = set1(0.0f);
    for (int64_t g = 0; g < groups; tile += Layout::kRecordBytes) {
        const Layout layout(tile);
#pragma GCC unroll 1
        for (int i = 0; i < Layout::kGroups; ++i, ++g) {
            prefetch(tile + kAhead + i * Layout::kGroupBytes, Layout::kGroupBytes);
            auto group = layout.group(tile, i);
            to_form<Block, wide>(group.codes);
            add_group<Block, width, wide>(group.codes, group.scale, group.offset, p, g, acc);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) store(out + t * kLanes, acc[t]);
}

// Up to 512 columns of a tile in the one form that the multi-token kernel reads.
struct Expanded {
    alignas(64) uint8_t codes[kChunkGroups][kQuads][kPlane];
    alignas(64) float scale[kChunkGroups][2][kLanes];
    alignas(64) float offset[kChunkGroups][2][kLanes];
};

template <class Block>
void expand(const uint8_t* tile, int64_t g0, int groups, Expanded& out) {
    using Layout = Packed<Block>;
    constexpr int chunk_bytes = kChunkGroups / Layout::kGroups * Layout::kRecordBytes;
    const uint8_t* record = tile + g0 / Layout::kGroups * Layout::kRecordBytes;
    for (int g = 0; g < groups; record += Layout::kRecordBytes) {
        prefetch(record + chunk_bytes, Layout::kRecordBytes);  // the next piece, while this is used
        const Layout layout(record);
        for (int i = 0; i < Layout::kGroups; ++i, ++g) {
            auto group = layout.group(record, i);
            to_form<Block, kExpandedWide<Block>>(group.codes);
            for (int q = 0; q < kQuads; ++q) store_bytes(out.codes[g][q], group.codes[q]);
            for (int s = 0; s < Layout::kSubs; ++s) {
                store(out.scale[g][s], group.scale[s]);
                if constexpr (Block::kHasOffset) store(out.offset[g][s], group.offset[s]);
            }
        }
    }
}

// acc [width][16] += the groups g0.. of a panel times an expanded piece of a tile.
template <class Block, int width>
void gemm_panel(const Expanded& w, int groups, const Panel& p, int64_t g0, float* acc_memory) {
    constexpr int subs = Packed<Block>::kSubs;
    F32 acc[width];
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) acc[t] = load(acc_memory + t * kLanes);
    for (int i = 0; i < groups; ++i) {
        U8 codes[kQuads];
#pragma GCC unroll 8
        for (int q = 0; q < kQuads; ++q) codes[q] = load_bytes(w.codes[i][q]);
        F32 scale[subs], offset[subs];
#pragma GCC unroll 2
        for (int s = 0; s < subs; ++s) {
            scale[s] = load(w.scale[i][s]);
            if constexpr (Block::kHasOffset) offset[s] = load(w.offset[i][s]);
        }
        add_group<Block, width, kExpandedWide<Block>>(codes, scale, offset, p, g0 + i, acc);
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; ++t) store(acc_memory + t * kLanes, acc[t]);
}

// acc [width][16] += x [steps][width] times w [steps][16]: add(sum, load(w's row), x's element), at
// least `in_flight` sums at once to hide its latency.
template <int width, int in_flight, class Element, class X, class Load, class Add>
void multiply_panel(const Element* w, int64_t steps, const X* x, float* acc_memory, Load load_row,
                    Add add) {
    constexpr int chains = width >= in_flight ? 1 : in_flight / width;
    F32 acc[chains][width];
#pragma GCC unroll 8
    for (int c = 0; c < chains; ++c) {
#pragma GCC unroll 16
        for (int t = 0; t < width; ++t) acc[c][t] = c ? set1(0.0f) : load(acc_memory + t * kLanes);
    }
    int64_t k = 0;
    for (; k + chains <= steps; k += chains) {
        constexpr int bytes = chains * kLanes * static_cast<int>(sizeof(Element));
        if constexpr (width == 1) {
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

// acc [width][16] += x [columns][width] times w [columns][16].
template <int width, class Element>
void dense_panel(const Element* w, int64_t columns, const float* x, float* acc) {
    multiply_panel<width, 4>(
        w, columns, x, acc, [](const Element* row) { return load_element(row); },
        [](F32 sum, F32 row, float value) { return fma(row, set1(value), sum); });
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
