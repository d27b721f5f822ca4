"""Which fusion rules a GPU takes: those for which it has a kernel, given the shape of the batch.

`plan/fusion.py` has the rules; what is asked here is whether a kernel runs what they give, by
formats, dtypes and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, get_args

from rocmforge.gpu.batch_shape import NORMED_ROWS, BatchShape
from rocmforge.gpu.dtypes import HALVES, Q8, Step, lower
from rocmforge.gpu.lowering import GEMV_ROWS, Lowering, halves_of
from rocmforge.gpu.matrix import LAYOUTS
from rocmforge.gpu.ops.dot_rows import choose
from rocmforge.gpu.ops.gemv_constants import kind_of
from rocmforge.gpu.ops.rmsnorm_route import runs
from rocmforge.gpu.peers import WORDS
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Tuning
from rocmforge.plan import fusion
from rocmforge.plan.fused_records import GateUpSwiglu, RmsnormRoute
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Tensor
from rocmforge.plan.records import Matmul

Fusion = Literal[
    "embed_rmsnorm",
    "rope_attention",
    "rope_kv_append",
    "gate_up_swiglu",
    "rmsnorm_route",
    "matmul_rmsnorm",
    "add_experts_rmsnorm",
]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
"""The rules that a pass can do without, in the order of trying."""


def wanted_fusions(tuning: Tuning) -> tuple[Fusion, ...]:
    """Return the rules without those that were measured to cost more than they bring."""
    return tuple(rule for rule in FUSIONS if rule not in tuning.without)


def pass_steps(
    ops: Sequence[Op],
    lowering: Lowering,
    shape: BatchShape,
    fused: Collection[Fusion] = FUSIONS,
) -> list[Step]:
    """Return the steps of a pass on a device: neighbours fused, dtypes chosen.

    Parameters
    ----------
    ops
        The pass as the model wrote it.
    lowering
        The device; its kernels are not asked for.
    shape
        The batch.
    fused
        The rules wanted. `select_norm` always is, see `gpu_rules`, and so is `reduce_rmsnorm` where
        there are sums over devices: rules are measured on one device, which has none.
    """
    reading, writing = lowering.reading(shape), lowering.writing(shape)
    found = fusion.fuse(ops, gpu_rules(shape, reading, fused))
    if shape.tokens > GEMV_ROWS:

        def halves(op: Op, x: Tensor) -> bool:
            return _are_halves(reading(op, x))

        found = fusion.reduce_rmsnorm(found, lambda op: halves(op, op.x), halves)
    if shape.tokens > NORMED_ROWS:
        return lower(found, reading, writing)

    def scales(op: Op, x: Tensor) -> bool:
        return tuple(reading(op, x)) == (Q8,) and _scales_rows(op)

    if "matmul_rmsnorm" in fused:
        properties = lowering.kernels.runtime.properties
        found = fusion.matmul_rmsnorm(found, lambda op: fills(op, shape.tokens, properties), scales)
        found = fusion.all_reduce_rmsnorm(
            found, lambda x: shape.tokens * x.columns <= WORDS, scales
        )
    if "add_experts_rmsnorm" in fused:
        found = fusion.add_experts_rmsnorm(found, scales)
    return lower(found, reading, writing)


def fills(op: Matmul, tokens: int, properties: DeviceProperties) -> bool:
    """Whether matmul_rmsnorm, whose blocks have 32 rows or more, keeps a device busy.

    64 blocks on the 132 multiprocessors of an H200 took 5.84 µs for rows of 5,632 columns, more
    than the two kernels that they replace (5.47), but less for rows of 2,048 (2.40, 3.62).
    """
    weight, rows = op.weights[0], op.outs[0].columns
    constants = choose(
        properties.architecture,
        weight.kernel_format,
        (rows, op.x.columns),
        tokens,
        "matmul_rmsnorm",
    )
    blocks = rows // constants.group_rows(properties.wave_size)
    return op.x.columns <= rows or blocks >= 0.9 * properties.compute_units


def _scales_rows(op: Op) -> bool:
    """Whether the product of a format is as fast where it multiplies by factors of its rows.

    Gate and up of Q8_0 are not: 25.5 or 29.8 instead of 24.3 µs for 7B on an H200, with two sets of
    constants. Those of other formats of more than 4 bits and no scale for 256 columns were not
    measured.
    """
    if not isinstance(op, GateUpSwiglu):
        return True
    name = op.gate.kernel_format
    return LAYOUTS[name].supers > 0 or kind_of(name) == "short blocks"


def gpu_rules(
    shape: BatchShape,
    reading: Callable[[Op, Tensor], Sequence[str]],
    fused: Collection[Fusion] = FUSIONS,
) -> list[fusion.Rule]:
    """Return the rules of a pass, as `fusion.fuse` takes them.

    Parameters
    ----------
    shape
        The batch.
    reading
        Dtypes in which an op reads a tensor, of `Lowering.reading`.
    fused
        The rules wanted. `select_norm` always is: no kernel selects rows alone. `matmul_rmsnorm`
        and `add_experts_rmsnorm` are no rules of neighbours: see `pass_steps`.
    """
    every: dict[str, fusion.Rule] = {
        "embed_rmsnorm": fusion.embed_rmsnorm,
        "rope_attention": _rope_attention(shape),
        "rope_kv_append": fusion.rope_kv_append,
        "gate_up_swiglu": _gate_up_swiglu(shape, reading),
        "rmsnorm_route": _rmsnorm_route(shape),
    }
    return [
        fusion.select_norm,
        *(every[name] for name in FUSIONS if name in fused and name in every),
    ]


def _rope_attention(shape: BatchShape) -> fusion.Rule:
    """For passes of one token a sequence, which attention of decode runs."""
    return fusion.rope_attention if shape.single else lambda ops: None


def _rmsnorm_route(shape: BatchShape) -> fusion.Rule:
    """For a dense router and few tokens, for each of which its matrix is read."""

    def rule(ops: Sequence[Op]) -> tuple[Op, int] | None:
        found = fusion.rmsnorm_route(ops) if shape.tokens <= GEMV_ROWS else None
        op = found[0] if found else None
        if not isinstance(op, RmsnormRoute) or not runs(op.router):
            return None
        return found

    return rule


def _are_halves(dtypes: Sequence[str]) -> bool:
    """Whether they are one dtype, which is float16."""
    return len({*dtypes}) == 1 and dtypes[0] in HALVES


def _gate_up_swiglu(
    shape: BatchShape, reading: Callable[[Op, Tensor], Sequence[str]]
) -> fusion.Rule:
    """For matrices of one format; in a prompt, the kernel reads halves and writes halves."""

    def rule(ops: Sequence[Op]) -> tuple[Op, int] | None:
        found = fusion.gate_up_swiglu(ops)
        op = found[0] if found else None
        if found is None or not isinstance(op, GateUpSwiglu):
            return None
        if op.gate.kernel_format != op.up.kernel_format or op.activation != "silu":
            return None
        if shape.tokens > GEMV_ROWS:
            later = fusion.readers(ops[found[1] :], op.out)
            dtypes = [dtype for reader in later for dtype in reading(reader, op.out)]
            written = _are_halves(dtypes) and dtypes[0] in halves_of(op.out.columns)
            if not (written and _are_halves(reading(op, op.x))):
                return None
        return found

    return rule
