"""A weight matrix in device memory, in the layout that the matmul kernels read.

Here is which streams a format has and how many bytes they take. kernels/packed.h says what is in
them; `gpu.ops.pack` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import ALIGNMENT, GROUP

_SUPER = 256  # columns of a K block


@dataclass(frozen=True)
class Layout:
    """Bytes that one group of 32 columns takes in each stream; supers are of 256 columns."""

    codes: int
    high: int
    scales: int
    supers: int


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "Q4_0": Layout(16, 0, 2, 0),
        "Q4_1": Layout(16, 0, 4, 0),
        "Q5_0": Layout(16, 4, 2, 0),
        "Q5_1": Layout(16, 4, 4, 0),
        "Q8_0": Layout(32, 0, 2, 0),
        "Q2_K": Layout(8, 0, 2, 4),
        "Q3_K": Layout(8, 4, 2, 2),
        "Q4_K": Layout(16, 0, 2, 4),
        "Q5_K": Layout(16, 4, 2, 4),
        "Q6_K": Layout(16, 8, 2, 2),
        "IQ4_NL": Layout(16, 0, 2, 0),
        "IQ4_XS": Layout(16, 0, 1, 2),
        "IQ3_S": Layout(16, 0, 1, 2),
        "IQ3_XXS": Layout(16, 0, 1, 2),
        "IQ2_S": Layout(8, 4, 2, 2),
        "IQ2_XS": Layout(8, 4, 2, 2),
        "IQ2_XXS": Layout(8, 4, 1, 2),
        "IQ1_M": Layout(8, 4, 2, 2),
        "IQ1_S": Layout(8, 4, 1, 2),
        "TQ2_0": Layout(8, 0, 1, 2),
        "TQ1_0": Layout(8, 0, 1, 2),
        "NVFP4": Layout(16, 0, 4, 0),
        "MXFP4": Layout(16, 0, 1, 0),
        "MXFP6_E2M3": Layout(32, 0, 1, 0),
    }
)
"""The quantized formats' streams."""

DENSE: Mapping[str, str] = MappingProxyType(
    {"F32": "F32", "F16": "F16", "BF16": "BF16", "MXFP6_E3M2": "BF16"}
)
"""Formats kept as plain numbers, and as which; their matmul takes float32 activations."""


@dataclass(frozen=True)
class DeviceMatrix:
    """Weights (N, K) in device memory. Made by `at`.

    Parameters
    ----------
    rows, columns
        N and K.
    format
        The format of the file's bytes, one of `rocmforge.gguf.formats.FORMATS`.
    codes, high, scales, supers
        Addresses of the streams, aligned to 256; 0 for those that the format lacks.
    nbytes
        Memory that they take together, from `codes` on.
    """

    rows: int
    columns: int
    format: str
    codes: int
    high: int
    scales: int
    supers: int
    nbytes: int

    @classmethod
    def at(cls, address: int, name: str, rows: int, columns: int) -> DeviceMatrix:
        """Lay the streams out one after another from an address aligned to 256.

        Raises
        ------
        ValueError
            The format is unknown, or rows or columns do not fit it.
        """
        sizes = stream_bytes(name, rows, columns)
        addresses = []
        end = address
        for size in sizes:
            addresses.append(end if size else 0)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        codes, high, scales, supers = addresses
        return cls(rows, columns, name, codes, high, scales, supers, end - address)

    @property
    def dense(self) -> bool:
        """Whether it holds plain numbers, so that its matmul takes float32 activations."""
        return self.format in DENSE

    @property
    def kernel_format(self) -> str:
        """The type in kernels/packed.h that reads it."""
        return DENSE.get(self.format, self.format)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Addresses of the streams, in the order of a kernel's arguments."""
        return self.codes, self.high, self.scales, self.supers


def stream_bytes(name: str, rows: int, columns: int) -> tuple[int, int, int, int]:
    """Return the bytes of the codes, high, scales and supers streams of a matrix (N, K).

    Raises
    ------
    ValueError
        The format is unknown, or rows or columns do not fit it.
    """
    if name not in FORMATS:
        raise ValueError(f"format: got {name!r}, wanted one of {', '.join(FORMATS)}")
    if rows < 1 or columns < 1:
        raise ValueError(f"matrix: got {rows} rows of {columns}, wanted at least one of each")
    FORMATS[name].row_bytes(columns)  # refuses a broken block
    if name in DENSE:
        return FORMATS[DENSE[name]].nbytes((rows, columns)), 0, 0, 0
    layout, groups = LAYOUTS[name], rows * (columns // GROUP)
    supers = groups * GROUP // _SUPER
    return (
        groups * layout.codes,
        groups * layout.high,
        groups * layout.scales,
        supers * layout.supers,
    )
