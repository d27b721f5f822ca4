// Memory through which the devices of a group give each other numbers, and how they wait for it.
//
// Each device, a rank, has an inbox into which all write, over peer access or, where cards cannot
// reach each other, in the host's page-locked memory. A call is an exchange: calls have numbers
// from 1 on, which every rank counts by itself: those of few numbers for each block, those of many
// as a whole. Odd and even calls have a half of the inbox each: a rank writes call n + 2 when it
// has what another one sent in call n + 1, and that one had read all of call n before.
#pragma once

#include "device.h"

// Between two looks at the host's memory.
#if defined(ROCMFORGE_HOST)
extern "C" int sched_yield();
constexpr int kAsks = 16;  // threads of a block wait one after another
#else
constexpr int kAsks = 4096;
#endif

constexpr int kMostRanks = 8;

struct Peers {
    void* inboxes[kMostRanks];  // of all ranks, the own one among them
    uint32_t* calls;            // this device's counts; each kernel says of what
    const uint32_t* stop;       // in the host's memory; not 0: a device has failed, wait no longer
    u64 room;                   // numbers of a sender in half an inbox
    int rank;
    int ranks;
    int flags;  // of a sender, behind calls of many numbers
};

// Stores and loads that other devices and the host see.
template <class T>
DEVICE void store_shared(T* to, T value) {
    store_relaxed<Scope::kSystem>(to, value);
}
template <class T>
DEVICE T load_shared(const T* from) {
    return load_relaxed<Scope::kSystem>(from);
}

// Calls of many numbers: these travel as they are, and flags behind them say which call they are
// of.
//   inbox    (2, ranks, room) float of each rank: odd and even calls; then (ranks, flags) u32
//   calls    how many there have been, and how many blocks have ended this one
// The flags of a sender, in an owner's inbox.
DEVICE uint32_t* arrived(const Peers& peers, int owner, int sender) {
    float* const inbox = static_cast<float*>(peers.inboxes[owner]);
    return reinterpret_cast<uint32_t*>(inbox + 2 * peers.room * peers.ranks) + sender * peers.flags;
}
// Counts a call once all blocks have ended it. All threads must call; `word` is one in LDS.
DEVICE void end_call(const Peers& peers, uint32_t call, int blocks, uint32_t* word) {
    if (last_to_arrive(peers.calls + 1, blocks, word) && thread_x() == 0) peers.calls[0] = call;
}

// Between plain accesses and a flag for other devices: what was written before is seen by who sees
// a flag stored after it, and what is read after it is as new as a flag loaded before.
DEVICE void fence_shared() {
#if defined(ROCMFORGE_CUDA)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(ROCMFORGE_AMD)
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "");
#else
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

// A block's barrier between what its threads write and a flag that thread 0 stores behind it. AMD's
// barrier orders the block alone, so each thread orders its own; CUDA's fence speaks for all
// threads that thread 0 has met.
DEVICE void publish() {
#if !defined(ROCMFORGE_CUDA)
    fence_shared();
#endif
    block_sync();
#if defined(ROCMFORGE_CUDA)
    if (thread_x() == 0) fence_shared();
#endif
}
// The barrier between a flag that thread 0 has seen and what all threads read behind it.
DEVICE void take_over() {
#if defined(ROCMFORGE_CUDA)
    if (thread_x() == 0) fence_shared();
#endif
    block_sync();
#if !defined(ROCMFORGE_CUDA)
    fence_shared();
#endif
}

// Asks until there is an answer, or until the group is told to stop: then it is false.
template <class Answered>
DEVICE bool wait_for(const Peers& peers, const Answered& answered) {
    for (;;) {
        for (int i = 0; i < kAsks; ++i) {
            if (answered()) return true;
#if defined(ROCMFORGE_HOST)
            sched_yield();
#endif
        }
        if (load_shared(peers.stop) != 0) return false;
    }
}

// A call of few numbers. One travels in a word with the number of the call: who sees the call's
// number has the number too, and nothing has to be ordered.
//   inbox    (2, ranks, room) u64 of each rank: odd and even calls, by sender
//   calls    (blocks,): in how many each block has been
// A block takes the same place of the inbox in every call, whatever the kernel, and each of its
// threads receives from all others if it sends: else a rank could be more than a call ahead.
struct Words {
    const Peers& peers;
    const uint32_t call;
    const u64 half;

    DEVICE explicit Words(const Peers& group)
        : peers(group),
          call(group.calls[block_x()] + 1),
          half(static_cast<u64>(call % 2) * group.ranks * group.room) {}

    // Gives every other rank the number at a place.
    DEVICE void send(int at, float number) const {
        const u64 word = static_cast<u64>(call) << 32 | bit_cast<uint32_t>(number);
        const u64 to = half + static_cast<u64>(peers.rank) * peers.room + at;
        for (int rank = 0; rank < peers.ranks; ++rank) {
            if (rank != peers.rank) store_shared(static_cast<u64*>(peers.inboxes[rank]) + to, word);
        }
    }

    // Waits for the number that another rank sends to a place; false: a device has failed.
    DEVICE bool receive(int rank, int at, float* number) const {
        const u64* const from = static_cast<const u64*>(peers.inboxes[peers.rank]) + half +
                                static_cast<u64>(rank) * peers.room + at;
        u64 word = 0;
        const bool came = wait_for(peers, [&] {
            word = load_shared(from);
            return static_cast<uint32_t>(word >> 32) == call;
        });
        *number = bit_cast<float>(static_cast<uint32_t>(word));
        return came;
    }

    // Counts the call; all threads must have met since the constructor.
    DEVICE void end() const {
        if (thread_x() == 0) peers.calls[block_x()] = call;
    }
};
