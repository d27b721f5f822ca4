"""A mixture of experts: choosing them, their products, and adding up what they give.

A product of a token with an expert is a job. For few tokens each job is a GEMV of its own. For
more, the jobs of an expert come together in groups of up to eight, which read its matrices once.
Prompts go through the matrix units: experts_batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocmforge.errors import UnsupportedModelError
from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops.dot_rows import BATCH, KERNEL_FORMATS, MAX_TOKENS, batch
from rocmforge.gpu.ops.expert_constants import (
    GROUPED_TOKENS,
    ExpertConstants,
    ExpertOp,
    all_constants,
    choose,
)
from rocmforge.gpu.ops.output import addresses, dtype
from rocmforge.gpu.ops.swiglu import ACTIVATIONS
from rocmforge.plan.operands import Activation
from rocmforge.plan.protocols import MAX_EXPERTS

_EXPERTS = "PPii"  # struct Experts of kernels/experts.h
_BATCHES = {0: BATCH + "ii", 1: BATCH + "iP"}  # and Batch, by GATHER
MATMUL_FILE = "expert_matmul.hip"
MATMUL_LAYOUTS = {n: {"expert_matmul": "PPPPPP" + _EXPERTS + _BATCHES[n]} for n in (0, 1)}
GATE_UP_FILE = "expert_gate_up.hip"
GATE_UP_LAYOUTS = {
    n: {"expert_gate_up": "PPPP" * 2 + "PP" + "PPP" + "i" + _EXPERTS + _BATCHES[n]} for n in (0, 1)
}
GROUP_FILE = "group_experts.hip"
GROUP_LAYOUTS = {"group_experts": "PPPiii"}
GROUP_MACROS = {"THREADS": MAX_EXPERTS}
ROUTE_FILE = "route.hip"
CHOICE = "PPPiiiif"
"""Layout of `Choice` in kernels/choose_experts.h."""
ROUTE_LAYOUTS = {"route": "P" + CHOICE}
ROUTE_THREADS = (32, 64, 128)
"""Of most models, for which kernels are compiled ahead."""
ADD_FILE = "add_experts.hip"
ADD_LAYOUTS = {"add_experts": "PPPiii"}
ADD_THREADS = 256
ADD_RMSNORM_FILE = "add_experts_rmsnorm.hip"
ADD_RMSNORM_LAYOUTS = {"add_experts_rmsnorm": "PPPiii" + "P" + "PPP" + "P"}
ADD_RMSNORM_THREADS = 64
"""For one row, so that several multiprocessors share it."""


def builds(architecture: str) -> Iterator[Build]:
    """The ops' kernels for matrices of one format."""
    wave = wave_size(architecture)
    for threads in dict.fromkeys(max(wave, threads) for threads in ROUTE_THREADS):
        yield Build(ROUTE_FILE, ROUTE_LAYOUTS, {"THREADS": threads})
    yield Build(ADD_FILE, ADD_LAYOUTS, {"THREADS": ADD_THREADS})
    yield Build(ADD_RMSNORM_FILE, ADD_RMSNORM_LAYOUTS, {"THREADS": ADD_RMSNORM_THREADS})
    yield Build(GROUP_FILE, GROUP_LAYOUTS, GROUP_MACROS)
    for name in KERNEL_FORMATS:
        for constants in all_constants(architecture, name, "expert_matmul"):
            macros = constants.macros([name])
            yield Build(MATMUL_FILE, MATMUL_LAYOUTS[constants.gather], macros)
        for constants in all_constants(architecture, name, "expert_gate_up"):
            for out in ("F32",) if name in DENSE else ("F32", "Q8"):
                macros = {**constants.macros([name] * 2), "OUT": out}
                yield Build(GATE_UP_FILE, GATE_UP_LAYOUTS[constants.gather], macros)


def most_groups(jobs: int, count: int, size: int) -> int:
    """Groups of up to `size` that jobs of some experts make at most."""
    return min(jobs, jobs // size + count)


def scratch_bytes(tokens: int, chosen: int, count: int) -> int:
    """Memory that the products of some tokens need to group their jobs."""
    if tokens < GROUPED_TOKENS:
        return 0
    jobs = tokens * chosen
    return 4 * (jobs + 3 * most_groups(jobs, count, MAX_TOKENS))


@dataclass(frozen=True)
class Choice:
    """How experts are chosen, as the record `Route` has it, and where they go.

    Parameters
    ----------
    bias
        (E,) float32, or None.
    experts, shares
        (T, k) int32 and float32.
    count, chosen
        E up to 1024, k up to E.
    normalized, sigmoid, scale
        As of the record.
    """

    bias: int | None
    experts: int
    shares: int
    count: int
    chosen: int
    normalized: bool
    sigmoid: bool
    scale: float

    @property
    def members(self) -> tuple[int | float, ...]:
        """Members of `Choice` in kernels/choose_experts.h."""
        how = int(self.normalized), int(self.sigmoid)
        at = self.bias or 0, self.experts, self.shares
        return *at, self.count, self.chosen, *how, self.scale


def places(count: int, wave: int) -> int:
    """Threads of whole waves, of which each expert has one."""
    return -(-count // wave) * wave


def route(kernels: Kernels, *, scores: int, tokens: int, choice: Choice) -> Launch:
    """Choose k of E experts for each token.

    Parameters
    ----------
    scores
        (T, E) float32.
    tokens
        T.
    choice
        How.
    """
    threads = places(choice.count, kernels.runtime.properties.wave_size)
    return kernels.launch(
        ROUTE_FILE,
        "route",
        {"THREADS": threads},
        (tokens, 1, 1),
        threads,
        ROUTE_LAYOUTS["route"],
        *(scores, *choice.members),
    )


@dataclass(frozen=True)
class Groups:
    """The jobs of some tokens, expert by expert, in groups.

    Parameters
    ----------
    kernels
        The device.
    experts
        (T, k) int32.
    tokens, chosen, count
        T, k and E.
    order
        Address of the grouped jobs: `scratch_bytes`.
    size
        Jobs of a group at most, MAX_TOKENS or more.
    """

    kernels: Kernels
    experts: int
    tokens: int
    chosen: int
    count: int
    order: int
    size: int

    @property
    def groups(self) -> int:
        """Address of the groups, each an expert, its first place in the order, and its jobs."""
        return self.order + 4 * self.tokens * self.chosen

    @property
    def most(self) -> int:
        """How many groups there are at most."""
        return most_groups(self.tokens * self.chosen, self.count, self.size)

    def launch(self) -> Launch:
        """Return the launch that groups them."""
        return self.kernels.launch(
            GROUP_FILE,
            "group_experts",
            GROUP_MACROS,
            (1, 1, 1),
            MAX_EXPERTS,
            GROUP_LAYOUTS["group_experts"],
            *(self.experts, self.order, self.groups),
            *(self.tokens * self.chosen, self.most, self.size),
        )


@dataclass(frozen=True)
class Jobs:
    """The products of some tokens, each with its experts, and where their groups lie.

    Parameters
    ----------
    kernels
        The device.
    experts
        (T, k) int32.
    tokens, chosen, count
        T, k and E.
    scratch
        `scratch_bytes`, for the groups.
    """

    kernels: Kernels
    experts: int
    tokens: int
    chosen: int
    count: int
    scratch: int

    def groups(self, size: int = MAX_TOKENS) -> Groups:
        """Return their groups."""
        at = (self.kernels, self.experts, self.tokens, self.chosen, self.count, self.scratch)
        return Groups(*at, size)

    @property
    def gather(self) -> int:
        """GATHER: whether they are grouped."""
        return int(self.tokens >= GROUPED_TOKENS)

    @property
    def order(self) -> int:
        """Address of the grouped jobs; where they are not, a job's own number stands there."""
        return self.scratch if self.gather else 0

    def members(self, matrix: DeviceMatrix) -> tuple[int, ...]:
        """Members of `Experts`."""
        groups = self.groups().groups if self.gather else 0
        return self.experts, groups, self.chosen, matrix.rows // self.count

    def shape(
        self, matrix: DeviceMatrix, op: ExpertOp
    ) -> tuple[ExpertConstants, tuple[int, int, int], int]:
        """Constants, grid and threads."""
        properties, rows = self.kernels.runtime.properties, matrix.rows // self.count
        # All experts of a token together have as many rows as one matrix of a dense model.
        constants = choose(
            properties.architecture,
            matrix.kernel_format,
            (self.chosen * rows, matrix.columns),
            self.tokens,
            op,
            self.kernels.tuning,
        )
        blocks = -(-rows // constants.rows.group_rows(properties.wave_size))
        across = (self.groups().most, 1) if self.gather else (self.chosen, self.tokens)
        return constants, (blocks, *across), constants.rows.WAVES * properties.wave_size

    def grouped(self) -> Sequence[Launch]:
        """What groups them, where they are."""
        return [self.groups().launch()] if self.gather else []


def expert_gate_up(
    jobs: Jobs,
    *,
    x: Q8 | F32,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    gate_bias: int | None,
    up_bias: int | None,
    out: F32 | Q8,
    activation: Activation,
) -> Sequence[Launch]:
    """out[t, i] = the activation of x[t] · gateᵀ and x[t] · upᵀ with the matrices of an expert.

    Parameters
    ----------
    x
        (T, K): Q8 for quantized weights, F32 for dense ones.
    gate, up
        (E · N, K), both quantized or both dense.
    gate_bias, up_bias
        (E · N,) float32, or None.
    out
        (T, k · N); Q8 needs N to be a multiple of 32.

    Raises
    ------
    UnsupportedModelError
        One of gate and up is quantized and the other is not.
    """
    if gate.dense != up.dense:  # they read the activations in different dtypes
        raise UnsupportedModelError(
            f"gate and up of experts: got {gate.format} and {up.format}, "
            "wanted both quantized or both dense on a GPU"
        )
    constants, grid, threads = jobs.shape(gate, "expert_gate_up")
    product = jobs.kernels.launch(
        GATE_UP_FILE,
        "expert_gate_up",
        {**constants.macros([gate.kernel_format, up.kernel_format]), "OUT": dtype(out)},
        grid,
        threads,
        GATE_UP_LAYOUTS[jobs.gather]["expert_gate_up"],
        *(*gate.addresses, *up.addresses, gate_bias or 0, up_bias or 0, *addresses(out)),
        *(ACTIVATIONS.index(activation), *jobs.members(gate)),
        *(*batch(x, gate.columns, 1), jobs.chosen, jobs.order),
    )
    return [*jobs.grouped(), product]


def expert_matmul(
    jobs: Jobs,
    *,
    x: Q8 | F32,
    weight: DeviceMatrix,
    bias: int | None,
    out: int,
) -> Sequence[Launch]:
    """out[t, i] = x[t, i] · weightᵀ + bias with the matrix of an expert.

    Up to eight tokens read the experts before they wait: another launch has to lie between the one
    that chooses them and this one.

    Parameters
    ----------
    x
        (T, k · K): Q8 for quantized weights, F32 for dense ones.
    weight
        (E · N, K).
    bias
        (E · N,) float32, or None.
    out
        (T, k · N) float32.
    """
    constants, grid, threads = jobs.shape(weight, "expert_matmul")
    product = jobs.kernels.launch(
        MATMUL_FILE,
        "expert_matmul",
        constants.macros([weight.kernel_format]),
        grid,
        threads,
        MATMUL_LAYOUTS[jobs.gather]["expert_matmul"],
        *(*weight.addresses, bias or 0, out, *jobs.members(weight)),
        *(*batch(x, weight.columns, 1), 1, jobs.order),
    )
    return [*jobs.grouped(), product]


def add_experts(
    kernels: Kernels,
    *,
    parts: int,
    shares: int,
    x: int,
    tokens: int,
    chosen: int,
    columns: int,
    accumulate: bool = True,
) -> Launch:
    """x += Σ_i shares[t, i] · parts[t, i], or = unless `accumulate`.

    Parameters
    ----------
    parts
        (T, k · K) float32, aligned to 16.
    shares
        (T, k) float32.
    x
        (T, K) float32, aligned to 16.
    tokens, chosen, columns
        T, k, and K, a multiple of 4.
    """
    return kernels.launch(
        ADD_FILE,
        "add_experts",
        {"THREADS": ADD_THREADS},
        (-(-columns // (4 * ADD_THREADS)), tokens, 1),
        ADD_THREADS,
        ADD_LAYOUTS["add_experts"],
        *(parts, shares, x, chosen, columns, int(accumulate)),
    )


def add_experts_rmsnorm(
    kernels: Kernels,
    *,
    parts: int,
    shares: int,
    x: int,
    norm: int,
    normed: Q8,
    squares_out: int,
    tokens: int,
    chosen: int,
    columns: int,
) -> Launch:
    """`add_experts`; normed = x · norm; squares_out = the sums of x² of 32 columns.

    Parameters
    ----------
    parts, shares, x
        As of `add_experts`.
    norm
        (K,) float32, aligned to 16.
    normed
        (T, K): the RMSNorm of x, but for the factors of `Squares`.
    squares_out
        (T, K / 32) float32.
    tokens, chosen, columns
        T, k, and K, a multiple of 32.
    """
    threads = ADD_RMSNORM_THREADS
    return kernels.launch(
        ADD_RMSNORM_FILE,
        "add_experts_rmsnorm",
        {"THREADS": threads},
        (-(-columns // (4 * threads)), tokens, 1),
        threads,
        ADD_RMSNORM_LAYOUTS["add_experts_rmsnorm"],
        *(parts, shares, x, chosen, columns, 1, norm, *addresses(normed), squares_out),
    )
