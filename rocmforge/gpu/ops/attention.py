"""attention with one query a sequence (decode): softmax(scale · q kᵀ) v over the paged KV cache.

Two launches: parts of each sequence side by side, then their merge. Neither the grids nor the
arguments depend on how long the sequences are. Prompts go through attention_prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.arrays import F16, F32, Q8
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.output import DTYPES, addresses, dtype

FILE = "attention.hip"
LAYOUTS = {"attention": "PPPPPPPPPiiiiif", "attention_merge": "PPPPPPiii"}
HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head dims of the models that we run; the kernel takes every multiple of 8 up to 256."""

PAGES = {"f16": "F16Pages", "q8_0": "Q8Pages", "f32": "F32Pages"}
"""The type in kernels/pages.h of each dtype of the cache. Q8_0 needs a head dim of whole 32s."""

MERGE_THREADS = 128
MAX_SPLITS = 64


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
        Tokens whose keys and values a lane has in flight.
    WAVES
        Waves of a block, which take turns at the tokens.
    """

    HEAD_DIM: int
    KV: str
    QUERIES: int
    TOKENS: int
    WAVES: int


def choose(architecture: str, head_dim: int, kv: str, group: int) -> Constants:
    """Constants for an architecture, a head dim, a dtype of the cache and H / G.

    Eight queries take 64 registers a lane, and as many for their outputs: fewer tokens then, or
    registers spill on every architecture. Float32 is for checks and has one way only.
    """
    if kv == "f32":
        return Constants(head_dim, PAGES[kv], 1, 4, 4)
    if architecture.startswith("sm_"):
        # H200: at 4096 tokens 8 waves take 22 and 13 µs (H / G = 1 and 4), 4 waves 28 and 18 µs
        return Constants(head_dim, PAGES[kv], min(group, 2), 8 if group == 1 else 4, 8)
    queries = next(n for n in (1, 2, 4, 8) if n >= min(group, 8))
    return Constants(head_dim, PAGES[kv], queries, 2 if queries == 8 else 4, 4)


def choose_splits(
    architecture: str, compute_units: int, sequences: int, heads: int, kv_heads: int, tokens: int
) -> int:
    """Parts of a sequence: enough blocks to fill the device, none shorter than a few pages.

    Parameters
    ----------
    architecture, compute_units
        The device.
    sequences, heads, kv_heads
        S, H and G.
    tokens
        The longest context that the launch has to serve.
    """
    group = heads // kv_heads
    queries = choose(architecture, HEAD_DIMS[0], "f16", group).QUERIES
    blocks = (2 if architecture.startswith("sm_") else 4) * compute_units
    fill = -(-blocks // (sequences * kv_heads * -(-group // queries)))
    return max(1, min(fill, -(-tokens // 64), MAX_SPLITS))


def scratch_bytes(sequences: int, heads: int, head_dim: int, splits: int) -> int:
    """Memory between the two launches: (S, H, splits, D) and (S, H, splits, 2) float32."""
    return 4 * sequences * heads * splits * (head_dim + 2)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    for kv in PAGES:
        for head_dim in HEAD_DIMS:
            if kv == "q8_0" and head_dim % 32:
                continue
            for group in (1,) if kv == "f32" else (1, 2, 4, 8):
                constants = choose(architecture, head_dim, kv, group)
                yield Build(FILE, LAYOUTS, asdict(constants), hot=kv != "f32")


def attention(
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
    out: F32 | F16 | Q8,
    sequences: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    max_pages: int,
    scale: float,
    kv: str,
    splits: int,
) -> tuple[Launch, Launch]:
    """out[s] = softmax(scale · q[s] kᵀ) v over the tokens of sequence s, for each head.

    Parameters
    ----------
    q
        (S, H, D) float32, aligned to 16.
    k_pages, v_pages
        (pages, G, P, D) of the dtype `kv`, aligned to 16.
    k_scales, v_scales
        (pages, G, P, D / 32) float16 for q8_0; else 0.
    page_table, lengths
        (S, max_pages) and (S,) int32. A sequence of length 0 gives zeros.
    scratch
        `scratch_bytes`, aligned to 16.
    out
        (S, H · D); Q8 needs H · D to be a multiple of 32.
    kv
        "f16", "q8_0" or "f32".
    splits
        At most MAX_SPLITS.
    """
    properties = kernels.runtime.properties
    group = heads // kv_heads
    constants = choose(properties.architecture, head_dim, kv, group)
    defines = asdict(constants)
    weights = scratch + 4 * sequences * heads * splits * head_dim
    parts = -(-group // constants.QUERIES)
    first = kernels.launch(
        FILE,
        "attention",
        defines,
        (splits, kv_heads * parts, sequences),
        constants.WAVES * properties.wave_size,
        LAYOUTS["attention"],
        *(q, k_pages, v_pages, k_scales, v_scales, page_table, lengths, scratch, weights),
        *(heads, kv_heads, page_size.bit_length() - 1, max_pages, splits, scale),
    )
    second = kernels.launch(
        FILE,
        "attention_merge",
        defines,
        (-(-heads * head_dim // MERGE_THREADS), sequences, 1),
        MERGE_THREADS,
        LAYOUTS["attention_merge"],
        *(scratch, weights, lengths, *addresses(out)),
        *(heads, splits, DTYPES.index(dtype(out))),
    )
    return first, second
