// all_gather: x = the columns of all ranks side by side, for a product whose rows they share.
//
//   part     (T, V_r) float: those of this rank, V_r = V * (r + 1) / ranks - V * r / ranks
//   x        (T, V) float
//
// A thread takes the same column of every rank's part, in its row. The words and their inbox:
// peers.h. Where a part is one column narrower than another one, a word without meaning is sent.
// Grid (ceil(count / THREADS)). The launches of all ranks wait for each other: they must be able to
// run at the same time.
// Limits: count at most the room, T * the widest V_r below 2^31.
// Launched by rocmforge/gpu/ops/all_gather.py.
#include "device.h"
#include "peers.h"

struct AllGatherArgs {
    const float* part;
    float* x;
    int first;    // element of (T, the widest V_r) that the first thread takes
    int count;    // from there on
    int columns;  // V
    Peers peers;
};

// Where the part of a rank begins.
DEVICE int begin_of(int columns, int rank, int ranks) {
    return static_cast<int>(static_cast<u64>(columns) * rank / ranks);
}

KERNEL_AHEAD(all_gather, AllGatherArgs, THREADS) {
    const int at = block_x() * THREADS + thread_x();
    const bool present = at < a.count;
    const Peers& peers = a.peers;
    const int ranks = peers.ranks;
    const int widest = (a.columns + ranks - 1) / ranks;
    const int row = (a.first + at) / widest, column = (a.first + at) % widest;
    await_earlier();
    const Words words(peers);
    const auto place = [&](int rank, int* width) {
        const int begin = begin_of(a.columns, rank, ranks);
        *width = begin_of(a.columns, rank + 1, ranks) - begin;
        return static_cast<u64>(row) * a.columns + begin + column;
    };
    int width = 0;
    const u64 to = place(peers.rank, &width);
    const bool owns = present && column < width;
    const float own = owns ? a.part[static_cast<u64>(row) * width + column] : 0.0f;
    if (present) words.send(at, own);
    if (owns) a.x[to] = own;
    block_sync();  // on a CPU a thread would else wait before others have sent
    for (int rank = 0; rank < ranks && present; ++rank) {
        if (rank == peers.rank) continue;
        float number = 0.0f;
        if (!words.receive(rank, at, &number)) break;  // a device has failed: nobody reads this
        const u64 from = place(rank, &width);
        if (column < width) a.x[from] = number;
    }
    words.end();
}
