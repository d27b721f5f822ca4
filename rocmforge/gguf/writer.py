"""What both model makers share in writing a GGUF file: tensor infos, header, padding.

The caller streams the tensor data after the header, and pads after each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from rocmforge.gguf.formats import Format

ALIGNMENT = 32  # of tensor data, in bytes: GGUF's default


def write_header(
    path: Path, writer: gguf.GGUFWriter, tensors: Iterable[tuple[str, tuple[int, ...], Format]]
) -> None:
    """Write the writer's metadata and the infos of (name, shape, format) tensors; closes it."""
    for name, shape, fmt in tensors:
        kind = gguf.GGMLQuantizationType[fmt.name]
        # A dtype other than uint8: the shape is one of weights, not of bytes.
        writer.add_tensor_info(name, shape, np.dtype(np.float32), fmt.nbytes(shape), kind)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def pad(out: BinaryIO) -> None:
    """Fill up with zeros to the alignment of tensor data."""
    out.write(bytes(-out.tell() % ALIGNMENT))
