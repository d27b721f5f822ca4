"""The fixture `gpu`: the kernels of each device there is, the CPU stand-in's two among them.

Of many cases on the stand-in, it also chooses those that `make test` runs.

`alike` names several of one architecture. The stand-in takes the place of ROCm in this process, so
a real AMD GPU is tested where no test of the stand-in is selected: `pytest -m gpu`. STANDIN_ASAN=1
takes the stand-in's build with AddressSanitizer (test_sanitizer.py runs the tests so).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from ctypes import CDLL, c_double
from pathlib import Path

import pytest
from chosen_cases import chosen_cases
from format_kinds import OF_EACH_KIND
from guarded import Gpu
from hip_calls import HipCalls

from rocmforge.errors import DeviceError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu import cuda, hip
from rocmforge.gpu.ahead import builds_ahead
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.cuda import CudaRuntime
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.graph import Graph

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "standin"))
import build_standin

STANDIN_DEVICES = {"standin-wave32": 0, "standin-wave64": 1}
STANDIN_ALIKE = {"standin-wave32": "gfx1100", "standin-wave64": "gfx90a"}
ASAN = os.environ.get("STANDIN_ASAN") == "1"
COMPILE_AHEAD = GpuBackend.compile_ahead
_loaded: dict[str, CDLL] = {}

REAL = ("cuda", "hip")
SAYS_WHY = "test_runtime"
"""Its tests alone are made for GPUs that are not there, and skip with the reason."""

UNPACKED_LIKE = {
    "IQ3_XXS": "IQ3_S",
    "IQ2_S": "IQ2_XS",
    "IQ1_M": "IQ2_XS",
    "IQ1_S": "IQ2_XXS",
    "TQ1_0": "TQ2_0",
}
"""Formats that lie in memory as another one does, with other numbers in the table."""

BLOCK_TESTS = {"test_pack_kernel", "test_dequantize_kernel", "test_embed_kernel", "test_backend"}
"""Tests that read the blocks of a file, which differ in each format."""

LANES = {"standin-wave32": 32, "standin-wave64": 64}
MOST = {"standin-wave32": 6, "standin-wave64": 2}
"""So many cases of each test run in `make test`. A test that is marked `every_format`, or lies in
one of `BLOCK_TESTS`, has one case of each format instead."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make tests for the stand-in's devices, and for GPUs that are there or that `-m` asks for."""
    asked = "gpu" in metafunc.config.option.markexpr or metafunc.module.__name__ == SAYS_WHY
    real = [
        pytest.param(platform, marks=pytest.mark.gpu)
        for platform in REAL
        if asked or (platform == "cuda" and _cards() > 0)
    ]
    for fixture, names, scope in (
        ("kernels", STANDIN_DEVICES, "session"),
        ("alike", STANDIN_ALIKE, "function"),
    ):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [*names, *real], indirect=True, scope=scope)


@functools.cache
def _cards() -> int:
    return cuda.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `slow` the cases that resemble others in size, wave or format."""
    alike: defaultdict[tuple[str, str, str | None], list[pytest.Item]] = defaultdict(list)
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec else {}
        device = params.get("kernels", params.get("alike"))
        if not isinstance(device, str) or item.get_closest_marker("slow"):
            continue
        name = params.get("name", getattr(params.get("case"), "format", None))
        fmt = name if name in FORMATS else None
        of_blocks = item.path.stem in BLOCK_TESTS
        leaves = fmt in UNPACKED_LIKE and not of_blocks
        if device in LANES:
            # such cases only skip
            leaves |= params.get("wave", LANES[device]) != LANES[device]
            leaves |= item.get_closest_marker("hopper") is not None
        if device == "standin-wave64":
            leaves |= item.get_closest_marker("either_wave") is not None
            leaves |= fmt is not None and fmt not in OF_EACH_KIND
        if leaves:
            item.add_marker(pytest.mark.slow)
        elif device in MOST:
            apart = of_blocks or item.get_closest_marker("every_format")
            alike[item.nodeid.partition("[")[0], device, fmt if apart else None].append(item)
    for (_, device, fmt), cases in alike.items():
        kept = chosen_cases(cases, 1 if fmt else MOST[device])
        for item in cases:
            if item not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def standin() -> dict[str, CDLL]:
    """The stand-in's libraries by name, loaded in place of ROCm's."""
    if not _loaded:
        pytest.importorskip("hip", reason="hip-python is not installed")
        _loaded.update(build_standin.load(build_standin.build(asan=ASAN)))
    return _loaded


@pytest.fixture(scope="session")
def hip_calls() -> HipCalls:
    """Which test made which call of hip-python."""
    pytest.importorskip("hip", reason="hip-python is not installed")
    return HipCalls(_loaded)


@pytest.fixture(autouse=True)
def _note_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    if importlib.util.find_spec("hip") is None:
        yield
        return
    calls = request.getfixturevalue("hip_calls")
    calls.note(None)
    yield
    calls.note(request.node.name)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest, repo: Path) -> Iterator[Kernels]:
    """The kernels of one device, compiled as they are asked for."""
    cache = None
    if request.param in STANDIN_DEVICES:
        request.getfixturevalue("standin")
        cache = build_standin.KERNEL_CACHE
    elif request.param == "hip" and _loaded:
        pytest.skip("the stand-in has the place of ROCm in this process: run pytest -m gpu")
    try:
        runtime: Runtime
        if request.param == "cuda":
            runtime = CudaRuntime()
        else:
            runtime = HipRuntime(STANDIN_DEVICES.get(request.param, 0))
    except DeviceError as error:
        if request.param in STANDIN_DEVICES:
            raise
        pytest.skip(str(error))
    kernels = Kernels(runtime, folder=repo / "kernels", cache=cache)
    yield kernels
    kernels.close()
    runtime.close()


def _list_ahead(self: GpuBackend, graph: Graph, cache: DeviceKVCache, ctx: int) -> None:
    """List the kernels of passes that a test may not run; the stand-in compiles none of them."""
    if _loaded and self.kernels.runtime.platform == "hip":
        builds_ahead(graph, self.kernels, cache, ctx)
    else:
        COMPILE_AHEAD(self, graph, cache, ctx)


@pytest.fixture(scope="session", autouse=True)
def _compile_what_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuBackend, "compile_ahead", _list_ahead)
        yield


@pytest.fixture(autouse=True)
def _compile_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("ahead"):
        monkeypatch.setattr(GpuBackend, "compile_ahead", COMPILE_AHEAD)


@pytest.fixture
def gpu(kernels: Kernels) -> Iterator[Gpu]:
    """One device for one test, with memory that is freed and whose bounds are checked."""
    gpu = Gpu(kernels, guarded=not ASAN)
    yield gpu
    try:
        gpu.check_guards()
    finally:
        gpu.free()


@pytest.fixture
def alike(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], list[str]]:
    """Names so many devices of one architecture, or skips where there are fewer."""
    platform = request.param
    if platform in STANDIN_ALIKE:
        request.getfixturevalue("standin")
        monkeypatch.setenv("STANDIN_DEVICES", ",".join([STANDIN_ALIKE[platform]] * 4))
        platform = "hip"
    elif platform == "hip" and _loaded:
        pytest.skip("the stand-in has the place of ROCm in this process: run pytest -m gpu")
    there = {"hip": hip.count, "cuda": cuda.count}[platform]()

    def names(count: int) -> list[str]:
        if there < count:
            pytest.skip(f"{there} devices of {platform}, wanted {count}")
        return [f"{platform}:{index}" for index in range(count)]

    return names


@pytest.fixture
def plant_times(
    standin: dict[str, CDLL], kernels: Kernels
) -> Iterator[Callable[[float, float], None]]:
    """Let each kernel and each launch take so many seconds on the stand-in, until the test ends."""
    if kernels.runtime.platform == "cuda":
        pytest.skip("times are planted in the stand-in of HIP")
    plant = standin["amdhip64"].standin_plant
    plant.argtypes = c_double, c_double
    yield plant
    plant(0.0, 0.0)
