"""The tensor formats: how many weights a block holds and how many bytes it takes.

`FORMATS` is the one table: names, sizes and GGUF's type ids follow from it, and tests hold the
compiled modules against it. `quants` decodes and encodes the bytes, `reader` finds them in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Format:
    """How a row of weights is stored: in blocks of `block_len` weights, `block_bytes` bytes each.

    Parameters
    ----------
    name
        The format's name in llama.cpp's spelling, e.g. ``"Q4_K"``.
    block_len
        Weights in a block; a row's columns are a multiple of it.
    block_bytes
        Bytes of a block.
    ggml_type
        The type id in a GGUF file; None where GGUF has none (MXFP6).
    """

    name: str
    block_len: int
    block_bytes: int
    ggml_type: int | None

    @property
    def bits_per_weight(self) -> float:
        """8 · block_bytes / block_len, scales included."""
        return 8 * self.block_bytes / self.block_len

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of one row: columns / block_len · block_bytes.

        Parameters
        ----------
        columns
            Weights in the row, 0 or a positive multiple of `block_len`.

        Raises
        ------
        ValueError
            If `columns` is negative or no multiple of `block_len`.
        """
        if columns < 0 or columns % self.block_len:
            raise ValueError(
                f"columns of a {self.name} row: got {columns}, "
                f"wanted a multiple of {self.block_len} that is not negative"
            )
        return columns // self.block_len * self.block_bytes

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor: the product of its leading sizes times `row_bytes`.

        Parameters
        ----------
        shape
            ``(…, columns)``, at least one size.

        Raises
        ------
        ValueError
            If `shape` is empty, a size is negative, or the columns do not fill whole blocks.
        """
        if not shape or min(shape) < 0:
            raise ValueError(
                f"shape of a {self.name} tensor: got {shape}, "
                "wanted at least one size and none negative"
            )
        total = self.row_bytes(shape[-1])
        for size in shape[:-1]:
            total *= size
        return total


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            Format("F32", 1, 4, 0),
            Format("F16", 1, 2, 1),
            Format("BF16", 1, 2, 30),
            Format("Q4_0", 32, 18, 2),
            Format("Q4_1", 32, 20, 3),
            Format("Q5_0", 32, 22, 6),
            Format("Q5_1", 32, 24, 7),
            Format("Q8_0", 32, 34, 8),
            Format("Q2_K", 256, 84, 10),
            Format("Q3_K", 256, 110, 11),
            Format("Q4_K", 256, 144, 12),
            Format("Q5_K", 256, 176, 13),
            Format("Q6_K", 256, 210, 14),
            Format("IQ4_NL", 32, 18, 20),
            Format("IQ4_XS", 256, 136, 23),
            Format("IQ3_S", 256, 110, 21),
            Format("IQ3_XXS", 256, 98, 18),
            Format("IQ2_S", 256, 82, 22),
            Format("IQ2_XS", 256, 74, 17),
            Format("IQ2_XXS", 256, 66, 16),
            Format("IQ1_M", 256, 56, 29),
            Format("IQ1_S", 256, 50, 19),
            Format("TQ2_0", 256, 66, 35),
            Format("TQ1_0", 256, 54, 34),
            Format("NVFP4", 64, 36, 40),
            Format("MXFP4", 32, 17, 39),
            Format("MXFP6_E2M3", 32, 25, None),
            Format("MXFP6_E3M2", 32, 25, None),
        )
    }
)
"""Every supported format by name, in the order of the documentation."""

PLAIN_FORMATS = tuple(name for name, fmt in FORMATS.items() if fmt.block_len == 1)
"""Those that are not quantized: F32, F16, BF16."""

K_FALLBACK: Mapping[str, str] = MappingProxyType(
    {
        "Q2_K": "Q4_0",
        "Q3_K": "Q4_0",
        "Q4_K": "Q5_0",
        "Q5_K": "Q5_1",
        "Q6_K": "Q8_0",
        **dict.fromkeys(
            ("IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"), "IQ4_NL"
        ),
        "TQ2_0": "Q4_0",
        "TQ1_0": "Q4_0",
        "NVFP4": "IQ4_NL",
    }
)
"""What is stored instead of a format whose blocks do not fit the columns: llama.cpp's choices, and
for NVFP4 ours."""


def fitting_format(name: str, columns: int) -> str | None:
    """Return a format's name, or that of its `K_FALLBACK` where its blocks do not fill the columns.

    None: the blocks of neither do.
    """
    choices = (name, K_FALLBACK.get(name, name))
    return next((choice for choice in choices if columns % FORMATS[choice].block_len == 0), None)


PACKED_BITS: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("IQ3_S", "IQ3_XXS"), 4.3125),
        **dict.fromkeys(("IQ2_S", "IQ2_XS", "IQ1_M"), 3.5625),
        **dict.fromkeys(("IQ2_XXS", "IQ1_S"), 3.3125),
        **dict.fromkeys(("TQ2_0", "TQ1_0"), 2.3125),
        "NVFP4": 5.0,
    }
)
"""Bits that a weight takes in memory, CPU or GPU, of formats of files that grow there by over 4 %:
they are taken out of their grids and digits, and the scales of NVFP4 are f16."""

_BY_GGML_TYPE: Mapping[int, Format] = MappingProxyType(
    {fmt.ggml_type: fmt for fmt in FORMATS.values() if fmt.ggml_type is not None}
)

_OTHERS: Mapping[int, Format] = MappingProxyType(
    {
        fmt.ggml_type: fmt
        for fmt in (
            Format("Q8_1", 32, 40, 9),
            Format("Q8_K", 256, 292, 15),
            Format("I8", 1, 1, 24),
            Format("I16", 1, 2, 25),
            Format("I32", 1, 4, 26),
            Format("I64", 1, 8, 27),
            Format("F64", 1, 8, 28),
            Format("Q2_0", 64, 18, 42),
            Format("Q1_0", 128, 18, 41),
        )
        if fmt.ggml_type is not None
    }
)
"""The other types of ggml, which can be described but do not run."""


def ggml_type_name(type_id: int) -> str:
    """Return a tensor type as people know it: "23 (IQ4_XS)", or the number alone."""
    fmt = _BY_GGML_TYPE.get(type_id) or _OTHERS.get(type_id)
    return str(type_id) if fmt is None else f"{type_id} ({fmt.name})"


def described_format(type_id: int) -> Format:
    """Return the format of any type id, one that does not run included.

    One that nobody knows has its number for a name, and blocks of 0 bytes.
    """
    fmt = _BY_GGML_TYPE.get(type_id) or _OTHERS.get(type_id)
    return fmt or Format(f"type {type_id}", 1, 0, type_id)


def format_of_ggml_type(type_id: int) -> Format:
    """Return the format that a GGUF file means by a tensor type id.

    Parameters
    ----------
    type_id
        The id (ggml_type) from a tensor's entry in the file.

    Raises
    ------
    ValueError
        If the id is none of a supported format; the message lists those.
    """
    fmt = _BY_GGML_TYPE.get(type_id)
    if fmt is None:
        known = ", ".join(map(ggml_type_name, sorted(_BY_GGML_TYPE)))
        raise ValueError(f"ggml tensor type: got {ggml_type_name(type_id)}, wanted one of {known}")
    return fmt
