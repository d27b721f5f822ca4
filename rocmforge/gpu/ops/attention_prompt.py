"""attention with many queries a sequence (prefill), on the matrix units: causal softmax(q kᵀ) v.

Queries, keys, values and weights are rounded to float16; sums are float32. Single tokens go through
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.arrays import F32, Halves
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.attention import HEAD_DIMS, MAX_ARRIVALS, PAGES, dtypes_of, even_splits
from rocmforge.gpu.ops.output import DTYPES, addresses, dtype

FILE = "attention_prompt.hip"
LAYOUTS = {"attention_prompt": "PPPPPPPPPPPPPPPiiiiiiiiiff"}

MOST_SPLITS = 8
DEEP_TOKENS, DEEP_QUERIES = 4096, 512
"""A prompt `is_deep` with at least so many tokens before so many queries of each sequence."""
FEW_QUERIES = 64
"""Up to so many queries a sequence on average, single waves are faster than Hopper's warpgroups: 32
queries of 32 heads of 128 dims took 10.2 and 14.2 µs, 64 took 10.5 and 13.2 (H200, 2026-11)."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of attention_prompt.hip.

    Parameters
    ----------
    HEAD_DIM
        D.
    KV
        How the pages hold keys and values: a type of kernels/pages.h.
    KEYS
        Tokens that a step takes, a multiple of 16.
    WAVES, TILES
        Waves of a block, and how many times 16 queries each has.
    Q_IN_LDS
        1 where queries stay in LDS, because registers do not hold them beside the outputs.
    LOAD_AHEAD
        1 where the next keys or values are on their way while the block computes.
    DIRECT
        1 where these go straight to LDS. A launch may need more than 48 KB of it.
    WARPGROUP
        1 where four waves together multiply on Hopper's matrix unit. Then TILES is 1, WAVES a
        multiple of 4, KEYS of 64, and Q_IN_LDS, LOAD_AHEAD and DIRECT are 1.
    BLOCKS
        CUDA's compiler keeps registers few enough for so many on a multiprocessor.
    LEAST
        Tokens of a split, at least.
    """

    HEAD_DIM: int
    KV: str
    KEYS: int
    WAVES: int
    TILES: int
    Q_IN_LDS: int
    LOAD_AHEAD: int
    DIRECT: int
    WARPGROUP: int = 0
    BLOCKS: int = 1
    LEAST: int = 256

    @property
    def queries(self) -> int:
        """Of a block."""
        return 16 * self.WAVES * self.TILES

    @property
    def lds_bytes(self) -> int:
        """LDS of a block, without what waves exchange, as attention_prompt.hip divides it.

        The steps, the outputs and the queries take turns; Q_IN_LDS, queries have a part of it.
        """
        if self.WARPGROUP:  # pieces of 16 bytes, of queries and of two steps of keys and values
            return 16 * self.HEAD_DIM // 8 * (self.queries + 1 + 4 * (self.KEYS + 1))
        dims = -(-self.HEAD_DIM // 16) * 16
        stride, lines, half = dims + 8, 4 * 16 * (16 + 4) * self.WAVES, 2
        keys, queries = half * self.KEYS * stride, half * self.queries * stride
        values = keys if self.DIRECT else half * dims * (self.KEYS + 8 + 1)
        step = max(keys + values, lines, 0 if self.Q_IN_LDS else queries)
        return step + (queries if self.Q_IN_LDS else 0)

    @property
    def defines(self) -> dict[str, int | str]:
        """Macros of the build. The kernel checks `lds_bytes`, which NVIDIA's launches name."""
        return {**asdict(self), "LDS_BYTES": self.lds_bytes}


def _has_warpgroups(architecture: str, head_dim: int, kv: str) -> bool:
    return architecture == "sm_90" and kv == "f16" and head_dim in (64, 128)


def choose(architecture: str, head_dim: int, kv: str, many: bool) -> Constants:
    """Constants for an architecture, a head dim and a dtype of the cache.

    What keeps registers from spilling, by clang-19's reports and NVRTC 13's for sm_90. On NVIDIA,
    waves with two tiles of queries read keys and values from LDS half as often, but need `many`.
    So do Hopper's warpgroups. A block of 128 dims has three of them. Two blocks of two took less
    time alone, but left the next kernels little L1 (docs/EXPERIMENTS.md, H200, 2026-11).
    """
    pages = PAGES[kv]
    if head_dim <= 128:
        if many and _has_warpgroups(architecture, head_dim, kv):
            waves, blocks = (8, 2) if head_dim == 64 else (12, 1)
            return Constants(head_dim, pages, 64, waves, 1, 1, 1, 1, WARPGROUP=1, BLOCKS=blocks)
        if architecture.startswith("sm_") and kv == "f16" and head_dim % 16 == 0:
            if many:
                keys, waves = (64, 4) if head_dim <= 64 else (48, 8)
                return Constants(head_dim, pages, keys, waves, 2, 1, 1, 1)
            return Constants(head_dim, pages, 64, 4 if head_dim <= 64 else 8, 1, 0, 1, 1)
        return Constants(head_dim, pages, 32, 4, 1, int(architecture.startswith("gfx10")), 1, 0)
    if wave_size(architecture) == 64:  # a lane has half of a tile's outputs
        return Constants(head_dim, pages, 32, 4, 1, 0, 1, 0)
    return Constants(head_dim, pages, 16, 2, 1, 1, 0, 0)


def is_deep(queries: int, before: int, sequences: int) -> bool:
    """Whether the sequences of a prompt have so many tokens before it that large blocks pay.

    Parameters
    ----------
    queries, before
        New tokens and earlier tokens of all sequences together.
    sequences
        How many sequences.
    """
    return queries >= DEEP_QUERIES * sequences and before >= DEEP_TOKENS * sequences


def are_many(
    tokens: int, sequences: int, heads: int, head_dim: int, compute_units: int, deep: bool
) -> bool:
    """Whether blocks with two tiles of queries a wave are faster on NVIDIA's GPU.

    They are if blocks of 256 queries more than fill it, for sequences alike in length, or if
    `is_deep`. H100 of 132 multiprocessors, 32 heads of 128 dims, one tile and two, µs: 2,048
    queries behind 8,192 tokens 1,577 and 1,181; 1,024 behind none 68 and 81, behind 8,192 731 and
    603; 512 behind none 31 and 49, behind 4,096 202 and 185, behind 32,768 1,390 and 1,090. Heads
    of 64 dims were not measured behind so many tokens. Since then Hopper has warpgroups for 64 and
    128 dims; this decides for other dims, and for cards that were not measured.
    """
    full = heads * sequences * (tokens // sequences // 256) > compute_units
    return full or (deep and head_dim > 64)


def choose_splits(compute_units: int, blocks: int) -> int:
    """Most blocks that share the tokens of the same queries, for so many blocks without splits.

    As many as give each compute unit one block, or two: measured on an H100, not on AMD's GPUs.
    Which of them have work, the kernel decides by the lengths of the sequences.
    """
    if blocks > min(compute_units, MAX_ARRIVALS):
        return 1
    return min(even_splits(blocks, compute_units, rounds=2), MOST_SPLITS)


def choose_deep_splits(slots: int, blocks: int, room: int) -> int:
    """Most splits of a deep prompt on Hopper: the fewest that keep nine of ten slots busy.

    Its blocks take long and are alike, so time is counted in rounds of them. 1,000 queries of 32
    heads are 192 blocks, two rounds of 132. In two splits they are 384 blocks, three rounds of half
    the time: 506 instead of 584 µs behind 7,000 tokens (H200, 2026-11).

    Parameters
    ----------
    slots
        Blocks that run at a time.
    blocks
        Without splits.
    room
        For how many splits there is memory.
    """
    if blocks > MAX_ARRIVALS:
        return 1

    def busy(splits: int) -> float:
        return splits * blocks / (slots * -(-splits * blocks // slots))

    possible = range(1, max(1, min(MOST_SPLITS, room)) + 1)
    return next((splits for splits in possible if busy(splits) >= 0.9), max(possible, key=busy))


def cut(
    architecture: str,
    compute_units: int,
    *,
    tokens: int,
    sequences: int,
    longest: int,
    heads: int,
    head_dim: int,
    kv: str,
    deep: bool,
) -> tuple[Constants, int]:
    """Constants of a launch, and how many splits it has at most.

    Parameters
    ----------
    architecture, compute_units
        Of the device.
    tokens, sequences, longest
        Queries of all sequences, how many sequences, and the most queries of one.
    heads, head_dim, kv
        H, D and the dtype of the cache.
    deep
        Of `is_deep`.
    """
    if _has_warpgroups(architecture, head_dim, kv):
        many = tokens > FEW_QUERIES * sequences
    else:
        many = are_many(tokens, sequences, heads, head_dim, compute_units, deep)
    constants = choose(architecture, head_dim, kv, many)
    blocks = heads * sequences * -(-longest // constants.queries)
    if deep and constants.WARPGROUP:
        room = _deep_rows(architecture, compute_units, head_dim, kv) // (tokens * heads)
        return constants, choose_deep_splits(compute_units * constants.BLOCKS, blocks, room)
    return constants, choose_splits(compute_units, blocks)


def scratch_bytes(
    architecture: str,
    compute_units: int,
    tokens: int,
    heads: int,
    head_dim: int,
    kv: str,
    ctx: int,
) -> int:
    """Memory for the splits' results of up to T queries, of one sequence or several.

    Parameters
    ----------
    architecture, compute_units
        Of the device.
    tokens, heads, head_dim, kv
        T, H, D and the dtype of the cache.
    ctx
        Most tokens of a sequence, with its queries.
    """
    rows = [0]
    for many in (False, True):
        queries = choose(architecture, head_dim, kv, many).queries
        for blocks in range(1, compute_units // heads + 1):  # of all sequences, for each head
            splits = choose_splits(compute_units, heads * blocks)
            if splits > 1:
                rows.append(splits * min(tokens, blocks * queries) * heads)
    if ctx > DEEP_TOKENS and tokens >= DEEP_QUERIES:
        rows.append(
            min(_deep_rows(architecture, compute_units, head_dim, kv), MOST_SPLITS * tokens * heads)
        )
    return 4 * max(rows) * (head_dim + 2)


def _deep_rows(architecture: str, compute_units: int, head_dim: int, kv: str) -> int:
    """Rows of splits' results that deep prompts have room for: 256 for each of two blocks a unit.

    With 132 units these are four splits of 512 queries of 32 heads.
    """
    return 2 * compute_units * 256 if _has_warpgroups(architecture, head_dim, kv) else 0


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for head_dim in HEAD_DIMS:
        for kv in dtypes_of(head_dim):
            # Without a matrix unit, head dim 256 takes some scratch.
            hot = kv != "f32" and (head_dim <= 128 or not architecture.startswith("gfx10"))
            for chosen in {choose(architecture, head_dim, kv, many): 1 for many in (False, True)}:
                yield Build(FILE, LAYOUTS, chosen.defines, hot=hot)


def attention_prompt(
    kernels: Kernels,
    *,
    q: int,
    k_pages: int,
    v_pages: int,
    k_scales: int,
    v_scales: int,
    page_table: int,
    lengths: int,
    starts: int,
    scratch: int,
    arrivals: int,
    out: F32 | Halves,
    tokens: int,
    sequences: int,
    max_queries: int,
    deep: bool,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    max_pages: int,
    scale: float,
    kv: str,
    window: int | None = None,
    softcap: float | None = None,
    sinks: int | None = None,
) -> Launch:
    """Causal softmax(scale · q kᵀ) v; query j of n of a sequence stands at its length − n + j.

    Parameters
    ----------
    q
        (T, H, D) float32, aligned to 16.
    k_pages, v_pages
        (pages, G, P, D) of the dtype `kv`, aligned to 16.
    k_scales, v_scales
        float16: (pages, G, P, D / 32) for q8_0, (pages, G, P) for fp8_e4m3; else 0.
    page_table, lengths, starts
        (S, max_pages), (S,) and (S + 1,) int32.
    scratch
        `scratch_bytes`, aligned to 16.
    arrivals
        MAX_ARRIVALS uint32 that are 0, and will be again.
    out
        (T, H · D).
    max_queries
        The most queries of one sequence.
    deep
        Of `is_deep`. It does not change the result.
    kv
        A dtype of `attention.PAGES`.
    window, softcap
        As of `rocmforge.plan.records.Attention`.
    sinks
        (H,) float32, or None.
    """
    properties = kernels.runtime.properties
    constants, splits = cut(
        properties.architecture,
        properties.compute_units,
        tokens=tokens,
        sequences=sequences,
        longest=max_queries,
        heads=heads,
        head_dim=head_dim,
        kv=kv,
        deep=deep,
    )
    blocks = -(-max_queries // constants.queries)
    stats = scratch + 4 * splits * tokens * heads * head_dim
    return kernels.launch(
        FILE,
        "attention_prompt",
        constants.defines,
        (heads, blocks, sequences * splits),
        constants.WAVES * properties.wave_size,
        LAYOUTS["attention_prompt"],
        *(q, k_pages, v_pages, k_scales, v_scales, page_table, lengths, starts),
        *(scratch, stats, arrivals, sinks or 0, *addresses(out), tokens, heads, kv_heads),
        *(page_size.bit_length() - 1, max_pages, blocks, splits, DTYPES.index(dtype(out))),
        *(window or 0, scale, softcap or 0.0),
        lds_bytes=constants.lds_bytes if properties.architecture.startswith("sm_") else 0,
    )
