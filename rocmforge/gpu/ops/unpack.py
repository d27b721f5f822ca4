"""unpack: the weights of a packed matrix as float16, once for all tiles of a long prompt.

`matmul_f16` multiplies with them, and says when that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops.matmul_f16 import is_f16, least_unpacked, unpacked, unpacks

FILE = "unpack.hip"
LAYOUTS = {"unpack": "PPPPPI"}
THREADS = 256  # each takes a unit
UNIT_BYTES = 16  # of what a dense unit and one of 8 bits a weight hold
GROUP = 32  # columns of a unit of narrower codes


def unit_columns(name: str) -> int:
    """Columns of a unit of a type of kernels/packed.h, which that file calls kColumns."""
    if name in DENSE.values():
        return UNIT_BYTES // (4 if name == "F32" else 2)
    return UNIT_BYTES if STREAMS[name].codes == GROUP else GROUP


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel, where `matmul_f16` wants it."""
    if not unpacks(architecture, least_unpacked(architecture)):
        return
    for name in (*STREAMS, *dict.fromkeys(DENSE.values())):
        if name != "F16":
            yield Build(FILE, LAYOUTS, {"FORMAT": name}, hot=name != "F32")


def unpack(kernels: Kernels, *, weight: DeviceMatrix, out: DeviceMatrix) -> Launch:
    """Out = weight as float16, kept finite.

    Parameters
    ----------
    weight
        (N, K), K a multiple of `unit_columns`.
    out
        (N, K) of F16.
    """
    units = weight.rows * (weight.columns // unit_columns(weight.kernel_format))
    return kernels.launch(
        FILE,
        "unpack",
        {"FORMAT": weight.kernel_format},
        (-(-units // THREADS), 1, 1),
        THREADS,
        LAYOUTS["unpack"],
        *(*weight.addresses, out.codes, units),
    )


def as_f16(
    kernels: Kernels, weights: Sequence[DeviceMatrix], address: int
) -> tuple[list[Launch], list[DeviceMatrix]]:
    """Return launches that make weights float16, and where they are then.

    Parameters
    ----------
    weights
        Those that are float16 already stay where they are.
    address
        Memory for the others, one behind the other: `matmul_f16.unpacked_bytes`.
    """
    launches, found = [], []
    for weight in weights:
        if is_f16(weight):
            found.append(weight)
            continue
        found.append(unpacked(weight, address))
        launches.append(unpack(kernels, weight=weight, out=found[-1]))
        address += found[-1].nbytes
    return launches, found
