"""What all suites share: devices, the check before timing, sampling, the models of `inference`.

asv runs every combination of parameters in a process of its own and calls `setup` before every
timed call: whatever is heavy is made once per process by functions under `functools.cache`. Such a
process may be forked off one that has imported all suites: an import starts no thread and opens no
device. Where ROCMFORGE_CONDITIONS names a folder, each leaves there what surrounded it and the
worst error that it found. Holds no benchmark itself.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rocmforge.backend import Backend

from rocmforge import env
from rocmforge.bench.run_environment import write_report
from rocmforge.demo import demo_model
from rocmforge.devices import default_device, open_backend
from rocmforge.engine import Engine
from rocmforge.gpu.backend import GpuBackend
from rocmforge.model.synthetic import cached_model
from rocmforge.profiling.roofline import Peaks, measure_peaks
from rocmforge.profiling.run_environment import Watch
from rocmforge.testing import cached_reference_logits, check_close
from rocmforge.timing import seconds_per_call

DEVICES = ("cpu", "gpu")
ROUNDS = 2  # fresh processes whose samples are pooled

GENERATED = {
    "0.5B-Q4_K_M": ("0.5B", "Q4_K_M"),
    "1.1B-Q4_K_M": ("1.1B", "Q4_K_M"),
    "tiny-Q4_K_M": ("tiny", "Q4_K_M"),
}
"""Models that the suite makes for itself: name → preset and mix. `tiny` is for the tests."""

USER_MODEL = env.test_model()
DEMO = "demo-Q8_0"  # the trained model that comes with the package
MODELS = tuple(
    dict.fromkeys(["0.5B-Q4_K_M", "1.1B-Q4_K_M", DEMO, *([USER_MODEL.stem] if USER_MODEL else [])])
)
"""What `inference` runs; the user's own model is one more value, named after its file."""

CHECK_IDS = tuple(3 + (7 * i * i + 11 * i) % 250 for i in range(67))
CHECK_LENGTHS = (64, 37, 9, 2)  # prompts: beginnings of CHECK_IDS, over one to three pages
CHECK_STEPS = 3  # decode steps of all of them together
CHECK_CTX = 256  # has room for them
SHORTEST_WATCH_S = 0.25  # the kernel counts CPU time in ticks of 10 ms
TIMES_IDEAL = "times ideal"
"""Unit of `inverse_roofline_fraction`."""
LOGITS_TOLERANCE = 0.08  # activations rounded to int8 cost 0.02; llama.cpp's own distance is 0.06


@functools.cache
def device_name(device: str) -> str:
    """Turn a benchmark's parameter into a device of the engine.

    "gpu" is the one that ROCMFORGE_DEVICE names, or else the best.

    Raises
    ------
    NotImplementedError
        "gpu" where no GPU can be used: asv then shows n/a.
    """
    if device == "cpu":
        return "cpu"
    named = env.split_device(env.device())[0] in env.GPU_KINDS
    choice = default_device(None if named else "auto")
    if choice.device is None:
        raise NotImplementedError(choice.reason)
    name = f"{choice.kind}:{choice.device.index}"
    if _recorder is not None:
        _recorder.add_gpu(name)
    return name


def has_device(device: str) -> bool:
    """Whether benchmarks of that device run here rather than show n/a."""
    try:
        device_name(device)
    except NotImplementedError:
        return False
    return True


@functools.cache
def backend(device: str) -> Backend[Any]:
    """Return the backend of a device; NotImplementedError as `device_name`."""
    opened = open_backend(device_name(device))
    _opened[device] = opened
    return opened


_opened: dict[str, Backend[Any]] = {}  # asv runs one device a process


def clock() -> float:
    """Seconds for `timer` of benchmarks that call ops: of the GPU where one was opened, else ours.

    A GPU's are the device time of its kernels, between events, without copies from and to the host.
    """
    gpu = _opened.get("gpu")
    return gpu.device_seconds if isinstance(gpu, GpuBackend) else time.perf_counter()


class Timed:
    """How asv times the `time_` benchmarks of ops."""

    repeat = (4, 20, 1.0)  # fewest and most samples a process, seconds
    timer = staticmethod(clock)
    rounds = ROUNDS


def checked(
    what: str, call: Callable[[], np.ndarray], wanted: np.ndarray, tolerance: float
) -> Callable[[], np.ndarray]:
    """Run `call` once, compare with the reference, and return it for timing.

    The error is noted, and what surrounds the measurement counts from here on.

    Raises
    ------
    MeasurementError
        The result is wrong: the benchmark fails and records no time.
    """
    note_error(check_close(what, call(), wanted, tolerance))
    return call


class Recorder:
    """What this process will leave about itself: the worst error, and the conditions at its end.

    Conditions are those since the last error was noted, which comes before the timing: inputs and
    references are none of a measurement. Where too little time has passed since, those since the
    start of the process, and where even that is short, `write` waits: a tick of the kernel's clock
    must not pass for load.
    """

    def __init__(self, folder: Path, benchmark: str, index: int | None) -> None:
        self.folder, self.benchmark, self.index = folder, benchmark, index
        self.error: float | None = None
        self._whole, self._timed = Watch(), Watch()

    def add_gpu(self, device: str) -> None:
        """Watch a GPU from now on; call it before its first use."""
        self._timed.add_gpu(device)

    def note(self, error: float) -> None:
        """Keep the error if it is the worst, and begin anew with the conditions."""
        self.error = error if self.error is None else max(self.error, error)
        self._timed.restart()

    def write(self) -> None:
        """Leave the report."""
        short = self._timed.seconds < SHORTEST_WATCH_S
        conditions = self._timed.end()
        if short:
            time.sleep(max(0.0, SHORTEST_WATCH_S - self._whole.seconds))
            conditions = dataclasses.replace(self._whole.end(), gpus=conditions.gpus)
        report = dataclasses.asdict(conditions)
        write_report(self.folder, self.benchmark, self.index, self.error, report)


def measured_benchmark(argv: Sequence[str]) -> tuple[str, int | None] | None:
    """Read the benchmark and the index of its parameters from the arguments of asv's process.

    asv 0.6.6 runs ``benchmark.py run FOLDER NAME-INDEX …``, without the index where there are no
    parameters; other processes of asv, and other programs, measure nothing: None.
    """
    if len(argv) < 4 or Path(argv[0]).name != "benchmark.py" or argv[1] != "run":
        return None
    found = re.fullmatch(r"([\w.]+?)(?:-(\d+))?", argv[3])
    return (found[1], int(found[2]) if found[2] else None) if found else None


_recorder: Recorder | None = None


def _begin_recording(argv: Sequence[str]) -> Recorder | None:
    global _recorder
    folder, measured = env.conditions_dir(), measured_benchmark(argv)
    if folder is not None and measured is not None:
        _recorder = Recorder(folder, *measured)
    return _recorder


def _record_forks() -> None:
    """Record in each process that asv's fork server makes: they end without `atexit`.

    asv_runner 0.3.2 has no hook there: `_run` of its server is what a fork does.
    """
    from asv_runner import server

    run = server._run

    def recorded(arguments: Sequence[str]) -> None:
        recorder = _begin_recording(("benchmark.py", "run", *arguments))
        try:
            run(arguments)
        finally:
            if recorder is not None:
                recorder.write()

    server._run = recorded


if sys.argv[1:2] == ["run_server"]:
    _record_forks()
elif (_own := _begin_recording(sys.argv)) is not None:
    atexit.register(_own.write)


def note_error(value: float) -> None:
    """Note a relative error against the reference; for suites that check in their own way.

    Call it before timing: what surrounds the measurement counts from here on.
    """
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"error: got {value}, wanted a finite number of at least 0")
    if _recorder is not None:
        _recorder.note(value)


def track(samples: list[float]) -> dict[str, Any]:
    """Hand samples of our own to asv, which stores them with median and 99 % interval."""
    return {"samples": samples, "number": 1}


@functools.cache
def roofline(on: Backend[Any], working_set: int, case_flops: float, precision: str) -> Peaks:
    """Measure, once a process, what this device reaches at best.

    Parameters
    ----------
    on
        The backend that the case runs on.
    working_set
        Bytes that are read again and again: they may fit a cache.
    case_flops
        Operations of the case; 0 where it only moves bytes.
    precision
        "f32", "f16" or "int8": what its operations are.
    """
    return measure_peaks(on, max(working_set, 1), precision if case_flops else "f32")


def inverse_roofline_fraction(
    call: Callable[[], object],
    n_bytes: int,
    operations: float,
    device: str,
    precision: str,
    working_set: int | None = None,
) -> dict[str, Any]:
    """Time `call` in multiples of the least time that this device could take: lower is better.

    Peaks are measured in the same process, reads over the working set of the case, so that the
    figure compares cards, and machines at another clock; about 1 is all that there is. Peaks are
    the best of their samples and the figure's median is the middle of its own: other load on the
    machine can raise it, but hardly lower it.

    Parameters
    ----------
    call
        The work, checked.
    n_bytes, operations
        Of one call; multiply and add count as two.
    device
        "cpu" or "gpu".
    precision
        "f32", "f16" or "int8".
    working_set
        Bytes that calls read in turns; None: each reads its own `n_bytes` again.
    """
    peaks = roofline(backend(device), working_set or n_bytes, operations, precision)
    ideal = peaks.ideal_seconds(n_bytes, operations)
    return track([seconds / ideal for seconds in seconds_per_call(call, clock=clock)])


def model_path(name: str) -> Path:
    """Return a model's file, making it at first use; NotImplementedError where it is not there."""
    if USER_MODEL is not None and name == USER_MODEL.stem:
        if not USER_MODEL.is_file():
            raise NotImplementedError(f"ROCFORGE_TEST_MODEL: {USER_MODEL} is not a file")
        return USER_MODEL
    if name == DEMO:
        return demo_model()
    preset, mix = GENERATED[name]
    return cached_model(preset, mix)


def check_engine(engine: Engine, path: Path) -> None:
    """Compare prompts, and decode steps of them together, with the numpy reference.

    Raises
    ------
    MeasurementError
        The logits are wrong.
    """
    wanted = cached_reference_logits(path, CHECK_IDS)
    sequences = [engine.add_sequence() for _ in CHECK_LENGTHS]
    try:
        lengths = list(CHECK_LENGTHS)
        for sequence, n in zip(sequences, lengths, strict=True):
            got = engine.prefill(sequence, CHECK_IDS[:n])
            what = f"logits of {path.name}, prompt of {n}"
            note_error(check_close(what, got, wanted[n - 1], LOGITS_TOLERANCE))
        for _ in range(CHECK_STEPS):
            step = engine.decode(sequences, [CHECK_IDS[n] for n in lengths])
            for got, n in zip(step, lengths, strict=True):
                what = f"logits of {path.name}, decode at {n}"
                note_error(check_close(what, got, wanted[n], LOGITS_TOLERANCE))
            lengths = [n + 1 for n in lengths]
    finally:
        for sequence in sequences:
            engine.remove_sequence(sequence)


def open_engine(path: Path, device: str, ctx: int, **options: Any) -> Engine:
    """Load a model and check it; NotImplementedError where the device is not there.

    `options` are those of `Engine.from_gguf`.
    """
    engine = Engine.from_gguf(path, device_name(device), ctx=max(ctx, CHECK_CTX), **options)
    check_engine(engine, path)
    return engine
