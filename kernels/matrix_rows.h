// GEMV on NVIDIA's matrix units, for up to eight tokens: the dot products of lanes (dot_rows.h) of
// so many would take longer than the weights take to come.
//
// A wave multiplies tiles of 16 rows of weights with all tokens (mma_sync.h). LANES, four,
// neighbouring lanes have the same rows g and g + 8 of each tile, so that a lane has ROWS rows of
// each matrix, and each of the four has a unit (packed.h) of its own of them. A product of 16
// columns takes four of each lane's unit; which ones does not matter, as weights and activations
// take the same. All waves of a block have the same rows. Units come in fours: wave w takes the
// fours w, w + WAVES, and so on. The sums of the waves meet in LDS.
//
// Weights are made f16 in registers (packed_halves.h), where UNITS units of each row are in flight.
// The activations are f16 in memory. Each wave copies its own to LDS, in the order in which its
// lanes read them, and waits for no other wave: from memory, a lane would read a few bytes of many
// cache lines. The loads of the first weights are issued before the activations are read. SLOTS and
// BUFFERS are not used, and a block makes one pass over its rows.
#pragma once

#include "gemv_input.h"
#include "mma_sync.h"
#include "packed_halves.h"

constexpr bool kMatrixUnits = true;
constexpr int kPassRows = 8 * ROWS;     // of a matrix, in a pass of a block
constexpr int kSumRow = kPassRows + 4;  // floats from a token's sums to the next, for the banks
// Blocks for which there are registers: 128 a lane, or 96 with four waves and one unit.
constexpr int kWavesResident = UNITS < 2 ? 20 : 16;
constexpr int kResident = WAVES > kWavesResident ? 1 : kWavesResident / WAVES;
static_assert(LANES == 4 && TOKENS == 8 && ROWS % 2 == 0 && WAVE == 32);
static_assert(TOKENS * kPassRows <= kThreads, "a product for each thread at most");

// Copies the activations of four neighbouring units, one for each of four lanes, of all tokens.
template <class Format>
class TokenUnits {
    using P = Packed<Format>;

  public:
    static constexpr int kPieces = P::kColumns / 8;                // of a unit, 16 bytes each
    static constexpr int kStage = WAVE * kPieces;                  // pieces
    static constexpr int kStages = WAVES * kStage > 1024 ? 1 : 2;  // in 32 KB
    static constexpr int kLds = WAVES * kStages * kStage;
    static_assert(kLds <= 2048, "the activations of all waves take more than 32 KB");

    DEVICE explicit TokenUnits(const Batch& batch)
        : batch(batch), column(8 * static_cast<int>(lane() % kRowPieces)) {
        UNROLL
        for (int i = 0; i < kPieces; ++i) {
            const int token = i * kTokens + static_cast<int>(lane()) / kRowPieces;
            rows[i] = 2 * batch.row(minimum(token, batch.tokens - 1)) * batch.columns;
        }
    }

    // Starts to copy units `first` to `first` + 3 to LDS, zeros for those past the last one. Tokens
    // that are not there come out as the last one.
    DEVICE void start(u32x4* stage, int first) const {
        const int at = first * P::kColumns + column;
        const uint8_t* const from = batch.in.x + 2 * at;
        const int unit = static_cast<int>(lane()) / kPieces % LANES;
        const int token = static_cast<int>(lane()) / kRowPieces;
        u32x4* const to = stage + place(lane() % kPieces, LANES * token + unit);
        UNROLL
        for (int i = 0; i < kPieces; ++i) {
            copy_near_to_lds(to + i * LANES * kTokens, from + rows[i], at < batch.columns);
        }
    }

    // Piece `piece` of the unit and token of this lane, LANES * token + unit.
    static DEVICE u32x4 own(const u32x4* stage, int piece) { return stage[place(piece, lane())]; }

  private:
    static constexpr int kRowPieces = LANES * kPieces;  // of a token
    static constexpr int kTokens = WAVE / kRowPieces;   // that the wave copies at once
    const Batch& batch;
    int column;
    uint32_t rows[kPieces];  // bytes before those of the tokens that this lane copies

    // Where a piece of a unit lies, of slot LANES * token + unit: spread over the banks both as
    // pieces are written and as they are read. What is added to the slot, a multiple of 8 or 16, is
    // added to the place.
    static DEVICE int place(int piece, int slot) {
        return piece * WAVE + (slot ^ piece * (8 / kPieces));
    }
};

// In pieces of 16 bytes: the activations, then, in their place, the sums of two matrices.
constexpr int kSumsLds = 2 * WAVES * TOKENS * kSumRow / 4;
template <class Format>
constexpr int kRowsLds = TokenUnits<Format>::kLds > kSumsLds ? TokenUnits<Format>::kLds : kSumsLds;

// The product of a pass that this thread gets, and whether there is one.
struct OwnProduct {
    int token, row;  // row: of the block's rows in a pass
    bool writes;

    DEVICE OwnProduct() {
        const int own = thread_x();
        writes = own < TOKENS * kPassRows;
        token = writes ? own / kPassRows : 0;
        row = own % kPassRows;
    }
};

// sums[j] += the products of tile j of 16 rows, a unit of each in these lanes, with all tokens,
// whose activations are at `x` in LDS. A tile's rows g and g + 8 follow one another. kFit: all
// weights are finite f16.
template <class Format, bool kFit, int kTiles>
DEVICE void multiply_tiles(const typename Packed<Format>::Unit (&weights)[2 * kTiles],
                           const typename PackedHalves<Format>::Scales (&scales)[2 * kTiles],
                           const u32x4* x, const Above& above, float (&sums)[kTiles][4]) {
    UNROLL
    for (int piece = 0; piece < TokenUnits<Format>::kPieces; ++piece) {
        const u32x4 four = TokenUnits<Format>::own(x, piece);
        const uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
        UNROLL
        for (int k = 0; k < 2; ++k) {
            const uint32_t low = pairs[2 * k], high = pairs[2 * k + 1];
            const uint32_t b[2] = {low_halves(low, high), high_halves(low, high)};
            UNROLL
            for (int j = 0; j < kTiles; ++j) {
                uint32_t w[2][2];
                UNROLL
                for (int i = 0; i < 2; ++i) {
                    const int r = 2 * j + i;
                    PackedHalves<Format>::spread(weights[r], scales[r], 2 * piece + k, above, w[i]);
                    if constexpr (!kFit) {
                        UNROLL
                        for (int p = 0; p < 2; ++p) {
                            w[i][p] = PackedHalves<Format>::finite(weights[r], 4 * piece + 2 * k,
                                                                   w[i][p]);
                        }
                    }
                }
                const uint32_t a[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
                mma_sync(sums[j], a, b[0], b[1]);
            }
        }
    }
}
template <class Format, int kTiles>
DEVICE void multiply_tiles(const typename Packed<Format>::Unit (&weights)[2 * kTiles],
                           const u32x4* x, const Above& above, float (&sums)[kTiles][4]) {
    typename PackedHalves<Format>::Scales scales[2 * kTiles];
    bool fit = true;
    UNROLL
    for (int r = 0; r < 2 * kTiles; ++r) {
        scales[r] = PackedHalves<Format>::scales(weights[r]);
        fit &= scales[r].fits;
    }
    if (any_lane(!fit)) {
        UNROLL
        for (int r = 0; r < 2 * kTiles; ++r) scales[r].limit();
        multiply_tiles<Format, false>(weights, scales, x, above, sums);
    } else {
        multiply_tiles<Format, true>(weights, scales, x, above, sums);
    }
}

// As dot_rows of dot_rows.h, of one pass.
template <class Format, int kMatrices, int kPasses, class Begin, class Finish, class Staged>
DEVICE void dot_rows(const PackedMatrix (&matrices)[kMatrices], int start, int rows,
                     const Batch& batch, u32x4* lds, const Begin& begin, const Finish& finish,
                     const Staged& staged) {
    static_assert(kPasses == 1);
    using P = Packed<Format>;
    using X = TokenUnits<Format>;
    constexpr int kRows = kMatrices * ROWS, kTiles = kRows / 2;
    const int units = batch.columns / P::kColumns;
    const int row = start + static_cast<int>(lane()) / LANES, own_unit = lane() % LANES;
    const Above above(static_cast<uint32_t>(batch.tokens) / (TOKENS + 1));
    typename P::Unit weights[UNITS][kRows];
    // The first unit of the wave's four number `turn`.
    const auto first_of = [&](int turn) {
        return LANES * (turn * WAVES + static_cast<int>(wave()));
    };
    const auto load = [&](int i, int turn) {
        const uint32_t unit = minimum(first_of(turn) + own_unit, units - 1);
        UNROLL
        for (int r = 0; r < kRows; ++r) {
            const uint32_t at = static_cast<uint32_t>(minimum(row + 8 * (r % ROWS), rows - 1));
            weights[i][r] = P::load(matrices[r / ROWS], at * units + unit);
        }
    };
    const X x(batch);
    const auto stage = [&](int turn) {
        return lds + (wave() * X::kStages + turn % X::kStages) * X::kStage;
    };
    const auto copy = [&](int turn) {
        if (first_of(turn) < units) x.start(stage(turn), first_of(turn));
        Transfer::batch_started();
    };
    UNROLL
    for (int i = 0; i < UNITS; ++i) load(i, i);
    begin();
    UNROLL
    for (int i = 0; i < X::kStages; ++i) copy(i);
    float sums[kTiles][4];
    UNROLL
    for (int j = 0; j < kTiles; ++j) {
        UNROLL
        for (int v = 0; v < 4; ++v) sums[j][v] = 0.0f;
    }
    for (int from = 0; first_of(from) < units; from += UNITS) {
        UNROLL
        for (int i = 0; i < UNITS; ++i) {
            const int turn = from + i;
            if (first_of(turn) >= units) break;
            Transfer::wait<X::kStages - 1>();
            wave_sync();
            multiply_tiles<Format, kTiles>(weights[i], stage(turn), above, sums);
            if (first_of(turn + UNITS) < units) load(i, turn + UNITS);
            wave_sync();
            copy(turn + X::kStages);
        }
    }
    block_sync();
    float* const all = reinterpret_cast<float*>(lds);
    const auto sums_of = [&](int wave, int matrix, int token) {
        return all + ((wave * kMatrices + matrix) * TOKENS + token) * kSumRow;
    };
    UNROLL
    for (int j = 0; j < kTiles; ++j) {
        UNROLL
        for (int v = 0; v < 4; ++v) {
            float* const to = sums_of(wave(), j / (ROWS / 2), own_unit * 2 + v % 2);
            to[j % (ROWS / 2) * 16 + static_cast<int>(lane()) / LANES + v / 2 * 8] = sums[j][v];
        }
    }
    staged();
    block_sync();
    const OwnProduct own;
    float products[kMatrices];
    UNROLL
    for (int m = 0; m < kMatrices; ++m) {
        products[m] = 0.0f;
        UNROLL
        for (int w = 0; w < WAVES; ++w) products[m] += sums_of(w, m, own.token)[own.row];
    }
    finish(start, products);
}
