"""rope_kv_append: between the QKV projection and attention, everything in one launch.

RMSNorm of each head of queries and keys where the model has it (qwen3), rotation of both, queries
in place, and keys and values into the pages of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.attention import HEAD_DIMS, PAGES, dtypes_of
from rocmforge.gpu.ops.heads import HeadShape, head_shape

FILE = "rope_kv_append.hip"
LAYOUTS = {"rope_kv_append": "PPPPPPPPPPPPPPiiiiif"}


@dataclass(frozen=True)
class Constants(HeadShape):
    """Compile-time constants of rope_kv_append.hip.

    Parameters
    ----------
    THREADS, SPAN, ITEMS, VECTOR
        How lanes share heads.
    INTERLEAVED
        1: pairs are (2i, 2i + 1); 0: (i, i + R / 2).
    NORM
        1 where heads are normalized first.
    KV
        How the pages hold keys and values: a type of kernels/pages.h.
    """

    INTERLEAVED: int
    NORM: int
    KV: str


def choose(
    architecture: str, head_dim: int, rotated: int, interleaved: bool, norm: bool, kv: str
) -> Constants:
    """Constants for an architecture, a rotation, whether to normalize, and a dtype of the cache."""
    shape = head_shape(head_dim, rotated, interleaved)
    return Constants(**asdict(shape), INTERLEAVED=int(interleaved), NORM=int(norm), KV=PAGES[kv])


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    chosen = {
        choose(architecture, head_dim, head_dim, interleaved, norm, kv): True
        for head_dim in HEAD_DIMS
        for kv in dtypes_of(head_dim)
        for interleaved, norm in ((True, False), (False, False), (False, True))
    }
    for constants in chosen:
        yield Build(FILE, LAYOUTS, asdict(constants))


def rope_kv_append(
    kernels: Kernels,
    *,
    q: int,
    k: int,
    v: int,
    cos: int,
    sin: int,
    positions: int,
    k_pages: int,
    v_pages: int,
    k_scales: int,
    v_scales: int,
    pages: int,
    offsets: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotated: int,
    interleaved: bool,
    page_size: int,
    kv: str,
    q_norm: int | None = None,
    k_norm: int | None = None,
    eps: float = 0.0,
) -> Launch:
    """Normalize and rotate q and k; store q back, and k and v to the cache.

    Parameters
    ----------
    q
        (T, H, D) float32, aligned to 16; changed in place.
    k, v
        (T, G, D) float32, aligned to 16; not changed.
    cos, sin, positions, rotated, interleaved
        As `rope`.
    k_pages, v_pages, k_scales, v_scales, pages, offsets, page_size, kv
        As `kv_append`.
    tokens, heads, kv_heads, head_dim
        T, H, G and D.
    q_norm, k_norm
        (D,) float32 weights of the heads' RMSNorm, aligned to 16; None: no norm.
    eps
        Of the norm.
    """
    norm = q_norm is not None or k_norm is not None
    architecture = kernels.runtime.properties.architecture
    constants = choose(architecture, head_dim, rotated, interleaved, norm, kv)
    return kernels.launch(
        FILE,
        "rope_kv_append",
        asdict(constants),
        (tokens, -(-(heads + 2 * kv_heads) // constants.heads), 1),
        constants.THREADS,
        LAYOUTS["rope_kv_append"],
        *(q, k, v, q_norm or 0, k_norm or 0, cos, sin, positions),
        *(k_pages, v_pages, k_scales, v_scales, pages, offsets),
        *(heads, kv_heads, head_dim, rotated, page_size, eps),
    )
