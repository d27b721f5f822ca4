// How a block gives another one of the same launch a number, without a barrier or a counter. A word
// between them holds 0 until the number is there, and 0 again once it is taken. The taker asks
// until it has it, so the blocks that give must run at some time. They do where takers come last:
// devices start blocks in the order of their numbers, x first, although no vendor promises it.
// Where a device has room for more blocks than takers, any order will do.
#pragma once

#include "device.h"

DEVICE void give_number(u64* to, float number) {
    store_relaxed<Scope::kDevice>(to, u64{1} << 32 | bit_cast<uint32_t>(number));
}
DEVICE float await_number(u64* from) {
    u64 word = load_relaxed<Scope::kDevice>(from);
#if defined(ROCMFORGE_HOST)
    if (word == 0) __builtin_trap();  // blocks run one after another: it would never come
#endif
    while (word == 0) word = load_relaxed<Scope::kDevice>(from);
    store_relaxed<Scope::kDevice>(from, u64{0});
    return bit_cast<float>(static_cast<uint32_t>(word));
}
