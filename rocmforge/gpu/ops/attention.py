"""attention with one query a sequence (decode): softmax(scale · q kᵀ) v over the paged KV cache.

One launch: parts of each sequence side by side, which the last of them merges. Neither the grid nor
the arguments depend on how long the sequences are. Prompts go through attention_prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocmforge.gpu.arrays import F32, Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.output import DTYPES, addresses, dtype
from rocmforge.kv import fits

FILE = "attention.hip"
ARGUMENTS = "PPPPPPPPPPPPPPiiiiiiiff"
LAYOUTS = {"attention": ARGUMENTS}
HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head dims of models that we run; the kernel takes what `wanted_head_dim` allows."""

PAGES = {"f16": "F16Pages", "q8_0": "Q8Pages", "fp8_e4m3": "Fp8Pages", "f32": "F32Pages"}
"""The type in kernels/pages.h of each dtype of the cache."""

RESIDENT = 2
"""Blocks of a multiprocessor of NVIDIA, which has 65,536 registers: 128 for each of 512 threads."""
_TILED = {64: (2, 256), 128: (1, 192)}
"""Head dims for which the matrix units compute, RESIDENT and ALONE.

NVRTC 13 for sm_90 takes 121 and 209 registers a lane of 256 threads. With 130 tokens a second round
takes 3.8 µs of 64 dims and 4.3 of 128, two splits 4.4 and 4.9; with 250 tokens a second round takes
4.2 and 5.2, two splits 4.4 and 4.9 (H100, 1.1B and 8B). A step of six layers of 30B-A3B (128 dims)
takes 248.7 µs behind 129 tokens with a second round, 254.0 with two splits (H200, 2026-11-28).
"""

MAX_SPLITS = 64
_MANY_ALONE = {0: 256, 1: 2048}
"""ALONE, by TILES, where one split of each sequence fills the device.

H100: with 9 sequences of 32 heads that share nothing, one split takes 0.8 of the time at 254 tokens
and 1.17 at 510. With 20 sequences of 32 heads and 8 KV heads it takes 0.87 at 510, 0.94 at 2,000.
"""
MAX_ARRIVALS = 4096
"""Counters that a launch may take."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of attention.hip.

    Parameters
    ----------
    HEAD_DIM
        D.
    KV
        How the pages hold keys and values: a type of kernels/pages.h.
    QUERIES
        Query heads that a block computes from one reading of their KV head.
    TOKENS
        Tokens whose keys and values a lane has in flight; with TILES, a wave.
    WAVES
        Waves of a block, which take turns at the tokens.
    LEAST
        Rounds, turns of all waves, that a split has at least.
    ALONE
        Tokens up to which a sequence stays one split, as it does up to a round.
    RESIDENT
        Blocks that a multiprocessor of NVIDIA has room for at once.
    TILES
        1: waves compute on NVIDIA's matrix units.
    EARLY
        1: a wave loads the next keys and values while it computes.
    """

    HEAD_DIM: int
    KV: str
    QUERIES: int
    TOKENS: int
    WAVES: int
    LEAST: int
    RESIDENT: int = 1
    TILES: int = 0
    EARLY: int = 0
    ALONE: int = 0

    @property
    def hot(self) -> bool:
        """Whether models run it: a cache of float32 is for checks."""
        return self.KV != "F32Pages"


def dtypes_of(head_dim: int) -> tuple[str, ...]:
    """Dtypes that a cache with heads of D dims can have."""
    return tuple(kv for kv in PAGES if fits(kv, head_dim))


def choose(architecture: str, head_dim: int, kv: str, group: int) -> Constants:
    """Constants for an architecture, a head dim, a dtype of the cache and H / G.

    Heads that share keys and values run on the matrix units of NVIDIA. On the vector
    units eight queries take 64 registers a lane, and as many for their outputs: fewer tokens then,
    or registers spill on every architecture. Float32 is for checks and has one way only.
    """
    if kv == "f32":
        return Constants(head_dim, PAGES[kv], 1, 4, 4, 1)
    if architecture.startswith("sm_"):
        # H100, 32 heads of 128 dims that share nothing: 9.81 µs on the matrix units at 1,024 tokens
        # and 26.1 at 4,080, 9.75 and 25.4 on the vector units.
        if group > 1 and head_dim in _TILED:
            queries, (resident, alone) = _power_of_two(min(group, 8)), _TILED[head_dim]
            return Constants(head_dim, PAGES[kv], queries, 16, 8, 1, resident, 1, 1, alone)
        # H200, 7B, f16: a step of eight layers behind 128 tokens takes 386.8 µs with 4 tokens in
        # flight, 392.6 with 8. Behind 64 to 127, 8 are 1 to 2 % faster (two layers). Other head
        # dims and other cards were not measured. With 8 tokens, 4 waves were slower than 8.
        queries, tokens = min(group, 2), 8 if group == 1 and kv != "f16" else 4
        return Constants(head_dim, PAGES[kv], queries, tokens, 8, 1, RESIDENT, EARLY=1)
    # gfx942 would have room for 2 to 4 waves of a SIMD unit, instead of 3 to 6, with EARLY.
    queries = _power_of_two(min(group, 8))
    return Constants(head_dim, PAGES[kv], queries, 2 if queries == 8 else 4, 4, 1)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def for_blocks(constants: Constants, blocks: int, compute_units: int) -> Constants:
    """Return constants for so many blocks of each split: fewer waves where not all run at once.

    On an H200, 2,048 blocks of 129 tokens took 58 µs with eight waves each, 40 with two.
    """
    ways = list(_fewer_waves(constants))
    return next((way for way in ways if blocks <= way.RESIDENT * compute_units), ways[-1])


def _fewer_waves(constants: Constants) -> Iterator[Constants]:
    """The constants, then those of half as many waves a block, down to two.

    Those of fewer waves serve so many blocks that longer sequences stay one split.
    """
    yield constants
    alone = _MANY_ALONE[constants.TILES]
    while (constants.RESIDENT > 1 or constants.TILES) and constants.WAVES > 2:
        waves, resident = constants.WAVES // 2, constants.RESIDENT * 2
        constants = replace(constants, WAVES=waves, RESIDENT=resident, ALONE=alone)
        yield constants


def choose_splits(
    architecture: str,
    compute_units: int,
    constants: Constants,
    sequences: int,
    heads: int,
    kv_heads: int,
    tokens: int,
) -> int:
    """Most parts of a sequence: enough blocks to fill the device, none shorter than a few pages.

    A short sequence uses fewer of them, which the kernel decides.

    Parameters
    ----------
    architecture, compute_units
        The device.
    constants
        Of `choose`.
    sequences, heads, kv_heads
        S, H and G.
    tokens
        The longest context that the launch has to serve.
    """
    groups = -(-(heads // kv_heads) // constants.QUERIES)
    blocks = sequences * kv_heads * groups  # of each split
    if blocks > MAX_ARRIVALS:
        return 1
    if architecture.startswith("sm_"):
        way = for_blocks(constants, blocks, compute_units)
        if tokens <= way.ALONE:
            return 1
        fill = even_splits(blocks, way.RESIDENT * compute_units, rounds=4)
    else:
        fill = -(-4 * compute_units // blocks)
    return max(1, min(fill, -(-tokens // 64), MAX_SPLITS))


def even_splits(blocks: int, slots: int, rounds: int) -> int:
    """Splits whose blocks, all alike, run in as few rounds as keep nine of ten slots busy.

    A few blocks over a round take as long as a whole one: on an H200, where a multiprocessor held
    one block, 18 splits of 32 heads at 32,768 tokens took 15 % less time than 9.
    """
    busy = {}
    for count in range(1, rounds + 1):
        splits = count * slots // blocks
        busy[splits] = splits * blocks / (count * slots)
        if busy[splits] >= 0.9:
            return splits
    return max(busy, key=lambda splits: busy[splits])


def scratch_bytes(sequences: int, heads: int, head_dim: int, splits: int) -> int:
    """Memory for the splits' results: (S, H, splits, D) and (S, H, splits, 2) float32."""
    return 4 * sequences * heads * splits * (head_dim + 2)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for constants in every_choice(architecture):
        yield Build(FILE, LAYOUTS, asdict(constants), hot=constants.hot)


def every_choice(architecture: str) -> Iterator[Constants]:
    """Constants for the models that we run, each once."""
    chosen = {
        constants: True
        for head_dim in HEAD_DIMS
        for kv in dtypes_of(head_dim)
        for group in (1, 2, 4, 8)
        for constants in _fewer_waves(choose(architecture, head_dim, kv, group))
    }
    yield from chosen


def attention(kernels: Kernels, **inputs: Any) -> Launch:
    """out[s] = softmax(scale · q[s] kᵀ) v over the tokens of sequence s, for each head.

    Parameters
    ----------
    inputs
        Those of `arguments`.
    """
    constants, grid, threads, values = arguments(kernels, **inputs)
    layout = LAYOUTS["attention"]
    return kernels.launch(FILE, "attention", asdict(constants), grid, threads, layout, *values)


def arguments(
    kernels: Kernels,
    *,
    q: int,
    k_pages: int,
    v_pages: int,
    k_scales: int,
    v_scales: int,
    page_table: int,
    lengths: int,
    scratch: int,
    arrivals: int,
    out: F32 | Halves | Q8,
    sequences: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    max_pages: int,
    scale: float,
    kv: str,
    splits: int,
    window: int | None = None,
    softcap: float | None = None,
    sinks: int | None = None,
) -> tuple[Constants, tuple[int, int, int], int, tuple[int | float, ...]]:
    """Return constants, grid, threads and values of a launch of attention over the cache.

    Parameters
    ----------
    q
        (S, H, D) float32, aligned to 16.
    k_pages, v_pages
        (pages, G, P, D) of the dtype `kv`, aligned to 16.
    k_scales, v_scales
        float16: (pages, G, P, D / 32) for q8_0, (pages, G, P) for fp8_e4m3; else 0.
    page_table, lengths
        (S, max_pages) and (S,) int32. A sequence of length 0 gives zeros.
    scratch
        `scratch_bytes`, aligned to 16.
    arrivals
        MAX_ARRIVALS uint32 that are 0, and will be again.
    out
        (S, H · D); Q8 needs D to be a multiple of 32.
    kv
        A dtype of PAGES.
    splits
        Of `choose_splits`.
    window, softcap
        As of `rocmforge.plan.records.Attention`.
    sinks
        (H,) float32, or None.
    """
    properties = kernels.runtime.properties
    group = heads // kv_heads
    constants = choose(properties.architecture, head_dim, kv, group)
    groups = kv_heads * -(-group // constants.QUERIES)
    constants = for_blocks(constants, sequences * groups, properties.compute_units)
    stats = scratch + 4 * sequences * heads * splits * head_dim
    values = (
        *(q, k_pages, v_pages, k_scales, v_scales, page_table, lengths, scratch, stats, arrivals),
        *(sinks or 0, *addresses(out), heads, kv_heads, page_size.bit_length() - 1, max_pages),
        *(splits, DTYPES.index(dtype(out)), window or 0, scale, softcap or 0.0),
    )
    grid = (splits, groups, sequences)
    return constants, grid, constants.WAVES * properties.wave_size, values
