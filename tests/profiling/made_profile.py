"""A profile made by hand, as of a GPU, for the tests of what is written from one.

Its numbers are simple and its names are hostile: markup, quotes, a script's end, a lone surrogate.
"""

from __future__ import annotations

from rocmforge.kv.page_use import PageUse
from rocmforge.plan.protocols import ExecutorMemory
from rocmforge.profiling.gpu_environment import GpuEnvironment, Spread
from rocmforge.profiling.launches import Recommendation
from rocmforge.profiling.memory import DeviceMemory, KvMemory, MemoryProfile
from rocmforge.profiling.monitor import Look, Monitored
from rocmforge.profiling.profile import (
    VERSION,
    Ceiling,
    Device,
    FirstToken,
    Kernel,
    Model,
    Op,
    Part,
    Phase,
    Profile,
    Settings,
    Span,
    Verdict,
)
from rocmforge.profiling.run_environment import RunEnvironment
from rocmforge.profiling.timer import Times

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'\udc80\x00.gguf"
HOSTILE_OP = "]]><b onclick='alert(2)'>op</b>"
NAN = float("nan")


def look(seconds: float, power: float | None) -> Look:
    return Look(seconds, 1500.0, None, power, 61.0, 0.5, 2**30, None, ())


def op(label: str, seconds: float, share: float, nbytes: int, flops: int, ideal: float) -> Op:
    kernel = Kernel(f"kernel_of_{label}", "kernels/matmul.hip", 128, 256)
    return Op(label, 32, seconds, share, nbytes, flops, nbytes, 0, "int8", ideal, (kernel,))


def phase(name: str, seconds: float, ops: tuple[Op, ...]) -> Phase:
    assert name in ("prefill", "decode")
    times = Times(320, 0.003, 9.4e-6, 5e-6, 3e-5, 9e-6, 1.2e-5, 2.5e-5)
    return Phase(
        name=name,  # type: ignore[arg-type]
        tokens=100,
        passes=1,
        seconds=seconds,
        parts=(
            Part("prepare", "preparing inputs (host)", seconds / 4),
            Part("wait", "waiting for the device", 3 * seconds / 4, "the queue was <full>"),
        ),
        device_seconds=seconds,
        host_to_device_seconds=1e-5,
        device_to_host_seconds=None,
        ops=ops,
        unaccounted_seconds=-2e-5,
        ops_from="each op replayed alone",
        plain_seconds=seconds / 1.25,
        launches=times if name == "prefill" else None,
        graphs=None if name == "prefill" else times,
        recommendation=Recommendation("capture a graph", "A launch keeps `the host`."),
    )


def made_profile() -> Profile:
    """A prompt and its decode; each op's numbers give round rates."""
    prefill = phase(
        "prefill",
        0.010,
        (
            op("matmul_qkv", 0.008, 0.80, 8 * 10**7, 8 * 10**9, 0.004),  # 100 flop/B, 1000 GFLOP/s
            op("attention", 0.001, 0.10, 10**7, 10**8, 0.001),  # 10 flop/B, 100 GFLOP/s
            op("kv_append", 0.0005, 0.05, 10**6, 0, 0.0001),
        ),
    )
    decode = phase(
        "decode",
        0.100,
        (
            op(HOSTILE_OP, 0.080, 0.20, 8 * 10**9, 8 * 10**9, 0.060),  # 1 flop/B, 100 GFLOP/s
            op("idle", 0.0, 0.0, 10**6, 10**6, 0.0),
        ),
    )
    first = FirstToken(
        parts=(
            Part("load", "loading the model, once", 1.5),
            Part("tokenize", "text to tokens", 0.001),
            Part("host_to_device", "inputs to the device", None, "not measured <here>"),
            Part("prefill", "the rest of the prompt's pass", 0.009),
        ),
        seconds=0.010,
        load_seconds=1.5,
        cold_seconds=0.05,
        dominant="prefill",
        target_seconds=0.005,
        met=False,
        advice=("Take a shorter prompt.",),
    )
    gpu = GpuEnvironment(
        "hip:0", "sysfs", 2, Spread(1400, 1450, 1500), None, None, None, None, 1, ("power",), 0.0, 0
    )
    return Profile(
        version=VERSION,
        model=Model(HOSTILE, "llama", 4 * 10**9, 3 * 10**9, "Q4_K", 32),
        device=Device("hip:0", "Radeon <b>RX</b> & co", "gfx1100", 96),
        settings=Settings(100, 11, 0.005, 4096, "f16", 32, 512, None),
        environment=RunEnvironment(
            2.0, 1.0, 2, None, None, None, None, None, (gpu,), {"hip": "<7>"}
        ),
        first_token=first,
        phases=(prefill, decode),
        ceilings=(
            Ceiling("int8", 2e11, 2e12, 3 * 10**9),
            Ceiling("<half>", 2e11, 1e12, 3 * 10**9),
        ),
        spans=(
            Span("load", "request", 0.0, 1.5, "host"),
            Span("request", "request", 1.5, 0.2, "host"),
            Span("prefill", "phase", 1.5, 0.05, "host"),
            Span("broken", "op", NAN, 0.1, "device"),
            Span("pass", "pass", 1.51, 0.03, "device"),
            Span(HOSTILE_OP, "op", 1.51, 0.01, "device"),
            Span("matmul_qkv", "op", 1.52, 0.02, "device"),
            Span("endless", "op", 1.53, float("inf"), "device"),
            Span("backwards", "op", 1.53, -0.1, "device"),
            Span("pass", "pass", 1.535, 0.02, "device"),  # overlaps the one before
            Span("decode", "phase", 1.6, 0.1, "host"),
        ),
        spans_left_out=5,
        verdicts=(
            Verdict(
                "decode",
                "memory",
                "Decode is memory-bound; <i>it</i> reads.",
                ("It moves 100 GB/s.",),
                ("Try `rocmforge <b>`.",),
            ),
        ),
        remarks=("A remark & <more>.",),
        memory=MemoryProfile(
            streamed_bytes=0,
            weight_bytes=3 * 2**30,
            kv=KvMemory(2**30, 2**18, 2**13, 4096, PageUse(32, 128, 4, 1, 110, 0, 18, 1, 124)),
            executor=ExecutorMemory(2**20, 2**21, 2**12, 2**10, 2**16),
            device=DeviceMemory(10 * 2**30, 24 * 2**30),
            device_before=DeviceMemory(15 * 2**30, 24 * 2**30),
            host_bytes=2**30,
            host_peak_bytes=2**31,
            reasons={},
        ),
        monitor=Monitored(
            device="hip:0",
            source="sysfs",
            period_seconds=0.5,
            samples=(
                look(-0.25, 100.0),
                look(0.25, 200.0),
                look(0.75, None),
                look(1.25, NAN),
                look(1.75, 300.0),
            ),
            summary={},
            throttle=("power <cap>",),
            cpu_seconds=0.01,
            remarks=("A look <failed>.",),
        ),
    )
