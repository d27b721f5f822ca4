// unpack: out[n][k] = w[n][k] as f16, finite (packed_halves.h): the weights of up to three matrices
// once for all tiles of a long prompt.
//
//   w      (N, K) of FORMAT_0, FORMAT_1 and FORMAT_2, packed (packed.h)
//   out    (N, K) f16, aligned to 16
//
// Threads: each makes f16 of one unit. Units lie one after the other, in memory as in out. A block
// writes its units through LDS, so that neighbouring lanes write neighbours: half of the time that
// it takes if each lane writes its own unit (docs/EXPERIMENTS.md). The order of a unit's pieces of
// 16 bytes in LDS changes every 128 bytes, so that lanes use different banks. A block loads its
// weights before it waits for earlier launches: no launch writes weights.
// Grid (the sum of ceil(N * K / kColumns / 256)).
// Limits: K a multiple of kColumns, fewer than 2^31 blocks.
// Launched by rocmforge/gpu/ops/unpack.py.
#include "packed_halves.h"
#include "products.h"

#if !defined(FORMAT_0) || !defined(FORMAT_1) || !defined(FORMAT_2)
#error "FORMAT_0, FORMAT_1 and FORMAT_2 have to be passed by the build"
#endif

constexpr int kThreads = 256;

// Pieces of 16 bytes of f16 that a unit becomes.
template <class Format>
constexpr int kPieces = (Packed<Format>::kColumns + 7) / 8;
constexpr int kMostPieces =
    kLarger<kPieces<FORMAT_0>, kLarger<kPieces<FORMAT_1>, kPieces<FORMAT_2>>>;

struct UnpackArgs {
    Products products;  // `out` is of f16
    int columns;
};

struct Unpacking {
    int columns;
    u32x4* lds;

    // For block `number` of a matrix.
    template <class Format>
    DEVICE void run(const Product& p, int rows, int number) const {
        using Weights = Packed<Format>;
        constexpr int pieces = kPieces<Format>;
        const u64 first = static_cast<u64>(number) * kThreads;
        const u64 left = static_cast<u64>(rows) * (columns / Weights::kColumns) - first;
        const int units = left < kThreads ? static_cast<int>(left) : kThreads;
        const int own = thread_x();
        uint32_t pairs[Weights::kColumns / 2];
        if (own < units) PackedHalves<Format>::pairs(Weights::load(p.matrix, first + own), pairs);
        await_earlier();
        if constexpr (Weights::kColumns == 4) {  // half a piece: lanes write neighbours anyway
            if (own < units) reinterpret_cast<u32x2*>(p.out)[first + own] = {pairs[0], pairs[1]};
        } else {
            if (own < units) {
                UNROLL
                for (int i = 0; i < pieces; ++i) {
                    lds[place<pieces>(own, i)] = {pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2],
                                                  pairs[4 * i + 3]};
                }
            }
            block_sync();
            u32x4* out = reinterpret_cast<u32x4*>(p.out) + first * pieces;
            UNROLL
            for (int i = 0; i < pieces; ++i) {
                const int piece = own + i * kThreads, unit = piece / pieces;
                if (unit < units) out[piece] = lds[place<pieces>(unit, piece % pieces)];
            }
        }
    }

    // Where a piece of a block's unit is in LDS, of so many pieces a unit.
    template <int kOfUnit>
    static DEVICE int place(int unit, int piece) {
        return unit * kOfUnit + (piece ^ unit * kOfUnit / 8 % kOfUnit);
    }
};

// A multiprocessor of NVIDIA is to run six blocks at a time. Without this bound the kernel takes 42
// registers, and five run; with it 32, and eight run.
KERNEL_RESIDENT(unpack, UnpackArgs, kThreads, 6) {
    SHARED u32x4 lds[kThreads * kMostPieces];
    own_product(a.products, static_cast<int>(block_x()), Unpacking{a.columns, lds});
}
