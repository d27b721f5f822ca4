// How a block gives another one of the same launch a number, without a barrier or a counter. A word
// between them holds 0 until the number is there, and 0 again once it is taken. The taker asks
// until it has it. So its block must come after those that give: devices start blocks in the order
// of their numbers, x first.
#pragma once

#include "device.h"

DEVICE void give(u64* to, float number) {
    const u64 word = u64{1} << 32 | bit_cast<uint32_t>(number);
#if defined(ROCMFORGE_CUDA)
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "l"(word)
                 : "memory");
#elif defined(ROCMFORGE_AMD)
    __hip_atomic_store(to, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    __atomic_store_n(to, word, __ATOMIC_RELAXED);
#endif
}

DEVICE float take(u64* from) {
    u64 word;
    do {
#if defined(ROCMFORGE_CUDA)
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                     : "=l"(word)
                     : "l"(__cvta_generic_to_global(from))
                     : "memory");
#elif defined(ROCMFORGE_AMD)
        word = __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
        word = __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
    } while (word == 0);
    *from = 0;
    return bit_cast<float>(static_cast<uint32_t>(word));
}
