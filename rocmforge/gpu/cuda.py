"""`Runtime` on NVIDIA GPUs: the CUDA driver and NVRTC through cuda-bindings 12.9 and later.

The only importer of cuda-bindings. Kernels are compiled to machine code, not PTX, so that an NVRTC
newer than the driver will do. Every call makes the device's context current first, so that threads
and other devices do not get in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, cast

from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu.context_ahead import STACK_BYTES
from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.gpu.packages import CUDA_REQUIREMENTS
from rocmforge.gpu.runtime import DeviceProperties, Runtime, Way

_INSTALL = "pip install " + " ".join(f"'{name}'" for name in CUDA_REQUIREMENTS)
EARLY_MAJOR, EARLY_DRIVER = 9, 12030
"""The first architecture (sm_90) and driver (CUDA 12.3) of which graphs start launches early."""

_OWN_NAMES = {"sm_90": "sm_90a"}
"""NVRTC's name for an architecture with the instructions that later ones lack, as Hopper's wgmma
(kernels/warpgroup.h)."""
_CONFIGS = 1024
"""Descriptions of launches that are kept: making one takes 10 µs, and a short prompt has 160."""
_OPTIONS = ("-lineinfo",)  # names source lines in profilers and sanitizers; costs no speed


def count() -> int:
    """Return the number of NVIDIA GPUs; 0 where package, driver or card is missing."""
    try:
        driver = _initialized_driver()
        return int(_checked(driver, driver.cuDeviceGetCount))
    except DeviceError:
        return 0


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


def reaches(index: int, other: int) -> bool:
    """Whether kernels of one GPU can use the memory of another; both by their numbers."""
    driver = _initialized_driver()
    pair = [_checked(driver, driver.cuDeviceGet, number) for number in (index, other)]
    return bool(_checked(driver, driver.cuDeviceCanAccessPeer, *pair))


def compiler_version() -> str:
    """Return NVRTC's version, and with what it is always called.

    Raises
    ------
    DeviceError
        NVRTC is not installed.
    """
    _, nvrtc = _bindings()
    _, major, minor = _nvrtc_call(nvrtc, nvrtc.nvrtcVersion)
    names = [f"{architecture}={name}" for architecture, name in _OWN_NAMES.items()]
    return f"nvrtc {major}.{minor} {' '.join((*_OPTIONS, *names))}"


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
    all_options = [f"-arch={_OWN_NAMES.get(architecture, architecture)}", *_OPTIONS, *options]
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


class CudaRuntime(Runtime):
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
    names = MappingProxyType(
        {
            "memory_info": "cuMemGetInfo",
            "allocate": "cuMemAlloc",
            "allocate_shared": "cuMemAlloc",
            "can_access_peer": "cuDeviceCanAccessPeer",
            "enable_peer": "cuCtxEnablePeerAccess",
            "free": "cuMemFree",
            "allocate_pinned": "cuMemHostAlloc",
            "free_pinned": "cuMemFreeHost",
            "fill": "cuMemsetD8Async",
            "create_stream": "cuStreamCreate",
            "destroy_stream": "cuStreamDestroy",
            "synchronize_stream": "cuStreamSynchronize",
            "synchronize_device": "cuCtxSynchronize",
            "create_event": "cuEventCreate",
            "record_event": "cuEventRecord",
            "wait_event": "cuStreamWaitEvent",
            "query_event": "cuEventQuery",
            "synchronize_event": "cuEventSynchronize",
            "elapsed_milliseconds": "cuEventElapsedTime",
            "destroy_event": "cuEventDestroy",
            "load_module": "cuModuleLoadData",
            "unload_module": "cuModuleUnload",
            "function": "cuModuleGetFunction",
            "begin_capture": "cuStreamBeginCapture",
            "end_capture": "cuStreamEndCapture",
            "instantiate_graph": "cuGraphInstantiate",
            "destroy_captured": "cuGraphDestroy",
            "launch_graph": "cuGraphLaunch",
            "destroy_graph": "cuGraphExecDestroy",
        }
    )

    def __init__(self, index: int = 0) -> None:
        driver = _initialized_driver()
        found = _checked(driver, driver.cuDeviceGetCount)
        if not 0 <= index < found:
            raise DeviceError(f"device cuda:{index}: this machine has {found} NVIDIA GPUs")
        self._device = _checked(driver, driver.cuDeviceGet, index)
        super().__init__(driver, _properties(driver, self._device, index))
        self._success = driver.CUresult.CUDA_SUCCESS
        major = int(self.properties.architecture.removeprefix("sm_")) // 10
        version = _checked(driver, driver.cuDriverGetVersion)
        self._starts_early = major >= EARLY_MAJOR and version >= EARLY_DRIVER
        self._early_configs = lru_cache(_CONFIGS)(partial(_early_config, driver))
        _, active = _checked(driver, driver.cuDevicePrimaryCtxGetState, self._device)
        self._context = _checked(driver, driver.cuDevicePrimaryCtxRetain, self._device)
        if not active:  # it only saves memory, so a driver may refuse
            driver.cuCtxSetCurrent(self._context)
            driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE, STACK_BYTES)

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
        """Enqueue a kernel; see `Runtime.launch`."""
        self._select()
        x, y, z = grid
        if early and self._starts_early:
            config = self._early_configs(grid, threads, stream, lds_bytes)
            (error,) = self._api.cuLaunchKernelEx(config, function, 0, arguments.address)
        else:
            (error,) = self._api.cuLaunchKernel(
                function, x, y, z, threads, 1, 1, lds_bytes, stream, 0, arguments.address
            )
        if error != self._success:
            raise DeviceError(
                f"launch of {grid} blocks of {threads} threads: {self._describe(error)}"
            )

    def allow_lds(self, function: Any, nbytes: int) -> None:
        """Let launches give a kernel more LDS than the 48 KB that all may have."""
        attribute = self._api.CUfunction_attribute
        most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._select()
        self._checked(self._api.cuFuncSetAttribute, function, most, nbytes)

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel in a module, and have memory for its stack.

        The driver would see to it at the launch, and wait until the device is idle. A kernel that
        waits for another device may be running then, while that device waits for this thread. To
        set the limit waits, too: so a group finds all kernels of a pass before it launches one.
        """
        found = super().function(module, name)
        api = self._api
        size = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        stack = api.CUlimit.CU_LIMIT_STACK_SIZE
        needed = self._checked(api.cuFuncGetAttribute, size, found)
        if needed > self._checked(api.cuCtxGetLimit, stack):
            self._checked(api.cuCtxSetLimit, stack, needed)
        return found

    def compiler_version(self) -> str:
        """Return the version of the run-time compiler, as part of the cache's key."""
        return compiler_version()

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile a kernel file for this device; `CompileError` holds the log."""
        return compile_cubin(source, name, headers, options, self.properties.architecture)

    def close(self) -> None:
        """Let go of the device; nothing made by this runtime may be used any more."""
        if self._context is not None:
            self._context = None
            self._checked(self._api.cuDevicePrimaryCtxRelease, self._device)

    def _select(self) -> None:
        self._checked(self._api.cuCtxSetCurrent, self._context)

    def _peer(self, other: Runtime) -> Any:
        return cast(CudaRuntime, other)._context

    def _peer_numbers(self, other: Runtime) -> tuple[Any, Any]:
        return self._device, cast(CudaRuntime, other)._device

    def _checked(self, function: Any, *arguments: Any) -> Any:
        return _checked(self._api, function, *arguments)

    def _describe(self, error: Any) -> str:
        return _describe(self._api, error)

    def _is_out_of_memory(self, error: Any) -> bool:
        return bool(error == self._api.CUresult.CUDA_ERROR_OUT_OF_MEMORY)

    def _capture_mode(self) -> Any:
        return self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

    def _copy(self, way: Way, target: int, source: int, nbytes: int, stream: Any) -> None:
        name = {
            "to_device": "cuMemcpyHtoDAsync",
            "to_host": "cuMemcpyDtoHAsync",
            "on_device": "cuMemcpyDtoDAsync",
        }[way]
        self._select()
        self._checked(getattr(self._api, name), target, source, nbytes, stream)


def _early_config(
    driver: Any, grid: tuple[int, int, int], threads: int, stream: Any, lds_bytes: int
) -> Any:
    """Describe a launch that may start before the one before it has ended."""
    attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    ids = driver.CUlaunchAttributeID
    attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = value
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = lds_bytes
    config.attrs, config.numAttrs = [attribute], 1
    if stream is not None:
        config.hStream = stream
    return config


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
