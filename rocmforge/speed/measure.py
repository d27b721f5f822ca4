"""Measures a model where it lies: each test warmed up, repeated, and set beside its roofline.

A test is a prompt ("pp512") or generated tokens ("tg128"), at a depth and with a number of
sequences, as in llama-bench. What cannot be measured here is a row with its reason.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from rocmforge import env
from rocmforge.cpu.backend import available_threads, instruction_sets
from rocmforge.devices import chosen_devices
from rocmforge.engine import Engine
from rocmforge.env import SplitMode
from rocmforge.errors import OutOfMemoryError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.hardware import detect
from rocmforge.loading import layers_off_gpus
from rocmforge.model.config import ModelConfig
from rocmforge.plan.protocols import Progress
from rocmforge.speed.ideal import (
    Matrices,
    matrices,
    measured_peaks,
    prefill_work,
    step_work,
)
from rocmforge.speed.sequences import Sequences

PAGE_SIZE = 32  # tokens in a page of the KV cache
WARM_STEPS = 5  # decode steps at least: a GPU makes the launches of a step, captures them later


@dataclass(frozen=True, order=True)
class SpeedTest:
    """One thing to measure: either a prompt, or generated tokens.

    Parameters
    ----------
    depth
        Tokens that each sequence holds before.
    batch
        Sequences that are decoded together; 1 of a prompt.
    prompt, generated
        Tokens of a repetition, in each sequence; one of the two is 0.
    """

    depth: int
    batch: int
    prompt: int
    generated: int

    @property
    def name(self) -> str:
        """As llama-bench writes it: pp512, tg128, tg128 @ d4096."""
        kind = f"pp{self.prompt}" if self.prompt else f"tg{self.generated}"
        return f"{kind} @ d{self.depth}" if self.depth else kind

    @property
    def length(self) -> int:
        """Most tokens of one sequence."""
        return self.depth + self.prompt + self.generated

    @property
    def pages(self) -> int:
        """Pages of the KV cache that it takes: whole ones for each sequence."""
        return self.batch * -(-self.length // PAGE_SIZE)

    @property
    def tokens(self) -> int:
        """Tokens of a repetition, in all sequences together."""
        return self.batch * (self.prompt + self.generated)


def speed_tests(
    prompts: Sequence[int], generated: Sequence[int], depths: Sequence[int], batches: Sequence[int]
) -> list[SpeedTest]:
    """Return every prompt and every number of generated tokens at every depth; 0 is none.

    Only generated tokens come in every batch: a prompt is of one sequence.
    """
    found = []
    for depth in depths:
        found += [SpeedTest(depth, 1, n, 0) for n in prompts if n]
        found += [
            SpeedTest(depth, batch, 0, n) for n, batch in itertools.product(generated, batches) if n
        ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Place:
    """Where a model is measured.

    Parameters
    ----------
    device
        As the engine names it: "cpu", "hip:0", "cpu+hip:0" of two; one that is not there as it was
        asked for.
    name
        What its maker calls it, of several with " + " between; None: it is not there.
    architecture
        Of a GPU; of the CPU its instruction set.
    threads
        Of the CPU; None on GPUs alone.
    gpu_layers
        Of a model that lies on the CPU or in the host's memory too: how many layers do not; None of
        others.
    split_mode
        How devices share the model; None of one that has all of it.
    """

    device: str
    name: str | None = None
    architecture: str | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    split_mode: SplitMode | None = None


@dataclass(frozen=True)
class Speed:
    """What a test showed.

    Parameters
    ----------
    test, place
        What was measured, and where.
    seconds
        Of each repetition; empty: it was not measured.
    ideal_seconds
        Least time of a repetition by the device's roofline; None: not known, as of several devices.
    read_bytes_per_second, operations_per_second
        That roofline, measured just after the repetitions.
    reason
        Why it was not measured.
    """

    test: SpeedTest
    place: Place
    seconds: tuple[float, ...] = ()
    ideal_seconds: float | None = None
    read_bytes_per_second: float | None = None
    operations_per_second: float | None = None
    reason: str | None = None

    @property
    def rates(self) -> list[float]:
        """Tokens/s of each repetition, all sequences together, lowest first."""
        return sorted(self.test.tokens / seconds for seconds in self.seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Median of `rates`; None where nothing was measured."""
        return statistics.median(self.rates) if self.seconds else None

    @property
    def time_over_ideal(self) -> float | None:
        """Median time over the least time; None where either is not known."""
        if not self.seconds or self.ideal_seconds is None:
            return None
        return statistics.median(self.seconds) / self.ideal_seconds

    def row(self) -> dict[str, Any]:
        """Return everything as one flat object of JSON's types; None is not known."""
        rates, middle = self.rates, self.tokens_per_second
        return {
            "device": self.place.device,
            "device_name": self.place.name,
            "device_architecture": self.place.architecture,
            "threads": self.place.threads,
            "gpu_layers": self.place.gpu_layers,
            "split_mode": self.place.split_mode,
            "test": self.test.name,
            "n_prompt": self.test.prompt,
            "n_gen": self.test.generated,
            "n_depth": self.test.depth,
            "batch": self.test.batch,
            "tokens_per_second": middle,
            "tokens_per_second_min": rates[0] if rates else None,
            "tokens_per_second_max": rates[-1] if rates else None,
            "ms_per_token": None if middle is None else 1e3 / middle,
            "time_over_ideal": self.time_over_ideal,
            "ideal_seconds": self.ideal_seconds,
            "read_bytes_per_second": self.read_bytes_per_second,
            "operations_per_second": self.operations_per_second,
            "samples_seconds": list(self.seconds),
            "reason": self.reason,
        }


def measure(
    path: str | os.PathLike[str],
    device: str | None,
    threads: int | None,
    tests: Sequence[SpeedTest],
    repetitions: int,
    progress: Progress,
    loading: Progress,
    gpu_layers: int | None = None,
    split_mode: SplitMode = "layer",
) -> Iterator[Speed]:
    """Load a model and yield what each test shows, in their order but those that cannot run first.

    Parameters
    ----------
    path
        GGUF file.
    device, threads
        As of `Engine.from_gguf`.
    tests
        From `speed_tests`.
    repetitions
        Samples of each test, behind one that warms up.
    progress
        Called with the repetitions and fillings that are done and to do.
    loading
        Called with bytes loaded and to load.
    gpu_layers, split_mode
        As of `Engine.from_gguf`.

    Raises
    ------
    GGUFError, ModelError, DeviceError, ValueError
        As of `Engine.from_gguf`, but for a lack of memory, which is the reason of a row.
    """
    place = _place(path, device, gpu_layers, split_mode, threads)
    left = []
    for test in tests:
        reason = _too_much(path, place.device, test)
        if reason:
            yield Speed(test, place, reason=reason)
        else:
            left.append(test)
    while left:
        length = max(test.length for test in left)
        most = max(test.pages for test in left)
        try:
            engine = Engine.from_gguf(
                path,
                device,
                gpu_layers=gpu_layers,
                split_mode=split_mode,
                ctx=length,
                threads=threads,
                sequences=-(-most // -(-length // PAGE_SIZE)),
                page_size=PAGE_SIZE,
                whole_cache=True,
                progress=loading,
            )
        except (OutOfMemoryError, MemoryError) as error:
            for test in [test for test in left if test.pages == most]:
                left.remove(test)
                yield Speed(test, place, reason=str(error) or "out of memory")
            continue
        with engine:
            yield from _Run(engine, matrices(path), place, repetitions, progress).speeds(left)
        return


def lies_on_cpu(
    path: str | os.PathLike[str],
    device: str | None,
    gpu_layers: int | None,
    split_mode: SplitMode = "layer",
) -> bool:
    """Whether layers of a model lie on the CPU; arguments as of `measure`."""
    if chosen_devices(device)[0].device is None:
        return True
    return split_mode != "stream" and layers_off_gpus(path, gpu_layers) > 0


def streams(path: str | os.PathLike[str], gpu_layers: int | None, split_mode: SplitMode) -> bool:
    """Whether weights of a model stay in the host's memory; arguments as of `measure`."""
    return split_mode == "stream" and layers_off_gpus(path, gpu_layers) > 0


def _place(
    path: str | os.PathLike[str],
    device: str | None,
    gpu_layers: int | None,
    split_mode: SplitMode,
    threads: int | None,
) -> Place:
    """Of several devices, with all their names."""
    streamed = streams(path, gpu_layers, split_mode)
    choices = [] if gpu_layers == 0 and split_mode != "stream" else chosen_devices(device)
    gpus = [(choice.name, choice.device) for choice in choices if choice.device is not None]
    each = [Place(name, gpu.name, gpu.architecture) for name, gpu in gpus]
    left = lies_on_cpu(path, device, gpu_layers, split_mode)
    if left:
        each.insert(0, _cpu(threads))
    return Place(
        "+".join(place.device for place in each),
        " + ".join(str(place.name) for place in each),
        "+".join(str(place.architecture) for place in each),
        each[0].threads,
        gpu_layers if streamed or (left and len(each) > 1) else None,
        split_mode if streamed or len(each) > 1 else None,
    )


def _cpu(threads: int | None) -> Place:
    instructions = env.cpu_isa() or instruction_sets()[0]
    count = threads or env.threads() or available_threads()
    return Place("cpu", detect().cpu_name or "unknown CPU", instructions, count)


def _too_much(path: str | os.PathLike[str], device: str, test: SpeedTest) -> str | None:
    """Why a test cannot run with a model, as far as its header and the host's memory say."""
    with GGUFFile(path) as file:
        config, nbytes = ModelConfig.from_gguf(file), file.nbytes
    if test.length > config.ctx_train:
        return f"{test.length} tokens, trained for {config.ctx_train}"
    wanted = nbytes + test.batch * test.length * config.kv_bytes_per_token
    free = psutil.virtual_memory().available
    if device == "cpu" and wanted > free:
        return f"got {free / 1e9:.1f} GB of memory, wanted {wanted / 1e9:.1f}"
    return None


class _Run:
    """The tests of one loaded model."""

    def __init__(
        self, engine: Engine, model: Matrices, place: Place, repetitions: int, progress: Progress
    ) -> None:
        self._engine = engine
        self._model = model
        self._place = place
        self._repetitions = repetitions
        self._progress = progress
        self._done = self._total = 0

    def speeds(self, tests: Sequence[SpeedTest]) -> Iterator[Speed]:
        """Measure tests; neighbours of one depth and batch share the sequences that are filled."""
        groups = [
            (depth, batch, list(group))
            for (depth, batch), group in itertools.groupby(tests, lambda t: (t.depth, t.batch))
        ]
        self._total = len(tests) * (1 + self._repetitions) + sum(batch for _, batch, _ in groups)
        for depth, batch, group in groups:
            room = max(test.length for test in group) - depth
            with Sequences(self._engine, depth, batch, room, self._advance) as sequences:
                for test in group:
                    yield self._speed(test, sequences)

    def _speed(self, test: SpeedTest, sequences: Sequences) -> Speed:
        try:
            seconds = self._seconds(test, sequences)
        except (OutOfMemoryError, MemoryError) as error:  # of its activations
            sequences.rewind()
            return Speed(test, self._place, reason=str(error) or "out of memory")
        return self._beside_roofline(test, seconds)

    def _seconds(self, test: SpeedTest, sequences: Sequences) -> tuple[float, ...]:
        warm = 1
        if test.generated:
            sequences.step_seconds()  # which no step comes before: another graph than the rest
            sequences.rewind()
            warm = -(-WARM_STEPS // test.generated)
        for _ in range(warm):
            _repetition(test, sequences)
        self._advance()
        seconds = []
        for _ in range(self._repetitions):
            seconds.append(_repetition(test, sequences))
            self._advance()
        return tuple(seconds)

    def _beside_roofline(self, test: SpeedTest, seconds: tuple[float, ...]) -> Speed:
        engine, model = self._engine, self._model
        if test.prompt:
            passes, work = 1, prefill_work(engine, model, test.depth, test.prompt)
        else:
            middle = test.depth + (test.generated - 1) // 2
            passes, work = test.generated, step_work(engine, model, middle, test.batch)
        peaks = measured_peaks(engine, model, work)
        if peaks is None:
            return Speed(test, self._place, seconds)
        return Speed(
            test,
            self._place,
            seconds,
            passes * peaks.ideal_seconds(work.nbytes, work.operations),
            peaks.read_bytes_per_second,
            peaks.operations_per_second,
        )

    def _advance(self) -> None:
        self._done += 1
        self._progress(self._done, self._total)


def _repetition(test: SpeedTest, sequences: Sequences) -> float:
    """Seconds of a prompt, or of all steps; the sequences are as before."""
    if test.prompt:
        return sequences.prefill_seconds(test.prompt)
    seconds = sequences.steps_seconds(test.generated)
    sequences.rewind()
    return seconds
