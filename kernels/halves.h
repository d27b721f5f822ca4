// Arithmetic on two f16 in a word, and bytes that become two f16.
#pragma once

#include "device.h"

#if defined(ROCMFORGE_AMD)
typedef _Float16 HalfPair __attribute__((ext_vector_type(2)));
#endif

// a + b.
DEVICE uint32_t add_halves(uint32_t a, uint32_t b) {
#if defined(ROCMFORGE_CUDA)
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
#elif defined(ROCMFORGE_AMD)
    return bit_cast<uint32_t>(bit_cast<HalfPair>(a) + bit_cast<HalfPair>(b));
#else
    return pack_halves(low_half(a) + low_half(b), high_half(a) + high_half(b));
#endif
}

// a · b.
DEVICE uint32_t multiply_halves(uint32_t a, uint32_t b) {
#if defined(ROCMFORGE_CUDA)
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
#elif defined(ROCMFORGE_AMD)
    return bit_cast<uint32_t>(bit_cast<HalfPair>(a) * bit_cast<HalfPair>(b));
#else
    return pack_halves(low_half(a) * low_half(b), high_half(a) * high_half(b));
#endif
}

// a · b + c, rounded once.
DEVICE uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
#if defined(ROCMFORGE_CUDA)
    uint32_t sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
#elif defined(ROCMFORGE_AMD)
    return bit_cast<uint32_t>(bit_cast<HalfPair>(a) * bit_cast<HalfPair>(b) +
                              bit_cast<HalfPair>(c));
#else
    return pack_halves(low_half(a) * low_half(b) + low_half(c),
                       high_half(a) * high_half(b) + high_half(c));
#endif
}

// The low halves of two words, and the high ones, those of `a` first.
DEVICE uint32_t low_halves(uint32_t a, uint32_t b) {
#if defined(ROCMFORGE_CUDA)
    return __byte_perm(a, b, 0x5410);
#else
    return (a & 0xffffu) | b << 16;
#endif
}
DEVICE uint32_t high_halves(uint32_t a, uint32_t b) {
#if defined(ROCMFORGE_CUDA)
    return __byte_perm(a, b, 0x7632);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}

// 1024 + byte, for bytes 2 * kPair and 2 * kPair + 1 of a word. The exponent of 1024 makes the
// lowest bit of an f16 count one, so a byte in the low bits adds itself.
template <int kPair>
DEVICE uint32_t bytes_above_1024(uint32_t word) {
#if defined(ROCMFORGE_CUDA)
    return __byte_perm(word, 0x64646464u, kPair == 0 ? 0x4140 : 0x4342);
#elif defined(ROCMFORGE_AMD)
    return __builtin_amdgcn_perm(0x64646464u, word, kPair == 0 ? 0x04010400u : 0x04030402u);
#else
    const uint32_t bytes = word >> 16 * kPair;
    return 0x64006400u | (bytes & 0xffu) | (bytes & 0xff00u) << 8;
#endif
}

// Pairs of f16 that integers below 256 are ORed into. CUDA's compiler would make constants anew for
// each use; it does not know that `zero` is 0.
struct Above {
    uint32_t of_1024, of_64;

    DEVICE explicit Above(uint32_t zero) : of_1024(0x64006400u + zero), of_64(0x54005400u + zero) {}
};

// 1024 + byte: bytes 0 and 2 of a word in out[0], bytes 1 and 3 in out[1].
DEVICE void spread_bytes(uint32_t word, const Above& above, uint32_t (&out)[2]) {
    out[0] = (word & 0x00ff00ffu) | above.of_1024;
    out[1] = (word >> 8 & 0x00ff00ffu) | above.of_1024;
}

// Bytes 2 * kPair and 2 * kPair + 1 of a word, each as the high byte of a half.
template <int kPair>
DEVICE uint32_t bytes_on_top(uint32_t word) {
#if defined(ROCMFORGE_CUDA)
    return __byte_perm(word, 0u, kPair == 0 ? 0x1404 : 0x3424);
#elif defined(ROCMFORGE_AMD)
    return __builtin_amdgcn_perm(0u, word, kPair == 0 ? 0x010c000cu : 0x030c020cu);
#else
    const uint32_t bytes = word >> 16 * kPair;
    return (bytes & 0xffu) << 8 | (bytes & 0xff00u) << 16;
#endif
}
