"""Why a model's metadata are refused, for people who ask before they load it.

`ModelConfig.from_gguf` raises the first reason. Here every part is read, and the first reason of
each is kept: keys, layers that differ, heads, rope, window, scales, vocabulary. Faults of experts,
and KV heads that are no divisor of the heads, are named only where they come first.
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
    norm_eps_of,
    scales_of,
    vocab_size_of,
    window_of,
)
from rocmforge.model.metadata import Keys
from rocmforge.model.rope import MAX_CONTEXT, read_rope

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
    heads = head_dim = None
    if layers is not None:
        heads = tried(partial(keys.per_layer, "attention.head_count", layers, MAX_HEADS))
        if keys.has("attention.head_count_kv"):
            tried(partial(keys.per_layer, "attention.head_count_kv", layers, MAX_HEADS))
        inner = tried(partial(inner_width_key, keys, layers))
        if inner is not None:
            tried(partial(keys.per_layer, inner, layers, MAX_WIDTH))
        if heads is not None and width is not None:
            head_dim = tried(partial(head_dim_of, keys, width, heads))
    if row is None:  # other architectures have other keys, and need not have these
        return [e for e in found.values() if e is first or isinstance(e, UnsupportedModelError)]
    ctx = tried(partial(keys.integer, "context_length", 1, MAX_CONTEXT))
    tried(partial(norm_eps_of, keys, row))
    tried(partial(vocab_size_of, keys))
    if layers is not None and width is not None and heads is not None:
        tried(partial(scales_of, keys, row, layers, width, heads))
    if layers is not None and head_dim is not None and ctx is not None:
        rope = tried(partial(read_rope, keys, row, head_dim, ctx))
        if rope is not None:
            tried(partial(window_of, keys, row, layers, ctx, rope))
    return list(found.values())
