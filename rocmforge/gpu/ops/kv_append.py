"""kv_append: writes new keys and values into the pages of one layer's cache.

The cache is float16, float32, Q8_0 (int8 with a float16 scale for 32 numbers), or FP8 (E4M3 with a
float16 scale for a head).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.attention import HEAD_DIMS, PAGES, dtypes_of
from rocmforge.gpu.ops.heads import HeadShape, head_shape

FILE = "kv_append.hip"
LAYOUTS = {"kv_append": "PPPPPPPPiii"}


@dataclass(frozen=True)
class Constants(HeadShape):
    """Compile-time constants of kv_append.hip.

    Parameters
    ----------
    THREADS, SPAN, ITEMS, VECTOR
        How lanes share heads.
    KV
        How the pages hold keys and values: a type of kernels/pages.h.
    """

    KV: str


def choose(architecture: str, head_dim: int, kv: str) -> Constants:
    """Constants for an architecture, a head dim and a dtype of the cache."""
    return Constants(**asdict(head_shape(head_dim)), KV=PAGES[kv])


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    chosen = {
        choose(architecture, head_dim, kv): True
        for head_dim in (*HEAD_DIMS, 13)
        for kv in dtypes_of(head_dim)
    }
    for constants in chosen:
        yield Build(FILE, LAYOUTS, asdict(constants), hot=constants.VECTOR == 4)


def kv_append(
    kernels: Kernels,
    *,
    k: int,
    v: int,
    k_pages: int,
    v_pages: int,
    k_scales: int,
    v_scales: int,
    pages: int,
    offsets: int,
    tokens: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    kv: str,
) -> Launch:
    """Write k and v of each token to its slot.

    Parameters
    ----------
    k, v
        (T, G, D) float32, aligned to 16.
    k_pages, v_pages
        (pages, G, P, D) of the dtype `kv`, aligned to 16; written.
    k_scales, v_scales
        float16: (pages, G, P, D / 32) for q8_0, (pages, G, P) for fp8_e4m3, written; else 0.
    pages, offsets
        (T,) int32: page and slot of each token; a page below 0 writes nothing.
    tokens, kv_heads, head_dim
        T, G and D; D is a multiple of 32 for q8_0.
    page_size
        P.
    kv
        A dtype of `attention.PAGES`.
    """
    constants = choose(kernels.runtime.properties.architecture, head_dim, kv)
    return kernels.launch(
        FILE,
        "kv_append",
        asdict(constants),
        (tokens, -(-2 * kv_heads // constants.heads), 1),
        constants.THREADS,
        LAYOUTS["kv_append"],
        *(k, v, k_pages, v_pages, k_scales, v_scales, pages, offsets),
        *(kv_heads, head_dim, page_size),
    )
