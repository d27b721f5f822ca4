// all_reduce: x = the sum of all ranks' x, for few numbers (decode), and where NORMED is 1 the
// RMSNorm of x but for a factor of each row, as matmul_rmsnorm writes it.
//
//   x        (T, K) float, in place; rank 0's is added first, so all ranks get the same bits
//   norm     (K,) float
//   normed   (T, K) Q8: x * norm, aligned to 16
//   squares  (T, K / 32) float: the sums of x^2 of each group of 32 columns
//
// A thread takes one element. The words and their inbox: peers.h.
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
    const Words words(peers);
    const float own = present ? a.x[at] : 0.0f;
    if (present) words.send(at, own);
    block_sync();  // on a CPU a thread would else wait before others have sent
    float sum = 0.0f;
    bool whole = true;
    for (int rank = 0; rank < peers.ranks; ++rank) {
        float part = own;
        if (rank != peers.rank && present) whole = whole && words.receive(rank, at, &part);
        sum = rank == 0 ? part : sum + part;
    }
    if (!whole) sum = 0.0f;  // a device has failed: nobody reads this
    words.end();
    if (present) a.x[at] = sum;
    if constexpr (NORMED) {
        const float squares = wave_sum<kGroup>(sum * sum);
        if (present && at % kGroup == 0) a.squares[at / kGroup] = squares;
        const float normed[1] = {sum * norm};
        store_as<Dtype::Q8>(a.normed, at, normed, present);
    }
}
