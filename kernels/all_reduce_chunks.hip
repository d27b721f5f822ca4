// all_reduce_chunks: x = the sum of all ranks' x, for many numbers (prompts).
//
//   x  (count,) float, in place, aligned to 16; rank 0's is added first, so all ranks get the same
//
// Numbers travel as they are, in chunks of CHUNK; a flag behind each says which call it is of. A
// block sends its next chunk before it waits for the last one.
//   inbox  (2, ranks, room) float of each rank: odd and even calls, by sender; then
//          (ranks, flags) u32: the call of each chunk that has arrived
//   calls  how many there have been, and how many blocks have ended this one
// Grid (blocks). The launches of all ranks wait for each other: they must be able to run at the
// same time. Limits: count at most the room, and a multiple of 4; a flag for each chunk.
// Launched by rocmforge/gpu/ops/all_reduce.py.
#include "output.h"
#include "peers.h"

struct AllReduceChunksArgs {
    float* x;
    int count;
    int blocks;  // of the grid
    Peers peers;
};

constexpr int kVector = 4, kItems = CHUNK / (THREADS * kVector);
static_assert(kItems * THREADS * kVector == CHUNK);

// One rank's view of a chunk in one call.
struct Chunk {
    const AllReduceChunksArgs& a;
    int number;
    uint32_t call;

    DEVICE Chunk(const AllReduceChunksArgs& args, int which, uint32_t of)
        : a(args), number(which), call(of) {}

    DEVICE int element(int item) const {
        return number * CHUNK + (item * THREADS + static_cast<int>(thread_x())) * kVector;
    }
    DEVICE float* numbers(int owner, int sender) const {
        const u64 half = static_cast<u64>(call % 2) * a.peers.ranks;
        return static_cast<float*>(a.peers.inboxes[owner]) + (half + sender) * a.peers.room;
    }
    DEVICE uint32_t* flag(int owner, int sender) const {
        return arrived(a.peers, owner, sender) + number;
    }

    // All threads must call.
    DEVICE void send() const {
        UNROLL
        for (int i = 0; i < kItems; ++i) {
            if (element(i) >= a.count) continue;
            const u32x4 own = load<u32x4>(a.x + element(i));
            for (int rank = 0; rank < a.peers.ranks; ++rank) {
                if (rank == a.peers.rank) continue;
                *reinterpret_cast<u32x4*>(numbers(rank, a.peers.rank) + element(i)) = own;
            }
        }
        publish();
        if (thread_x() != 0) return;
        for (int rank = 0; rank < a.peers.ranks; ++rank) {
            if (rank != a.peers.rank) store_shared(flag(rank, a.peers.rank), call);
        }
    }

    // All threads must call.
    DEVICE void add() const {
        if (thread_x() == 0) {
            bool whole = true;
            for (int rank = 0; rank < a.peers.ranks && whole; ++rank) {
                if (rank == a.peers.rank) continue;
                const uint32_t* const arrived = flag(a.peers.rank, rank);
                whole = wait_for(a.peers, [&] {  // the other one may be a call ahead
                    return static_cast<int32_t>(load_shared(arrived) - call) >= 0;
                });
            }
        }
        take_over();
        UNROLL
        for (int i = 0; i < kItems; ++i) {
            if (element(i) >= a.count) continue;
            float sum[kVector] = {};
            for (int rank = 0; rank < a.peers.ranks; ++rank) {
                const bool own = rank == a.peers.rank;
                float part[kVector];
                load_floats((own ? a.x : numbers(a.peers.rank, rank)) + element(i), part);
                UNROLL
                for (int j = 0; j < kVector; ++j) sum[j] = rank == 0 ? part[j] : sum[j] + part[j];
            }
            store_floats(a.x + element(i), sum);
        }
    }
};

KERNEL(all_reduce_chunks, AllReduceChunksArgs, THREADS) {
    SHARED uint32_t word;
    const int chunks = (a.count + CHUNK - 1) / CHUNK;
    const int step = a.blocks;
    const uint32_t call = a.peers.calls[0] + 1;
    int number = block_x();
    if (number < chunks) Chunk(a, number, call).send();
    for (; number < chunks; number += step) {
        if (number + step < chunks) Chunk(a, number + step, call).send();
        Chunk(a, number, call).add();
    }
    end_call(a.peers, call, a.blocks, &word);
}
