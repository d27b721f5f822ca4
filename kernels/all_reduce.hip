// all_reduce: x = the sum of all ranks' x, for few numbers (decode), and where NORMED is 1 the
// RMSNorm of x but for a factor of each row, as matmul_rmsnorm writes it.
//
//   x        (T, K) float, in place; rank 0's is added first, so all ranks get the same bits
//   norm     (K,) float
//   normed   (T, K) Q8: x * norm, aligned to 16
//   squares  (T, K / 32) float: the sums of x^2 of each group of 32 columns
//
// A number travels in one word with the number of the call: who sees the call's number has the
// number too, and nothing has to be ordered. A thread takes one element, and a block the same place
// of the inbox in every call.
//   inbox    (2, ranks, room) u64 of each rank: odd and even calls, by sender
//   calls    (blocks,): in how many each block has been
// Grid (ceil(T * K / THREADS)). The launches of all ranks wait for each other: they must be able to
// run at the same time.
// Limits: T * K at most the room; K a multiple of 32 where NORMED is 1.
// Launched by rocmforge/gpu/ops/all_reduce.py.
#include "output.h"
#include "peers.h"

#if !defined(NORMED)
#error "NORMED (0 or 1) has to be passed by the build"
#endif

struct AllReduceArgs {
    float* x;
    const float* norm;
    Output normed;
    float* squares;
    int count;    // T * K
    int columns;  // K
    Peers peers;
};

KERNEL_AHEAD(all_reduce, AllReduceArgs, THREADS) {
    const int at = block_x() * THREADS + thread_x();
    const bool present = at < a.count;
    float norm = 0.0f;
    if constexpr (NORMED) norm = present ? a.norm[at % a.columns] : 0.0f;
    await_earlier();
    const Peers& peers = a.peers;
    const uint32_t call = peers.calls[block_x()] + 1;
    const float own = present ? a.x[at] : 0.0f;
    const u64 half = static_cast<u64>(call % 2) * peers.ranks * peers.room;
    const u64 word = static_cast<u64>(call) << 32 | bit_cast<uint32_t>(own);
    for (int rank = 0; rank < peers.ranks; ++rank) {
        if (rank == peers.rank || !present) continue;
        u64* const inbox = static_cast<u64*>(peers.inboxes[rank]) + half;
        store_shared(inbox + static_cast<u64>(peers.rank) * peers.room + at, word);
    }
    block_sync();  // on a CPU a thread would else wait before others have sent
    const u64* const inbox = static_cast<const u64*>(peers.inboxes[peers.rank]) + half;
    float sum = 0.0f;
    bool whole = true;
    for (int rank = 0; rank < peers.ranks; ++rank) {
        float part = own;
        if (rank != peers.rank && present) {
            const u64* const from = inbox + static_cast<u64>(rank) * peers.room + at;
            u64 got = 0;
            whole = whole && wait_for(peers, [&] {
                        got = load_shared(from);
                        return static_cast<uint32_t>(got >> 32) == call;
                    });
            part = bit_cast<float>(static_cast<uint32_t>(got));
        }
        sum = rank == 0 ? part : sum + part;
    }
    if (!whole) sum = 0.0f;  // a device has failed: nobody reads this
    if (thread_x() == 0) peers.calls[block_x()] = call;
    if (present) a.x[at] = sum;
    if constexpr (NORMED) {
        const float squares = wave_sum<kGroup>(sum * sum);
        if (present && at % kGroup == 0) a.squares[at / kGroup] = squares;
        const float normed[1] = {sum * norm};
        store_as<Dtype::Q8>(a.normed, at, normed, present);
    }
}
