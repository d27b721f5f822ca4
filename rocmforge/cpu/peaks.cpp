// The most that this processor can do: bytes read per second, and multiply-adds per second.
//
// peak_reads sums a buffer again and again; peak_products multiplies as matmul's inner loops do,
// with the same vectors, but on operands that stay in registers and the first cache. Each returns
// a sum of all its work, so that no compiler can leave any of it out; backend.py checks it. The
// caller measures the time.
#include <algorithm>
#include <vector>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int kSteps = 32;        // of a round, one after another in the same sums
constexpr int64_t kRounds = 512;  // of an item: some 0.1 ms
constexpr int64_t kPieces = 16;   // a thread: the last ones are short, and nobody waits long
constexpr int64_t kSpanVectors = 1 << 14;

// Vectors of weights times activations whose sums are kept in registers at once: enough to hide the
// latency of a multiply-add on two units, and no more than fit 32, 16 and 16 registers. Of bytes,
// so many steps go into one sum before the next has its turn: those that are fastest, and 32
// columns of a row where they are added in 16 bits.
#if defined(__AVX512VNNI__)
constexpr int kFloatRows = 4, kFloatTokens = 4, kByteRows = 4, kByteTokens = 4, kByteSteps = 2;
#elif defined(ROCMFORGE_VNNI)
constexpr int kFloatRows = 2, kFloatTokens = 3, kByteRows = 2, kByteTokens = 2, kByteSteps = 8;
#elif defined(__AVX2__)
constexpr int kFloatRows = 2, kFloatTokens = 3, kByteRows = 1, kByteTokens = 4, kByteSteps = 8;
#else
constexpr int kFloatRows = 1, kFloatTokens = 2, kByteRows = 1, kByteTokens = 1, kByteSteps = 8;
#endif

// The operands may be others from here on: what was read or computed of them does not count.
template <class Array>
void do_not_optimize(Array& operands) {
    asm volatile("" : "+m"(operands));
}

// The operands: weights 0, 1, 2, 3, 0, … along a vector, activations 1, 2, -1, 2, 1, … step by
// step. 1.5 is the mean of the first, 1 that of the second; sums stay exact in float32.
constexpr int weight_at(int i) {
    return i % 4;
}
constexpr int activation_at(int step) {
    return step % 2 ? 2 : step % 4 ? -1 : 1;
}

int64_t float_products() {
    alignas(64) float weights[kSteps][kFloatRows][kLanes];
    alignas(64) float x[kSteps][kFloatTokens];
    for (int s = 0; s < kSteps; ++s) {
        for (auto& row : weights[s]) {
            for (int i = 0; i < kLanes; ++i) row[i] = static_cast<float>(weight_at(i));
        }
        for (float& value : x[s]) value = static_cast<float>(activation_at(s));
    }
    F32 acc[kFloatRows][kFloatTokens];
#pragma GCC unroll 4
    for (auto& row : acc) {
#pragma GCC unroll 4
        for (F32& a : row) a = set1(0.0f);
    }
    for (int64_t round = 0; round < kRounds; ++round) {
        do_not_optimize(weights);
        do_not_optimize(x);
        for (int s = 0; s < kSteps; ++s) {
#pragma GCC unroll 4
            for (int r = 0; r < kFloatRows; ++r) {
                const F32 row = load(weights[s][r]);
#pragma GCC unroll 4
                for (int t = 0; t < kFloatTokens; ++t) {
                    acc[r][t] = fma(row, set1(x[s][t]), acc[r][t]);
                }
            }
        }
    }
    int64_t total = 0;
#pragma GCC unroll 4
    for (auto& row : acc) {
#pragma GCC unroll 4
        for (F32& a : row) total += static_cast<int64_t>(sum(a));
    }
    return total;
}

int64_t byte_products() {
    alignas(64) uint8_t weights[kSteps][kByteRows][4 * kLanes];
    int32_t x[kSteps][kByteTokens];
    for (int s = 0; s < kSteps; ++s) {
        for (auto& row : weights[s]) {
            for (int i = 0; i < 4 * kLanes; ++i) row[i] = static_cast<uint8_t>(weight_at(i));
        }
        for (int32_t& word : x[s]) std::memset(&word, activation_at(s), 4);
    }
    I32 acc[kByteRows][kByteTokens];
#pragma GCC unroll 4
    for (auto& row : acc) {
#pragma GCC unroll 4
        for (I32& a : row) a = set1(int32_t{0});
    }
    for (int64_t round = 0; round < kRounds; ++round) {
        do_not_optimize(weights);
        do_not_optimize(x);
        for (int s = 0; s < kSteps; s += kByteSteps) {
#pragma GCC unroll 4
            for (int r = 0; r < kByteRows; ++r) {
                U8 codes[kByteSteps];
#pragma GCC unroll 8
                for (int i = 0; i < kByteSteps; ++i) codes[i] = load_bytes(weights[s + i][r]);
#if defined(ROCMFORGE_VNNI)
#pragma GCC unroll 4
                for (int t = 0; t < kByteTokens; ++t) {
                    acc[r][t] = dot_narrow<kByteSteps>(
                        acc[r][t], codes, reinterpret_cast<const int8_t*>(&x[s][t]), sizeof x[s]);
                }
#else
                I32 dot[kByteTokens];
                dot_narrow<0, kByteSteps, kByteTokens>(
                    dot, codes, reinterpret_cast<const int8_t*>(x[s]), sizeof x[s], nullptr);
#pragma GCC unroll 4
                for (int t = 0; t < kByteTokens; ++t) acc[r][t] = acc[r][t] + dot[t];
#endif
            }
        }
    }
    int64_t total = 0;
#pragma GCC unroll 4
    for (auto& row : acc) {
#pragma GCC unroll 4
        for (I32& a : row) total += sum(a);
    }
    return total;
}

// The sum of at most kSpanVectors vectors of int32, whose numbers are below 2^7.
int64_t span_sum(const uint8_t* data, int64_t vectors) {
    constexpr int kChains = 4;
    I32 acc[kChains];
    for (I32& a : acc) a = set1(int32_t{0});
    int64_t v = 0;
    for (; v + kChains <= vectors; v += kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
            acc[c] = acc[c] + as_int(load_bytes(data + (v + c) * 64));
        }
    }
    for (; v < vectors; ++v) acc[0] = acc[0] + as_int(load_bytes(data + v * 64));
    int64_t total = 0;
    for (I32& a : acc) total += sum(a);
    return total;
}

}  // namespace

int64_t peak_reads(const uint8_t* data, int64_t bytes, int64_t repeats, ThreadPool& pool) {
    // Read once: pieces for whichever thread is free, as matmul shares its weights. Read again and
    // again: each thread stays with its part, and what fits the cache of a core comes from there.
    const int64_t vectors = bytes / 64, shares = pool.threads() * (repeats > 1 ? 1 : kPieces);
    const int64_t share = (vectors + shares - 1) / shares;
    std::vector<int64_t> sums(static_cast<size_t>(shares));
    parallel_for(pool, shares, 1, [&](int64_t i) {
        const int64_t last = std::min((i + 1) * share, vectors);
        int64_t total = 0;
        for (int64_t r = 0; r < repeats; ++r) {
            asm volatile("" : : "r"(data) : "memory");  // it may be other data by now
            for (int64_t v = i * share; v < last; v += kSpanVectors) {
                total += span_sum(data + v * 64, std::min(kSpanVectors, last - v));
            }
        }
        sums[static_cast<size_t>(i)] = total;
    });
    int64_t total = 0;
    for (int64_t part : sums) total += part;
    return total;
}

PeakProducts peak_products(bool bytes, ThreadPool& pool) {
    const int64_t items = kPieces * pool.threads();
    std::vector<int64_t> sums(static_cast<size_t>(items));
    parallel_for(pool, items, 1, [&](int64_t i) {
        sums[static_cast<size_t>(i)] = bytes ? byte_products() : float_products();
    });
    const int64_t of_step = bytes ? kByteRows * kByteTokens * 4 * kLanes  //
                                  : kFloatRows * kFloatTokens * kLanes;
    PeakProducts made{items * kRounds * kSteps * of_step, 0};
    for (int64_t part : sums) made.sum += part;
    return made;
}

}  // namespace rocmforge::ROCMFORGE_ISA
