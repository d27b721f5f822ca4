// unpack: out[n][k] = w[n][k] as f16, finite (packed_halves.h): the weights of a matrix once for
// all tiles of a long prompt.
//
//   w      (N, K) of FORMAT, packed (packed.h)
//   out    (N, K) f16, aligned to 16
//   units  N * K / kColumns of packed.h
//
// Threads: each makes f16 of one unit. Units lie one after the other, in memory as in out. A block
// writes its units through LDS, so that neighbouring lanes write neighbours: half of the time that
// it takes if each lane writes its own unit (docs/EXPERIMENTS.md). The order of a unit's pieces of
// 16 bytes in LDS changes every 128 bytes, so that lanes use different banks. A block loads its
// weights before it waits for earlier launches: no launch writes weights.
// Grid (ceil(units / 256)).
// Limits: K a multiple of kColumns, fewer than 2^32 units.
// Launched by rocmforge/gpu/ops/unpack.py.
#include "packed_halves.h"

#if !defined(FORMAT)
#error "FORMAT has to be passed by the build"
#endif

using Weights = Packed<FORMAT>;

constexpr int kThreads = 256;
constexpr int kPieces = (Weights::kColumns + 7) / 8;  // of 16 bytes of f16, of a unit

struct UnpackArgs {
    PackedMatrix w;
    f16* out;
    uint32_t units;
};

// Where a piece of a block's unit is in LDS.
DEVICE int place(int unit, int piece) {
    return unit * kPieces + (piece ^ unit * kPieces / 8 % kPieces);
}

KERNEL_AHEAD(unpack, UnpackArgs, kThreads) {
    const u64 first = static_cast<u64>(block_x()) * kThreads;
    const bool present = first + thread_x() < a.units;
    uint32_t pairs[Weights::kColumns / 2];
    if (present) PackedHalves<FORMAT>::pairs(Weights::load(a.w, first + thread_x()), pairs);
    await_earlier();
    if constexpr (Weights::kColumns == 4) {  // half a piece: lanes write neighbours anyway
        if (present) reinterpret_cast<u32x2*>(a.out)[first + thread_x()] = {pairs[0], pairs[1]};
    } else {
        SHARED u32x4 lds[kThreads * kPieces];
        if (present) {
            UNROLL
            for (int i = 0; i < kPieces; ++i) {
                lds[place(thread_x(), i)] = {pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2],
                                             pairs[4 * i + 3]};
            }
        }
        block_sync();
        UNROLL
        for (int i = 0; i < kPieces; ++i) {
            const int piece = thread_x() + i * kThreads, unit = piece / kPieces;
            if (first + unit >= a.units) continue;
            reinterpret_cast<u32x4*>(a.out)[first * kPieces + piece] =
                lds[place(unit, piece % kPieces)];
        }
    }
}
