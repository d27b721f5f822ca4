"""`Runtime` on NVIDIA GPUs: the CUDA driver and NVRTC through cuda-bindings 12.9 and later.

The only importer of cuda-bindings. Kernels are compiled to machine code, not PTX, so that an NVRTC
newer than the driver will do. Every call makes the device's context current first, so that threads
and other devices do not get in the way. It knows no kernel and no op.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import CompileError, DeviceError, OutOfMemoryError
from rocmforge.gpu.launch import Arguments
from rocmforge.gpu.runtime import DeviceProperties

REQUIREMENTS = ("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13")
"""What pip installs for NVIDIA GPUs, as in the extra `cuda`."""

_INSTALL = "pip install " + " ".join(f"'{name}'" for name in REQUIREMENTS)
_OPTIONS = ("-lineinfo",)  # names source lines in profilers and sanitizers; costs no speed


def count() -> int:
    """Return the number of NVIDIA GPUs; 0 where package, driver or card is missing."""
    try:
        driver = _initialized_driver()
        return int(_checked(driver, driver.cuDeviceGetCount))
    except DeviceError:
        return 0


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed, by its library, which cuda-bindings loads likewise."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def devices() -> list[DeviceProperties]:
    """Describe the NVIDIA GPUs; none where package, driver or card is missing."""
    found = count()
    if not found:
        return []
    driver, _ = _bindings()
    return [
        _properties(driver, _checked(driver, driver.cuDeviceGet, index), index)
        for index in range(found)
    ]


def pci_address(index: int) -> str | None:
    """Return where the GPU of that number is, ``0000:19:00.0``; None where there is none.

    The driver's numbers are its own: fastest first, and of CUDA_VISIBLE_DEVICES alone.
    """
    try:
        driver = _initialized_driver()
        device = _checked(driver, driver.cuDeviceGet, index)
        address = _checked(driver, driver.cuDeviceGetPCIBusId, 32, device)
    except DeviceError:
        return None
    return str(address.partition(b"\0")[0].decode())


def compiler_version() -> str:
    """Return NVRTC's version, and with what it is always called.

    Raises
    ------
    DeviceError
        NVRTC is not installed.
    """
    _, nvrtc = _bindings()
    _, major, minor = _nvrtc_call(nvrtc, nvrtc.nvrtcVersion)
    return f"nvrtc {major}.{minor} {' '.join(_OPTIONS)}"


def compile_cubin(
    source: str, name: str, headers: Mapping[str, str], options: Sequence[str], architecture: str
) -> bytes:
    """Compile a kernel file to machine code; needs no GPU.

    Parameters
    ----------
    source, name
        The file's text and its name, for messages.
    headers
        What it includes, by name.
    options
        NVRTC's, without the architecture.
    architecture
        ``sm_90`` or the like.

    Raises
    ------
    CompileError
        NVRTC refuses the source, an option or the architecture.
    DeviceError
        NVRTC is not installed.
    """
    _, nvrtc = _bindings()
    all_options = [f"-arch={architecture}", *_OPTIONS, *options]
    texts = [text.encode() for text in headers.values()]
    names = [header.encode() for header in headers]
    _, program = _nvrtc_call(
        nvrtc,
        nvrtc.nvrtcCreateProgram,
        *(source.encode(), name.encode(), len(texts), texts, names),
    )
    try:
        encoded = [option.encode() for option in all_options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, size = _nvrtc_call(nvrtc, nvrtc.nvrtcGetProgramLogSize, program)
            log = bytearray(size)
            _nvrtc_call(nvrtc, nvrtc.nvrtcGetProgramLog, program, log)
            text = log.rstrip(b"\0").decode(errors="replace") or str(error)
            raise CompileError(name, architecture, all_options, text)
        _, size = _nvrtc_call(nvrtc, nvrtc.nvrtcGetCUBINSize, program)
        code = bytearray(size)
        _nvrtc_call(nvrtc, nvrtc.nvrtcGetCUBIN, program, code)
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class CudaRuntime:
    """One open NVIDIA GPU, by its primary context.

    Parameters
    ----------
    index
        The driver's number of the device; CUDA_VISIBLE_DEVICES counts.

    Raises
    ------
    DeviceError
        cuda-bindings, the driver or the device is missing; says which and what to do.
    """

    platform = "cuda"

    def __init__(self, index: int = 0) -> None:
        self._driver = driver = _initialized_driver()
        found = _checked(driver, driver.cuDeviceGetCount)
        if not 0 <= index < found:
            raise DeviceError(f"device cuda:{index}: this machine has {found} NVIDIA GPUs")
        self._device = _checked(driver, driver.cuDeviceGet, index)
        self.properties = _properties(driver, self._device, index)
        self._context = _checked(driver, driver.cuDevicePrimaryCtxRetain, self._device)
        self._success = driver.CUresult.CUDA_SUCCESS

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        free, total = self._call(self._driver.cuMemGetInfo)
        return int(free), int(total)

    def allocate(self, nbytes: int) -> int:
        """Address of new device memory, aligned to 256; `OutOfMemoryError` where there is none."""
        return int(self._allocate(self._driver.cuMemAlloc, "device", nbytes))

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call(self._driver.cuMemFree, address)

    def allocate_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory as an array, which lives until `free_pinned`."""
        address = self._allocate(self._driver.cuMemHostAlloc, "page-locked", nbytes, 0)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(int(address)))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give page-locked memory back; the array must not be used again."""
        self._call(self._driver.cuMemFreeHost, memory.ctypes.data)

    def copy_to_device(self, target: int, source: NDArray[Any], stream: Any = None) -> None:
        """Copy a C-contiguous array; with a stream, from pinned memory and without waiting."""
        address = source.ctypes.data
        self._call(self._driver.cuMemcpyHtoDAsync, target, address, source.nbytes, stream)
        self._finish(stream)

    def copy_to_host(self, target: NDArray[Any], source: int, stream: Any = None) -> None:
        """Fill a C-contiguous array; with a stream, pinned memory and without waiting."""
        address = target.ctypes.data
        self._call(self._driver.cuMemcpyDtoHAsync, address, source, target.nbytes, stream)
        self._finish(stream)

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: Any = None) -> None:
        """Copy inside device memory."""
        self._call(self._driver.cuMemcpyDtoDAsync, target, source, nbytes, stream)
        self._finish(stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: Any = None) -> None:
        """Set bytes of device memory."""
        self._call(self._driver.cuMemsetD8Async, target, byte, nbytes, stream)
        self._finish(stream)

    def create_stream(self) -> Any:
        """Return a new stream that does not wait for the default one."""
        flag = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._call(self._driver.cuStreamCreate, int(flag))

    def destroy_stream(self, stream: Any) -> None:
        """End a stream."""
        self._call(self._driver.cuStreamDestroy, stream)

    def synchronize(self, stream: Any = None) -> None:
        """Wait for a stream, or without one for the whole device."""
        if stream is None:
            self._call(self._driver.cuCtxSynchronize)
        else:
            self._call(self._driver.cuStreamSynchronize, stream)

    def create_event(self) -> Any:
        """Return a new event that measures time."""
        return self._call(self._driver.cuEventCreate, 0)

    def record_event(self, event: Any, stream: Any = None) -> None:
        """Mark this point of a stream."""
        self._call(self._driver.cuEventRecord, event, stream)

    def wait_event(self, stream: Any, event: Any) -> None:
        """Let a stream wait for an event."""
        self._call(self._driver.cuStreamWaitEvent, stream, event, 0)

    def synchronize_event(self, event: Any) -> None:
        """Wait on the host until an event has happened."""
        self._call(self._driver.cuEventSynchronize, event)

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """Device time between two events that have happened."""
        return float(self._call(self._driver.cuEventElapsedTime, start, end)) / 1e3

    def destroy_event(self, event: Any) -> None:
        """End an event."""
        self._call(self._driver.cuEventDestroy, event)

    def compiler_version(self) -> str:
        """Return the version of the run-time compiler, as part of the cache's key."""
        return compiler_version()

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile a kernel file for this device; `CompileError` holds the log."""
        return compile_cubin(source, name, headers, options, self.properties.architecture)

    def load_module(self, code: bytes) -> Any:
        """Load a code object."""
        return self._call(self._driver.cuModuleLoadData, code)

    def unload_module(self, module: Any) -> None:
        """Unload a code object; its functions must not run any more."""
        self._call(self._driver.cuModuleUnload, module)

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel in a module."""
        return self._call(self._driver.cuModuleGetFunction, module, name.encode())

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Arguments,
        stream: Any = None,
    ) -> None:
        """Enqueue a kernel: `grid` blocks of `threads` threads."""
        self._select()
        driver = self._driver
        x, y, z = grid
        (error,) = driver.cuLaunchKernel(
            function, x, y, z, threads, 1, 1, 0, stream, 0, arguments.address
        )
        if error != self._success:
            raise DeviceError(
                f"launch of {grid} blocks of {threads} threads: {_describe(driver, error)}"
            )

    def begin_capture(self, stream: Any) -> None:
        """Collect what follows on a stream into a graph instead of running it."""
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call(self._driver.cuStreamBeginCapture, stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """Return the graph, ready to launch."""
        graph = self._call(self._driver.cuStreamEndCapture, stream)
        try:
            return self._call(self._driver.cuGraphInstantiate, graph, 0)
        finally:
            self._call(self._driver.cuGraphDestroy, graph)

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Enqueue a whole graph."""
        self._call(self._driver.cuGraphLaunch, graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        """End a graph."""
        self._call(self._driver.cuGraphExecDestroy, graph)

    def close(self) -> None:
        """Let go of the device; nothing made by this runtime may be used any more."""
        if self._context is not None:
            self._context = None
            _checked(self._driver, self._driver.cuDevicePrimaryCtxRelease, self._device)

    def _allocate(self, function: Callable[..., Any], kind: str, nbytes: int, *more: int) -> Any:
        if nbytes < 1:
            raise ValueError(f"bytes of {kind} memory: got {nbytes}, wanted 1 or more")
        self._select()
        driver = self._driver
        error, *values = function(nbytes, *more)
        if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = self.memory_info()
            raise OutOfMemoryError(
                f"device cuda:{self.properties.index} ({self.properties.name}): got no {nbytes} "
                f"bytes of {kind} memory; {free} of the device's {total} bytes are free"
            )
        if error != self._success:
            raise DeviceError(f"{function.__name__} of {nbytes} bytes: {_describe(driver, error)}")
        return values[0]

    def _select(self) -> None:
        _checked(self._driver, self._driver.cuCtxSetCurrent, self._context)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._select()
        return _checked(self._driver, function, *arguments)

    def _finish(self, stream: Any) -> None:
        """Wait where no stream was named: other streams do not wait for the default one."""
        if stream is None:
            self._call(self._driver.cuStreamSynchronize, None)


def _bindings() -> tuple[Any, Any]:
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        raise DeviceError(
            f"device 'cuda' needs the package cuda-bindings ({error}): {_INSTALL}"
        ) from error
    return driver, nvrtc


def _initialized_driver() -> Any:
    driver, _ = _bindings()
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError as missing:
        raise DeviceError(
            "device 'cuda': no NVIDIA driver on this machine; install it, or use device 'cpu' or "
            "'hip'"
        ) from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(
            f"device 'cuda': the NVIDIA driver finds no usable GPU ({_describe(driver, error)}); "
            "nvidia-smi shows what it sees, CUDA_VISIBLE_DEVICES hides devices"
        )
    return driver


def _checked(driver: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"{function.__name__}: {_describe(driver, error)}")
    return values[0] if len(values) == 1 else values


def _describe(driver: Any, error: Any) -> str:
    _, name = driver.cuGetErrorName(error)
    _, text = driver.cuGetErrorString(error)
    return f"{name.decode()}: {text.decode()}" if name and text else f"CUDA error {int(error)}"


def _nvrtc_call(nvrtc: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        values = function(*arguments)
    except RuntimeError as missing:
        raise DeviceError(f"NVRTC is missing ({missing}): {_INSTALL}") from missing
    if values[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"{function.__name__}: {values[0]}")
    return values


def _properties(driver: Any, device: Any, index: int) -> DeviceProperties:
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_checked(driver, driver.cuDeviceGetAttribute, key, device))

    name = _checked(driver, driver.cuDeviceGetName, 256, device)
    capability = f"{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}"
    return DeviceProperties(
        index=index,
        name=name.partition(b"\0")[0].decode(errors="replace"),
        architecture=f"sm_{capability}",
        wave_size=attribute("WARP_SIZE"),
        compute_units=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(_checked(driver, driver.cuDeviceTotalMem, device)),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        integrated=bool(attribute("INTEGRATED")),
    )
