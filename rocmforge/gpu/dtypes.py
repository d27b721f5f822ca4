"""In which dtypes each tensor of a pass is written and read: those of `rocmforge.gpu.arrays`.

Consumers say what they read. A producer that can write just that does; for any other dtype a
conversion is put after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rocmforge.plan.arena import Lifetime
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Tensor

F32, F16, Q8 = "f32", "f16", "q8"
PERMUTED = "permuted"
HALVES = (F16, PERMUTED)
NUMBER_BYTES = MappingProxyType({F32: 4, F16: 2, PERMUTED: 2})
"""Of the dtypes that are plain numbers: all but Q8."""

Place = tuple[Tensor, str]
"""A tensor in one dtype: what has memory of its own."""


@dataclass(frozen=True)
class Convert:
    """X, written as float32, once more in another dtype."""

    x: Tensor
    dtype: str

    @property
    def label(self) -> str:
        """Its name in timings: that of the kernel, and the tensor."""
        return f"quantize_{self.x.name}"


@dataclass(frozen=True)
class Step:
    """An op, with the dtypes of what it reads and writes.

    Parameters
    ----------
    op
        The record, or a conversion.
    reads, writes
        Places, each once.
    """

    op: Op | Convert
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    def dtype(self, tensor: Tensor) -> str:
        """Dtype in which the op writes a tensor."""
        return next(dtype for written, dtype in self.writes if written == tensor)


def lower(
    ops: Sequence[Op],
    reading: Callable[[Op, Tensor], Sequence[str]],
    writing: Callable[[Op], Sequence[str]],
) -> list[Step]:
    """Choose the dtype of every tensor, and put the conversions in.

    Parameters
    ----------
    ops
        A pass.
    reading
        Dtypes in which an op reads a tensor: several where its matrices differ.
    writing
        Dtypes that an op can write; float32 is among them, or they are all that its readers read.

    Returns
    -------
    The steps in order. What nobody reads is written as float32; what is read and not written before
    is given as float32.
    """
    needed: list[dict[Tensor, set[str]]] = []
    later: dict[Tensor, set[str]] = {}
    for op in reversed(ops):
        needed.append({tensor: later.pop(tensor, set()) for tensor in op.writes})
        for tensor in op.reads:
            later.setdefault(tensor, set()).update(reading(op, tensor))
    needed.reverse()
    steps = [step for tensor, wanted in later.items() for step in _conversions(tensor, wanted)]
    for op, read in zip(ops, needed, strict=True):
        direct = {tensor: _direct(writing(op), wanted) for tensor, wanted in read.items()}
        reads = tuple((t, dtype) for t in dict.fromkeys(op.reads) for dtype in reading(op, t))
        steps.append(Step(op, reads, tuple(direct.items())))
        for tensor, wanted in read.items():
            steps += _conversions(tensor, wanted - {direct[tensor]})
    return steps


def lifetimes(
    steps: Sequence[Step], nbytes: Callable[[Place], int], given: Sequence[Place] = ()
) -> dict[Hashable, Lifetime]:
    """Return the size of each place and the steps in which it is needed.

    Parameters
    ----------
    steps
        From `lower`.
    nbytes
        Size of a tensor in a dtype.
    given
        What is there before the first step.
    """
    found: dict[Hashable, Lifetime] = {}
    for place in given:
        found[place] = Lifetime(nbytes(place))
        found[place].write(-1)
    for number, step in enumerate(steps):
        for place in step.reads:
            found[place].read(number)
        for place in step.writes:
            held = found.setdefault(place, Lifetime(nbytes(place)))
            # What is added to, or changed in place, lives on.
            if place in step.reads:
                held.read(number)
            else:
                held.write(number)
    return found


def _conversions(tensor: Tensor, dtypes: set[str]) -> list[Step]:
    return [
        Step(Convert(tensor, dtype), ((tensor, F32),), ((tensor, dtype),))
        for dtype in sorted(dtypes - {F32})
    ]


def _direct(possible: Sequence[str], wanted: set[str]) -> str:
    """The one dtype that is wanted where the producer can write it, else float32."""
    if len(wanted) == 1 and (only := next(iter(wanted))) in possible:
        return only
    if F32 not in possible:
        raise ValueError(f"dtypes: got a producer of {possible} for readers of {sorted(wanted)}")
    return F32
