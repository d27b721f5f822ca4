"""rmsnorm_route: the norm in front of a mixture of experts, its router and its choice (decode)."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.arrays import F32, GROUP, Q8
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops.experts import CHOICE, ROUTE_THREADS, Choice, places
from rocmforge.gpu.ops.output import addresses, dtype

FILE = "rmsnorm_route.hip"
LAYOUTS = {"rmsnorm_route": "PP" + "PPPP" + "PP" + "PPP" + "if" + CHOICE}
THREADS = 256
"""Of a block, where there are no more experts."""


def runs(router: DeviceMatrix) -> bool:
    """Whether the kernel reads this router."""
    return router.dense and router.columns % GROUP == 0


def builds(architecture: str) -> Iterator[Build]:
    """The op's kernels for routers of float32, for experts of quantized and of dense weights."""
    wave = wave_size(architecture)
    for count in dict.fromkeys(max(wave, threads) for threads in ROUTE_THREADS):
        for out in ("Q8", "F32"):
            yield Build(FILE, LAYOUTS, _macros(count, wave, "F32", out))


def _macros(count: int, wave: int, name: str, out: str) -> dict[str, int | str]:
    held = places(count, wave)
    return {"THREADS": max(THREADS, held), "PLACES": held, "ROUTER": name, "OUT": out}


def rmsnorm_route(
    kernels: Kernels,
    *,
    x: int,
    norm: int,
    eps: float,
    router: DeviceMatrix,
    bias: int | None,
    words: int,
    out: F32 | Q8,
    tokens: int,
    choice: Choice,
) -> Launch:
    """out = x / √(mean(x²) + eps) · norm; choose experts by out · routerᵀ + bias.

    Parameters
    ----------
    x
        (T, K) float32, aligned to 16.
    norm, eps
        (K,) float32, aligned to 16, and what is added to the mean square.
    router
        (E, K), dense; K is a multiple of 32.
    bias
        (E,) float32, or None.
    words
        (T, E) of uint64, all 0; they are 0 again afterwards.
    out
        (T, K), not x.
    tokens
        T.
    choice
        How experts are chosen, and where they go.
    """
    wave = kernels.runtime.properties.wave_size
    macros = _macros(choice.count, wave, router.kernel_format, dtype(out))
    return kernels.launch(
        FILE,
        "rmsnorm_route",
        macros,
        (choice.count, tokens, 1),
        max(THREADS, places(choice.count, wave)),
        LAYOUTS["rmsnorm_route"],
        *(x, norm, *router.addresses, bias or 0, words, *addresses(out)),
        *(router.columns, eps, *choice.members),
    )
