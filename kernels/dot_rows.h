// GEMV: products of rows of packed weights with up to TOKENS (at most 8) rows of activations. In
// decode the work is to read the weights, so many loads of them are in flight here. matmul,
// gate_up_swiglu, matmul_rmsnorm and the products of experts share this file.
//
// LANES neighbouring lanes are a group. In a pass, a group takes ROWS rows of each matrix. A block
// of WAVES waves has WAVES * WAVE / LANES groups, on neighbouring rows, and may make several
// passes. Lane i of a group takes units i, i + LANES, … of its rows (packed.h) and has UNITS of
// each row in flight. The next ones are loaded before these are used with BUFFERS 2, and where a
// lane has no more than two of one token. At the end of a row, lanes without a unit load the row's
// last one again and multiply it with activations of zero.
//
// The loads of the first weights are issued before the activations are read (activations.h), those
// of the next weights before every barrier and before every sum over lanes.
#pragma once

#include "activations.h"

constexpr bool kMatrixUnits = false;
constexpr int kResident = 1;

template <class Format>
constexpr int kRowsLds = Activations<Format>::kLds;

// sums[t][r] += the products of one unit of each of kRows dense rows with all tokens.
template <class Format, int kRows>
DEVICE void multiply_dense(const typename Packed<Format>::Unit (&weights)[kRows],
                           const Activations<Format>& x, int unit, float (&sums)[TOKENS][kRows]) {
    using P = Packed<Format>;
    float w[kRows][P::kColumns];
    UNROLL
    for (int r = 0; r < kRows; ++r) P::values(weights[r], w[r]);
    UNROLL
    for (int t = 0; t < TOKENS; ++t) {
        UNROLL
        for (int i = 0; i < P::kColumns / 4; ++i) {
            const u32x4 four = x.piece(t, unit, i);
            const uint32_t words[4] = {four.x, four.y, four.z, four.w};
            UNROLL
            for (int r = 0; r < kRows; ++r) {
                UNROLL
                for (int j = 0; j < 4; ++j) {
                    sums[t][r] += w[r][4 * i + j] * bit_cast<float>(words[j]);
                }
                settle(sums[t][r]);
            }
        }
    }
}

// Σ code * x_code of a unit whose codes are a sign and an index of eight sizes. x is zipped
// (activations.h).
template <class Format>
DEVICE int dot_nibbles(const typename Packed<Format>::Unit& weights,
                       const uint32_t (&x)[Packed<Format>::kWords]) {
    const uint32_t sizes[2] = {kTableWord<Format, 0>, kTableWord<Format, 1>};
    int positive = 0, negative = 0;
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const uint32_t codes = weights.codes[i], opposite = codes ^ 0x88888888u;
        positive = dot4(lookup8_or_0(sizes, codes), x[2 * i], positive);
        negative = dot4(lookup8_or_0(sizes, opposite), x[2 * i], negative);
        positive = dot4(lookup8_or_0(sizes, codes >> 16), x[2 * i + 1], positive);
        negative = dot4(lookup8_or_0(sizes, opposite >> 16), x[2 * i + 1], negative);
    }
    return positive - negative;
}

// sums[t][r] += the products of one unit of each of kRows quantized rows with all tokens. A weight
// is scale * code + offset, an activation x_scale * x_code. So the product of a sub-block is
//   scale * (x_scale * Σ code * x_code) + offset * (x_scale * Σ x_code).
// x_scales holds x_scale and then x_scale * Σ x_code of each sub-block.
template <class Format, int kRows>
DEVICE void multiply_quantized(const typename Packed<Format>::Unit (&weights)[kRows],
                               const Activations<Format>& x, int unit,
                               float (&sums)[TOKENS][kRows]) {
    using P = Packed<Format>;
    constexpr bool kZipped = Activations<Format>::kZipped;
    uint32_t w[kRows][P::kWords];
    typename P::Scales s[kRows];
    UNROLL
    for (int r = 0; r < kRows; ++r) {
        if constexpr (!kZipped) P::unpack(weights[r], w[r]);
        s[r] = P::scales(weights[r]);
    }
    UNROLL
    for (int t = 0; t < TOKENS; ++t) {
        uint32_t codes[P::kWords];
        UNROLL
        for (int i = 0; i < P::kWords / 4; ++i) {
            const u32x4 four = x.piece(t, unit, i);
            codes[4 * i] = four.x, codes[4 * i + 1] = four.y;
            codes[4 * i + 2] = four.z, codes[4 * i + 3] = four.w;
        }
        float x_scales[Activations<Format>::kScaleWords];
        x.scales(t, unit, x_scales);
        UNROLL
        for (int r = 0; r < kRows; ++r) {
            UNROLL
            for (int sub = 0; sub < P::kSubs; ++sub) {
                int dot = 0;
                if constexpr (kZipped) {
                    dot = dot_nibbles<Format>(weights[r], codes);
                } else {
                    UNROLL
                    for (int i = 0; i < P::kWords / P::kSubs; ++i) {
                        const int word = sub * (P::kWords / P::kSubs) + i;
                        dot = dot4(w[r][word], codes[word], dot);
                    }
                }
                sums[t][r] += s[r].scale[sub] * (x_scales[0] * static_cast<float>(dot));
                if constexpr (P::kHasOffset) sums[t][r] += s[r].offset[sub] * x_scales[1 + sub];
            }
            settle(sums[t][r]);
        }
    }
}

// Sums several values at once over kLanes neighbouring lanes. The lanes are as many equal parts as
// there are values; those of part i get the sum of value i.
template <int kLanes, int kValues>
DEVICE float sum_lanes(const float (&values)[kValues]) {
    if constexpr (kValues == 1) {
        return wave_sum<kLanes>(values[0]);
    } else {
        const bool upper = lane() & (kLanes / 2);
        float halves[kValues / 2];
        UNROLL
        for (int i = 0; i < kValues / 2; ++i) {
            // Both are named, because an index known only at run time would put the array into
            // memory.
            const float low = values[i], high = values[kValues / 2 + i];
            halves[i] = (upper ? high : low) + shuffle_xor<kLanes / 2>(upper ? low : high);
        }
        return sum_lanes<kLanes / 2>(halves);
    }
}

// The product of a pass that sum_lanes gives this lane, and whether this lane is to write it.
struct OwnProduct {
    int token, row;  // row: of the block's rows in a pass
    bool writes;

    DEVICE OwnProduct() {
        constexpr int kPart = LANES / (TOKENS * ROWS);
        const int own = static_cast<int>(lane()) % LANES;
        token = own / kPart / ROWS;
        row = static_cast<int>(thread_x()) / LANES * ROWS + own / kPart % ROWS;
        writes = own % kPart == 0;
    }
};

// Computes kPasses passes of kPassRows rows from row `start` on, and after each calls finish(first,
// products): `first` is the pass's first row, products[m] the lane's OwnProduct of matrix m. Rows
// past the end, `rows`, repeat the last one. Calls begin() when the first weights are on their way
// and nothing else has been read: it has to await_earlier() unless that was done. Calls staged()
// before the barrier that follows the first activations. All threads of the block must call.
template <class Format, int kMatrices, int kPasses, class Begin, class Finish, class Staged>
DEVICE void dot_rows(const PackedMatrix (&matrices)[kMatrices], int start, int rows,
                     const Batch& batch, u32x4* lds, const Begin& begin, const Finish& finish,
                     const Staged& staged) {
    using P = Packed<Format>;
    constexpr int kRows = kMatrices * ROWS, kChunk = Activations<Format>::kChunk;
    constexpr bool kAhead = BUFFERS == 2 || (TOKENS == 1 && kRows * UNITS <= 2);
    const Activations<Format> x{lds};
    const int columns = batch.columns;
    const int units = (columns + P::kColumns - 1) / P::kColumns;
    const int own = static_cast<int>(lane()) % LANES;
    const int row = start + static_cast<int>(thread_x()) / LANES * ROWS;
    typename P::Unit weights[UNITS][kRows];
    const auto load = [&](int pass, int from) {
        UNROLL
        for (int r = 0; r < kRows; ++r) {
            const PackedMatrix& m = matrices[r / ROWS];
            const uint32_t at = minimum(row + pass * kPassRows + r % ROWS, rows - 1);
            if constexpr (P::kDense) {
                if (columns % P::kColumns) {
                    UNROLL
                    for (int i = 0; i < UNITS; ++i) {
                        const int column = (from + own + i * LANES) * P::kColumns;
                        weights[i][r] = P::load_row(m, at, columns, column);
                    }
                    continue;
                }
            }
            const uint32_t unit = at * static_cast<uint32_t>(units) + from;
            if (from + kStep <= units) {
                const PackedMatrix here = P::from(m, unit + own);
                UNROLL
                for (int i = 0; i < UNITS; ++i) weights[i][r] = P::load(here, i * LANES);
            } else {
                UNROLL
                for (int i = 0; i < UNITS; ++i) {
                    weights[i][r] = P::load(m, unit + minimum(own + i * LANES, units - 1 - from));
                }
            }
        }
    };
    load(0, 0);
    begin();
    for (int pass = 0; pass < kPasses; ++pass) {
        float sums[TOKENS][kRows];
        UNROLL
        for (int t = 0; t < TOKENS; ++t) {
            UNROLL
            for (int r = 0; r < kRows; ++r) sums[t][r] = 0.0f;
        }
        for (int chunk = 0; chunk < units; chunk += kChunk) {
            const int count = minimum(units - chunk, kChunk);
            if (pass == 0 || units > kChunk) {
                if (pass || chunk) block_sync();
                x.stage(batch, chunk, count);
                if (pass == 0 && chunk == 0) staged();
                block_sync();
            }
            for (int unit = 0; unit < count; unit += kStep) {
                const int next = chunk + unit + kStep;
                const auto load_next = [&] {
                    const bool ends = next >= units;
                    if (!ends || pass + 1 < kPasses) load(ends ? pass + 1 : pass, ends ? 0 : next);
                };
                const auto multiply_all = [&](const typename P::Unit(&some)[UNITS][kRows]) {
                    UNROLL
                    for (int i = 0; i < UNITS; ++i) {
                        const int at = unit + own + i * LANES;
                        if constexpr (P::kDense) {
                            multiply_dense<Format, kRows>(some[i], x, at, sums);
                        } else {
                            multiply_quantized<Format, kRows>(some[i], x, at, sums);
                        }
                    }
                };
                if constexpr (kAhead) {
                    typename P::Unit now[UNITS][kRows];
                    memcpy(now, weights, sizeof(weights));
                    load_next();
                    multiply_all(now);
                } else {
                    multiply_all(weights);
                    load_next();
                }
            }
        }
        float products[kMatrices];
        UNROLL
        for (int m = 0; m < kMatrices; ++m) {
            float values[TOKENS * ROWS];
            UNROLL
            for (int i = 0; i < TOKENS * ROWS; ++i) {
                values[i] = sums[i / ROWS][m * ROWS + i % ROWS];
            }
            products[m] = sum_lanes<LANES>(values);
        }
        finish(start + pass * kPassRows, products);
    }
}
