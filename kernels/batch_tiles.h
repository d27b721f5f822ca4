// The two parts of batch_rows.h that depend on the matrix unit, for units of one wave (tile.h).
//
// In LDS a token's columns are a line. The pieces of a round are in the order (eight columns of a
// group, span), so that the spans read neighbours.
#pragma once

#include "batch.h"

constexpr int kRowPieces = kStep / 8;  // of 16 bytes
constexpr int kLine = kRowPieces + TileShare::kPad, kStage = TOKENS * kLine, kLds = STAGES * kStage;
constexpr int kRoundPieces = 4 * kSpans;  // from a round to the next
constexpr int kOwnPieces = TOKENS * kRowPieces / kThreads;
static_assert(kOwnPieces * kThreads == TOKENS * kRowPieces);

// A thread's share of a step's activations on their way from memory to LDS.
template <class Rows>
struct Activations {
    const Batch& batch;
    const Rows& rows;
    Transfer pieces[kOwnPieces];

    DEVICE Activations(const Batch& batch, const Rows& rows) : batch(batch), rows(rows) {}

    DEVICE void start(int step, u32x4* stage) {
        UNROLL
        for (int i = 0; i < kOwnPieces; ++i) {
            const int token = own(i) / kRowPieces;
            const int column = step * kStep + own(i) % kRowPieces * 8;
            const bool present = rows.has(token) && column < batch.columns;
            const u64 at = present ? static_cast<u64>(rows.row(token)) * batch.columns + column : 0;
            pieces[i].start(stage + place(i), batch.x + at, present);
        }
        Transfer::batch_started();
    }
    // Waits for all steps but the last STAGES - 2 that were started.
    DEVICE void arrive(u32x4* stage) {
        UNROLL
        for (int i = 0; i < kOwnPieces; ++i) {
            pieces[i].template arrive<STAGES - 2>(stage + place(i));
        }
    }

  private:
    static DEVICE int own(int i) { return static_cast<int>(thread_x()) + i * kThreads; }
    static DEVICE int place(int i) {
        const int token = own(i) / kRowPieces, piece = own(i) % kRowPieces;
        const int round = piece / (4 * kSpans), eight = piece % 4, span = piece / 4 % kSpans;
        return token * kLine + (round * 4 + eight) * kSpans + span;
    }
};

struct Sums : BatchSums {
    // Multiplies a round of weights with the activations that begin at `x` in LDS, of kUsed tiles.
    template <int kUsed, class Format>
    DEVICE void multiply(const Share<Format>& share, const u32x4* x) {
        const typename Share<Format>::Scales scales(share);
        // Lines lie equally far apart in all lanes, so that one address and constants reach them.
        const u32x4* own = x + TileShare::line_b(lane(), 0) * kLine + TileShare::span(lane());
        constexpr int kPieces = kPer > 8 ? kPer / 8 : 1;  // of eight columns, at a time
        UNROLL
        for (int first = 0; first < 4; first += kPieces) {
            uint32_t w[kTiles][kLinesA][4 * kPieces];
            share.template halves<kPieces>(first, scales, w);
            UNROLL
            for (int t = 0; t < kUsed; ++t) {
                uint32_t words[kLinesB][4 * kPieces];
                UNROLL
                for (int i = 0; i < kLinesB; ++i) {
                    const int token = 16 * t + TileShare::line_b(0, i) - TileShare::line_b(0, 0);
                    UNROLL
                    for (int k = 0; k < kPieces; ++k) {
                        const u32x4 v = own[token * kLine + (first + k) * kSpans];
                        words[i][4 * k] = v.x, words[i][4 * k + 1] = v.y;
                        words[i][4 * k + 2] = v.z, words[i][4 * k + 3] = v.w;
                    }
                }
                UNROLL
                for (int from = 0; from < 8 * kPieces; from += kPer) {
                    TileB b;
                    UNROLL
                    for (int i = 0; i < kLinesB; ++i) b.set(i, words[i] + from / 2);
                    UNROLL
                    for (int j = 0; j < kTiles; ++j) {
                        TileA a;
                        UNROLL
                        for (int i = 0; i < kLinesA; ++i) a.set(i, w[j][i] + from / 2);
                        tiles[j][t].mma(a, b);
                    }
                }
            }
        }
        each_tile([](TileC& tile, int) { tile.settle(); });
    }
};
