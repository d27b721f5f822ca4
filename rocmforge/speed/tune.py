"""Finds the constants of kernels that are fastest on a card: `rocmforge tune`.

Each kernel is compiled with some sets of constants. Their launches are captured, replayed in turns
over weights that no cache holds, and timed on the device. Another set replaces the op's own only
where it gives the same results and a second run finds it faster again. A fusion is left out only
where decoding takes less time without it.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge import env
from rocmforge.devices import open_backend
from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import BuildRecorder, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.tuning import (
    UNTUNED,
    Constants,
    Tuning,
    read_tuning,
    save_tuning,
    tuning_file,
)
from rocmforge.plan.protocols import Progress
from rocmforge.speed.tune_cases import (
    ACTIVATION_BYTES,
    ARRIVALS,
    MOST_BLOCKS,
    PARTIAL_BYTES,
    ROUNDS,
    WIDEST,
    WORTH,
    Case,
    Found,
    Memory,
    TileCase,
    batch_cases,
    gemv_cases,
    out_bytes,
    tile_cases,
)
from rocmforge.speed.tune_fusions import costly_fusions

WEIGHT_BYTES = 512 << 20  # more than the caches of any card hold
PIECE = 64 << 20  # of random bytes, repeated
HIGHEST_BYTE = 48  # so that scales are small finite f16
DIFFERENT = 1e-3  # of the largest result, where sums have another order


def tune(
    device: str | None, parts: Sequence[str], progress: Progress | None = None
) -> tuple[Path, list[Found]]:
    """Measure a card, write its table, and return the file and what was found.

    What an older table says of other parts is kept.

    Parameters
    ----------
    device
        As of `open_backend`; it has to be a GPU.
    parts
        Some of "gemv" (up to 8 tokens), "batch" (9 to 128), "tile" (prompts) and "fusions".
    progress
        Told after each case how many are done, and of how many.

    Raises
    ------
    DeviceError
        It is no GPU, or a launch fails.
    ValueError
        The cache cannot be written.
    """
    folder = env.cache_folder("tuning")  # before minutes of work
    backend = open_backend(device)
    try:
        if not isinstance(backend, GpuBackend):
            raise DeviceError(
                "no GPU to tune: the kernels of the CPU have no table; `rocmforge devices` says "
                "what is here and why a GPU is not used"
            )
        properties = backend.kernels.runtime.properties
        path = folder / tuning_file(properties).name
        old = read_tuning(path, properties) if path.exists() else UNTUNED
        constants = {k: v for k, v in old.constants.items() if k.split(" ")[0] not in parts}
        search = Search(backend.kernels, parts, progress)
        new, found = search.run()
        table = Tuning(MappingProxyType({**constants, **new}), old.without, _now())
        if "fusions" in parts:
            kind = f"{backend.name}:{properties.index}"
            without, judged = costly_fusions(kind, properties, table)
            table = replace(table, without=without)
            found += judged
            search.count()
        save_tuning(path, properties, table)
        return path, found
    finally:
        backend.close()


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


class Search:
    """Looks for the fastest constants of each case.

    Parameters
    ----------
    kernels
        Of the open device; their tuning is changed, and put back.
    parts, progress
        As of `tune`.
    replay
        Times launches as `Replay` does.
    """

    def __init__(
        self,
        kernels: Kernels,
        parts: Sequence[str],
        progress: Progress | None = None,
        replay: type[Replay] = Replay,
    ) -> None:
        properties = kernels.runtime.properties
        self._kernels = kernels
        self._runtime = kernels.runtime
        self._replay = replay
        self._progress = progress
        self._cases: list[Case] = []
        for part, cases in (("gemv", gemv_cases), ("batch", batch_cases)):
            self._cases += cases(properties) if part in parts else ()
        self._tiles = list(tile_cases(properties)) if "tile" in parts else []
        self._done = 0
        self._total = len(self._cases) + len(self._tiles) + ("fusions" in parts)

    def count(self) -> None:
        """Tell that one more case is done."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def run(self) -> tuple[dict[str, Constants], list[Found]]:
        """Return the table's new constants, and what was found."""
        constants: dict[str, Constants] = {}
        judged: list[Found] = []
        if not self._cases and not self._tiles:
            return constants, judged
        before = self._kernels.tuning
        with ExitStack() as opened:
            opened.callback(setattr, self._kernels, "tuning", before)
            memory = _memory(self._kernels, opened)
            for case in self._cases:
                found = self._best(case, memory)
                judged.append(found)
                if found.changed:
                    constants[case.key] = found.best
                self.count()
            for tile in self._tiles:
                constants[tile.key] = self._speeds(tile, memory)
                self.count()
        return constants, judged

    def _best(self, case: Case, memory: Memory) -> Found:
        self._begin_compiling(case, memory)
        wanted = self._results(case, case.own, memory)
        right = [c for c in case.others if self._agrees(case, c, memory, wanted)]
        times = self._times(case, [case.own, *right], memory)
        fastest = min(range(len(times)), key=times.__getitem__)
        best, own_s, best_s = case.own, times[0], times[0]
        if fastest:  # the fastest of many was lucky too: only another run says how fast it is
            own_s, best_s = self._times(case, [case.own, right[fastest - 1]], memory)
            if best_s <= WORTH * own_s:
                best = right[fastest - 1]
            else:
                best_s = own_s
        refused = len(case.others) - len(right)
        return Found(case.shown, case.own, best, own_s, best_s, len(case.others), refused)

    def _launches(self, case: Case, constants: Constants, memory: Memory) -> list[Launch]:
        self._kernels.tuning = Tuning(MappingProxyType({case.key: constants}))
        return [replace(one, early=True) for one in case.launches(self._kernels, memory)]

    def _begin_compiling(self, case: Case, memory: Memory) -> None:
        """Let all sets compile side by side; what fails is met again when it is wanted."""
        for constants in (case.own, *case.others):
            recorder = BuildRecorder(self._runtime, Tuning(MappingProxyType({case.key: constants})))
            case.launches(recorder, memory)
            self._kernels.begin(recorder.builds)

    def _agrees(
        self, case: Case, constants: Constants, memory: Memory, wanted: NDArray[Any]
    ) -> bool:
        """Whether a kernel of other constants compiles, runs, and gives what the op's own gives."""
        try:
            got = self._results(case, constants, memory)
        except (CompileError, DeviceError):
            return False
        most = 2.0 if case.dtype is np.int8 else DIFFERENT * float(np.abs(wanted).max())
        return bool((np.abs(got - wanted) <= most).all())

    def _results(self, case: Case, constants: Constants, memory: Memory) -> NDArray[Any]:
        got = np.empty(case.results, case.dtype)
        launch = self._launches(case, constants, memory)[0]
        never = 0x80 if case.dtype is np.int8 else 0xFF  # -128, and NaN
        self._runtime.fill(memory.out, never, got.nbytes)
        self._runtime.fill(memory.arrivals, 0, 4 * ARRIVALS)
        self._runtime.fill(memory.partials, 0, 4 * case.results)
        launch.enqueue(self._runtime)
        self._runtime.synchronize()
        self._runtime.copy_to_host(got, memory.out)
        return got.astype(np.float32)

    def _times(self, case: Case, sets: Sequence[Constants], memory: Memory) -> list[float]:
        """Median seconds of a launch of each set, timed in turns."""
        with ExitStack() as opened:
            replays = []
            for constants in sets:
                launches = self._launches(case, constants, memory)
                replays.append(self._replay(self._runtime, launches, len(launches)))
                opened.callback(replays[-1].close)
            rounds = [[one.seconds() for one in replays] for _ in range(ROUNDS + 1)]
        return [statistics.median(times) for times in zip(*rounds[1:], strict=True)]

    def _speeds(self, case: TileCase, memory: Memory) -> Constants:
        """Speeds of a tile, with one block on each compute unit and with as many as it holds."""
        self._kernels.tuning = UNTUNED
        constants = case.tile.constants
        speeds = []
        for blocks in range(1, MOST_BLOCKS + 1):
            launches = case.launches(self._kernels, memory, blocks)
            replay = self._replay(self._runtime, launches, len(launches))
            try:
                replay.seconds()
                seconds = statistics.median(replay.seconds() for _ in range(ROUNDS))
            finally:
                replay.close()
            speeds.append(blocks * constants.TILE_TOKENS * constants.TILE_ROWS / seconds / 1e9)
        held = next(i for i, speed in enumerate(speeds) if speed >= WORTH * max(speeds))
        return {"alone": speeds[0], "full": speeds[held], "blocks": held + 1}


def _memory(kernels: Kernels, opened: ExitStack) -> Memory:
    """Allocate and fill what cases need, until `opened` ends."""
    runtime = kernels.runtime
    random = np.random.default_rng(0)

    def allocate(nbytes: int) -> int:
        address = runtime.allocate(nbytes)
        opened.callback(runtime.free, address)
        return address

    weights, x = allocate(WEIGHT_BYTES), allocate(ACTIVATION_BYTES)
    piece = min(PIECE, WEIGHT_BYTES)
    runtime.copy_to_device(weights, random.integers(0, HIGHEST_BYTE, piece, np.uint8))
    for at in range(piece, WEIGHT_BYTES, piece):
        runtime.copy_on_device(weights + at, weights, min(piece, WEIGHT_BYTES - at))
    runtime.copy_to_device(x, random.integers(0, HIGHEST_BYTE, ACTIVATION_BYTES, np.uint8))
    out, partials = allocate(out_bytes(runtime.properties)), allocate(PARTIAL_BYTES)
    arrivals = allocate(4 * ARRIVALS)
    runtime.fill(arrivals, 0, 4 * ARRIVALS)
    norm = allocate(4 * WIDEST)
    runtime.fill(norm, 0x3C, 4 * WIDEST)  # floats of 0.0115
    return Memory(weights, WEIGHT_BYTES, x, out, partials, arrivals, norm)
