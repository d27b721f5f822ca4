"""An open GPU: memory, streams, events, modules, launches and graphs, as HIP and CUDA have them.

The two runtimes have the same calls under other names. `Runtime` makes these calls; `gpu/hip.py`
(over hip-python) and `gpu/cuda.py` (over cuda-bindings) name them and add what differs. Handles of
streams, events, modules, functions and graphs are what the runtime calls them; addresses are
integers.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gpu.kernel_arguments import Arguments

Way = Literal["to_device", "to_host", "on_device"]
"""Of a copy."""

_NON_BLOCKING = 1  # hipStreamNonBlocking, CU_STREAM_NON_BLOCKING
_NOT_READY = 600  # hipErrorNotReady, CUDA_ERROR_NOT_READY
_REACHED = 704  # hipErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


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


class Runtime(ABC):
    """One open device of one vendor's runtime. Every failing call raises `DeviceError`.

    Parameters
    ----------
    api
        The vendor's module of calls.
    properties
        The device.
    """

    platform: ClassVar[str]
    """"hip" or "cuda"."""

    names: ClassVar[Mapping[str, str]]
    """The vendor's name of each call that is made here."""

    shared_flags: ClassVar[tuple[int, ...]] = ()
    """What allocating memory for several devices is told besides."""

    def __init__(self, api: Any, properties: DeviceProperties) -> None:
        self._api = api
        self.properties = properties

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        free, total = self._call("memory_info")
        return int(free), int(total)

    def allocate(self, nbytes: int) -> int:
        """Address of new device memory, aligned to 256; `OutOfMemoryError` where there is none."""
        return self._allocate("allocate", "device", nbytes)

    def allocate_shared(self, nbytes: int) -> int:
        """As `allocate`, of memory that other devices may write while kernels here read it."""
        return self._allocate("allocate_shared", "device", nbytes, *self.shared_flags)

    def can_reach(self, other: Runtime) -> bool:
        """Whether kernels of this device can use memory of another one."""
        return bool(self._call("can_access_peer", *self._peer_numbers(other)))

    def reach(self, other: Runtime) -> None:
        """Let kernels of this device use memory of another one."""
        self._allowing(_REACHED, "enable_peer", self._peer(other), 0)

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("free", address)

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory as an array, which lives until `free_pinned`."""
        address = self._allocate("allocate_pinned", "page-locked", nbytes, 0)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give page-locked memory back; the array must not be used again."""
        self._call("free_pinned", memory.ctypes.data)

    def copy_to_device(self, target: int, source: NDArray[Any], stream: Any = None) -> None:
        """Copy a C-contiguous array; with a stream, from pinned memory and without waiting."""
        self._copy("to_device", target, source.ctypes.data, source.nbytes, stream)
        self._finish(stream)

    def copy_to_host(self, target: NDArray[Any], source: int, stream: Any = None) -> None:
        """Fill a C-contiguous array; with a stream, pinned memory and without waiting."""
        self._copy("to_host", target.ctypes.data, source, target.nbytes, stream)
        self._finish(stream)

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: Any = None) -> None:
        """Copy inside device memory."""
        self._copy("on_device", target, source, nbytes, stream)
        self._finish(stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: Any = None) -> None:
        """Set bytes of device memory."""
        self._call("fill", target, byte, nbytes, stream)
        self._finish(stream)

    def create_stream(self) -> Any:
        """Return a new stream that does not wait for the default one."""
        return self._call("create_stream", _NON_BLOCKING)

    def destroy_stream(self, stream: Any) -> None:
        """End a stream."""
        self._call("destroy_stream", stream)

    def synchronize(self, stream: Any = None) -> None:
        """Wait for a stream, or without one for the whole device."""
        if stream is None:
            self._call("synchronize_device")
        else:
            self._call("synchronize_stream", stream)

    def create_event(self) -> Any:
        """Return a new event that measures time."""
        return self._call("create_event", 0)

    def record_event(self, event: Any, stream: Any = None) -> None:
        """Mark this point of a stream."""
        self._call("record_event", event, stream)

    def wait_event(self, stream: Any, event: Any) -> None:
        """Let a stream wait for an event."""
        self._call("wait_event", stream, event, 0)

    def is_done(self, event: Any) -> bool:
        """Whether an event has happened, or was never recorded; does not wait."""
        return self._allowing(_NOT_READY, "query_event", event)

    def synchronize_event(self, event: Any) -> None:
        """Wait on the host until an event has happened."""
        self._call("synchronize_event", event)

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """Device time between two events that have happened."""
        return float(self._call("elapsed_milliseconds", start, end)) / 1e3

    def destroy_event(self, event: Any) -> None:
        """End an event."""
        self._call("destroy_event", event)

    def load_module(self, code: bytes) -> Any:
        """Load a code object."""
        return self._call("load_module", code)

    def unload_module(self, module: Any) -> None:
        """Unload a code object; its functions must not run any more."""
        self._call("unload_module", module)

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel in a module."""
        return self._call("function", module, name.encode())

    def begin_capture(self, stream: Any) -> None:
        """Collect what follows on a stream into a graph instead of running it."""
        self._call("begin_capture", stream, self._capture_mode())

    def end_capture(self, stream: Any) -> Any:
        """Return the graph, ready to launch."""
        graph = self._call("end_capture", stream)
        try:
            return self._call("instantiate_graph", graph, 0)
        finally:
            self._call("destroy_captured", graph)

    def capture(self, stream: Any, work: Callable[[], None]) -> Any:
        """Return what `work` enqueues on a stream as a graph, ready to launch.

        Whatever goes wrong in it, the stream is usable afterwards.
        """
        self.begin_capture(stream)
        try:
            work()
        except BaseException:  # Ctrl-C too
            with suppress(DeviceError):
                self.destroy_graph(self.end_capture(stream))
            raise
        return self.end_capture(stream)

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Enqueue a whole graph."""
        self._call("launch_graph", graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        """End a graph."""
        self._call("destroy_graph", graph)

    @abstractmethod
    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Arguments,
        stream: Any = None,
        early: bool = False,
        lds_bytes: int = 0,
    ) -> None:
        """Enqueue a kernel: `grid` blocks of `threads` threads; early, lds_bytes: see `Launch`."""

    @abstractmethod
    def allow_lds(self, function: Any, nbytes: int) -> None:
        """Let launches give a kernel so much LDS."""

    @abstractmethod
    def compiler_version(self) -> str:
        """Return the version of the run-time compiler, as part of the cache's key."""

    @abstractmethod
    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile a kernel file for this device; `CompileError` holds the log."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the device; nothing made by this runtime may be used any more."""

    @abstractmethod
    def _select(self) -> None:
        """Make the device the current one of this thread."""

    @abstractmethod
    def _peer(self, other: Runtime) -> Any:
        """Return what names another device of this platform for peer access."""

    @abstractmethod
    def _peer_numbers(self, other: Runtime) -> tuple[Any, Any]:
        """Return the vendor's handles of this device and of another one."""

    @abstractmethod
    def _checked(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the vendor's; return its value, raise DeviceError at its error."""

    @abstractmethod
    def _describe(self, error: Any) -> str:
        """Name an error, and say what it means."""

    @abstractmethod
    def _is_out_of_memory(self, error: Any) -> bool:
        """Whether an allocation failed for want of memory."""

    @abstractmethod
    def _capture_mode(self) -> Any:
        """Capture that other threads do not disturb."""

    @abstractmethod
    def _copy(self, way: Way, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Enqueue a copy."""

    def _call(self, what: str, *arguments: Any) -> Any:
        self._select()
        return self._checked(getattr(self._api, self.names[what]), *arguments)

    def _allowing(self, code: int, what: str, *arguments: Any) -> bool:
        """Call what gives no value; False where it answers with an error code that is allowed."""
        self._select()
        function = getattr(self._api, self.names[what])
        (error,) = function(*arguments)
        if int(error) not in (0, code):
            raise DeviceError(f"{function.__name__}: {self._describe(error)}")
        return int(error) == 0

    def _allocate(self, what: str, kind: str, nbytes: int, *more: int) -> int:
        if nbytes < 1:
            raise ValueError(f"bytes of {kind} memory: got {nbytes}, wanted 1 or more")
        self._select()
        function = getattr(self._api, self.names[what])
        error, *values = function(nbytes, *more)
        if self._is_out_of_memory(error):
            told = f"got no {nbytes} bytes of {kind} memory"
            if what == "allocate_pinned":
                raise OutOfMemoryError(f"the host: {told}")
            free, total = self.memory_info()
            raise OutOfMemoryError(
                f"device {self.platform}:{self.properties.index} ({self.properties.name}): {told}; "
                f"{free} of the device's {total} bytes are free"
            )
        if int(error):
            raise DeviceError(f"{function.__name__} of {nbytes} bytes: {self._describe(error)}")
        return int(values[0])

    def _finish(self, stream: Any) -> None:
        """Wait where no stream was named: other streams do not wait for the default one."""
        if stream is None:
            self._call("synchronize_stream", None)
