// Fibers, block barriers and wave exchanges. Every fiber has a pooled stack with a guard page;
// a fiber that has to wait switches straight to the next that is ready.
// It knows no HIP and no kernel.
#include "fibers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#if defined(STANDIN_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace standin {
namespace {

#if defined(STANDIN_ASAN)
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;
#endif

constexpr unsigned kRing = 1024;  // as many as threads of a block at most
// Stacks begin at different cache lines; else they would push each other out of the cache.
constexpr unsigned kColours = 64, kLine = 64;

enum class State { kReady, kBarrier, kExchange, kDone };

struct Context {
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t machine;
#endif
    // For AddressSanitizer, which has to know on which stack we are.
    void* fake_stack;
    const void* bottom;
    size_t bytes;
};

struct Fiber {
    Context context;
    ThreadIndex index;
    State state;
    unsigned source;  // lane whose value an exchange gives
};

// Two sets of values: lanes that are ahead write the next exchange's while others read the last's.
struct Wave {
    uint64_t values[2][64];
    unsigned arrived, parity, lanes;
};

struct Block {
    const BlockRun* run;
    std::vector<Fiber> fibers;
    std::vector<Wave> waves;
    unsigned ready[kRing];  // numbers of fibers, between head and tail
    unsigned head, tail, wave_shift;
    unsigned arrived, done;
    Fiber* current;
    Context host;
};

// What runs the blocks of one device: devices run at the same time, each on a thread.
struct Runner {
    Block block;
    std::vector<char*> stacks;
};
Runner runners[kMostDevices];
thread_local Runner* runner = nullptr;

char* stack_of(unsigned index) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<char*>& stacks = runner->stacks;
    while (stacks.size() <= index) {
        void* memory = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        mprotect(memory, page, PROT_NONE);
        stacks.push_back(static_cast<char*>(memory) + page);
    }
    return stacks[index];
}

void fiber_main();

#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 4
    .type standin_switch, @function
standin_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size standin_switch, .-standin_switch
)");
extern "C" void standin_switch(void** save, void* load);

void prepare(Context& context, char* stack, unsigned thread) {
    void** top = reinterpret_cast<void**>(stack + kStackBytes - thread % kColours * kLine);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
}
void switch_machine(Context& from, Context& to) {
    standin_switch(&from.stack_pointer, to.stack_pointer);
}
#else
void prepare(Context& context, char* stack, unsigned thread) {
    getcontext(&context.machine);
    context.machine.uc_stack.ss_sp = stack;
    context.machine.uc_stack.ss_size = kStackBytes - thread % kColours * kLine;
    context.machine.uc_link = nullptr;
    makecontext(&context.machine, fiber_main, 0);
}
void switch_machine(Context& from, Context& to) {
    swapcontext(&from.machine, &to.machine);
}
#endif

// `last`: the fiber that is left has ended.
void switch_to(Context& from, Context& to, [[maybe_unused]] bool last = false) {
#if defined(STANDIN_ASAN)
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.bytes);
    switch_machine(from, to);
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#else
    switch_machine(from, to);
#endif
}

unsigned thread_of(const Fiber& fiber) {
    return fiber.index.thread.x;
}

// Leaves the current fiber for the next ready one, or for the host where there is none.
void leave(bool last = false) {
    Block& block = runner->block;
    Fiber& from = *block.current;
    if (block.head == block.tail) {
        switch_to(from.context, block.host, last);
        return;
    }
    Fiber& next = block.fibers[block.ready[block.head++ % kRing]];
    block.current = &next;
    switch_to(from.context, next.context, last);
}

void fiber_main() {
    Block& block = runner->block;
#if defined(STANDIN_ASAN)
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (block.host.bottom == nullptr) {  // the first fiber comes from the host's stack
        block.host.bottom = bottom;
        block.host.bytes = bytes;
    }
#endif
    block.run->kernel(block.run->arguments);
    block.current->state = State::kDone;
    ++block.done;
    leave(true);
    abort();  // nobody resumes a fiber that has ended
}

const ThreadIndex* self() {
    return &runner->block.current->index;
}

// Wakes those of [first, first + count) that wait, the others than the caller. They go on before
// all that are ready, so that a wave runs up to a block barrier while its stacks are in the cache.
void wake_others(unsigned first, unsigned count) {
    Block& block = runner->block;
    for (unsigned i = 0; i < count; ++i) {
        const unsigned thread = first + (block.run->reverse ? i : count - 1 - i);
        Fiber& fiber = block.fibers[thread];
        if (&fiber == block.current) continue;
        fiber.state = State::kReady;
        block.ready[--block.head % kRing] = thread;
    }
}

void block_barrier() {
    Block& block = runner->block;
    if (++block.arrived == block.run->threads) {
        block.arrived = 0;
        wake_others(0, block.run->threads);
        return;
    }
    block.current->state = State::kBarrier;
    leave();
}

uint64_t exchange(uint64_t value, unsigned source) {
    Block& block = runner->block;
    Fiber& fiber = *block.current;
    const unsigned thread = thread_of(fiber), index = thread >> block.wave_shift;
    const unsigned lanes_mask = (1u << block.wave_shift) - 1;
    Wave& wave = block.waves[index];
    const unsigned parity = wave.parity;
    wave.values[parity][thread & lanes_mask] = value;
    if (++wave.arrived == wave.lanes) {
        wave.arrived = 0;
        wave.parity ^= 1;
        wake_others(index << block.wave_shift, wave.lanes);
    } else {
        fiber.state = State::kExchange;
        leave();
    }
    return wave.values[parity][source & lanes_mask];
}

std::string describe(const char* where, State state, std::string& text) {
    unsigned count = 0, example = 0;
    for (const Fiber& fiber : runner->block.fibers) {
        if (fiber.state == state) {
            if (count++ == 0) example = thread_of(fiber);
        }
    }
    if (count) {
        text += (text.empty() ? "" : ", ") + std::to_string(count) + " threads " + where +
                " (the first is " + std::to_string(example) + ")";
    }
    return text;
}

}  // namespace

const HostInterface kHostInterface = {self, block_barrier, exchange};

std::string run_block(const BlockRun& run) {
    runner = &runners[run.device];
    Block& block = runner->block;
    const unsigned threads = run.threads, size = run.wave_size;
    block.run = &run;
    block.fibers.resize(threads);
    block.wave_shift = size == 64 ? 6 : 5;
    block.waves.resize((threads + size - 1) / size);
    block.head = block.tail = block.arrived = block.done = 0;
    block.host = {};
    for (unsigned w = 0; w < block.waves.size(); ++w) {
        Wave& wave = block.waves[w];
        wave.arrived = wave.parity = 0;
        wave.lanes = threads - w * size < size ? threads - w * size : size;
    }
    for (unsigned i = 0; i < threads; ++i) {
        const unsigned t = run.reverse ? threads - 1 - i : i;
        Fiber& fiber = block.fibers[t];
        char* stack = stack_of(t);
        fiber.index = {{t, 0, 0}, run.block, run.grid};
        fiber.context = {};
        fiber.context.bottom = stack;
        fiber.context.bytes = kStackBytes;
#if defined(STANDIN_ASAN)
        __asan_unpoison_memory_region(stack, kStackBytes);
#endif
        prepare(fiber.context, stack, t);
        fiber.state = State::kReady;
        block.ready[block.tail++ % kRing] = t;
    }
    block.current = &block.fibers[block.ready[block.head++ % kRing]];
    switch_to(block.host, block.current->context);
    if (block.done == threads) return {};
    std::string text;
    describe("wait at a block barrier", State::kBarrier, text);
    describe("wait in a wave operation", State::kExchange, text);
    describe("have returned", State::kDone, text);
    return text;
}

}  // namespace standin
