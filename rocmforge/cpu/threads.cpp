// The pool's workers: spin for the next loop while one is likely, then sleep. See threads.h.
#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace rocmforge {

namespace {

using Clock = std::chrono::steady_clock;

// Workers spin this long after a loop: it covers the caller's work between two ops of a decode
// step.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kPauses = 64;  // between two looks at the clock
constexpr uint64_t kClosed = 0xFFFFFFFFu;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : ticket_(kClosed), owner_(getpid()) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {  // the system grants no more threads
        end_workers();
        throw;
    }
}

ThreadPool::~ThreadPool() {
    end_workers();
}

void ThreadPool::end_workers() {
    stop_ = true;
    ++loops_;
    loops_.notify_all();
    for (std::thread& worker : workers_) {
        if (getpid() == owner_) {
            worker.join();
        } else {
            worker.detach();  // a forked child has the handles, not the threads
        }
    }
}

void ThreadPool::run(int64_t items, int64_t least, int64_t most, Body body, void* context) {
    if (items <= least || workers_.empty()) {
        if (items > 0) body(context, 0, items);
        return;
    }
    const uint64_t number = ((ticket_.load(std::memory_order_relaxed) >> 32) + 1) << 32;
    ticket_ = number | kClosed;
    items_ = items;
    least_ = least;
    most_ = most;
    body_ = body;
    context_ = context;
    done_ = 0;
    ticket_ = number;
    ++loops_;
    if (sleepers_ > 0) loops_.notify_all();

    while (take_piece()) {
    }
    // What is left is in the hands of workers; one of them may have lost its core to someone else.
    for (int spins = 0; done_.load(std::memory_order_acquire) < items; ++spins) {
        if (spins % (16 * kPauses) == 16 * kPauses - 1) {
            std::this_thread::yield();
        } else {
            pause();
        }
    }
    ticket_ = number | kClosed;
}

// How many items the piece that begins at `item` has.
int64_t ThreadPool::piece_at(int64_t item) const {
    const int64_t left = items_ - item, share = left / (2 * threads());
    return std::min(left, std::clamp<int64_t>(share, least_, most_));
}

// Does one piece of the open loop; false where there is none left.
bool ThreadPool::take_piece() {
    uint64_t ticket = ticket_;
    for (;;) {
        const auto first = static_cast<int64_t>(ticket & kClosed);
        if ((ticket & kClosed) == kClosed || first >= items_) return false;
        const int64_t taken = piece_at(first);
        const Body body = body_;
        void* const context = context_;
        if (ticket_.compare_exchange_weak(ticket, ticket + static_cast<uint64_t>(taken))) {
            body(context, first, first + taken);
            done_.fetch_add(taken, std::memory_order_release);
            return true;
        }
    }
}

void ThreadPool::work() {
    for (uint32_t seen = 0;;) {
        seen = wait_for_loop(seen);
        if (stop_) return;
        while (take_piece()) {
        }
    }
}

// Returns the number of loops started, once it differs from `seen`.
uint32_t ThreadPool::wait_for_loop(uint32_t seen) {
    const auto begin = Clock::now();
    do {
        for (int i = 0; i < kPauses; ++i) {
            const uint32_t now = loops_.load(std::memory_order_acquire);
            if (now != seen) return now;
            pause();
        }
        std::this_thread::yield();
    } while (Clock::now() - begin < kSpin);
    ++sleepers_;
    loops_.wait(seen);
    --sleepers_;
    return loops_;
}

}  // namespace rocmforge
