"""Profiles a model on a device: one request and the tokens behind it, as they run.

`live.py` runs them. Here the model is loaded, and what was measured becomes a `Profile`.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocmforge.devices import chosen_devices
from rocmforge.engine import Engine
from rocmforge.env import SplitMode
from rocmforge.gguf.reader import GGUFFile
from rocmforge.hardware import detect, oversubscription
from rocmforge.kv import KvDtype
from rocmforge.loading import layers_off_gpus
from rocmforge.plan.observation import ObservedPass
from rocmforge.plan.protocols import Progress
from rocmforge.profiling.bottleneck import phase_verdict, shares_of
from rocmforge.profiling.launches import LaunchTracker, recommend
from rocmforge.profiling.live import Measured, measure, measurements
from rocmforge.profiling.monitor import DeviceMonitor, Monitored
from rocmforge.profiling.profile import (
    VERSION,
    Ceiling,
    Device,
    FirstToken,
    Model,
    Phase,
    Profile,
    Settings,
)
from rocmforge.profiling.run_environment import BUSY, RunEnvironment, Watch
from rocmforge.profiling.spans import spans_of
from rocmforge.profiling.telemetry import measure_ceilings
from rocmforge.profiling.ttft import TARGET_S, first_token, prompt_of
from rocmforge.profiling.turns import phase_of
from rocmforge.suggestions import longer_context
from rocmforge.text.tokenizer import Tokenizer

PROMPT_TOKENS, TOKENS = 512, 32
STAMPED = "a stamp around each op, in the pass"
EVENTS = "an event of the device after each op, in the pass"
ALONE = "each op replayed alone, for all layers in turn; the pass itself is one graph"
OBSERVER_COST = 0.05
"""What observing may cost; a profile says so where it costs more."""
STEADY = 0.8
"""Least of several read rates over the best, below which a profile doubts itself; and what reads
reach over what the ops of a phase moved."""


@dataclass(frozen=True)
class Options:
    """What to profile, and how.

    Parameters
    ----------
    path
        GGUF file.
    device, gpu_layers, split_mode, threads, ctx, kv_dtype, page_size, prefill_chunk
        As of `Engine.from_gguf`; all layers on one device.
    prompt_tokens
        At least 2; None: 512, or what the context leaves.
    tokens
        To generate, at least 1.
    target_seconds
        Wanted time to the first token.
    """

    path: str
    device: str | None = None
    threads: int | None = None
    ctx: int | None = None
    kv_dtype: KvDtype = "f16"
    page_size: int = 32
    prefill_chunk: int | None = None
    gpu_layers: int | Sequence[int] | None = None
    split_mode: SplitMode = "layer"
    prompt_tokens: int | None = None
    tokens: int = TOKENS
    target_seconds: float = TARGET_S


def profile_model(
    options: Options,
    loading: Progress | None = None,
    compiling: Progress | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Profile a model.

    Parameters
    ----------
    options
        What to run.
    loading, compiling
        As of `Engine.from_gguf`.
    progress
        Told after each measurement how many are done, and of how many.

    Raises
    ------
    ValueError
        The prompt and the tokens do not fit the context, an option is out of its range, or the
        model lies on several devices, or its weights are read from the host's memory.
    GGUFError, ModelError, DeviceError
        As of `Engine.from_gguf`.
    """
    _check(options)
    name = _device_name(options)
    watch = Watch()
    if name != "cpu":
        watch.add_gpu(name)
    with DeviceMonitor(name) as monitor:
        begin = time.perf_counter()
        tokenizer = Tokenizer.from_gguf(options.path)
        with _open(options, loading, compiling) as engine:
            loaded = time.perf_counter()
            prompt = prompt_of(tokenizer, _prompt_tokens(options, engine))
            counting = _Counting(progress, measurements(options.tokens) + 1)
            measured = measure(engine, tokenizer, prompt, options.tokens, counting.advance)
            seen, monitored, later = watch.end(), _shifted(monitor, begin), Watch()
            ceilings = _ceilings(engine, measured)
            around = _Around(begin, loaded, seen, monitored, later.end().others_share)
            counting.finish()
            return _profile(options, engine, prompt.tokens, measured, around, ceilings)


@dataclass(frozen=True)
class _Around:
    """What is known of the time around the measurements; the ceilings come after them."""

    begin: float
    loaded: float
    environment: RunEnvironment
    monitored: Monitored
    others_at_ceilings: float | None


class _Counting:
    """Counts measurements, for a bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Where each request takes long, there were fewer than could be."""
        self._done = self._total - 1
        self.advance()


def _open(options: Options, loading: Progress | None, compiling: Progress | None) -> Engine:
    return Engine.from_gguf(
        options.path,
        options.device,
        gpu_layers=options.gpu_layers,
        split_mode=options.split_mode,
        ctx=options.ctx,
        threads=options.threads,
        kv_dtype=options.kv_dtype,
        page_size=options.page_size,
        prefill_chunk=options.prefill_chunk,
        progress=loading,
        compile_progress=compiling,
    )


def _device_name(options: Options) -> str:
    """Name the device; a model on several is refused, which no one roofline fits."""
    left = layers_off_gpus(options.path, options.gpu_layers)
    if left and options.split_mode == "stream":
        raise ValueError(
            "profile: got split mode stream, wanted a model whose weights lie on its device: the "
            "verdict compares with the speed of that memory"
        )
    choices = chosen_devices(options.device)
    if options.gpu_layers == 0:
        choices = chosen_devices("cpu")
    names = [choice.name for choice in choices]
    if options.gpu_layers and left and choices[0].device is not None:
        names.insert(0, "cpu")
    if len(names) > 1:
        raise ValueError(
            f"profile: got a model on {', '.join(names)}, wanted one device, whose roofline the "
            "verdict needs; Engine.observed and Engine.timed_pass time the steps of each"
        )
    return names[0]


def _shifted(monitor: DeviceMonitor, begin: float) -> Monitored:
    """What a monitor has seen, on the time line of the spans."""
    found = monitor.result()
    by = monitor.began - begin
    samples = tuple(replace(look, seconds=look.seconds + by) for look in found.samples)
    return replace(found, samples=samples)


def _profile(
    options: Options,
    engine: Engine,
    prompt_tokens: int,
    measured: Measured,
    around: _Around,
    ceilings: tuple[Ceiling, ...],
) -> Profile:
    phases = _phases(engine, measured, options.tokens, prompt_tokens, ceilings)
    first = first_token(
        measured.request,
        load_seconds=around.loaded - around.begin,
        cold_seconds=measured.cold_seconds,
        target_seconds=options.target_seconds,
    )
    spans, left_out = spans_of(around.begin, around.loaded, measured.request, measured.turns)
    device = _device(engine)
    by_length = sorted(phases, key=lambda phase: -phase.seconds)
    doubts = _doubts(device, around, ceilings, phases)
    return Profile(
        version=VERSION,
        model=_model(options.path, engine),
        device=device,
        settings=_settings(options, engine, prompt_tokens),
        environment=around.environment,
        first_token=first,
        phases=phases,
        ceilings=ceilings,
        spans=spans,
        spans_left_out=left_out,
        verdicts=tuple(
            phase_verdict(phase, ceilings, device, around.environment.cpus, not doubts)
            for phase in by_length
        ),
        doubts=doubts,
        remarks=(*_remarks(phases, first), *around.monitored.remarks),
        memory=measured.memory,
        monitor=around.monitored,
    )


def _check(options: Options) -> None:
    if options.prompt_tokens is not None and options.prompt_tokens < 2:
        raise ValueError(f"prompt tokens: got {options.prompt_tokens}, wanted at least 2")
    if options.tokens < 1:
        raise ValueError(f"tokens: got {options.tokens}, wanted at least 1")
    if not 0 < options.target_seconds < math.inf:
        raise ValueError(f"target: got {options.target_seconds:g} s, wanted more than 0")


def _prompt_tokens(options: Options, engine: Engine) -> int:
    """How many tokens the prompt has; the last generated token needs no place in the context."""
    room = engine.ctx - (options.tokens - 1)
    wanted = options.prompt_tokens or max(2, min(PROMPT_TOKENS, room))
    if wanted > room:
        raise ValueError(
            f"context: got a prompt of {wanted} tokens and {options.tokens} to generate, "
            f"of which the model reads {wanted + options.tokens - 1}, wanted at most {engine.ctx}; "
            f"{longer_context(engine.ctx, engine.config.ctx_train)}"
        )
    return wanted


def _ceilings(engine: Engine, measured: Measured) -> tuple[Ceiling, ...]:
    precisions = dict.fromkeys(measured.decode.precisions() + measured.prefill.precisions())
    seen = measured.decode if measured.turns else measured.prefill
    return measure_ceilings(engine.backend, tuple(precisions), seen.pass_bytes())


def _phases(
    engine: Engine,
    measured: Measured,
    tokens: int,
    prompt_tokens: int,
    ceilings: tuple[Ceiling, ...],
) -> tuple[Phase, ...]:
    name, alone = engine.backend.name, measured.step_seconds
    on_cpu = name == "cpu"
    passes = measured.prefill.passes
    copied = [
        sum(copy.seconds for seen in passes for copy in seen.copies if copy.name == way)
        for way in ("host_to_device", "device_to_host")
    ]
    prefill = phase_of(
        "prefill",
        prompt_tokens,
        [measured.request.turn],
        measured.prefill.summary(name, alone, ceilings),
        None if on_cpu else (copied[0], copied[1]),
        STAMPED if on_cpu else EVENTS,
        measured.plain_prefill,
    )
    prefill = _with_launches(prefill, passes)
    if not measured.turns:
        return (prefill,)
    copies = None
    if measured.copy_seconds is not None:
        there, back = measured.copy_seconds
        copies = there * len(measured.turns), back * len(measured.turns)
    decode = phase_of(
        "decode",
        tokens - 1,
        measured.turns,
        measured.decode.summary(name, alone, ceilings),
        copies,
        STAMPED if on_cpu else ALONE,
        measured.plain_decode,
    )
    return prefill, _with_launches(decode, measured.decode.passes)


def _with_launches(phase: Phase, passes: Sequence[ObservedPass]) -> Phase:
    """Add what launching cost the host; nothing on a CPU, which launches nothing."""
    tracker = LaunchTracker()
    for seen in passes:
        tracker(seen)
    launches, graphs = tracker.summary(), tracker.graphs()
    if launches is None and graphs is None:
        return phase
    told = recommend(launches, graphs)
    return replace(phase, launches=launches, graphs=graphs, recommendation=told)


def _device(engine: Engine) -> Device:
    backend: Any = engine.backend
    if backend.name == "cpu":
        name = detect().cpu_name or "unknown CPU"
        return Device("cpu", name, str(backend.isa), int(backend.threads))
    found = backend.kernels.runtime.properties
    device = f"{backend.name}:{found.index}"
    return Device(device, found.name, found.architecture, found.compute_units)


def _model(path: str, engine: Engine) -> Model:
    weights: Counter[str] = Counter()
    with GGUFFile(path) as file:
        for info in file.tensors.values():
            weights[info.format.name] += math.prod(info.shape)
    return Model(
        path=path,
        architecture=engine.config.architecture,
        file_bytes=os.path.getsize(path),
        weight_bytes=engine.weight_bytes,
        format=weights.most_common(1)[0][0],
        layers=engine.config.n_layers,
    )


def _settings(options: Options, engine: Engine, prompt_tokens: int) -> Settings:
    return Settings(
        prompt_tokens=prompt_tokens,
        tokens=options.tokens,
        target_seconds=options.target_seconds,
        ctx=engine.ctx,
        kv_dtype=options.kv_dtype,
        page_size=options.page_size,
        prefill_chunk=engine.prefill_chunk,
        threads=_device(engine).compute_units if engine.backend.name == "cpu" else None,
    )


def _doubts(
    device: Device,
    around: _Around,
    ceilings: Sequence[Ceiling],
    phases: Sequence[Phase],
) -> tuple[str, ...]:
    """Say what disturbed the measurements so much that a verdict may be wrong."""
    found = []
    others, cpus = around.environment.others_share, around.environment.cpus
    if others is not None and others > BUSY:
        found.append(f"Other processes used {others:.0%} of the CPUs: times are too long.")
    others = around.others_at_ceilings if device.name == "cpu" else None
    if others is not None and others > BUSY:
        found.append(
            f"Other processes used {others:.0%} of the CPUs while the roofline was measured: it "
            "may be too low."
        )
    oversubscribed = oversubscription(device.compute_units, cpus) if device.name == "cpu" else None
    if oversubscribed is not None:
        found.append(f"{oversubscribed}: take `--threads {cpus}`.")
    least = min((ceiling.least_read for ceiling in ceilings), default=1.0)
    if least < STEADY:
        found.append(
            "The read rate of this device was measured more than once, and the least was "
            f"{least:.0%} of the best, which the roofline has. Run it again on a quiet machine."
        )
    for phase in phases:
        reached = shares_of(phase, ceilings, device).memory
        if reached is not None and reached > 1 / STEADY:
            found.append(
                f"The ops of {phase.name} moved {reached:.1f} times what reads of the same size "
                "reached afterwards, so the roofline is too low. Run it again on a quiet machine."
            )
    return tuple(found)


def _remarks(phases: tuple[Phase, ...], first: FirstToken) -> list[str]:
    found = []
    for phase in phases:
        cost = phase.observer_cost
        if cost is not None and cost > OBSERVER_COST:
            found.append(
                f"The observed passes of {phase.name} took {cost:.0%} longer than plain ones, from "
                "observing or from how much passes differ: its parts are that much too long."
            )
    if first.cold_seconds > 1.2 * first.seconds:
        found.append(
            f"The first request after loading took {first.cold_seconds / first.seconds:.1f} times "
            "as long: it fills caches and touches new memory."
        )
    return found
