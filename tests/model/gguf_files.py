"""Writes small GGUF files from metadata and arrays, by the gguf package and not by our own code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

BASE: Mapping[str, Any] = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 32,
}
"""Keys of a small valid model, without the architecture's prefix."""


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    keys: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a file: BASE updated by `keys` (None removes one), `general` keys as they are.

    A tensor named in `formats` holds that format's bytes.
    """
    writer = gguf.GGUFWriter(path, architecture)
    own = {f"{architecture}.{key}": value for key, value in {**BASE, **(keys or {})}.items()}
    for key, value in {**own, **(general or {})}.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_int64 if value < 0 else writer.add_uint64)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    given = tensors if tensors is not None else {"token_embd.weight": np.zeros((32, 64), "f4")}
    for name, array in given.items():
        writer.add_tensor(name, array, raw_dtype=(formats or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
