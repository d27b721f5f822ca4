// Hopper's matrix unit (wgmma): a warpgroup, four waves that follow one another, computes
//   D[m][n] += Σ_k A[m][k] · B[n][k]   A: 64 x 16 f16;  B: 16 kTiles x 16 f16 in LDS;  D: float
// Each wave has 16 rows of A and of D, in registers, where mma.sync has them too (MmaSyncMap of
// tile.h): A is a TileA's words, D one TileC for each 16 of n. B is read from LDS without passing
// through registers, once for all four waves.
//
// ROCMFORGE_WARPGROUP is defined where the unit is: on sm_90, compiled for sm_90a. All threads of a
// warpgroup call everything together.
#pragma once

#include "tile.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROCMFORGE_WARPGROUP 1

DEVICE u64 lds_piece(const void* lds) {
    return (static_cast<uint32_t>(__cvta_generic_to_shared(lds)) & 0x3ffff) >> 4;
}

// The matrix descriptor of an operand in LDS (PTX ISA 9.7.15). To add one moves it by a piece of 16
// bytes.
// The eight numbers k = 8 h to 8 h + 7 of line n are piece h * half_pieces + n from `lds` on:
DEVICE u64 warpgroup_operand(const u32x4* lds, int half_pieces) {
    constexpr u64 kEightLines = 8;  // in pieces, from eight lines to the next
    return lds_piece(lds) | static_cast<u64>(half_pieces) << 16 | kEightLines << 32;
}
// MN-major, for instructions that transpose B: the eight lines n = 8 h to 8 h + 7 of number k are
// piece h * eight_lines + k:
DEVICE u64 across_operand(const u32x4* lds, int eight_lines) {
    constexpr u64 kEightNumbers = 8;  // in pieces, from eight numbers to the next
    return lds_piece(lds) | kEightNumbers << 16 | static_cast<u64>(eight_lines) << 32;
}
// Line n, of 64 numbers, is pieces 8 n to 8 n + 7; its piece p is in the place of p ^ n % 8. `lds`
// is a multiple of 1024.
DEVICE u64 swizzled_operand(const void* lds) {
    constexpr u64 kEightLines = 64, kSwizzled = 1;
    return lds_piece(lds) | kEightLines << 32 | kSwizzled << 62;
}

// What the waves wrote to LDS and to the registers of A and D is there for the products that
// follow. For LDS, each thread calls it for what it wrote, and a barrier follows.
DEVICE void lds_for_warpgroup() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void registers_for_warpgroup() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Products run on their own from here. A and D must not be touched until they have been waited for:
// all but the last kLater groups of products have ended then.
DEVICE void warpgroup_started() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLater>
DEVICE void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
}

// What is computed from D comes after this, for the compiler, which does not know that products run
// on. It belongs behind the last wait.
template <int kTiles>
DEVICE void hold_sums(TileC (&d)[kTiles]) {
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
        UNROLL
        for (int v = 0; v < TileC::Map::kValues; ++v) asm volatile("" : "+f"(d[t].values[v]));
    }
}

#define ROCMFORGE_SUMS(t)                                                                   \
    "+f"(d[t].values[0]), "+f"(d[t].values[1]), "+f"(d[t].values[2]), "+f"(d[t].values[3]), \
        "+f"(d[t].values[4]), "+f"(d[t].values[5]), "+f"(d[t].values[6]), "+f"(d[t].values[7])
// The first four and eight tiles of D, the eight behind them, and the names of floats in an
// instruction.
#define ROCMFORGE_FOUR_SUMS \
    ROCMFORGE_SUMS(0), ROCMFORGE_SUMS(1), ROCMFORGE_SUMS(2), ROCMFORGE_SUMS(3)
#define ROCMFORGE_EIGHT_SUMS \
    ROCMFORGE_FOUR_SUMS, ROCMFORGE_SUMS(4), ROCMFORGE_SUMS(5), ROCMFORGE_SUMS(6), ROCMFORGE_SUMS(7)
#define ROCMFORGE_EIGHT_MORE                                                      \
    ROCMFORGE_SUMS(8), ROCMFORGE_SUMS(9), ROCMFORGE_SUMS(10), ROCMFORGE_SUMS(11), \
        ROCMFORGE_SUMS(12), ROCMFORGE_SUMS(13), ROCMFORGE_SUMS(14), ROCMFORGE_SUMS(15)
#define ROCMFORGE_32_FLOATS                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ROCMFORGE_64_FLOATS                                                         \
    ROCMFORGE_32_FLOATS                                                             \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ROCMFORGE_128_FLOATS                                                         \
    ROCMFORGE_64_FLOATS                                                              \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "            \
    "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "    \
    "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "   \
    "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
    "%119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ROCMFORGE_A "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b)

// Of the first kUsed tiles of D.
template <int kUsed, int kTiles>
DEVICE void warpgroup_mma(TileC (&d)[kTiles], const TileA& a, u64 b) {
    static_assert(kUsed <= kTiles && 16 % kUsed == 0);
    if constexpr (kUsed == 1) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
            : ROCMFORGE_SUMS(0)
            : ROCMFORGE_A);
    } else if constexpr (kUsed == 2) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
            "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
            : ROCMFORGE_SUMS(0), ROCMFORGE_SUMS(1)
            : ROCMFORGE_A);
    } else if constexpr (kUsed == 4) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{" ROCMFORGE_32_FLOATS "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
            : ROCMFORGE_FOUR_SUMS
            : ROCMFORGE_A);
    } else if constexpr (kUsed == 8) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{" ROCMFORGE_64_FLOATS "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
            : ROCMFORGE_EIGHT_SUMS
            : ROCMFORGE_A);
    } else {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
            "{" ROCMFORGE_128_FLOATS "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
            : ROCMFORGE_EIGHT_SUMS, ROCMFORGE_EIGHT_MORE
            : ROCMFORGE_A);
    }
}

// The same with all of D, and B an across_operand.
template <int kTiles>
DEVICE void warpgroup_mma_across(TileC (&d)[kTiles], const TileA& a, u64 b) {
    static_assert(kTiles == 4 || kTiles == 8);
    if constexpr (kTiles == 4) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{" ROCMFORGE_32_FLOATS "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
            : ROCMFORGE_FOUR_SUMS
            : ROCMFORGE_A);
    } else {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{" ROCMFORGE_64_FLOATS "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
            : ROCMFORGE_EIGHT_SUMS
            : ROCMFORGE_A);
    }
}

// The same with A in LDS.
template <int kTiles>
DEVICE void warpgroup_mma(TileC (&d)[kTiles], u64 a, u64 b) {
    static_assert(kTiles == 4 || kTiles == 8 || kTiles == 16);
    if constexpr (kTiles == 4) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{" ROCMFORGE_32_FLOATS "}, %32, %33, 1, 1, 1, 0, 0;"
            : ROCMFORGE_FOUR_SUMS
            : "l"(a), "l"(b));
    } else if constexpr (kTiles == 8) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{" ROCMFORGE_64_FLOATS "}, %64, %65, 1, 1, 1, 0, 0;"
            : ROCMFORGE_EIGHT_SUMS
            : "l"(a), "l"(b));
    } else {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
            "{" ROCMFORGE_128_FLOATS "}, %128, %129, 1, 1, 1, 0, 0;"
            : ROCMFORGE_EIGHT_SUMS, ROCMFORGE_EIGHT_MORE
            : "l"(a), "l"(b));
    }
}
#undef ROCMFORGE_SUMS
#undef ROCMFORGE_FOUR_SUMS
#undef ROCMFORGE_EIGHT_SUMS
#undef ROCMFORGE_EIGHT_MORE
#undef ROCMFORGE_32_FLOATS
#undef ROCMFORGE_64_FLOATS
#undef ROCMFORGE_128_FLOATS
#undef ROCMFORGE_A

#endif
