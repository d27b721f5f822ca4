"""Which rules a GPU takes: by formats, rows and architecture, and by what the caller asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.compiler import BuildRecorder, wave_size
from rocmforge.gpu.dtypes import F32
from rocmforge.gpu.fusion import FUSIONS, Fusion, fills, gpu_rules, pass_steps
from rocmforge.gpu.lowering import Lowering, activation_dtype
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.plan.fused_records import GateUpSwiglu
from rocmforge.plan.fusion import fuse
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Tensor
from rocmforge.plan.records import Matmul, Rmsnorm, Route, Swiglu

H, GATE, UP, X = (
    Tensor(name, columns) for name, columns in (("h", 256), ("g", 512), ("u", 512), ("x", 256))
)


def reading_on(architecture: str, tokens: int) -> Callable[[Op, Tensor], Sequence[str]]:
    """As `Lowering.reading` says, for the ops of a feed-forward part."""

    def reading(op: Op, tensor: Tensor) -> Sequence[str]:
        if isinstance(op, GateUpSwiglu):
            return (activation_dtype(architecture, op.gate.format, tokens),)
        if isinstance(op, Matmul) and tensor == op.x:
            return [activation_dtype(architecture, w.format, tokens) for w in op.weights]
        return (F32,)

    return reading


def fused_names(
    architecture: str,
    tokens: int,
    formats: Sequence[str],
    fused: Collection[Fusion] = FUSIONS,
) -> list[str]:
    gate, up = (DeviceMatrix.at(0, name, 512, 256) for name in formats[:2])
    ops: list[Op] = [
        Matmul(H, (gate, up), (GATE, UP), (None, None)),
        Swiglu(GATE, UP, GATE),
        Matmul(GATE, (DeviceMatrix.at(0, formats[2], 256, 512),), (X,), (None,), accumulate=True),
    ]
    shape = BatchShape(tokens, 1, None, tokens == 1, tokens)
    rules = gpu_rules(shape, reading_on(architecture, tokens), fused)
    return [type(op).__name__ for op in fuse(ops, rules)]


FIRST = ["GateUpSwiglu", "Matmul"]
APART = ["Matmul", "Swiglu", "Matmul"]


@pytest.mark.parametrize(
    ("architecture", "tokens", "formats", "wanted"),
    [
        ("sm_90", 1, ("Q4_K", "Q4_K", "Q6_K"), FIRST),
        ("sm_90", 40, ("Q4_K", "Q4_K", "Q6_K"), FIRST),
        ("sm_90", 40, ("F16", "F16", "Q8_0"), FIRST),
        # Gate and up of two formats; a few rows only.
        ("sm_90", 1, ("Q4_K", "Q5_K", "Q6_K"), APART),
        ("gfx1100", 8, ("F16", "Q8_0", "F16"), APART),
        ("gfx942", 8, ("Q8_0", "F16", "Q4_0"), APART),
        ("gfx942", 9, ("Q8_0", "F16", "Q4_0"), APART),
        ("sm_90", 40, ("Q4_K", "Q5_K", "Q6_K"), APART),
        # Prompts of gfx1030 read int8, unless the weights are plain numbers.
        ("gfx1030", 40, ("Q4_K", "Q4_K", "Q6_K"), APART),
        ("gfx1030", 40, ("F16", "F16", "F16"), FIRST),
        ("gfx1030", 40, ("F16", "F16", "Q8_0"), APART),
        ("gfx1030", 8, ("F16", "F16", "Q8_0"), FIRST),
    ],
)
def test_a_feed_forward_part_fuses_where_a_kernel_writes_what_is_read(
    architecture: str, tokens: int, formats: tuple[str, str, str], wanted: list[str]
) -> None:
    assert fused_names(architecture, tokens, formats) == wanted


def test_the_rules_can_be_chosen() -> None:
    formats = ("Q4_K", "Q4_K", "Q4_K")
    assert fused_names("sm_90", 1, formats, ()) == APART
    assert fused_names("sm_90", 1, formats, ("gate_up_swiglu",)) == FIRST
    assert fused_names("sm_90", 1, formats, FUSIONS) == FIRST
    assert fused_names("sm_90", 1, ("Q4_K", "Q5_K", "Q6_K"), FUSIONS) == APART
    shape = BatchShape(1, 1, None, True, 1)
    counts = [len(gpu_rules(shape, reading_on("sm_90", 1), FUSIONS[:n])) for n in range(6)]
    assert counts == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("tokens", "router", "columns", "wanted"),
    [
        (1, "F32", 256, True),
        (8, "F16", 256, True),
        (9, "F32", 256, False),
        (1, "Q8_0", 256, False),
        (1, "F32", 200, False),
    ],
)
def test_a_dense_router_takes_its_norm_and_its_choice(
    tokens: int, router: str, columns: int, wanted: bool
) -> None:
    x, h, scores = (Tensor(n, k) for n, k in (("x", columns), ("h", columns), ("scores", 8)))
    matrix = DeviceMatrix.at(0, router, 8, columns)
    ops: list[Op] = [
        Rmsnorm(x, np.ones(columns, np.float32), 1e-5, h),
        Matmul(h, (matrix,), (scores,), (None,)),
        Route(scores, Tensor("experts", 2), Tensor("shares", 2), True),
    ]
    assert ("RmsnormRoute" in step_names(ops, tokens)) == wanted


def card(architecture: str, units: int) -> DeviceProperties:
    return DeviceProperties(
        0, "card", architecture, wave_size(architecture), units, 1 << 34, 1 << 16, False
    )


def step_names(ops: Sequence[Op], tokens: int) -> list[str]:
    """Of a pass on an H200, one token of each sequence."""
    runtime: Any = SimpleNamespace(properties=card("sm_90", 132))
    lowering = Lowering(BuildRecorder(runtime), None, 1, None, None)  # type: ignore[arg-type]
    shape = BatchShape(tokens, tokens, None, True, 1)
    return [type(step.op).__name__ for step in pass_steps(ops, lowering, shape)]


@pytest.mark.parametrize(
    ("tokens", "columns", "reader", "wanted"),
    [
        (1, 4096, "Q4_K", True),
        (4, 4096, "Q6_K", True),
        (5, 4096, "Q4_K", False),  # a step of eight takes no less time with it
        (1, 11008, "Q4_K", True),
        (1, 4096, "F16", False),  # that reader wants float32
        (9, 4096, "Q4_K", False),  # a GEMM
    ],
)
def test_a_product_takes_its_norm_where_all_readers_read_int8(
    tokens: int, columns: int, reader: str, wanted: bool
) -> None:
    x, h, normed, q = (
        Tensor(n, k) for n, k in (("x", columns), ("h", 4096), ("n", 4096), ("q", 32))
    )
    weight = DeviceMatrix.at(0, "Q4_K", 4096, columns)
    ops: list[Op] = [
        Matmul(x, (weight,), (h,), (None,), accumulate=True),
        Rmsnorm(h, np.ones(4096, np.float32), 1e-5, normed),
        Matmul(normed, (DeviceMatrix.at(0, reader, 32, 4096),), (q,), (None,)),
    ]
    names = step_names(ops, tokens)
    assert ("MatmulRmsnorm" in names, "Rmsnorm" in names) == (wanted, not wanted)


@pytest.mark.parametrize(
    ("name", "wanted"), [("Q4_K", True), ("Q6_K", True), ("Q8_0", False), ("Q4_0", True)]
)
def test_gate_and_up_of_some_formats_read_a_norm_that_is_whole(name: str, wanted: bool) -> None:
    x, h, normed, out = (
        Tensor(n, k) for n, k in (("x", 4096), ("h", 4096), ("n", 4096), ("o", 64))
    )
    gate, up = Tensor("gate", 64), Tensor("up", 64)
    both = tuple(DeviceMatrix.at(0, name, 64, 4096) for _ in range(2))
    weight = DeviceMatrix.at(0, "Q4_K", 4096, 4096)
    ops: list[Op] = [
        Matmul(x, (weight,), (h,), (None,), accumulate=True),
        Rmsnorm(h, np.ones(4096, np.float32), 1e-5, normed),
        Matmul(normed, both, (gate, up), (None, None)),
        Swiglu(gate, up, out),
    ]
    names = step_names(ops, 1)
    assert "GateUpSwiglu" in names
    assert ("MatmulRmsnorm" in names) == wanted


@pytest.mark.parametrize(
    ("architecture", "units", "rows", "columns", "wanted"),
    [
        ("sm_90", 132, 2048, 2048, True),
        ("sm_90", 132, 2048, 5632, False),
        ("sm_90", 132, 4096, 11008, True),
        ("gfx1100", 96, 4096, 11008, True),
        ("gfx942", 304, 4096, 11008, False),  # blocks of 64 rows
        ("gfx942", 304, 4096, 4096, True),
    ],
)
def test_few_long_rows_leave_a_device_idle(
    architecture: str, units: int, rows: int, columns: int, wanted: bool
) -> None:
    weight = DeviceMatrix.at(0, "Q4_K", rows, columns)
    op = Matmul(Tensor("x", columns), (weight,), (Tensor("h", rows),), (None,), accumulate=True)
    assert fills(op, 1, card(architecture, units)) == wanted
