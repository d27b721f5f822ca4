"""matmul for 9 to 64 tokens, 128 on NVIDIA, and 2,048 of quantized weights on Hopper.

A tile of tokens reads each weight once. Activations and weights are rounded to float16; sums are
float32. A launch takes up to three matrices, or gate and up with SwiGLU at the end. Fewer tokens
are a GEMV (matmul), more a GEMM whose weights go through LDS (matmul_prompt, matmul_f16).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from types import MappingProxyType

from rocmforge.gpu.arrays import Halves, Permuted
from rocmforge.gpu.compiler import Build, BuildRecorder, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops import products
from rocmforge.gpu.ops.batch_blocks import (
    F32_COST,
    NARROW_COST,
    TALL_COST,
    WIDE_COST,
    Sharing,
    Work,
    blocks,
    can_be_even,
    choose_sharing,
)
from rocmforge.gpu.ops.dot_rows import COMMON
from rocmforge.gpu.ops.output import dtypes
from rocmforge.gpu.ops.prompt_tiles import has_matrix_units
from rocmforge.gpu.tuning import UNTUNED, Tuning

FILE = "matmul_batch.hip"
_BATCH = "PPPiiii"
LAYOUTS = {"matmul_batch": _BATCH + products.LAYOUT + "i"}
GATE_UP_FILE = "gate_up_swiglu_batch.hip"
GATE_UP_LAYOUTS = {"gate_up_swiglu_batch": _BATCH + "PPPP" * 2 + "Pii"}

TOKENS = (16, 32, 64)
"""Tokens of a tile; one for more serves fewer. Hopper also has `WIDE` and `TALL`."""

TILE_ROWS = 16
MOST_PADDING = 4  # pieces of 16 bytes behind a row of activations in LDS
ROUTER_ROWS = 256  # at most, an expert each
FORMATS = (*STREAMS, *dict.fromkeys(DENSE.values()))
"""The types of kernels/packed.h that it multiplies with."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of kernels/batch_rows.h.

    Parameters
    ----------
    TOKENS
        Tokens of a block.
    TILES
        Tiles of 16 rows that a wave has: 2, or 1 on NVIDIA. Of gate and up, one tile holds the same
        8 rows of both.
    ROW_WAVES
        Waves beside each other, each with rows of its own.
    SPLITS
        Waves that share rows, each with other columns.
    COLUMNS
        Columns of a step that each of them takes.
    STAGES
        Steps of activations in LDS: one in use, the others on their way. 2 but on CUDA.
    DEPTH
        Rounds of weights in registers: one in use, the others on their way.
    BLOCKS
        That a compute unit runs at a time; CUDA's compiler keeps the registers so few.
    """

    TOKENS: int
    TILES: int
    ROW_WAVES: int
    SPLITS: int
    COLUMNS: int
    STAGES: int
    DEPTH: int
    BLOCKS: int

    @property
    def rows(self) -> int:
        """Rows of a block, of gate and up together."""
        return TILE_ROWS * self.TILES * self.ROW_WAVES

    def threads(self, wave: int) -> int:
        """Threads of a block."""
        return wave * self.ROW_WAVES * self.SPLITS

    def fits(self, architecture: str, wave: int, lds_bytes: int) -> bool:
        """Whether the kernel compiles with these constants, and BLOCKS of them run at once.

        A block may have `lds_bytes` of LDS. All blocks of a compute unit of AMD have no more
        together. A multiprocessor of NVIDIA has at least twice as much.
        """
        threads, columns = self.threads(wave), self.COLUMNS * self.SPLITS
        pieces = self.TOKENS * (columns // 8 + MOST_PADDING)  # of kernels/batch_tiles.h
        both = 16 * self.STAGES * pieces, self.warpgroup_lds
        lds, least = max(both), min(both)
        together = 2 * lds_bytes if architecture.startswith("sm_") else lds_bytes
        return (
            threads <= 1024
            and (architecture != "sm_90" or self.TOKENS % (2 * self.ROW_WAVES * self.SPLITS) == 0)
            and self.TOKENS * columns // 8 % threads == 0
            and lds <= lds_bytes
            and lds * self.BLOCKS <= together
            and least >= 4 * (self.SPLITS - 1) * self.rows * self.TOKENS  # where sums meet
        )

    @property
    def warpgroup_lds(self) -> int:
        """Bytes of LDS of a block of kernels/batch_warpgroup.h."""
        pieces = self.COLUMNS * self.SPLITS // 16 * 2 * (self.TOKENS + 1)
        return 16 * self.STAGES * pieces

    @property
    def launch_lds(self) -> int:
        """Bytes of LDS that the launch names, and kernels/batch_rows.h checks; 0: it names none."""
        return 0 if self.TOKENS in TOKENS else self.warpgroup_lds

    def steps(self, columns: int) -> int:
        """Steps of a block that has all columns."""
        return -(-columns // (self.COLUMNS * self.SPLITS))


_SM = {
    16: Constants(16, 2, 8, 1, 128, 2, 2, 1),
    32: Constants(32, 2, 8, 1, 128, 2, 2, 1),
    64: Constants(64, 2, 8, 1, 128, 2, 2, 1),
}
_SM_90 = {  # with kernels/batch_warpgroup.h
    16: Constants(16, 1, 8, 1, 128, 2, 2, 2),
    32: Constants(32, 1, 8, 1, 128, 2, 2, 2),
    64: Constants(64, 1, 8, 1, 128, 2, 2, 2),
}
WIDE = Constants(128, 1, 16, 1, 128, 2, 1, 1)
TALL = Constants(256, 1, 8, 1, 128, 2, 1, 1)
"""Hopper's other tiles for more than 64 tokens: 256 rows and 128 tokens, or 128 rows and 256
tokens, which unpacks each weight half as often. Many blocks are needed."""
_LARGE = MappingProxyType({WIDE: WIDE_COST, TALL: TALL_COST})
# Not measured. A compute unit has 64 KB of LDS for all its blocks, and few blocks hide latency.
_AMD = {
    16: Constants(16, 2, 4, 2, 128, 2, 2, 2),
    32: Constants(32, 2, 4, 2, 128, 2, 2, 1),
    64: Constants(64, 2, 4, 1, 128, 2, 1, 1),  # registers for one round
}


def most_tokens(architecture: str, name: str, rows: int) -> int:
    """Up to how many tokens the op is fastest, as far as it was measured.

    On an H200, prompts of 512 tokens take 0.81 to 0.85 of the time that they take with weights
    which are unpacked first (7B; Q4_K_M, Q8_0, Q6_K, IQ4_XS), of 1,024 tokens 0.92 to 0.94, of
    2,048 tokens 0.99 to 1.02 (docs/EXPERIMENTS.md); more were not measured. A router of F32 with
    128 rows takes 0.65 of the time of 512 tokens, but matrices of a 1.1B model in F32 1.17 of 192.
    With mma.sync, 128 tokens of 7B Q4_K took 0.90 of matmul_prompt's time; gate and up of 512 took
    1.13.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        The type of kernels/packed.h.
    rows
        Of a matrix: of gate or of up.
    """
    if architecture == "sm_90" and (name in STREAMS or (name == "F32" and rows <= ROUTER_ROWS)):
        return 2048
    return 128 if architecture.startswith("sm_") else TOKENS[-1]


def sizes(architecture: str, weights: Sequence[DeviceMatrix]) -> Iterator[int]:
    """Numbers of tokens that `runs` takes; those between two of them are cut like the larger one.

    Parameters as of `runs`.
    """
    most = min(most_tokens(architecture, w.kernel_format, w.rows) for w in weights)
    yield from TOKENS
    yield from range(2 * TOKENS[-1], most + 1, TOKENS[-1])


def runs(architecture: str, weights: Sequence[DeviceMatrix], tokens: int) -> bool:
    """Whether these products are this op's: by the device, the formats, the columns, the tokens."""
    if tokens < 1 or not has_matrix_units(architecture):
        return False
    return all(
        w.kernel_format in FORMATS
        and w.columns % 32 == 0
        and tokens <= most_tokens(architecture, w.kernel_format, w.rows)
        for w in weights
    )


def reads_permuted(architecture: str, columns: int) -> bool:
    """Whether x is `Permuted`: where K is a multiple of 128, every kernel that writes x can do so.

    On an H200 prompts of 64 to 512 tokens take 0.90 to 0.95 of the time with it, as copies of 16
    bytes bring activations to LDS instead of copies of 4.
    """
    return "Permuted" in dtypes(architecture) and columns % Permuted.COLUMNS == 0


def choose(architecture: str, name: str, tokens: int, tuning: Tuning = UNTUNED) -> Constants:
    """Constants for an architecture, a format and a number of tokens.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        Of the first matrix: the type of kernels/packed.h.
    tokens
        T, at least 1.
    tuning
        Replaces all but TOKENS and COLUMNS where it has them; not for dense formats.
    """
    held = next((most for most in TOKENS if most >= tokens), TOKENS[-1])
    nvidia = _SM_90 if architecture == "sm_90" else _SM
    constants = (nvidia if architecture.startswith("sm_") else _AMD)[held]
    if name not in DENSE.values():
        return replace(constants, **tuning.get("batch", held))
    # A lane's share of a round is 64 or 128 bytes for each of its rows: registers hold one.
    if architecture != "sm_90":
        return replace(constants, DEPTH=1, BLOCKS=1)
    # In bands of 64, the few rows of a router go to twice as many blocks. With 32 to 128 tokens,
    # four layers of 1.1B in F32 took 0.76 to 0.94 of the time.
    return replace(constants, DEPTH=1, ROW_WAVES=4 if name == "F32" else constants.ROW_WAVES)


def tiles(
    architecture: str, name: str, tokens: int, tuning: Tuning = UNTUNED
) -> tuple[Constants, ...]:
    """Constants of the tiles to choose from; parameters as of `choose`, whose tile is the first."""
    narrow = choose(architecture, name, tokens, tuning)
    if architecture == "sm_90" and name in STREAMS and tokens > TOKENS[-1]:
        return narrow, *_LARGE
    return (narrow,)


def ways(architecture: str, constants: Constants) -> tuple[Sharing, ...]:
    """SHARING of a tile's kernels.

    For more than 16 tokens CUDA's compiler makes shorter code where blocks have parts of two bands,
    so all do. Tiles of 16 and 32 tokens never have fewer blocks than bands, so they need no PAIRS.
    Tiles of 64 have both kernels. The wide and the tall tile always have PAIRS.
    """
    if not can_be_even(architecture):
        return (Sharing.OWN,)
    if constants in _LARGE:
        return (Sharing.PAIRS,)
    return {
        TOKENS[0]: (Sharing.OWN, Sharing.EVEN),
        TOKENS[-1]: (Sharing.EVEN, Sharing.PAIRS),
    }.get(constants.TOKENS, (Sharing.EVEN,))


def x_orders(architecture: str, name: str) -> tuple[bool, ...]:
    """Whether x is `Permuted`, of the kernels to list: both ways for one format."""
    permuted = reads_permuted(architecture, Permuted.COLUMNS)
    return (True, False) if permuted and name == COMMON[0] else (permuted,)


def defines(
    constants: Constants, *, permuted: bool, sharing: Sharing = Sharing.OWN
) -> dict[str, int | str]:
    """Macros of kernels/batch.h.

    Parameters
    ----------
    constants
        Of the kernel.
    permuted
        Whether x is `Permuted`.
    sharing
        How blocks share bands.
    """
    macros: dict[str, int | str] = {**asdict(constants), "SHARING": sharing.name}
    if constants.launch_lds:
        macros["LDS_BYTES"] = constants.launch_lds
    if permuted:
        macros["PERMUTED"] = 1
    return macros


def builds(architecture: str) -> Iterator[Build]:
    """The ops' kernels for matrices of one format: all for common ones, else the largest."""
    if not has_matrix_units(architecture):
        return
    for name in FORMATS:
        for tokens in TOKENS if name in COMMON else TOKENS[-1:]:
            yield from _builds(architecture, name, choose(architecture, name, tokens))
    for name in COMMON:
        _, *large = tiles(architecture, name, TOKENS[-1] + 1)
        for constants in large:
            yield from _builds(architecture, name, constants)


def _builds(architecture: str, name: str, constants: Constants) -> Iterator[Build]:
    orders = x_orders(architecture, name)
    for permuted, sharing in itertools.product(orders, ways(architecture, constants)):
        macros = defines(constants, permuted=permuted, sharing=sharing)
        # By NVRTC 13.5 the wide tile's kernel spills up to 8 bytes, with Q4_K and Q6_K in one
        # launch 32; the tall tile's spills 4 bytes of Q4_K without `permuted`, and 12 with both.
        hot = constants != WIDE and (permuted or constants != TALL)
        yield Build(FILE, LAYOUTS, {**macros, **products.one_format(name)}, hot=hot)
        yield Build(GATE_UP_FILE, GATE_UP_LAYOUTS, {**macros, "FORMAT_0": name})


@dataclass(frozen=True)
class Scratch:
    """What blocks that share bands need, in device memory.

    Parameters
    ----------
    partials
        Address of `scratch_bytes`, aligned to 16.
    arrivals
        Address of `COUNTERS` counters that hold 0.
    """

    partials: int
    arrivals: int


@dataclass(frozen=True)
class _Cut:
    """How a launch is cut."""

    constants: Constants
    bands: int
    token_tiles: int
    blocks: int
    sharing: Sharing

    def defines(self, x: Halves) -> dict[str, int | str]:
        """Macros of the kernel for activations."""
        permuted = isinstance(x, Permuted)
        return defines(self.constants, permuted=permuted, sharing=self.sharing)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks that share weights first."""
        if self.sharing > Sharing.OWN:
            return self.token_tiles, self.blocks, 1
        return self.token_tiles, self.bands, self.band_blocks

    @property
    def band_blocks(self) -> int:
        """Blocks of a band, or of all bands if they share them together."""
        return self.blocks if self.sharing > Sharing.OWN else self.blocks // self.bands

    @property
    def partial_bytes(self) -> int:
        """Memory in which blocks leave the sums of bands that they share."""
        if self.blocks == self.bands:
            return 0
        if self.blocks < self.bands:
            places = (self.blocks - 1) * (1 if self.sharing == Sharing.PAIRS else 2)
        else:
            places = self.blocks + (self.bands - 1 if self.sharing > Sharing.OWN else 0)
        return 4 * self.constants.rows * self.constants.TOKENS * self.token_tiles * places


def _cut(
    kernels: Kernels | BuildRecorder, name: str, rows: Sequence[int], columns: int, tokens: int
) -> _Cut:
    """Return the cut of the tile that takes the least time."""
    properties = kernels.runtime.properties
    architecture = properties.architecture
    found = []
    narrow = F32_COST if name == "F32" and architecture == "sm_90" else NARROW_COST
    for constants in tiles(architecture, name, tokens, kernels.tuning):
        possible = ways(architecture, constants)
        work = Work(
            sum(-(-n // constants.rows) for n in rows),
            constants.steps(columns),
            -(-tokens // constants.TOKENS),
            properties.compute_units,
            constants.BLOCKS,
            _LARGE.get(constants, narrow),
        )
        count = blocks(work, even=possible[-1] > Sharing.OWN)
        cut = _Cut(
            constants, work.bands, work.token_tiles, count, choose_sharing(work, count, possible)
        )
        found.append((work.time(count), cut))
    return min(found, key=itemgetter(0))[1]


def scratch_bytes(
    kernels: Kernels | BuildRecorder, name: str, rows: Sequence[int], columns: int, tokens: int
) -> int:
    """Memory of `Scratch.partials`, by the first format and the rows of each matrix.

    Gate and up count as one matrix.
    """
    return _cut(kernels, name, rows, columns, tokens).partial_bytes


def matmul_batch(
    kernels: Kernels,
    *,
    x: Halves,
    weights: Sequence[DeviceMatrix],
    outs: Sequence[int],
    biases: Sequence[int | None],
    tokens: int,
    scratch: Scratch,
    accumulate: bool = False,
) -> Launch:
    """outs[i] = x · weights[i]ᵀ + biases[i], or += if `accumulate`.

    Parameters
    ----------
    x
        (T, K) of `reads_permuted`, aligned to 16; K a multiple of 32.
    weights
        One to three matrices (N_i, K); formats may differ.
    outs
        (T, N_i) float32 each.
    biases
        (N_i,) float32 each, or None.
    tokens
        T, at least 1.
    scratch
        Of `scratch_bytes`.
    """
    first = weights[0]
    cut = _cut(kernels, first.kernel_format, [w.rows for w in weights], first.columns, tokens)
    bands = products.bands(weights, cut.constants.rows)
    members, _ = products.products(weights, biases, outs, bands)
    return kernels.launch(
        FILE,
        "matmul_batch",
        {**cut.defines(x), **products.formats(weights)},
        cut.grid,
        cut.constants.threads(kernels.runtime.properties.wave_size),
        LAYOUTS["matmul_batch"],
        *_batch(x, scratch, tokens, first.columns, cut),
        *(*members, int(accumulate)),
        lds_bytes=cut.constants.launch_lds,
    )


def gate_up_swiglu_batch(
    kernels: Kernels,
    *,
    x: Halves,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    out: Halves,
    tokens: int,
    scratch: Scratch,
) -> Launch:
    """out = g · sigmoid(g) · u of g = x · gateᵀ and u = x · upᵀ.

    Parameters
    ----------
    x
        (T, K) of `reads_permuted`, aligned to 16; K a multiple of 32.
    gate, up
        (N, K) of one format.
    out
        (T, N).
    tokens
        T, at least 1.
    scratch
        Of `scratch_bytes`.
    """
    cut = _cut(kernels, gate.kernel_format, [2 * gate.rows], gate.columns, tokens)
    return kernels.launch(
        GATE_UP_FILE,
        "gate_up_swiglu_batch",
        {**cut.defines(x), "FORMAT_0": gate.kernel_format},
        cut.grid,
        cut.constants.threads(kernels.runtime.properties.wave_size),
        GATE_UP_LAYOUTS["gate_up_swiglu_batch"],
        *_batch(x, scratch, tokens, gate.columns, cut),
        *(*gate.addresses, *up.addresses, out.address, gate.rows),
        int(isinstance(out, Permuted)),
        lds_bytes=cut.constants.launch_lds,
    )


def _batch(x: Halves, scratch: Scratch, tokens: int, columns: int, cut: _Cut) -> tuple[int, ...]:
    """Members of `Batch` in kernels/batch.h."""
    addresses = (x.address, scratch.partials, scratch.arrivals)
    return *addresses, tokens, columns, cut.bands, cut.band_blocks
