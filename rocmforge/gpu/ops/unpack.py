"""unpack: the weights of packed matrices as float16, once for all tiles of a long prompt.

`matmul_f16` multiplies with them, and says when that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops import products
from rocmforge.gpu.ops.matmul_f16 import is_f16, least_unpacked, unpacked, unpacks

FILE = "unpack.hip"
LAYOUTS = {"unpack": products.LAYOUT + "i"}
THREADS = 256  # each takes a unit
UNIT_BYTES = 16  # of what a dense unit and one of 8 bits a weight hold
GROUP = 32  # columns of a unit of narrower codes


def unit_columns(name: str) -> int:
    """Columns of a unit of a type of kernels/packed.h, which that file calls kColumns."""
    if name in DENSE.values():
        return UNIT_BYTES // (4 if name == "F32" else 2)
    return UNIT_BYTES if STREAMS[name].codes == GROUP else GROUP


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel for one format, where `matmul_f16` wants it."""
    if not unpacks(architecture, least_unpacked(architecture)):
        return
    for name in (*STREAMS, *dict.fromkeys(DENSE.values())):
        if name != "F16":
            yield Build(FILE, LAYOUTS, products.one_format(name), hot=name != "F32")


def unpack(
    kernels: Kernels, *, weights: Sequence[DeviceMatrix], outs: Sequence[DeviceMatrix]
) -> Launch:
    """outs[i] = weights[i] as float16, kept finite.

    Parameters
    ----------
    weights
        One to three matrices (Nᵢ, K), K a multiple of their `unit_columns`; formats may differ.
    outs
        (Nᵢ, K) of F16 each.
    """
    columns = weights[0].columns
    units = [w.rows * (columns // unit_columns(w.kernel_format)) for w in weights]
    blocks = [-(-n // THREADS) for n in units]
    nothing = [None] * len(weights)
    members, count = products.products(weights, nothing, [out.codes for out in outs], blocks)
    return kernels.launch(
        FILE,
        "unpack",
        products.formats(weights),
        (count, 1, 1),
        THREADS,
        LAYOUTS["unpack"],
        *(*members, columns),
    )


def as_f16(
    kernels: Kernels, weights: Sequence[DeviceMatrix], address: int
) -> tuple[list[Launch], list[DeviceMatrix]]:
    """Return launches that make weights float16, and where they are then.

    Parameters
    ----------
    weights
        Matrices that are float16 already stay where they are. There are up to `products.MOST`.
    address
        Memory for the others, one behind the other: `matmul_f16.unpacked_bytes`.
    """
    found, packed, outs = [], [], []
    for weight in weights:
        if is_f16(weight):
            found.append(weight)
            continue
        packed.append(weight)
        outs.append(unpacked(weight, address))
        found.append(outs[-1])
        address += outs[-1].nbytes
    return [unpack(kernels, weights=packed, outs=outs)] if packed else [], found
