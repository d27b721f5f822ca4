"""Why a model's metadata are refused, for people who ask before they load it.

`ModelConfig.from_gguf` raises the first reason. Others that can be told beside it are looked for
here: keys, heads, and layers that differ. Any other fault is named only where it is the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rocmforge.errors import RocmforgeError, UnsupportedModelError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    ModelConfig,
    head_dim_of,
    inner_width_key,
)
from rocmforge.model.metadata import Keys

T = TypeVar("T")


def config_problems(file: GGUFFile) -> list[RocmforgeError]:
    """Return the reasons of `ModelConfig.from_gguf` that can be told together.

    There is none where it takes the file, else at least the first.
    Of an architecture that is not supported, only that is said, and what no architecture could have
    here: the sizes of its heads, and layers that differ.
    """
    found: dict[str, RocmforgeError] = {}

    def tried(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except RocmforgeError as error:
            found.setdefault(str(error), error)
        return None

    if tried(partial(ModelConfig.from_gguf, file)) is not None:
        return []
    (first,) = found.values()
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):
        return [first]
    keys, row = Keys(file, arch), ARCHITECTURES.get(arch)
    if row is not None:
        found |= {str(error): error for error in keys.unsupported_keys(row.own_keys)}
    layers = tried(partial(keys.integer, "block_count", 1, MAX_LAYERS))
    width = tried(partial(keys.integer, "embedding_length", 1, MAX_WIDTH))
    if layers is not None:
        heads = tried(partial(keys.per_layer, "attention.head_count", layers, MAX_HEADS))
        if keys.has("attention.head_count_kv"):
            tried(partial(keys.per_layer, "attention.head_count_kv", layers, MAX_HEADS))
        inner = tried(partial(inner_width_key, keys, layers))
        if inner is not None:
            tried(partial(keys.per_layer, inner, layers, MAX_WIDTH))
        if heads is not None and width is not None:
            tried(partial(head_dim_of, keys, width, heads))
    if row is None:  # other architectures have other keys, and need not have these
        return [e for e in found.values() if e is first or isinstance(e, UnsupportedModelError)]
    return list(found.values())
