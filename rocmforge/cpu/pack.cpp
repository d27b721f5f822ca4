// pack: GGUF rows -> tiles of 16 interleaved rows (see packed_layout.h for the layout).
//
// It runs once per weight, when a model loads. The scales of NVFP4 take a matrix's factor with
// them, rounded to f16.
#include <algorithm>

#include "isa_ops.h"
#include "packed_layout.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

// Codes of 16 rows x 32 columns -> planes. quads[q][4r + b] is column 4q + b of row r.
void store_planes(const uint8_t (&quads)[kQuads][kPlane], int bits, uint8_t* out) {
    if (bits == 8) {
        std::memcpy(out, quads, sizeof quads);
        return;
    }
    if (has_nibbles(bits)) {
        for (int i = 0; i < 4; ++i, out += kPlane) {
            for (int b = 0; b < kPlane; ++b) {
                out[b] = (quads[2 * i][b] & 15) | (quads[2 * i + 1][b] & 15) << 4;
            }
        }
    }
    if (has_pairs(bits)) {
        const int from = bits == 6 ? 4 : 0;
        for (int i = 0; i < 2; ++i, out += kPlane) {
            for (int b = 0; b < kPlane; ++b) {
                uint8_t byte = 0;
                for (int f = 0; f < 4; ++f) byte |= ((quads[4 * i + f][b] >> from) & 3) << (2 * f);
                out[b] = byte;
            }
        }
    }
    if (has_single(bits)) {
        for (int b = 0; b < kPlane; ++b) {
            uint8_t byte = 0;
            for (int q = 0; q < kQuads; ++q) byte |= ((quads[q][b] >> (bits - 1)) & 1) << q;
            out[b] = byte;
        }
    }
}

// One record: the same block of columns of 16 rows. Rows that do not exist are null: zero weights.
template <class Block>
void pack_record(const Block* const (&rows)[kLanes], float factor, uint8_t* out) {
    using Layout = Packed<Block>;
    std::memset(out, 0, Layout::kHeaderBytes);
    for (int r = 0; r < kLanes; ++r) {
        if (!rows[r]) continue;
        if constexpr (Block::kScale == Scale::kExponent) {
            out[r] = rows[r]->e;
        } else if constexpr (Block::kScale != Scale::kFloat8) {
            const uint16_t half = half_bits(*rows[r]);
            std::memcpy(out + 2 * r, &half, 2);
        }
        if constexpr (Block::kHasOffset) {
            std::memcpy(out + Layout::kHeaderBytes - 32 + 2 * r, &rows[r]->m, 2);
        }
    }
    for (int g = 0; g < Layout::kGroups; ++g) {
        uint8_t* p = out + Layout::kHeaderBytes + g * Layout::kGroupBytes;
        std::memset(p, 0, Layout::kScaleBytes);
        alignas(64) uint8_t quads[kQuads][kPlane] = {};
        for (int r = 0; r < kLanes; ++r) {
            if (!rows[r]) continue;
            uint8_t codes[kGroup];
            rows[r]->codes(g, codes);
            for (int q = 0; q < kQuads; ++q) std::memcpy(&quads[q][4 * r], codes + 4 * q, 4);
            if constexpr (Block::kScale == Scale::kFloat8) {
                for (int s = 0; s < Layout::kSubs; ++s) {
                    const uint16_t half = rows[r]->half(g * Layout::kSubs + s);
                    std::memcpy(p + 32 * s + 2 * r, &half, 2);
                }
            }
            if constexpr (Block::kScale == Scale::kHalfInt) {
                for (int s = 0; s < Layout::kSubs; ++s) {
                    const int sub = g * Layout::kSubs + s;
                    int code = rows[r]->scale_code(sub);
                    if constexpr (Layout::kSharedByte) {
                        code |= rows[r]->min_code(sub) << 4;
                    } else if constexpr (Block::kHasOffset) {
                        p[16 * (Layout::kSubs + s) + r] =
                            static_cast<uint8_t>(rows[r]->min_code(sub));
                    }
                    p[16 * s + r] = static_cast<uint8_t>(code);
                }
            }
        }
        if constexpr (Block::kScale == Scale::kFloat8) {
            for (int s = 0; s < Layout::kSubs; ++s) {
                auto* halves = reinterpret_cast<uint16_t*>(p) + kLanes * s;
                store_f16(halves, load_f16(halves) * set1(factor));
            }
        }
        store_planes(quads, Block::kBits, p + Layout::kScaleBytes);
    }
}

template <class Block>
void pack_tile(const uint8_t* raw, int64_t first_row, int64_t rows, int64_t columns, float factor,
               uint8_t* out) {
    const int64_t blocks = columns / Block::kColumns;
    const auto* source = reinterpret_cast<const Block*>(raw);
    for (int64_t b = 0; b < blocks; ++b, out += Packed<Block>::kRecordBytes) {
        const Block* record[kLanes];
        for (int r = 0; r < kLanes; ++r) {
            const int64_t row = first_row + r;
            record[r] = row < rows ? source + row * blocks + b : nullptr;
        }
        pack_record(record, factor, out);
    }
}

template <class Element>
void pack_dense_tile(const uint8_t* raw, int64_t first_row, int64_t rows, int64_t columns,
                     uint8_t* out) {
    const auto* source = reinterpret_cast<const Element*>(raw);
    auto* target = reinterpret_cast<Element*>(out);
    constexpr int64_t step = 64;  // columns at a time, so that 16 rows of them stay in L1
    for (int64_t k0 = 0; k0 < columns; k0 += step) {
        const int64_t k1 = k0 + step < columns ? k0 + step : columns;
        for (int r = 0; r < kLanes; ++r) {
            const int64_t row = first_row + r;
            for (int64_t k = k0; k < k1; ++k) {
                target[k * kLanes + r] = row < rows ? source[row * columns + k] : Element{0};
            }
        }
    }
}

// An MXFP6_E3M2 code as E5M2, which has all of its values among its normal ones.
uint8_t to_float8(uint8_t code) {
    const float value = static_cast<float>(MXFP6_E3M2::sixteenths(code & 31)) * MXFP6_E3M2::kUnit;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t size = value == 0.0f ? 0 : (bits >> 21) - (112 << 2);
    return static_cast<uint8_t>(size | (code & 32u) << 2);
}

void pack_e3m2_tile(const uint8_t* raw, int64_t first_row, int64_t rows, int64_t columns,
                    uint8_t* out) {
    const int64_t blocks = columns / MXFP6_E3M2::kColumns;
    const auto* source = reinterpret_cast<const MXFP6_E3M2*>(raw);
    for (int64_t b = 0; b < blocks; ++b, out += kFloat8Record) {
        std::memset(out, 0, kFloat8Record);
        for (int r = 0; r < kLanes && first_row + r < rows; ++r) {
            const MXFP6_E3M2& block = source[(first_row + r) * blocks + b];
            uint8_t codes[kGroup];
            block.codes(0, codes);
            out[r] = block.e;
            for (int i = 0; i < kGroup; ++i) out[(i + 1) * kLanes + r] = to_float8(codes[i]);
        }
    }
}

#if defined(__AVX512VNNI__)  // where alone pairs are multiplied
// F32, F16 or BF16 (rows, columns) -> pairs of neighbouring columns as bfloat16; an odd
// last column is paired with zeros.
template <class Source, class Read>
void pack_pairs_tile(const Source* source, Read read, int64_t first_row, int64_t rows,
                     int64_t columns, uint8_t* out) {
    auto* target = reinterpret_cast<uint32_t*>(out);
    constexpr int64_t step = 64;  // columns at a time, so that 16 rows of them stay in L1
    for (int64_t k0 = 0; k0 < columns; k0 += step) {
        const int64_t k1 = std::min(k0 + step, columns);
        for (int r = 0; r < kLanes; ++r) {
            const int64_t row = first_row + r;
            for (int64_t k = k0; k < k1; k += 2) {
                const Source* from = source + row * columns + k;
                const float low = row < rows ? read(from[0]) : 0.0f;
                const float high = row < rows && k + 1 < columns ? read(from[1]) : 0.0f;
                target[k / 2 * kLanes + r] = bfloat_pair(low, high);
            }
        }
    }
}

void pack_pairs(const uint8_t* raw, Format format, int64_t first_row, int64_t rows, int64_t columns,
                uint8_t* out) {
    const auto* halves = reinterpret_cast<const uint16_t*>(raw);
    const auto from_half = [](uint16_t x) { return half_to_float(x); };
    const auto from_bfloat = [](uint16_t x) { return bfloat_to_float(x); };
    if (format == Format::F32) {
        const auto* floats = reinterpret_cast<const float*>(raw);
        const auto as_it_is = [](float x) { return x; };
        pack_pairs_tile(floats, as_it_is, first_row, rows, columns, out);
    } else if (format == Format::F16) {
        pack_pairs_tile(halves, from_half, first_row, rows, columns, out);
    } else {
        pack_pairs_tile(halves, from_bfloat, first_row, rows, columns, out);
    }
}
#endif

}  // namespace

size_t tile_bytes(Format format, int64_t columns) {
    switch (format) {
        case Format::F32:
            return static_cast<size_t>(columns) * kLanes * 4;
        case Format::F16:
        case Format::BF16:
            return static_cast<size_t>(columns) * kLanes * 2;
        case Format::MXFP6_E3M2:
            return static_cast<size_t>(columns / kGroup) * kFloat8Record;
        case Format::BF16_PAIRS:
            return static_cast<size_t>(columns + 1) / 2 * kLanes * 4;
        default:
            break;
    }
    size_t bytes = 0;
    visit_block(format, [&](auto block) {
        using Block = decltype(block);
        bytes = static_cast<size_t>(columns / Block::kColumns) * Packed<Block>::kRecordBytes;
    });
    return bytes;
}

void pack(const uint8_t* raw, Format format, Format packed, int64_t rows, int64_t columns,
          float factor, uint8_t* out, ThreadPool& pool) {
    const int64_t tiles = (rows + kLanes - 1) / kLanes;
    const size_t stride = tile_bytes(packed, columns);
    parallel_for(pool, tiles, 4, [&](int64_t t) {
        uint8_t* tile = out + static_cast<size_t>(t) * stride;
        const int64_t first = t * kLanes;
#if defined(__AVX512VNNI__)
        if (packed == Format::BF16_PAIRS) {
            return pack_pairs(raw, format, first, rows, columns, tile);
        }
#endif
        switch (format) {
            case Format::F32:
                pack_dense_tile<uint32_t>(raw, first, rows, columns, tile);
                break;
            case Format::F16:
            case Format::BF16:
                pack_dense_tile<uint16_t>(raw, first, rows, columns, tile);
                break;
            case Format::MXFP6_E3M2:
                pack_e3m2_tile(raw, first, rows, columns, tile);
                break;
            default:
                visit_block(format, [&](auto block) {
                    pack_tile<decltype(block)>(raw, first, rows, columns, factor, tile);
                });
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
