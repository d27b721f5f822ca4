"""The suites of ops on a GPU: what they report is the device's time of the op, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from suite_caches import nothing_prepared

from rocmforge.gpu.compiler import Kernels
from rocmforge.ops import cases

pytestmark = pytest.mark.either_wave

KERNEL_S = 3e-3  # planted; so long that one round is a replay
LAUNCH_S = 1e-3


@pytest.fixture
def suites(
    kernels: Kernels, repo: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, ModuleType]]:
    """The suites on the device of `kernels`, with one copy of what they read."""
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import attention, cold, dequantize, devices, ideal_time, matmul, rows

    runtime = kernels.runtime
    monkeypatch.setenv("ROCMFORGE_DEVICE", f"{runtime.platform}:{runtime.properties.index}")
    for module in (cold, ideal_time):
        monkeypatch.setattr(module, "cold_bytes", lambda device: 1)
    modules = [attention, dequantize, devices, ideal_time, matmul, rows]
    with nothing_prepared(modules):
        yield {module.__name__.removeprefix("benchmarks."): module for module in modules}


@pytest.fixture
def planted(plant_times: Callable[[float, float], None]) -> None:
    """Each kernel takes KERNEL_S on the stand-in, and each launch LAUNCH_S."""
    plant_times(KERNEL_S, LAUNCH_S)


@pytest.mark.parametrize(
    ("suite", "function", "arguments", "kernels_of_it"),
    [
        ("matmul", "cold_matmul", (cases.MatmulCase(1, 64, 256, "Q4_K"), "gpu"), 1),
        ("matmul", "cold_matmul", (cases.MatmulCase(16, 64, 256, "F16"), "gpu"), 1),
        ("attention", "cold_attention", (cases.ATTENTION_PREFILL[0], "gpu"), 1),
        ("dequantize", "cold_dequantize", ("Q6_K", "gpu", 256), 1),
        ("rows", "prepared", ("swiglu", 1, "gpu"), 1),
        ("rows", "prepared", ("rope", 1, "gpu"), 1),
    ],
)
@pytest.mark.usefixtures("planted")
def test_an_op_takes_what_its_kernels_take(
    suites: dict[str, ModuleType],
    suite: str,
    function: str,
    arguments: tuple[object, ...],
    kernels_of_it: int,
) -> None:
    made = getattr(suites[suite], function)(*arguments)
    call = made[0] if isinstance(made, tuple) else made
    clock = suites["devices"].clock
    begin = clock()
    call()
    assert clock() - begin == pytest.approx(kernels_of_it * KERNEL_S, rel=1e-3)


def test_each_copy_is_replayed(
    suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import cold

    monkeypatch.setattr(cold, "cold_bytes", lambda device: 3 * case.bytes)
    case = cases.MatmulCase(1, 64, 256, "Q8_0")
    suites["matmul"].cold_matmul(case, "gpu")
    backend = suites["devices"].backend("gpu")
    assert len(backend._matrices) == 3
