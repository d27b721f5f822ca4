"""Parts of a model for tensor parallelism: each device of a group has some heads and some of d_ff.

The matrices that make queries, keys, values, gates and ups are cut between rows; those that make
the attention's and the feed-forward part's output between columns, so that each device computes a
part of every sum. The output matrix is cut between rows too, unless it is the embedding. Norms, the
router and the embedding are whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.errors import ModelError
from rocmforge.gguf.formats import Format
from rocmforge.gguf.header import TensorInfo
from rocmforge.model.config import ModelConfig
from rocmforge.model.weights import ModelWeights, W

ALIGNED = 32  # columns of each part, at least: activations of products are rounded in groups of 32

Width = Literal["heads", "d_ff", "shared", "vocab"]
_CUT: dict[str, tuple[Literal["rows", "columns"], Width]] = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), ("rows", "heads")),
    "attn_output": ("columns", "heads"),
    **dict.fromkeys(("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"), ("rows", "d_ff")),
    **dict.fromkeys(("ffn_down", "ffn_down_exps"), ("columns", "d_ff")),
    **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), ("rows", "shared")),
    "ffn_down_shexp": ("columns", "shared"),
    "output": ("rows", "vocab"),
}
_OF_HEADS = ("attn_q_bias", "attn_k_bias", "attn_v_bias", "attn_sinks")
_OF_D_FF = ("ffn_gate_bias", "ffn_up_bias")
_ADDED_ONCE = ("attn_output_bias", "ffn_down_bias")


@dataclass(frozen=True)
class Share:
    """What a graph has to know of the part of a model that it is of.

    Parameters
    ----------
    rank
        Its number, from 0.
    logits
        How many of each token's logits it computes.
    """

    rank: int
    logits: int


@dataclass(frozen=True)
class Shards:
    """How a model is cut into parts for n devices.

    Parameters
    ----------
    config
        Of the whole model.
    borders
        Of d_ff and of the shared expert's width, n + 1 each: a part goes from one to the next.
    count
        n.
    """

    config: ModelConfig
    borders: Mapping[Width, tuple[int, ...]]
    count: int

    def part_config(self, rank: int) -> ModelConfig:
        """Return the shape of one part."""
        config = self.config
        experts = config.experts
        if experts is not None and experts.shared:
            experts = replace(experts, shared=self._size("shared", rank))
        return replace(
            config,
            n_heads=config.n_heads // self.count,
            n_kv_heads=config.n_kv_heads // self.count,
            d_ff=self._size("d_ff", rank),
            experts=experts,
        )

    def share(self, rank: int) -> Share:
        """Return what a graph has to know of one part."""
        vocab = self.config.vocab_size
        start, end = (0, vocab) if self.config.tied_output else self._range("vocab", vocab, rank)
        return Share(rank, end - start)

    def part_info(self, info: TensorInfo, rank: int) -> TensorInfo:
        """Return what a matrix of the file is in one part: its shape."""
        cut = _CUT.get(_base(info.name))
        if cut is None:
            return info
        way, width = cut
        at = -2 if way == "rows" else -1
        shape = list(info.shape)
        start, end = self._range(width, shape[at], rank)
        shape[at] = end - start
        return replace(info, shape=tuple(shape))

    def part_rows(self, info: TensorInfo, raw: Bytes, fmt: Format, rank: int) -> Bytes:
        """Return the bytes of a matrix in one part.

        Parameters
        ----------
        info
            The matrix in the file, or the rows of it that are one matrix.
        raw
            (rows, row_bytes) in format `fmt`, experts one below the other.
        fmt
            Theirs, the file's or another.
        rank
            The part's number.
        """
        cut = _CUT.get(_base(info.name))
        if cut is None:
            return raw
        way, width = cut
        if way == "columns":
            start, end = self._range(width, info.shape[-1], rank)
            own = slice(fmt.row_bytes(start), fmt.row_bytes(end))
            return np.ascontiguousarray(raw[:, own])
        rows = info.shape[-2]
        start, end = self._range(width, rows, rank)
        each = raw.reshape(-1, rows, raw.shape[1])[:, start:end]
        return np.ascontiguousarray(each.reshape(-1, raw.shape[1]))

    def part(self, weights: ModelWeights[tuple[W, ...]], rank: int) -> ModelWeights[W]:
        """Return one part of weights that have each matrix in all parts.

        A vector that is added to a sum over devices is in the first part alone.
        """
        own: ModelWeights[W] = weights.map(lambda parts: parts[rank])
        layers = []
        for layer in own.layers:
            changed: dict[str, Any] = {}
            for name in _OF_HEADS:
                changed[name] = self._cut(getattr(layer, name), "heads", rank)
            for name in _OF_D_FF:
                changed[name] = self._cut(getattr(layer, name), "d_ff", rank)
            if rank > 0:
                changed.update(dict.fromkeys(_ADDED_ONCE))
            layers.append(replace(layer, **changed))
        return replace(own, layers=tuple(layers))

    def _cut(self, vector: Floats | None, width: Width, rank: int) -> Floats | None:
        if vector is None:
            return None
        if width == "heads":
            start, end = self._range(width, vector.size, rank)
            heads: Floats = vector[start:end].copy()
            return heads
        start, end = self._range(width, self.config.d_ff, rank)
        own: Floats = vector.reshape(-1, self.config.d_ff)[:, start:end].reshape(-1)
        return own

    def _range(self, width: Width, size: int, rank: int) -> tuple[int, int]:
        if width in ("heads", "vocab"):
            return size * rank // self.count, size * (rank + 1) // self.count
        return self.borders[width][rank], self.borders[width][rank + 1]

    def _size(self, width: Width, rank: int) -> int:
        start, end = self.borders[width][rank : rank + 2]
        return end - start


def cut(config: ModelConfig, tensors: Sequence[tuple[TensorInfo, Format]], count: int) -> Shards:
    """Say how a model is cut into parts for `count` devices, as equal as its formats' blocks allow.

    Parameters
    ----------
    config
        The model.
    tensors
        Its matrices, and the format that each will have.
    count
        n, at least 2.

    Raises
    ------
    ModelError
        It cannot be cut so; says what stands against it.
    """
    named = f"a model cut for {count} GPUs"
    for what, heads in (("heads", config.n_heads), ("KV heads", config.n_kv_heads)):
        if heads % count:
            raise ModelError(f"{named}: got {heads} {what}, wanted a multiple of {count}")
    if config.qk_norm == "whole":
        raise ModelError(f"{named}: got norms over all heads together, wanted norms of each head")
    blocks: dict[Width, int] = {"d_ff": ALIGNED, "shared": ALIGNED}
    for info, fmt in tensors:
        way, width = _CUT.get(_base(info.name), ("rows", "heads"))
        if way == "rows":
            continue
        if width != "heads":
            blocks[width] = math.lcm(blocks[width], fmt.block_len)
        elif info.shape[-1] // count % math.lcm(ALIGNED, fmt.block_len):
            raise ModelError(
                f"{named}: {info.name}: got {info.shape[-1] // count} columns for each, wanted a "
                f"multiple of {math.lcm(ALIGNED, fmt.block_len)} for {fmt.name}"
            )
    shared = config.experts.shared if config.experts else 0
    borders: dict[Width, tuple[int, ...]] = {}
    for width, size in (("d_ff", config.d_ff), ("shared", shared)):
        if size:
            borders[width] = _borders(named, size, blocks[width], count)
    return Shards(config, borders, count)


def _borders(named: str, size: int, block: int, count: int) -> tuple[int, ...]:
    """Whole blocks for each part, as many for all or one more for the first ones."""
    whole, rest = divmod(size, block)
    if rest or whole < count:
        raise ModelError(
            f"{named}: got a feed-forward part of {size} in blocks of {block}, wanted a multiple "
            f"of {block}, at least {count * block}"
        )
    return tuple(block * (whole * rank // count) for rank in range(count + 1))


def _base(name: str) -> str:
    """Return a tensor's name without its block and "weight"."""
    return name.removesuffix(".weight").rpartition(".")[2]
