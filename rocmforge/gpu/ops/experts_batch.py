"""Products of a mixture of experts on the matrix units, for prompts and large batches.

A product of a token with an expert is a job. The jobs of an expert come together in groups of up to
64, on Hopper 128, which read its matrices once. Activations and weights are rounded to float16;
sums are float32. For fewer tokens a job, or up to eight, is a GEMV: experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rocmforge.gpu.arrays import F32, Halves, Permuted
from rocmforge.gpu.compiler import Build
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops import matmul_batch
from rocmforge.gpu.ops.dot_rows import COMMON
from rocmforge.gpu.ops.expert_constants import GROUPED_TOKENS
from rocmforge.gpu.ops.experts import Groups, Jobs
from rocmforge.gpu.ops.matmul_batch import FORMATS, TOKENS, WIDE, Constants, defines, x_orders
from rocmforge.gpu.ops.output import DTYPES, dtype
from rocmforge.gpu.ops.prompt_tiles import has_matrix_units
from rocmforge.gpu.ops.swiglu import ACTIVATIONS
from rocmforge.plan.operands import Activation

_GROUPS = "PPii"  # struct ExpertGroups of kernels/expert_groups.h
MATMUL_FILE = "expert_matmul_batch.hip"
MATMUL_LAYOUTS = {"expert_matmul_batch": "P" + "PPPP" + "PPi" + _GROUPS}
GATE_UP_FILE = "expert_gate_up_batch.hip"
GATE_UP_LAYOUTS = {"expert_gate_up_batch": "P" + "PPPP" * 2 + "PPPiii" + _GROUPS}


def runs(architecture: str, weights: Sequence[DeviceMatrix], tokens: int) -> bool:
    """Whether these products are this op's: by the device, the formats, the columns, the tokens.

    Nine tokens of 30B-A3B Q4_K_M, few of which share an expert, took 0.86 of the time of GEMVs
    (H200, 2026-11).
    """
    if tokens < GROUPED_TOKENS or not has_matrix_units(architecture):
        return False
    first = weights[0]
    return (
        all(w.kernel_format == first.kernel_format for w in weights)
        and first.kernel_format in FORMATS
        and first.columns % 32 == 0
    )


def _has_wide(architecture: str, name: str) -> bool:
    """Whether there are groups of 128 jobs."""
    return WIDE in matmul_batch.tiles(architecture, name, WIDE.TOKENS)


def group_size(architecture: str, name: str, tokens: int, chosen: int, count: int) -> int:
    """Jobs of a group at most: so that most experts have one group, up to 57 jobs on average.

    Jobs that fall to experts by chance deviate from their average by its root. Groups as large as
    the average alone took 1.12 to 1.22 of the time where it was 16, and 1.00 to 1.17 where it was
    32. From an average of 118 on Hopper has groups of 128. Whole passes took 0.81 to 1.00 of the
    time that they took with groups of 64, where experts had 125 to 500 jobs on average, but 1.06 to
    1.11 where they had 64 (30B-A3B, gpt-oss-20B and Mixtral, H200, 2026-11).

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        Of the matrices: the type of kernels/packed.h.
    tokens, chosen, count
        T, k and E.
    """
    average = tokens * chosen / count
    least = average + average**0.5
    if _has_wide(architecture, name) and least > WIDE.TOKENS:
        return WIDE.TOKENS
    return next((size for size in TOKENS if size >= least), TOKENS[-1])


def grouped(jobs: Jobs, matrix: DeviceMatrix) -> Groups:
    """Return the jobs of a matrix in groups of that size."""
    architecture = jobs.kernels.runtime.properties.architecture
    numbers = jobs.tokens, jobs.chosen, jobs.count
    return jobs.groups(group_size(architecture, matrix.kernel_format, *numbers))


def choose(architecture: str, name: str, size: int) -> Constants:
    """Constants for an architecture, a format, and groups of up to so many jobs.

    A small group's block has four waves, so that more of them share a multiprocessor: on an H200
    with mma.sync a prompt of 128 tokens took 0.85 to 0.88 of the time that it took with eight. With
    wgmma the products of 16 jobs took 0.92 to 0.98, of 32 and 64 jobs 1.07 to 1.2. F32 has four
    there for all groups, as in matmul_batch; that was not measured. A third step of activations in
    LDS brings groups of 16 and 32 to 0.96 to 0.99 (H100); of 64 it would take more than 48 KB.
    """
    if size == WIDE.TOKENS:
        return WIDE
    constants = matmul_batch.choose(architecture, name, size)
    if not architecture.startswith("sm_") or size == TOKENS[-1]:
        return constants
    if architecture == "sm_90":
        if name in DENSE:
            return constants
        constants = replace(constants, STAGES=3)
        return replace(constants, ROW_WAVES=4, BLOCKS=4) if size == TOKENS[0] else constants
    # Dense units take more registers.
    return replace(constants, ROW_WAVES=4, BLOCKS=2 if name in DENSE else 3)


def builds(architecture: str) -> Iterator[Build]:
    """The ops' kernels for matrices of one format: all for common ones, else the largest."""
    if not has_matrix_units(architecture):
        return
    for name in FORMATS:
        orders = x_orders(architecture, name)
        sizes = (*TOKENS, WIDE.TOKENS) if _has_wide(architecture, name) else TOKENS
        for size in sizes if name in COMMON else sizes[-1:]:
            constants = choose(architecture, name, size)
            for permuted in orders:
                macros = {**defines(constants, permuted=permuted), "FORMAT_0": name}
                yield Build(MATMUL_FILE, MATMUL_LAYOUTS, macros)
                yield Build(GATE_UP_FILE, GATE_UP_LAYOUTS, macros)


def expert_gate_up_batch(
    groups: Groups,
    *,
    x: Halves,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    gate_bias: int | None,
    up_bias: int | None,
    out: F32 | Halves,
    activation: Activation,
) -> Sequence[Launch]:
    """out[t, i] = the activation of x[t] · gateᵀ and x[t] · upᵀ with the matrices of an expert.

    Parameters
    ----------
    groups
        Of `group_size`.
    x
        (T, K) F16 or Permuted, aligned to 16; K a multiple of 32.
    gate, up
        (E · N, K) of one format.
    gate_bias, up_bias
        (E · N,) float32, or None.
    out
        (T, k · N).
    """
    addresses = (*gate.addresses, *up.addresses, gate_bias or 0, up_bias or 0)
    how = ACTIVATIONS.index(activation), gate.columns, DTYPES.index(dtype(out))
    arguments = (*addresses, out.address, *how)
    return _launches(groups, GATE_UP_FILE, GATE_UP_LAYOUTS, x, (gate, up), arguments, groups.chosen)


def expert_matmul_batch(
    groups: Groups,
    *,
    x: Halves,
    weight: DeviceMatrix,
    bias: int | None,
    out: int,
) -> Sequence[Launch]:
    """out[t, i] = x[t, i] · weightᵀ + bias with the matrix of an expert.

    Parameters
    ----------
    groups
        Of `group_size`.
    x
        (T, k · K), aligned to 16: Permuted if `reads_permuted` says so of K, else F16. K is a
        multiple of 32.
    weight
        (E · N, K).
    bias
        (E · N,) float32, or None.
    out
        (T, k · N) float32.
    """
    arguments = (*weight.addresses, bias or 0, out, weight.columns)
    return _launches(groups, MATMUL_FILE, MATMUL_LAYOUTS, x, (weight,), arguments, shared_by=1)


def _launches(
    groups: Groups,
    file: str,
    layouts: Mapping[str, str],
    x: Halves,
    weights: Sequence[DeviceMatrix],
    arguments: tuple[int, ...],
    shared_by: int,
) -> Sequence[Launch]:
    """Return the launches of a product: its groups, and the one kernel of a file.

    `shared_by` jobs that follow one another read the same row of x.
    """
    ((name, layout),) = layouts.items()
    properties, kernel_format = groups.kernels.runtime.properties, weights[0].kernel_format
    rows = weights[0].rows // groups.count
    constants = choose(properties.architecture, kernel_format, groups.size)
    permuted = isinstance(x, Permuted)
    product = groups.kernels.launch(
        file,
        name,
        {**defines(constants, permuted=permuted), "FORMAT_0": kernel_format},
        (-(-len(weights) * rows // constants.rows), groups.most, 1),
        constants.threads(properties.wave_size),
        layout,
        *(x.address, *arguments),
        *(groups.order, groups.groups, shared_by, rows),
        lds_bytes=constants.launch_lds,
    )
    return [groups.launch(), product]
