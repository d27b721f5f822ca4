"""Rewrites a GGUF model with its matrices in another mix of formats, one tensor at a time.

Metadata is copied as it is, except for the file type and for empty arrays, which are left out.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.atomic import whole_file
from rocmforge.gguf import parts
from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.header import StringArray, Value
from rocmforge.gguf.quants import dequantize, quantize
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gguf.writer import pad, write_header
from rocmforge.model.config import ModelConfig
from rocmforge.model.matrix_scales import of_rows, read_scales, scale_names
from rocmforge.model.mixes import find_mix, tensor_format
from rocmforge.plan.protocols import Progress

_REPLACED = (  # written anew, or implied by the writer
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    *parts.KEYS,  # what is written is whole
)


def quantize_gguf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str,
    progress: Progress | None = None,
) -> Path:
    """Write the model in `source` to `target` with its matrices in the formats of `mix`.

    Each matrix whose format changes is decoded to float32 and encoded again: if the source is
    quantized, its rounding errors stay, and scales beside its matrices go into the weights. Vectors
    become F32. The file appears under its name only when it is complete.

    Parameters
    ----------
    source
        A GGUF model of a supported architecture.
    target
        File to write; an existing one is replaced. It may be `source`.
    mix
        As in `mixes.find_mix`, e.g. ``"Q4_K_M"`` or ``"Q6_K-pure"``.
    progress
        Called after each tensor with the bytes written and the bytes to write.

    Returns
    -------
    The path of the target.

    Raises
    ------
    GGUFError, ModelError
        The source is broken, or its architecture is not supported.
    ValueError
        There is no such mix, or a weight is not finite or too large for its format.
    """
    chosen = find_mix(mix)
    path = Path(target)
    with GGUFFile(source) as file:
        config = ModelConfig.from_gguf(file)
        formats = {
            name: FORMATS[tensor_format(chosen, config, name, info.shape)]
            for name, info in file.tensors.items()
        }
        factors = {
            name: values
            for name, values in read_scales(file).items()
            if formats[name] != file.tensors[name].format
        }
        for name in factors:  # which go into the weights
            for scale in scale_names(name):
                formats.pop(scale, None)
        total = sum(fmt.nbytes(file.tensors[name].shape) for name, fmt in formats.items())
        with whole_file(path) as out:
            _write_header(Path(out.name), file, formats, chosen.file_type)
            out.seek(0, os.SEEK_END)
            pad(out)
            done = 0
            for name, fmt in formats.items():
                data = _encoded(file, name, fmt, factors.get(name))
                out.write(data.data)
                pad(out)
                file.release(name)
                done += data.nbytes
                if progress is not None:
                    progress(done, total)
    return path


def _encoded(file: GGUFFile, name: str, fmt: Format, factors: Floats | None) -> NDArray[np.uint8]:
    data, stored = file.tensor(name), file.tensors[name].format
    if stored != fmt:
        weights = dequantize(data, stored)
        if factors is not None:
            rows = weights.reshape(-1, weights.shape[-1])
            weights = (rows * of_rows(factors, len(rows))).reshape(weights.shape)
        data = quantize(weights, fmt)
    return np.ascontiguousarray(data)


def _write_header(path: Path, file: GGUFFile, formats: dict[str, Format], file_type: int) -> None:
    writer = gguf.GGUFWriter(None, file.get("general.architecture", str))
    for key, value in file.metadata.items():
        empty = not isinstance(value, bool | int | float | str) and len(value) == 0
        if key not in _REPLACED and not empty:
            writer.add_key_value(key, _plain(value), _kind(value), _item_kind(value))
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_header(path, writer, ((n, file.tensors[n].shape, f) for n, f in formats.items()))


def _plain(value: Value) -> object:
    """Return a value as the writer takes it; strings as bytes, whatever their encoding."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, StringArray):
        return [value.raw(i) for i in range(len(value))]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _kind(value: Value) -> GGUFValueType:
    """Return the type of a value; a number's is the usual one that holds it."""
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        if value >= 0:
            return GGUFValueType.UINT32 if value < 1 << 32 else GGUFValueType.UINT64
        return GGUFValueType.INT32 if value >= -(1 << 31) else GGUFValueType.INT64
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    return GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.ARRAY


def _item_kind(value: Value) -> GGUFValueType | None:
    """Return the type of an array's items; None lets the writer see for itself."""
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype == np.bool_:
        return GGUFValueType.BOOL
    return GGUFValueType[value.dtype.name.upper()]
