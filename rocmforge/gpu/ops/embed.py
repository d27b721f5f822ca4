"""embed: rows of the token table as float32, scaled, and in the same launch their first RMSNorm."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F32, Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import LAYOUTS as PACKED
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops.output import DTYPES, addresses, dtype

FILE = "embed.hip"
LAYOUTS = {"embed": "PPPPPPPPPPiiff"}
THREADS = 256


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for name in FORMATS:
        for packed in (0, 1) if name in PACKED else (0,):
            yield Build(FILE, LAYOUTS, {"FORMAT": name, "PACKED": packed})


def embed(
    kernels: Kernels,
    *,
    table: int | DeviceMatrix,
    format: str,  # noqa: A002
    tokens: int,
    out: int,
    count: int,
    columns: int,
    norm_weight: int | None = None,
    eps: float = 0.0,
    normed: F32 | Halves | Q8 | None = None,
    scale: float = 1.0,
) -> Launch:
    """out[t] = scale · row tokens[t]; normed[t] = out[t] / √(mean(out[t]²) + eps) · weight.

    Parameters
    ----------
    table
        (V, row bytes) raw rows as in the file, aligned to 16; or the packed matrix of them.
    format
        Of the raw rows, one of `rocmforge.gguf.formats.FORMATS`.
    tokens
        (T,) int32, each 0 to V − 1.
    out
        (T, K) float32, aligned to 16.
    count, columns
        T and K.
    norm_weight
        (K,) float32, where there is `normed`.
    normed
        (T, K); Q8 and Permuted need K to be a multiple of 32. None: only the rows.
    """
    pointers = (0, 0, 0) if normed is None else addresses(normed)
    number = -1 if normed is None else DTYPES.index(dtype(normed))
    if isinstance(table, DeviceMatrix):  # a dense one is rows as in the file
        name, packed, streams = table.kernel_format, not table.dense, table.addresses
    else:
        name, packed, streams = format, False, (table, 0, 0, 0)
    return kernels.launch(
        FILE,
        "embed",
        {"FORMAT": name, "PACKED": int(packed)},
        (count, 1, 1),
        THREADS,
        LAYOUTS["embed"],
        *(*streams, tokens, norm_weight or 0, out, *pointers, columns, number, eps, scale),
    )
