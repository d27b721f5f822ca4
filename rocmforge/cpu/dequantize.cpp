// dequantize: out (rows, columns) = the float32 weights of GGUF rows, for every format.
//
// Reads the file's own layout (blocks.h), so embedding rows need no packing. Values are computed as
// the reference does: scale * (code - zero) + offset in float32.
#include "blocks.h"
#include "isa_ops.h"
#include "packed_layout.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

template <class Block>
void dequantize_row(const uint8_t* raw, int64_t columns, float* out) {
    const auto* block = reinterpret_cast<const Block*>(raw);
    for (int64_t k = 0; k < columns; k += Block::kColumns, ++block) {
        for (int g = 0; g < Block::kColumns / kGroup; ++g, out += kGroup) {
            uint8_t codes[kGroup];
            block->codes(g, codes);
            for (int i0 = 0; i0 < kGroup; i0 += Block::kSub) {
                const int sub = (g * kGroup + i0) / Block::kSub;
                const float scale = block_scale(*block, sub);
                const float offset = block_offset(*block, sub);
                for (int i = i0; i < i0 + Block::kSub; ++i) {
                    int code;
                    if constexpr (HasLut<Block>) {
                        code = Block::kLut[codes[i]];
                    } else if constexpr (Block::kBits == 8) {
                        code = static_cast<int8_t>(codes[i]);
                    } else {
                        code = codes[i] - Block::kZero;
                    }
                    out[i] = scale * static_cast<float>(code);
                    if constexpr (Block::kHasOffset) out[i] += offset;
                }
            }
        }
    }
}

void dequantize_f16_row(const uint8_t* raw, int64_t columns, float* out) {
    const auto* half = reinterpret_cast<const uint16_t*>(raw);
    int64_t k = 0;
    for (; k + kLanes <= columns; k += kLanes) store(out + k, load_f16(half + k));
    for (; k < columns; ++k) out[k] = half_to_float(half[k]);
}

void dequantize_bf16_row(const uint8_t* raw, int64_t columns, float* out) {
    for (int64_t k = 0; k < columns; ++k) {
        uint16_t high;
        std::memcpy(&high, raw + 2 * k, 2);
        const uint32_t bits = static_cast<uint32_t>(high) << 16;
        std::memcpy(out + k, &bits, 4);
    }
}

void dequantize_e3m2_row(const uint8_t* raw, int64_t columns, float* out) {
    const auto* block = reinterpret_cast<const MXFP6_E3M2*>(raw);
    for (int64_t k = 0; k < columns; k += kGroup, ++block) block->values(out + k);
}

}  // namespace

int64_t row_bytes(Format format, int64_t columns) {
    int64_t block_columns = 1, block_bytes = 0;
    switch (format) {
        case Format::F32:
            block_bytes = 4;
            break;
        case Format::F16:
        case Format::BF16:
            block_bytes = 2;
            break;
        case Format::MXFP6_E3M2:
            block_columns = kGroup;
            block_bytes = sizeof(MXFP6_E3M2);
            break;
        default:
            visit_block(format, [&](auto block) {
                block_columns = decltype(block)::kColumns;
                block_bytes = sizeof(block);
            });
    }
    return columns % block_columns ? 0 : columns / block_columns * block_bytes;
}

void dequantize(const uint8_t* raw, Format format, int64_t rows, int64_t columns, float* out,
                ThreadPool& pool) {
    const int64_t stride = row_bytes(format, columns);
    const int64_t piece = (kPieceFloats + columns - 1) / columns;
    parallel_for(pool, rows, piece, [&](int64_t r) {
        const uint8_t* from = raw + r * stride;
        float* to = out + r * columns;
        switch (format) {
            case Format::F32:
                std::memcpy(to, from, static_cast<size_t>(stride));
                break;
            case Format::F16:
                dequantize_f16_row(from, columns, to);
                break;
            case Format::BF16:
                dequantize_bf16_row(from, columns, to);
                break;
            case Format::MXFP6_E3M2:
                dequantize_e3m2_row(from, columns, to);
                break;
            default:
                visit_block(format, [&](auto block) {
                    dequantize_row<decltype(block)>(from, columns, to);
                });
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
