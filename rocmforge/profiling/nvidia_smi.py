"""Samples of an NVIDIA GPU, from one `nvidia-smi` process that prints a line in every period.

This process does nothing in between: a thread keeps the lines until they are taken.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import deque
from dataclasses import replace
from typing import IO

from rocmforge.profiling.gpu_environment import PERIOD_S, GpuSample, settled

TIMEOUT_S = 10.0
END_S = 1.0  # a child of a wrapper script may keep the pipe open
FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "memory.used",
    "clocks_throttle_reasons.active",
)
"""Fields of a line; units MHz, MHz, W, °C, %, MiB, mask. Newer drivers know the old name too."""

# nvml.h, nvmlClocksEventReasons; being idle (1) is no reason
_REASONS = {
    0x002: "clocks setting",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "temperature",
    0x040: "hardware temperature",
    0x080: "power brake",
    0x100: "display clocks",
}


class NvidiaSmi:
    """One `nvidia-smi` that goes on printing into a pipe, and a thread that reads its lines.

    It dies with the pipe's reader.

    Parameters
    ----------
    program
        Its path.
    address
        PCI address of the GPU: the program's own numbers are not those of CUDA.
    """

    name = "nvidia-smi"

    def __init__(self, program: str, address: str) -> None:
        self._command = [program, "-i", address, "--format=csv,noheader,nounits"]
        self._query = f"--query-gpu={','.join(FIELDS)}"
        self._looping: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: deque[tuple[float, str]] = deque()  # and when each came

    def before(self) -> tuple[float | None, int | None]:
        """Return utilization and number of processes, and begin to watch."""
        listed = self._once("--query-compute-apps=pid")
        now: list[GpuSample] = []

        def utilization() -> float | None:
            now[:] = nvidia_samples(self._once(self._query) or "")
            return now[0].utilization if now else None

        busy = settled(utilization)
        if now:  # it answers
            self.begin(PERIOD_S)
        others = None if listed is None else nvidia_processes(listed)
        return busy, others

    def begin(self, period_seconds: float) -> None:
        """Begin to watch; OSError where the program does not start."""
        self._looping = subprocess.Popen(
            [*self._command, self._query, f"--loop-ms={period_seconds * 1000:.0f}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._looping.stdout,), daemon=True
        )
        self._reader.start()

    def samples(self) -> list[GpuSample]:
        """Return the samples since the last call."""
        found = []
        while self._lines:
            at, line = self._lines.popleft()
            found += [replace(sample, at=at) for sample in nvidia_samples(line)]
        return found

    take = samples  # a line is of its moment, so that none is needed to begin with

    def end(self) -> None:
        """Stop watching."""
        if self._looping is not None and self._reader is not None:
            self._looping.kill()  # SIGTERM would end it only after the pause that it is in
            self._looping.wait()
            self._reader.join(END_S)
            self._looping = self._reader = None

    def close(self) -> list[GpuSample]:
        """Stop watching; return the samples since the last `take`, at least one where it can."""
        self.end()
        return self.take() or nvidia_samples(self._once(self._query) or "")

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if line.endswith("\n"):
                    self._lines.append((time.perf_counter(), line))

    def _once(self, query: str) -> str | None:
        try:
            done = subprocess.run(
                [*self._command, query],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None


def nvidia_samples(text: str) -> list[GpuSample]:
    """Read lines of `nvidia-smi --query-gpu` with FIELDS, ``csv,noheader,nounits``.

    What a card does not tell stands there as ``[N/A]`` or the like; lines of another form are no
    samples.
    """
    samples = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS):
            continue
        clock, memory_clock, power, temperature, busy, used = map(_number, cells[:-1])
        mask = int(cells[-1], 16) if re.fullmatch(r"0x[0-9a-fA-F]{16}", cells[-1]) else None
        samples.append(
            GpuSample(
                clock_mhz=clock,
                memory_clock_mhz=memory_clock,
                power_watts=power,
                temperature_celsius=temperature,
                utilization=None if busy is None else busy / 100,
                memory_used_bytes=None if used is None else int(used * 2**20),
                throttle=None if mask is None else throttle_reasons(mask),
            )
        )
    return samples


def throttle_reasons(mask: int) -> frozenset[str]:
    """Return why clocks are held down, in words, of nvml.h's mask."""
    return frozenset(name for bit, name in _REASONS.items() if mask & bit)


def nvidia_processes(text: str) -> int:
    """Count the lines of `nvidia-smi --query-compute-apps=pid`, ``csv,noheader``."""
    return len({line.strip() for line in text.splitlines() if line.strip().isdecimal()})


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
