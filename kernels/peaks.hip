// What a device can do at most: bytes read per second, and multiply-adds per second. They are the
// ceilings of the roofline.
//
//   peak_reads  out[block] = sum of the words that the block read, modulo 2^32. Thread i of all n
//               reads the 16-byte elements i, i + n, i + 2n, … of `data`, `loads` of them, and
//               starts again at the end of the data. In each round another thread reads an element.
//   peak_f32    out[block] = sum over threads and chains of steps * (chain + 1), in float
//   peak_int8   the same by dot4: sums of 4 * steps * (chain + 1)
//   peak_f16    the same by the matrix unit (tile.h), or by what replaces it: chain c of each wave
//               starts at c and adds a 16 x 16 x 16 product of ones in each step
//
//   data   (elements,) of 16 bytes, aligned to 16
//   out    (blocks,) uint32
//
// Threads: each thread keeps CHAINS sums, or each wave TILES tiles of sums, that do not wait for
// one another. So enough products are in flight to hide the latency of a unit. Operands stay in
// registers, and the compiler must take them as new in each step. The sums are exact: they show
// that every step was done. The grid is any number of blocks.
// Limits: loads and steps multiples of 8; steps * (CHAINS + 1) and 16 * steps below 2^24; elements,
// and the threads of all blocks, below 2^31.
// Launched by rocmforge/gpu/ops/peaks.py.
#include "tile.h"

#if !defined(THREADS) || !defined(CHAINS) || !defined(TILES)
#error "THREADS, CHAINS and TILES have to be passed by the build"
#endif

constexpr int kLoads = 8;  // that a thread has in flight
constexpr int kSteps = 8;  // between two branches
constexpr int kWaves = THREADS / WAVE;

struct ReadArgs {
    const u32x4* data;
    uint32_t* out;
    int elements, loads, threads;  // threads of all blocks
};

struct ProductArgs {
    uint32_t* out;
    int steps, one;  // one is 1; the compiler must not know that
};

DEVICE void store_sum(uint32_t* out, uint32_t sum, uint32_t* scratch) {
    sum = block_sum<THREADS>(sum, scratch);
    if (thread_x() == 0) out[block_x()] = sum;
}

// Makes the compiler take the value as unknown from here on.
#if defined(ROCMFORGE_CUDA)
DEVICE void do_not_optimize(float& value) {
    asm volatile("" : "+f"(value));
}
DEVICE void do_not_optimize(uint32_t& value) {
    asm volatile("" : "+r"(value));
}
#else
template <class T>
DEVICE void do_not_optimize(T& value) {
#if defined(ROCMFORGE_AMD)
    asm volatile("" : "+v"(value));
#else
    asm volatile("" : "+r"(value));
#endif
}
#endif

KERNEL(peak_reads, ReadArgs, THREADS) {
    SHARED uint32_t scratch[kWaves];
    // All threads together pass over the data again and again, so positions wrap at its end.
    const unsigned elements = a.elements, stride = a.threads % elements;
    unsigned at = (block_x() * THREADS + thread_x()) % elements;
    uint32_t sum = 0;
    for (int i = 0; i < a.loads; i += kLoads) {
        u32x4 got[kLoads];
        UNROLL
        for (int j = 0; j < kLoads; ++j) {
            got[j] = load_once(a.data + at);
            at += stride;
            at -= at >= elements ? elements : 0;
        }
        UNROLL
        for (int j = 0; j < kLoads; ++j) sum += got[j].x + got[j].y + got[j].z + got[j].w;
    }
    store_sum(a.out, sum, scratch);
}

KERNEL(peak_f32, ProductArgs, THREADS) {
    SHARED uint32_t scratch[kWaves];
    // Two factors, because gfx11 and gfx12 issue two multiply-adds at once only if they share no
    // register.
    const float one = static_cast<float>(a.one);
    float x[2] = {one, one}, y[CHAINS], sums[CHAINS];
    UNROLL
    for (int c = 0; c < CHAINS; ++c) {
        y[c] = static_cast<float>(a.one * (c + 1));
        sums[c] = 0.0f;
    }
    for (int step = 0; step < a.steps; step += kSteps) {
        UNROLL
        for (int s = 0; s < kSteps; ++s) {
            do_not_optimize(x[0]);
            do_not_optimize(x[1]);
            UNROLL
            for (int c = 0; c < CHAINS; ++c) sums[c] += x[c % 2] * y[c];
        }
    }
    uint32_t sum = 0;
    UNROLL
    for (int c = 0; c < CHAINS; ++c) sum += static_cast<uint32_t>(sums[c]);
    store_sum(a.out, sum, scratch);
}

KERNEL(peak_int8, ProductArgs, THREADS) {
    SHARED uint32_t scratch[kWaves];
    uint32_t x = a.one * 0x01010101u, y[CHAINS];
    int sums[CHAINS];
    UNROLL
    for (int c = 0; c < CHAINS; ++c) {
        y[c] = x * (c + 1);
        sums[c] = 0;
    }
    for (int step = 0; step < a.steps; step += kSteps) {
        UNROLL
        for (int s = 0; s < kSteps; ++s) {
            do_not_optimize(x);
            UNROLL
            for (int c = 0; c < CHAINS; ++c) sums[c] = dot4(x, y[c], sums[c]);
        }
    }
    uint32_t sum = 0;
    UNROLL
    for (int c = 0; c < CHAINS; ++c) sum += sums[c];
    store_sum(a.out, sum, scratch);
}

KERNEL(peak_f16, ProductArgs, THREADS) {
    SHARED uint32_t scratch[kWaves];
    alignas(16) SHARED f16 ones[16 * 16];
    for (int i = thread_x(); i < 16 * 16; i += THREADS) ones[i] = to_f16(a.one);
    block_sync();
    TileA x;
    TileB y;
    x.load(ones, 16);
    y.load(ones, 16);
    TileC tiles[TILES];
    UNROLL
    for (int c = 0; c < TILES; ++c) {
        tiles[c].each([&](int, int, float& value) { value = static_cast<float>(a.one * c); });
    }
    for (int step = 0; step < a.steps; step += kSteps) {
        UNROLL
        for (int s = 0; s < kSteps; ++s) {
            UNROLL
            for (int c = 0; c < TILES; ++c) tiles[c].mma(x, y);
        }
    }
    uint32_t sum = 0;
    UNROLL
    for (int c = 0; c < TILES; ++c) {
        tiles[c].each([&](int, int, float& value) { sum += static_cast<uint32_t>(value); });
    }
    store_sum(a.out, sum, scratch);
}
