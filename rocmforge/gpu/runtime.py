"""What the GPU backend asks of a vendor's runtime, as one small protocol.

`gpu/hip.py` implements it over hip-python, `gpu/cuda.py` over cuda-bindings. Handles of streams,
events, modules, functions and graphs are what the runtime calls them; addresses are integers.
This file knows no vendor, no kernel and no op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rocmforge.gpu.launch import Arguments


@dataclass(frozen=True)
class DeviceProperties:
    """One GPU, as far as kernels and their choice depend on it.

    Parameters
    ----------
    index
        The runtime's number of the device.
    name
        Product name.
    architecture
        ``gfx…`` without feature suffixes, or ``sm_…``.
    wave_size
        Lanes of a wave: 32 or 64.
    compute_units
        Compute units, or multiprocessors.
    memory_bytes
        Device memory.
    shared_bytes
        LDS that one block may have.
    integrated
        Whether it shares the machine's memory (an APU's graphics).
    """

    index: int
    name: str
    architecture: str
    wave_size: int
    compute_units: int
    memory_bytes: int
    shared_bytes: int
    integrated: bool


class Runtime(Protocol):
    """One open device of one vendor's runtime. Every failing call raises `DeviceError`."""

    platform: str
    """"hip" or "cuda"."""

    properties: DeviceProperties

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""

    def allocate(self, nbytes: int) -> int:
        """Address of new device memory, aligned to 256; `OutOfMemoryError` where there is none."""

    def free(self, address: int) -> None:
        """Give device memory back."""

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory as an array, which lives until `free_pinned`."""

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give page-locked memory back; the array must not be used again."""

    def copy_to_device(self, target: int, source: NDArray[Any], stream: Any = None) -> None:
        """Copy a C-contiguous array; with a stream, from pinned memory and without waiting."""

    def copy_to_host(self, target: NDArray[Any], source: int, stream: Any = None) -> None:
        """Fill a C-contiguous array; with a stream, pinned memory and without waiting."""

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: Any = None) -> None:
        """Copy inside device memory."""

    def fill(self, target: int, byte: int, nbytes: int, stream: Any = None) -> None:
        """Set bytes of device memory."""

    def create_stream(self) -> Any:
        """Return a new stream that does not wait for the default one."""

    def destroy_stream(self, stream: Any) -> None:
        """End a stream."""

    def synchronize(self, stream: Any = None) -> None:
        """Wait for a stream, or without one for the whole device."""

    def create_event(self) -> Any:
        """Return a new event that measures time."""

    def record_event(self, event: Any, stream: Any = None) -> None:
        """Mark this point of a stream."""

    def wait_event(self, stream: Any, event: Any) -> None:
        """Let a stream wait for an event."""

    def synchronize_event(self, event: Any) -> None:
        """Wait on the host until an event has happened."""

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """Device time between two events that have happened."""

    def destroy_event(self, event: Any) -> None:
        """End an event."""

    def compiler_version(self) -> str:
        """Return the version of the run-time compiler, as part of the cache's key."""

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile a kernel file for this device; `CompileError` holds the log."""

    def load_module(self, code: bytes) -> Any:
        """Load a code object."""

    def unload_module(self, module: Any) -> None:
        """Unload a code object; its functions must not run any more."""

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel in a module."""

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Arguments,
        stream: Any = None,
    ) -> None:
        """Enqueue a kernel: `grid` blocks of `threads` threads."""

    def begin_capture(self, stream: Any) -> None:
        """Collect what follows on a stream into a graph instead of running it."""

    def end_capture(self, stream: Any) -> Any:
        """Return the graph, ready to launch."""

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Enqueue a whole graph."""

    def destroy_graph(self, graph: Any) -> None:
        """End a graph."""

    def close(self) -> None:
        """Let go of the device; nothing made by this runtime may be used any more."""
