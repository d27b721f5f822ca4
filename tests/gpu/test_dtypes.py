"""Forms of tensors: who writes float16 or int8 at once, and where a conversion comes in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rocmforge.gpu.dtypes import F16, F32, Q8, Convert, lifetimes, lower
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Tensor
from rocmforge.plan.records import Matmul, Rmsnorm, Swiglu

X, H, GATE, UP = Tensor("x", 64), Tensor("h", 64), Tensor("gate", 96), Tensor("up", 96)
NORM = np.ones(64, np.float32)
OPS: list[Op] = [
    Rmsnorm(X, NORM, 1e-5, H),
    Matmul(H, ("g", "u"), (GATE, UP), (None, None)),
    Swiglu(GATE, UP, GATE),
    Matmul(GATE, ("d",), (X,), (None,), accumulate=True),
]


def reads_as(*dtypes: str) -> object:
    def reading(op: Op, tensor: Tensor) -> Sequence[str]:
        return dtypes if isinstance(op, Matmul) and tensor == op.x else (F32,)

    return reading


def writes(op: Op) -> Sequence[str]:
    return (F32, Q8) if isinstance(op, Rmsnorm | Swiglu) else (F32,)


def test_a_producer_writes_what_its_consumer_reads() -> None:
    steps = lower(OPS, reads_as(Q8), writes)
    assert [step.op for step in steps] == OPS
    assert steps[0].writes == ((H, Q8),)
    assert steps[1].reads == ((H, Q8),)
    assert steps[1].writes == ((GATE, F32), (UP, F32))
    assert steps[2].reads == ((GATE, F32), (UP, F32))
    assert steps[2].dtype(GATE) == Q8
    assert steps[3].reads == ((GATE, Q8), (X, F32))


def test_what_a_producer_cannot_write_is_converted_after_it() -> None:
    steps = lower(OPS, reads_as(F16), writes)
    kinds = [type(step.op).__name__ for step in steps]
    assert kinds == ["Rmsnorm", "Convert", "Matmul", "Swiglu", "Convert", "Matmul"]
    assert steps[0].dtype(H) == F32
    assert (steps[1].op, steps[1].reads) == (Convert(H, F16), ((H, F32),))
    assert steps[2].reads == ((H, F16),)


def test_two_dtypes_are_one_float32_and_conversions() -> None:
    steps = lower(OPS, reads_as(F16, Q8), writes)
    assert [step.op for step in steps[:3]] == [OPS[0], Convert(H, F16), Convert(H, Q8)]
    assert steps[0].dtype(H) == F32


def test_lifetimes_end_with_the_last_reader_and_begin_with_each_writer() -> None:
    steps = lower([*OPS, *OPS], reads_as(Q8), writes)
    found = lifetimes(steps, lambda place: len(place[1]), [(X, F32)])
    assert found[X, F32].spans == [(-1, 7)]
    assert found[H, Q8].spans == [(0, 1), (4, 5)]
    assert found[GATE, F32].spans == [(1, 2), (5, 6)]
    assert found[GATE, Q8].spans == [(2, 3), (6, 7)]


def test_what_is_given_is_converted_first() -> None:
    matmul = Matmul(H, ("g",), (GATE,), (None,))
    steps = lower([matmul], reads_as(Q8), writes)
    assert [step.op for step in steps] == [Convert(H, Q8), matmul]
    found = lifetimes(steps, lambda place: 1, [(H, F32)])
    assert found[H, F32].spans == [(-1, 0)]
    assert found[H, Q8].spans == [(0, 1)]
