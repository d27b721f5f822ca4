"""rope_attention: rotation, append and attention of one new token a sequence, in one launch.

What `rope_kv_append` does, and then what `attention` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import attention
from rocmforge.gpu.ops.heads import head_shape

FILE = "rope_attention.hip"
LAYOUTS = {"rope_attention": attention.ARGUMENTS + "PPPPPPPif"}


def choose(
    architecture: str, chosen: attention.Constants, rotated: int, interleaved: bool, norm: bool
) -> dict[str, Any]:
    """Compile-time constants of rope_attention.hip.

    Parameters
    ----------
    architecture
        Of the device.
    chosen
        Those of attention.
    rotated, interleaved
        Of the rotation.
    norm
        Whether heads are normalized first.
    """
    threads = chosen.WAVES * wave_size(architecture)
    heads = chosen.QUERIES + 2  # a key and a value too: all are turned at once, where that can be
    lanes = next((n for n in (32, 16) if heads * n <= threads), 8)
    shape = {**asdict(head_shape(chosen.HEAD_DIM, rotated, interleaved, lanes)), "THREADS": threads}
    turn = {"INTERLEAVED": int(interleaved), "NORM": int(norm)}
    # Loads before the wait take registers, and only CUDA starts a launch before the last one ends.
    return {**asdict(chosen), **shape, **turn, "AHEAD": int(architecture.startswith("sm_"))}


def builds(architecture: str) -> Iterator[Build]:
    """The op's kernels for heads that are rotated as a whole; all rotations for pages of f16."""
    for chosen in attention.every_choice(architecture):
        ways = ((True, False), (False, False), (False, True))
        for interleaved, norm in ways if chosen.KV == "F16Pages" else ways[-1:]:
            defines = choose(architecture, chosen, chosen.HEAD_DIM, interleaved, norm)
            yield Build(FILE, LAYOUTS, defines, chosen.hot)


def rope_attention(
    kernels: Kernels,
    *,
    k: int,
    v: int,
    cos: int,
    sin: int,
    positions: int,
    rotated: int,
    interleaved: bool,
    q_norm: int | None = None,
    k_norm: int | None = None,
    eps: float = 0.0,
    **inputs: Any,
) -> Launch:
    """Normalize and rotate q and k, store k and v to the cache, and attend to all of it.

    Parameters
    ----------
    k, v
        (S, G, D) float32, aligned to 16; not changed.
    cos, sin, positions, rotated, interleaved
        As `rope`.
    q_norm, k_norm
        (D,) float32 weights of the heads' RMSNorm, aligned to 16; None: no norm.
    eps
        Of the norm.
    inputs
        Those of `attention.arguments`. q is not rotated yet, and not changed. The last token of
        each sequence is not in the pages yet.
    """
    chosen, grid, threads, values = attention.arguments(kernels, **inputs)
    norm = q_norm is not None or k_norm is not None
    architecture = kernels.runtime.properties.architecture
    return kernels.launch(
        FILE,
        "rope_attention",
        choose(architecture, chosen, rotated, interleaved, norm),
        grid,
        threads,
        LAYOUTS["rope_attention"],
        *(*values, k, v, q_norm or 0, k_norm or 0, cos, sin, positions, rotated, eps),
    )
