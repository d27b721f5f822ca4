"""`Runtime` on AMD GPUs: the HIP runtime and hiprtc through hip-python 6.4 to 7.2 and 10.0.

The only importer of hip-python. What its versions do not share is settled here: device properties,
and calls that only one of them has are not used. Its version has to fit the runtime's, and what
fits is said here. HIP's current device belongs to a thread; it is set before a call where this
thread last used another one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.gpu.packages import TESTED_HIP, hip_requirement, nearest_hip
from rocmforge.gpu.runtime import DeviceProperties, Runtime, Way
from rocmforge.hardware import find_rocm

_FIRST_CALL = threading.Lock()
_OPTIONS = ("-O3",)
_FINE_GRAINED = 1  # hipDeviceMallocFinegrained


class _Current(threading.local):
    index = -1  # the device that this thread has set; unknown at first


_current = _Current()


def count() -> int:
    """Return the number of AMD GPUs; 0 where hip-python, ROCm or a card is missing."""
    try:
        hip, _ = _bindings()
        return _device_count(hip)
    except DeviceError:
        return 0


def devices() -> list[DeviceProperties]:
    """Describe the AMD GPUs; none where hip-python, ROCm or a card is missing."""
    found = count()
    return [_properties(_bindings()[0], index) for index in range(found)]


def reaches(index: int, other: int) -> bool:
    """Whether kernels of one GPU can use the memory of another; both by their numbers."""
    hip, _ = _bindings()
    return bool(_checked(hip.hipDeviceCanAccessPeer, index, other))


def version() -> tuple[int, int, int] | None:
    """Return the HIP runtime's version, which is not ROCm's; None where there is no runtime."""
    try:
        hip, _ = _bindings()
        error, number = hip.hipRuntimeGetVersion()
    except (DeviceError, RuntimeError):
        return None
    return None if error else (number // 10**7, number // 10**5 % 100, number % 10**5)


def misfit() -> str | None:
    """Say that hip-python is for another HIP than the runtime's, and which one would fit.

    None where it fits, or where one of the two is missing.
    """
    from importlib import metadata  # 15 ms, and nothing else here needs it

    try:
        installed = metadata.version("hip-python")
    except metadata.PackageNotFoundError:
        return None
    found = version()
    if found is None:
        return None
    runtime = f"HIP {'.'.join(map(str, found))}"
    if found[:2] < min(TESTED_HIP.values()):
        return f"{runtime} is too old: ROCm 6.4 or later is wanted"
    fitting = max(rocm for rocm, of_hip in TESTED_HIP.items() if of_hip <= found[:2])
    major, minor, *_ = map(int, re.findall(r"\d+", installed))
    if nearest_hip((major, minor)) == fitting:
        return None
    return (
        f"hip-python {installed} does not fit {runtime} here: "
        f"pip install 'hip-python=={fitting[0]}.{fitting[1]}.*'"
    )


def compiler_version() -> str:
    """Return hiprtc's version, and with what it is always called.

    Raises
    ------
    DeviceError
        hip-python or ROCm is not installed.
    """
    _, hiprtc = _bindings()
    with _FIRST_CALL:  # hip-python loads the library then, and not twice at once
        major, minor = _checked(hiprtc.hiprtcVersion)
    return f"hiprtc {major}.{minor} {' '.join(_OPTIONS)}"


def compile_code_object(
    source: str, name: str, headers: Mapping[str, str], options: Sequence[str], architecture: str
) -> bytes:
    """Compile a kernel file to a code object; needs no GPU.

    Parameters
    ----------
    source, name
        The file's text and its name, for messages.
    headers
        What it includes, by name.
    options
        hiprtc's, without the architecture.
    architecture
        ``gfx1100`` or the like.

    Raises
    ------
    CompileError
        hiprtc refuses the source, an option or the architecture.
    DeviceError
        hip-python or ROCm is not installed.
    """
    _, hiprtc = _bindings()
    all_options = [f"--offload-arch={architecture}", *_OPTIONS, *options]
    program = _checked(
        hiprtc.hiprtcCreateProgram,
        source.encode(),
        name.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [header.encode() for header in headers],
    )
    try:
        encoded = [option.encode() for option in all_options]
        (error,) = hiprtc.hiprtcCompileProgram(program, len(encoded), encoded)
        if error:
            log = bytearray(_checked(hiprtc.hiprtcGetProgramLogSize, program))
            _checked(hiprtc.hiprtcGetProgramLog, program, log)
            text = log.rstrip(b"\0").decode(errors="replace") or error.name
            raise CompileError(name, architecture, all_options, text)
        code = bytearray(_checked(hiprtc.hiprtcGetCodeSize, program))
        _checked(hiprtc.hiprtcGetCode, program, code)
        return bytes(code)
    finally:
        _checked(hiprtc.hiprtcDestroyProgram, program.createRef())


class HipRuntime(Runtime):
    """One open AMD GPU.

    Parameters
    ----------
    index
        HIP's number of the device; HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES count.

    Raises
    ------
    DeviceError
        hip-python, ROCm or the device is missing; says which and what to do.
    """

    platform = "hip"
    shared_flags = (_FINE_GRAINED,)
    names = MappingProxyType(
        {
            "memory_info": "hipMemGetInfo",
            "allocate": "hipMalloc",
            "allocate_shared": "hipExtMallocWithFlags",
            "can_access_peer": "hipDeviceCanAccessPeer",
            "enable_peer": "hipDeviceEnablePeerAccess",
            "free": "hipFree",
            "allocate_pinned": "hipHostMalloc",
            "free_pinned": "hipHostFree",
            "fill": "hipMemsetAsync",
            "create_stream": "hipStreamCreateWithFlags",
            "destroy_stream": "hipStreamDestroy",
            "synchronize_stream": "hipStreamSynchronize",
            "synchronize_device": "hipDeviceSynchronize",
            "create_event": "hipEventCreateWithFlags",
            "record_event": "hipEventRecord",
            "wait_event": "hipStreamWaitEvent",
            "query_event": "hipEventQuery",
            "synchronize_event": "hipEventSynchronize",
            "elapsed_milliseconds": "hipEventElapsedTime",
            "destroy_event": "hipEventDestroy",
            "load_module": "hipModuleLoadData",
            "unload_module": "hipModuleUnload",
            "function": "hipModuleGetFunction",
            "begin_capture": "hipStreamBeginCapture",
            "end_capture": "hipStreamEndCapture",
            "instantiate_graph": "hipGraphInstantiateWithFlags",
            "destroy_captured": "hipGraphDestroy",
            "launch_graph": "hipGraphLaunch",
            "destroy_graph": "hipGraphExecDestroy",
        }
    )

    def __init__(self, index: int = 0) -> None:
        api, _ = _bindings()
        found = _device_count(api)
        if not 0 <= index < found:
            raise DeviceError(
                f"device hip:{index}: HIP finds {found} AMD GPUs; rocminfo shows what ROCm sees, "
                "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES hide devices, and /dev/kfd must be "
                "readable (groups render, video)"
            )
        super().__init__(api, _properties(api, index))
        self._index = index

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
        """Enqueue a kernel; see `Runtime.launch`. HIP starts none early; kernels name their LDS."""
        if _current.index != self._index:
            self._select()
        x, y, z = grid
        (error,) = self._api.hipModuleLaunchKernel(
            function, x, y, z, threads, 1, 1, 0, stream, None, arguments.address
        )
        if error:
            raise DeviceError(
                f"hipModuleLaunchKernel of {grid} blocks of {threads} threads with "
                f"{arguments.nbytes} bytes of arguments: {_describe(error)}"
            )

    def allow_lds(self, function: Any, nbytes: int) -> None:
        """Do nothing: kernels name their LDS themselves."""

    def compiler_version(self) -> str:
        """Return the version of the run-time compiler, as part of the cache's key."""
        return compiler_version()

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile a kernel file for this device; `CompileError` holds the log."""
        return compile_code_object(source, name, headers, options, self.properties.architecture)

    def close(self) -> None:
        """Let go of the device; nothing made by this runtime may be used any more."""
        self.synchronize()

    def _select(self) -> None:
        if _current.index != self._index:
            _checked(self._api.hipSetDevice, self._index)
            _current.index = self._index

    def _peer(self, other: Runtime) -> Any:
        return other.properties.index

    def _peer_numbers(self, other: Runtime) -> tuple[Any, Any]:
        return self._index, other.properties.index

    def _checked(self, function: Any, *arguments: Any) -> Any:
        return _checked(function, *arguments)

    def _describe(self, error: Any) -> str:
        return _describe(error)

    def _is_out_of_memory(self, error: Any) -> bool:
        return bool(error == self._api.hipError_t.hipErrorOutOfMemory)

    def _capture_mode(self) -> Any:
        return self._api.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal

    def _copy(self, way: Way, target: int, source: int, nbytes: int, stream: Any) -> None:
        kinds = self._api.hipMemcpyKind
        kind = {
            "to_device": kinds.hipMemcpyHostToDevice,
            "to_host": kinds.hipMemcpyDeviceToHost,
            "on_device": kinds.hipMemcpyDeviceToDevice,
        }[way]
        self._select()
        _checked(self._api.hipMemcpyAsync, target, source, nbytes, kind, stream)


def _bindings() -> tuple[Any, Any]:
    try:
        from hip import hip, hiprtc
    except ImportError as error:
        raise DeviceError(
            f"device 'hip' needs the package hip-python ({error}): "
            f"pip install '{hip_requirement()}'"
        ) from error
    return hip, hiprtc


def _device_count(hip: Any) -> int:
    error, found = _loaded(hip.hipGetDeviceCount)
    if error == hip.hipError_t.hipErrorNoDevice:
        return 0
    if error:
        raise DeviceError(f"hipGetDeviceCount: {_describe(error)}")
    return int(found)


def _loaded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of hip-python, which opens its library and looks for it at the first call."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        rocm = find_rocm()
        here = f"ROCm {rocm.version} was found ({rocm.source})" if rocm else "no ROCm was found"
        reason = re.sub(r"^failed to dlopen .*: b'(.*)'$", r"\1", str(error))
        raise DeviceError(
            f"{function.__name__}: ROCm's libraries are not there or too old ({reason}). They are "
            "looked for in ROCM_PATH/lib (default /opt/rocm/lib) and in LD_LIBRARY_PATH; "
            f"{here}; {misfit() or 'install ROCm 6.4 or later'}, or use device 'cpu'"
        ) from error


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    error, *values = _loaded(function, *arguments)
    if error:
        raise DeviceError(f"{function.__name__}: {_describe(error)}")
    return values[0] if len(values) == 1 else values


def _describe(error: Any) -> str:
    """Name an error of the runtime or of hiprtc, and say what it means and what to do."""
    if not error.name.startswith("hipError"):
        return str(error.name)
    hip, _ = _bindings()
    _, text = hip.hipGetErrorString(error)
    unfit = misfit()
    advice = _ADVICE.get(error.name, "") + (f"; {unfit}" if unfit else "")
    return f"{error.name}: {_text(text)}{advice}"


_ADVICE = {
    "hipErrorNoBinaryForGpu": "; the code object is for another architecture",
    "hipErrorInvalidDevice": "; rocminfo shows the devices",
    "hipErrorIllegalAddress": "; a kernel used memory that is not its own: start again, and report "
    "it with AMD_LOG_LEVEL=3",
    "hipErrorLaunchFailure": "; a kernel failed: start again, and report it with AMD_LOG_LEVEL=3",
}


def _properties(hip: Any, index: int) -> DeviceProperties:
    try:  # hip-python 10 returns them; 6.4 and 7.2 fill an object
        values = _checked(hip.hipGetDeviceProperties, index)
    except TypeError:
        values = hip.hipDeviceProp_t()
        _checked(hip.hipGetDeviceProperties, values, index)
    return DeviceProperties(
        index=index,
        name=_text(values.name),
        architecture=_text(values.gcnArchName).partition(":")[0],
        wave_size=int(values.warpSize),
        compute_units=int(values.multiProcessorCount),
        memory_bytes=int(values.totalGlobalMem),
        shared_bytes=int(values.sharedMemPerBlock),
        integrated=bool(values.integrated),
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
