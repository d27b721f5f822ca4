"""CUDA without a GPU: what is missing is named, and NVRTC compiles every kernel file.

What needs a GPU is in test_runtime.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from chosen_builds import chosen_builds, targets

from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu import cuda
from rocmforge.gpu.compiler import Build, compile_options
from rocmforge.gpu.context_ahead import STACK_BYTES
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.gpu.kernel_files import kernels_folder, read_kernel
from rocmforge.gpu.ops import attention_prompt, experts_batch, matmul_batch, matmul_f16
from rocmforge.gpu.ops.expert_constants import choose
from rocmforge.gpu.ops.experts import GATE_UP_FILE, GATE_UP_LAYOUTS
from rocmforge.gpu.ops.gemv_constants import TOKENS
from rocmforge.gpu.runtime import DeviceProperties

TARGETS = [
    *(pytest.param(*each, True) for each in targets("sm_90")),
    *(pytest.param(*each, False, marks=pytest.mark.slow) for each in targets("sm_80", "sm_90")),
]


@pytest.fixture
def nvrtc() -> None:
    try:
        cuda.compiler_version()
    except DeviceError as error:
        pytest.skip(str(error))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert cuda.count() == 0
    for call in (cuda.CudaRuntime, cuda.compiler_version):
        with pytest.raises(DeviceError, match=r"pip install 'cuda-bindings>=13' 'nvid"):
            call()


def test_a_missing_driver_or_card_says_so(nvrtc: None) -> None:
    if cuda.count():
        pytest.skip("this machine has an NVIDIA GPU")
    with pytest.raises(DeviceError, match=r"no NVIDIA driver on this machine|finds no usable GPU"):
        cuda.CudaRuntime()


def test_the_module_needs_no_package_to_be_imported() -> None:
    """The command line lists devices on machines that have neither package nor driver."""
    code = (
        "import sys; sys.modules['cuda'] = None; from rocmforge.gpu import cuda; "
        "print(cuda.count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def opened(
    monkeypatch: pytest.MonkeyPatch, architecture: str = "sm_90", **calls: Any
) -> cuda.CudaRuntime:
    """A runtime whose driver has the calls that open a device, and those of the test."""
    driver = {
        "CUresult": SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_OUT_OF_MEMORY=2),
        "CUlimit": SimpleNamespace(CU_LIMIT_STACK_SIZE="stack"),
        "cuDriverGetVersion": lambda: (0, 13000),
        "cuDeviceGetCount": lambda: (0, 1),
        "cuDeviceGet": lambda index: (0, index),
        "cuDevicePrimaryCtxGetState": lambda device: (0, 0, 1),
        "cuDevicePrimaryCtxRetain": lambda device: (0, "context"),
        "cuCtxSetCurrent": lambda context: (0,),
    }
    card = DeviceProperties(0, "X", architecture, 32, 132, 140 << 30, 49152, False)
    monkeypatch.setattr(cuda, "_initialized_driver", lambda: SimpleNamespace(**driver | calls))
    monkeypatch.setattr(cuda, "_properties", lambda *_: card)
    return cuda.CudaRuntime()


@pytest.mark.parametrize("call", ["memory_info", "allocate", "launch"])
def test_a_context_that_cannot_be_made_current_is_an_error(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = opened(
        monkeypatch,
        cuCtxSetCurrent=cuCtxSetCurrent,
        cuGetErrorName=lambda error: (0, b"CUDA_ERROR_INVALID_CONTEXT"),
        cuGetErrorString=lambda error: (0, b"invalid device context"),
        cuMemGetInfo=lambda: (0, 1, 2),
        cuMemAlloc=lambda nbytes: (0, 256),
        cuLaunchKernel=lambda *arguments: (0,),
    )
    attempt = {
        "memory_info": runtime.memory_info,
        "allocate": lambda: runtime.allocate(1),
        "launch": lambda: runtime.launch(0, (1, 1, 1), 32, Arguments("i", [0], "cuda")),
    }[call]
    with pytest.raises(DeviceError, match="cuCtxSetCurrent: CUDA_ERROR_INVALID_CONTEXT"):
        attempt()


def cuCtxSetCurrent(context: str) -> tuple[int]:  # noqa: N802
    return (201,)


@pytest.mark.parametrize(("active", "refused"), [(0, 0), (0, 215), (1, 0)])
def test_only_a_context_of_its_own_gets_a_limit_of_its_own(
    active: int, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    opened(
        monkeypatch,
        cuDevicePrimaryCtxGetState=lambda device: (0, 0, active),
        cuCtxSetCurrent=lambda context: calls.append(("current", context)) or (0,),
        cuCtxSetLimit=lambda limit, value: calls.append((limit, value)) or (refused,),
    )
    assert calls == ([] if active else [("current", "context"), ("stack", STACK_BYTES)])


def test_a_kernels_stack_gets_memory_before_it_is_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [0]
    needed = {b"none": 0, b"some": 16, b"more": 40}
    runtime = opened(
        monkeypatch,
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES="local"),
        cuModuleGetFunction=lambda module, name: (0, name),
        cuFuncGetAttribute=lambda attribute, function: (0, needed[function]),
        cuCtxGetLimit=lambda limit: (0, limits[-1]),
        cuCtxSetLimit=lambda limit, value: limits.append(value) or (0,),
    )
    for name in ("none", "some", "more", "some"):
        assert runtime.function("module", name) == name.encode()
    assert limits == [0, 16, 40]


@pytest.mark.parametrize(
    ("architecture", "version", "early", "starts_early"),
    [
        ("sm_90", 13000, True, True),
        ("sm_90", 13000, False, False),
        ("sm_90", 12020, True, False),
        ("sm_80", 13000, True, False),
    ],
)
def test_a_launch_starts_early_where_card_and_driver_can(
    nvrtc: None,
    architecture: str,
    version: int,
    early: bool,
    starts_early: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda.bindings import driver as real

    taken: list[Any] = []
    runtime = opened(
        monkeypatch,
        architecture,
        **{name: getattr(real, name) for name in dir(real) if name.startswith("CUlaunch")},
        cuDriverGetVersion=lambda: (0, version),
        CUfunction_attribute=SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic"
        ),
        cuFuncSetAttribute=lambda *arguments: taken.append(arguments) or (0,),
        cuLaunchKernel=lambda *arguments: taken.append((None, arguments[7])) or (0,),
        cuLaunchKernelEx=lambda config, *rest: (
            taken.append((config, config.sharedMemBytes)) or (0,)
        ),
    )
    runtime.allow_lds("kernel", 98304)
    same, stream = Arguments("i", [0], "cuda"), real.CUstream(5)
    runtime.launch(0, (3, 2, 1), 64, same, early=early, lds_bytes=98304)
    runtime.launch(0, (3, 2, 1), 64, same, early=early, lds_bytes=98304)
    runtime.launch(0, (3, 2, 1), 64, same, stream, early=early)
    allowed, (config, lds_bytes), again, (other, _) = taken
    assert allowed == ("kernel", "dynamic", 98304)
    assert again[0] is config
    assert (config is not None) == starts_early
    assert lds_bytes == 98304
    if config is not None:
        assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (3, 2, 1)
        assert (config.blockDimX, config.numAttrs) == (64, 1)
        assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
        assert other is not config
        assert (int(other.hStream), other.sharedMemBytes) == (5, 0)


def test_a_gpu_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def cuDeviceGet(index: int) -> tuple[int, str | None]:  # noqa: N802
        return (0, "card") if index == 1 else (101, None)

    driver = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuDeviceGet=cuDeviceGet,
        cuDeviceGetPCIBusId=lambda length, device: (0, b"0000:19:00.0".ljust(length, b"\0")),
        cuGetErrorName=lambda error: (0, b"CUDA_ERROR_INVALID_DEVICE"),
        cuGetErrorString=lambda error: (0, b"invalid device ordinal"),
    )
    monkeypatch.setattr(cuda, "_initialized_driver", lambda: driver)
    assert cuda.pci_address(1) == "0000:19:00.0"
    assert cuda.pci_address(2) is None


def test_a_gpu_without_the_package_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert cuda.pci_address(0) is None


def test_the_log_names_file_and_line(nvrtc: None) -> None:
    source = '#include "a.h"\nextern "C" __global__ void f(int* x) { *x = one + two; }\n'
    with pytest.raises(CompileError) as raised:
        cuda.compile_cubin(source, "f.hip", {"a.h": "const int one = 1;"}, ["-DX"], "sm_80")
    error = raised.value
    assert 'f.hip(2): error: identifier "two" is undefined' in error.log
    assert "\0" not in error.log
    assert error.options[0] == "-arch=sm_80"
    assert error.options[-1] == "-DX"


def compile_one(build: Build, architecture: str) -> str | None:
    """Return what is wrong with a build."""
    source, headers = read_kernel(kernels_folder(), build.file)
    options = compile_options(32, build.defines)
    try:
        code = cuda.compile_cubin(source, build.file, headers, options, architecture)
    except CompileError as error:
        return str(error)
    lost = [name for name in build.kernels if name.encode() not in code]
    return f"{build.file} {build.defines}: no kernels {lost}" if lost else None


@pytest.mark.parametrize(("architecture", "file", "alone"), TARGETS)
def test_every_kernel_file_compiles(architecture: str, file: str, alone: bool, nvrtc: None) -> None:
    builds = chosen_builds(file, architecture, alone)
    with ThreadPoolExecutor(2) as pool:
        problems = list(pool.map(lambda build: compile_one(build, architecture), builds))
    assert [problem for problem in problems if problem] == []


def what_ptxas_says(build: Build, architecture: str) -> str:
    """The log of a build, with the registers and spills of each kernel."""
    _, found = cuda._bindings()
    source, headers = read_kernel(kernels_folder(), build.file)
    names, texts = ([text.encode() for text in each] for each in zip(*headers.items(), strict=True))
    given = (source.encode(), build.file.encode(), len(headers), texts, names)
    _, program = found.nvrtcCreateProgram(*given)
    own = cuda._OWN_NAMES.get(architecture, architecture)
    options = [f"-arch={own}", "--ptxas-options=-v", *compile_options(32, build.defines)]
    found.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    _, size = found.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    found.nvrtcGetProgramLog(program, log)
    found.nvrtcDestroyProgram(program)
    return log.decode()


def assert_nothing_spills_or_waits(build: Build, architecture: str) -> None:
    """ptxas names stores and loads of each kernel, and that wgmmas wait for one another."""
    log = what_ptxas_says(build, architecture)
    spills = re.findall(r"(\d+) bytes spill", log)
    assert len(spills) == 2 * len(build.kernels), log
    assert {*spills} == {"0"}, build.defines
    assert "serialized" not in log, build.defines


@pytest.mark.parametrize(
    ("architecture", "alone"),
    [
        ("sm_90", True),
        *(pytest.param(sm, False, marks=pytest.mark.slow) for sm in ("sm_80", "sm_90")),
    ],
)
def test_prompts_of_float16_spill_nothing_and_no_wgmma_waits(
    architecture: str, alone: bool, nvrtc: None
) -> None:
    """A change of how a block finds its rows once did both, on cards that were not at hand."""
    version = [*map(int, re.findall(r"nvrtc (\d+)\.(\d+)", cuda.compiler_version())[0])]
    if version < [13, 5]:
        pytest.skip("older compilers spill 12 to 60 bytes on sm_80")
    builds = [*matmul_f16.builds(architecture)]
    for build in builds[:1] if alone else builds:
        assert_nothing_spills_or_waits(build, architecture)


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tall_tiles_spill_nothing_and_no_wgmma_waits(alone: bool, nvrtc: None) -> None:
    """A lane has 128 sums, of the 255 registers that there are."""
    tokens = matmul_batch.TALL.TOKENS
    hot = [build for build in matmul_batch.builds("sm_90") if build.hot]
    tall = [build for build in hot if (build.defines or {})["TOKENS"] == tokens]
    assert len(tall) == 7  # three formats, two ops, and gate and up of x in order
    for build in tall[:1] if alone else tall:
        assert_nothing_spills_or_waits(build, "sm_90")


@pytest.mark.parametrize(
    ("op", "macro", "value", "count"),
    [
        (attention_prompt, "WARPGROUP", 1, 2),
        (experts_batch, "TOKENS", matmul_batch.WIDE.TOKENS, 48),
    ],
)
def test_warpgroups_of_attention_and_experts_spill_nothing_and_no_wgmma_waits(
    op: ModuleType, macro: str, value: int, count: int, nvrtc: None
) -> None:
    """Of formats, a common one, and one of grids."""
    found = [b for b in op.builds("sm_90") if (b.defines or {})[macro] == value]
    assert len(found) >= count
    formats = (None, "Q4_K", "IQ2_XS")
    some = [b for b in found if (b.defines or {}).get("FORMAT_0") in formats]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda build: assert_nothing_spills_or_waits(build, "sm_90"), some))


@pytest.mark.parametrize("name", ["IQ4_XS", "NVFP4"])
def test_gate_and_up_of_experts_spill_nothing(name: str, nvrtc: None) -> None:
    """With the constants of Q4_K these formats spilled up to 208 bytes."""
    shape = 8 * 768, 2048  # eight experts of 30B-A3B
    found = (choose("sm_90", name, shape, tokens, "expert_gate_up") for tokens in TOKENS)
    for constants in dict.fromkeys(found):
        defines = {**constants.macros([name] * 2), "OUT": "Q8"}
        build = Build(GATE_UP_FILE, GATE_UP_LAYOUTS[constants.gather], defines)
        assert_nothing_spills_or_waits(build, "sm_90")


def test_each_call_of_the_runtime_has_a_name_in_both_vendors_packages() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    names = cuda.CudaRuntime.names
    assert [name for name in names.values() if not callable(getattr(driver, name, None))] == []
    assert names.keys() == HipRuntime.names.keys()
