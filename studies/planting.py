"""Makes a commit slower by a known share, on the CPU and on a GPU.

On the CPU the ops and forward passes wait after each call. On a GPU a kernel of one thread follows
each launch, and keeps the device busy for a share of the time since the last one. Both are code
that is appended to source files. A commit with 0 percent is what a slower one is compared with: it
has the same additions, and they wait for nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from rocmforge.errors import MeasurementError

SLOWED = re.compile(
    r"((matmul|dequantize|attention|rows)\.\w+|inference\.(Prompt|Decode)"
    r"|(?!.*'gpu')(fusion\.(?!GateUp)|roofline\.)\w+|(?=.*'gpu')(fusion|steps)\.\w+)"
    r"\.(time|track)_(?!launch|activation)"
)
"""Benchmarks that a planted slowdown slows by all of it: calls of ops, and passes of a model.

On a GPU it slows the kernels that measure a roofline as well.
"""
HOST_PLACES = {
    "rocmforge/ops/api.py": "for name in ('matmul', 'dequantize', 'rmsnorm', 'rope', 'softmax', "
    "'swiglu', 'attention'):\n    globals()[name] = _slowed(globals()[name])\n",
    "rocmforge/cpu/executor.py": "HostExecutor.forward = _slowed(HostExecutor.forward)\n",
}
HOST_PLANT = """

def _slowed(call):
    from time import perf_counter

    def slow(*args, **more):
        begin = perf_counter()
        value = call(*args, **more)
        end = begin + {factor} * (perf_counter() - begin)
        while perf_counter() < end:
            pass
        return value

    return slow


"""
POOL = "rocmforge/cpu/threads.cpp"
SPIN = "constexpr auto kSpin = std::chrono::microseconds("
"""Where the pool says how long its threads stay awake: longer than what is planted in an op, or
waking them would come on top of it."""
LAUNCHES = "rocmforge/gpu/launch.py"
LAUNCH_PLANT = """

_waits = {}


def _waited(enqueue):
    def slow(self, runtime, stream=None):
        enqueue(self, runtime, stream)
        if id(runtime) in _waits:
            enqueue(_waits[id(runtime)], runtime, stream)

    return slow


Launch.enqueue = _waited(Launch.enqueue)
"""
KERNELS = "rocmforge/gpu/compiler.py"
KERNELS_PLANT = """

def _with_wait(make):
    def made(self, runtime, **more):
        from rocmforge.gpu.launch import _waits

        make(self, runtime, **more)
        state, wave = runtime.allocate(16), runtime.properties.wave_size
        runtime.fill(state, 0, 16)
        runtime.synchronize()
        values = "Pi", state, {permille}
        _waits[id(runtime)] = self.launch("wait.hip", "wait", None, (1, 1, 1), wave, *values)

    return made


Kernels.__init__ = _with_wait(Kernels.__init__)
"""
WAIT = "kernels/wait.hip"
WAIT_KERNEL = """\
// wait: keeps the device busy for `permille` / 1000 of the time since the last wait ended.
//
//   state  (2,): when that was, in ticks of the device's clock; thousandths of ticks still owed
//
// What a coarse clock waits too long is taken off the next wait. Times in which the device idled
// are left out. Threads: one of a wave does it all. Grid (1).
#include "device.h"
#if defined(ROCMFORGE_HOST)
#include <chrono>
#endif

struct WaitArgs {
    long long* state;
    int permille;
};

DEVICE long long ticks() {
#if defined(ROCMFORGE_HOST)
    return std::chrono::steady_clock::now().time_since_epoch().count();
#elif defined(ROCMFORGE_CUDA)
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
#else
    return static_cast<long long>(__builtin_readsteadycounter());
#endif
}

#if defined(ROCMFORGE_AMD)
constexpr long long kIdle = 1000000;  // 10 ms at 100 MHz
#else
constexpr long long kIdle = 10000000;  // 10 ms in ns
#endif
constexpr long long kTick = kIdle / 5000;  // 2 us: no clock is coarser

KERNEL(wait, WaitArgs, WAVE) {
    if (thread_x() != 0) return;
    const long long begin = ticks(), passed = begin - a.state[0];
    long long owed = a.state[1];
    if (passed < kIdle) owed += passed * a.permille;
    long long end = begin;
    while ((end - begin) * 1000 < owed) end = ticks();
    const long long rest = owed - (end - begin) * 1000;
    a.state[1] = rest < -kTick * 1000 ? -kTick * 1000 : rest;
    a.state[0] = end;
}
"""


def plant(tree: Path, percent: float) -> None:
    """Have the ops and passes in a source tree take so many percent longer, 0 or more.

    Raises
    ------
    MeasurementError
        The thread pool there does not say how long it stays awake.
    """
    for name, ending in HOST_PLACES.items() if percent else ():
        _append(tree / name, HOST_PLANT.format(factor=1 + percent / 100) + ending)
    _append(tree / LAUNCHES, LAUNCH_PLANT)
    _append(tree / KERNELS, KERNELS_PLANT.format(permille=round(10 * percent)))
    (tree / WAIT).write_text(WAIT_KERNEL, encoding="utf-8")
    pool = (tree / POOL).read_text(encoding="utf-8")
    if SPIN not in pool:
        raise MeasurementError(f"{tree / POOL}: wanted {SPIN!r} in it")
    (tree / POOL).write_text(pool.replace(SPIN, SPIN + "20 * "), encoding="utf-8")


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
