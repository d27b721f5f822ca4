// How a block gives another one of the same launch a number, without a barrier or a counter. A word
// between them holds 0 until the number is there, and 0 again once it is taken. The taker asks
// until it has it, so the blocks that give must run at some time. They do where takers come last:
// devices start blocks in the order of their numbers, x first, although no vendor promises it.
// Where a device has room for more blocks than takers, any order will do.
#pragma once

#include "device.h"

// Stores and loads of whole words, which order nothing else.
DEVICE void store_word(u64* to, u64 word) {
#if defined(ROCMFORGE_CUDA)
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "l"(word)
                 : "memory");
#elif defined(ROCMFORGE_AMD)
    __hip_atomic_store(to, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    *to = word;
#endif
}
DEVICE u64 load_word(const u64* from) {
#if defined(ROCMFORGE_CUDA)
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                 : "=l"(word)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return word;
#elif defined(ROCMFORGE_AMD)
    return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    return *from;
#endif
}

DEVICE void give_number(u64* to, float number) {
    store_word(to, u64{1} << 32 | bit_cast<uint32_t>(number));
}
DEVICE float await_number(u64* from) {
    u64 word = load_word(from);
#if defined(ROCMFORGE_HOST)
    if (word == 0) __builtin_trap();  // blocks run one after another: it would never come
#endif
    while (word == 0) word = load_word(from);
    store_word(from, 0);
    return bit_cast<float>(static_cast<uint32_t>(word));
}
