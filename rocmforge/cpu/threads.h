// A pool of threads that share the items of one loop at a time.
//
// The caller works too, and waits for items, never for threads: a worker that the system has not
// scheduled yet costs nothing, it only finds nothing left to do. So a busy neighbour slows a loop
// to the speed of the remaining cores instead of stopping it at a barrier, and a forked child,
// which has no workers, still finishes its loops alone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

namespace rocmforge {

constexpr int64_t kPieceFloats = 1 << 14;  // of a rowwise op: what is worth another thread

class ThreadPool {
  public:
    using Body = void (*)(void* context, int64_t first, int64_t last);

    // `threads` counts the caller: threads - 1 workers are started.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(context, first, last) for pieces that cover 0..items, from any thread in any
    // order; returns when all are done. A piece is half of a thread's share of what is left, but no
    // less than `least` and no more than `most` items: long at first, short where threads would
    // wait for the last one. One caller at a time; fewer than 2^32 - 1 items.
    void run(int64_t items, int64_t least, int64_t most, Body body, void* context);

  private:
    void work();
    void end_workers();
    int64_t piece_at(int64_t item) const;
    bool take_piece();
    uint32_t wait_for_loop(uint32_t seen);

    // The loop in progress. `ticket_` is (loop number << 32 | next item); the other fields change
    // only while it is closed, so a ticket taken by compare-and-swap proves that they belong to it.
    std::atomic<uint64_t> ticket_;
    std::atomic<int64_t> items_{0}, least_{1}, most_{1}, done_{0};
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> context_{nullptr};

    std::atomic<uint32_t> loops_{0};  // workers sleep on it
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    pid_t owner_;
    std::vector<std::thread> workers_;
};

// Calls f(i) for i in 0..items on all threads of the pool, `least` to `most` of them at a time.
template <class Function>
void parallel_for(ThreadPool& pool, int64_t items, int64_t least, Function&& f,
                  int64_t most = std::numeric_limits<int64_t>::max()) {
    const auto body = [](void* context, int64_t first, int64_t last) {
        auto& function = *static_cast<std::remove_reference_t<Function>*>(context);
        for (int64_t i = first; i < last; ++i) function(i);
    };
    pool.run(items, least, most, body, &f);
}

}  // namespace rocmforge
