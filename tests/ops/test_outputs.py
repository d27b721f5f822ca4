"""Rowwise ops that write into an array of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops.matrix import Matrix

SHAPE = (3, 40)
X, UP = np.random.default_rng(1).standard_normal((2, *SHAPE)).astype(np.float32)
CPU = CpuBackend(1)
OPS: dict[str, Callable[..., NDArray[np.float32]]] = {
    "rmsnorm": lambda x, out: ops.rmsnorm(x, UP[0].copy(), 1e-5, CPU, out),
    "softmax": lambda x, out: ops.softmax(x, CPU, out),
    "swiglu": lambda x, out: ops.swiglu(x, UP, CPU, out),
}
every_op = pytest.mark.parametrize("op", list(OPS.values()), ids=list(OPS))


@every_op
def test_the_result_is_that_of_a_new_array(op: Callable[..., Any]) -> None:
    out = np.full(SHAPE, np.nan, np.float32)
    assert op(X, out) is out
    np.testing.assert_array_equal(out, op(X, None))


@every_op
@pytest.mark.parametrize(
    "out",
    [np.empty((3, 39), np.float32), np.empty(SHAPE), np.empty(SHAPE[::-1], np.float32).T],
    ids=["shape", "dtype", "order"],
)
def test_an_array_that_does_not_fit_is_refused(op: Callable[..., Any], out: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"out: got .*, wanted"):
        op(X, out)


@every_op
def test_a_read_only_array_is_refused(op: Callable[..., Any]) -> None:
    out = np.zeros(SHAPE, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: got an array that is read-only"):
        op(X, out)


@every_op
def test_memory_of_an_input_is_refused(op: Callable[..., Any]) -> None:
    memory = np.ones((4, 40), np.float32)
    with pytest.raises(ValueError, match="out: got memory of an input"):
        op(memory[:3], memory[1:])
    assert (memory == 1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.rmsnorm(UP, x[0], 1e-5, CPU, x),
        lambda x: ops.swiglu(UP, x, CPU, x),
        lambda x: ops.dequantize(Matrix(x.view(np.uint8), FORMATS["F32"]), CPU, x),
    ],
    ids=["weight of rmsnorm", "up of swiglu", "matrix of dequantize"],
)
def test_nor_is_memory_of_another_input(call: Callable[..., Any]) -> None:
    x = np.ones(SHAPE, np.float32)
    with pytest.raises(ValueError, match="out: got memory of an input"):
        call(x)
    assert (x == 1).all()
