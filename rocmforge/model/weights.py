"""The weights of a model, and loading them all.

Loading is total: a tensor that the architecture does not have, or lacks, or that has another
shape, is an error which lists it (`tensor_shapes.py`). A backend's `pack` turns the bytes of a
matrix into the layout that its matmul reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import ModelError
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.quants import dequantize
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.matrix_scales import read_scales
from rocmforge.model.tensor_shapes import (
    LONG_ROPE,
    ROPE_FREQS,
    rope_tables,
    tensor_problems,
    tensor_shapes,
)
from rocmforge.plan.protocols import Progress

W = TypeVar("W")
V = TypeVar("V")
Vector = NDArray[np.float32]
Pack = Callable[[TensorInfo, NDArray[np.uint8], Vector | None], W]

_MATRICES = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_router",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "shared_router",
    "shared_gate",
    "shared_up",
    "shared_down",
)
_VECTORS = {  # fields of a block that it may lack, and the tensors that they come from
    "attn_norm": "attn_norm.weight",
    "attn_norm_bias": "attn_norm.bias",
    "attn_q_bias": "attn_q.bias",
    "attn_k_bias": "attn_k.bias",
    "attn_v_bias": "attn_v.bias",
    "attn_q_norm": "attn_q_norm.weight",
    "attn_k_norm": "attn_k_norm.weight",
    "attn_sinks": "attn_sinks.weight",
    "attn_output_bias": "attn_output.bias",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "ffn_norm_bias": "ffn_norm.bias",
    "ffn_router_bias": "ffn_gate_inp.bias",
    "ffn_gate_bias": "ffn_gate.bias",
    "ffn_up_bias": "ffn_up.bias",
    "ffn_down_bias": "ffn_down.bias",
    "ffn_post_norm": "post_ffw_norm.weight",
}


@dataclass(frozen=True)
class LayerWeights(Generic[W]):
    """One block. D head dim, H query heads, G kv heads, K = d_model, F = d_ff, E experts.

    Parameters
    ----------
    index
        Its number, from 0.
    attn_q, attn_k, attn_v, attn_output
        Packed ``(H·D, K)``, ``(G·D, K)``, ``(G·D, K)``, ``(K, H·D)``.
    ffn_gate, ffn_up, ffn_down
        Packed ``(F, K)``, ``(F, K)``, ``(K, F)``; with experts ``(E·F, K)``, ``(E·F, K)``,
        ``(E·K, F)``, one below the other. The gate is None without.
    ffn_router
        Packed ``(E, K)``: the scores of the experts; None without.
    shared_router, shared_gate, shared_up, shared_down
        Of an expert that each token goes to: packed ``(1, K)``, its score, and as `ffn_gate`,
        `ffn_up` and `ffn_down`; None without.
    attn_norm, attn_post_norm, ffn_norm, ffn_post_norm
        ``(K,)`` float32, weights of the norms before and after each part; None without.
    attn_q_norm, attn_k_norm
        ``(D,)`` float32, RMSNorm weights of each head, or of all heads together ``(H·D,)``,
        ``(G·D,)``; None without.
    attn_sinks
        ``(H,)`` float32; None without.
    attn_norm_bias and the like
        float32, as many as the norm has weights or the matrix has rows; None without.
    """

    index: int
    attn_q: W
    attn_k: W
    attn_v: W
    attn_output: W
    ffn_gate: W | None
    ffn_up: W
    ffn_down: W
    ffn_router: W | None = None
    shared_router: W | None = None
    shared_gate: W | None = None
    shared_up: W | None = None
    shared_down: W | None = None
    attn_norm: Vector | None = None
    attn_norm_bias: Vector | None = None
    attn_q_bias: Vector | None = None
    attn_k_bias: Vector | None = None
    attn_v_bias: Vector | None = None
    attn_q_norm: Vector | None = None
    attn_k_norm: Vector | None = None
    attn_sinks: Vector | None = None
    attn_output_bias: Vector | None = None
    attn_post_norm: Vector | None = None
    ffn_norm: Vector | None = None
    ffn_norm_bias: Vector | None = None
    ffn_router_bias: Vector | None = None
    ffn_gate_bias: Vector | None = None
    ffn_up_bias: Vector | None = None
    ffn_down_bias: Vector | None = None
    ffn_post_norm: Vector | None = None

    def matrices(self) -> tuple[W, ...]:
        """The matrices, in the order in which a forward pass uses them."""
        found = (getattr(self, name) for name in _MATRICES)
        return tuple(matrix for matrix in found if matrix is not None)

    def map(self, function: Callable[[W], V]) -> LayerWeights[V]:
        """Return the block with something else for each matrix."""
        changed: dict[str, Any] = {
            name: function(matrix)
            for name in _MATRICES
            if (matrix := getattr(self, name)) is not None
        }
        return cast(LayerWeights[V], replace(self, **changed))


@dataclass(frozen=True)
class ModelWeights(Generic[W]):
    """All weights of a model.

    Parameters
    ----------
    token_embd
        ``(V, K)``: where the embedding lies in the file; rows are dequantized on demand.
    rope_freqs
        ``(R / 2,)`` float32, positive, divides the rotary frequencies; None without.
    layers
        The blocks, first to last.
    output_norm, output_norm_bias
        ``(K,)`` float32, of the norm before the output; no bias: None.
    output
        Packed ``(V, K)``; of the token embedding where the output is tied to it. None of a stage
        that lacks the last layer.
    """

    token_embd: TensorInfo
    rope_freqs: Vector | None
    layers: tuple[LayerWeights[W], ...]
    output_norm: Vector
    output_norm_bias: Vector | None
    output: W | None

    def matrices(self) -> tuple[W, ...]:
        """The matrices, in the order in which a forward pass uses them."""
        of_layers = (matrix for layer in self.layers for matrix in layer.matrices())
        return (*of_layers, *([] if self.output is None else [self.output]))

    def map(self, function: Callable[[W], V]) -> ModelWeights[V]:
        """Return the model with something else for each matrix, in the order of `matrices`."""
        changed: dict[str, Any] = {"layers": tuple(layer.map(function) for layer in self.layers)}
        changed["output"] = None if self.output is None else function(self.output)
        return cast(ModelWeights[V], replace(self, **changed))

    def stage(self, layers: range) -> ModelWeights[W]:
        """Return the part of the whole model that consecutive layers make up.

        The embedding goes with the first layer, the output with the last one.
        """
        output = self.output if layers.stop == len(self.layers) else None
        return replace(self, layers=self.layers[layers.start : layers.stop], output=output)

    def different_layers(self, config: ModelConfig) -> ModelWeights[W]:
        """Return the model with its first and last block, and one of each kind between them.

        Blocks of a kind have equal matrices, vectors of the same names, the same window, and all
        or none of them a rotary embedding. The first and the last one are kept because what comes
        before or behind a block decides which kernels run it; not every pair of kinds that follow
        each other is kept.
        """

        def kind(layer: LayerWeights[W]) -> tuple[Any, ...]:
            place = config.layer_window(layer.index), config.uses_rope(layer.index)
            vectors = (getattr(layer, name) is None for name in _VECTORS)
            return (layer.matrices(), *place, *vectors)

        between = {kind(layer): layer for layer in reversed(self.layers[1:-1])}
        last = self.layers[1:][-1:]  # none, if it is the first one
        return replace(self, layers=(*self.layers[:1], *reversed(between.values()), *last))


def load_weights(
    file: GGUFFile,
    config: ModelConfig,
    pack: Pack[W],
    progress: Progress | None = None,
    expect: Callable[[ModelWeights[TensorInfo]], None] | None = None,
    ctx: int = 1,
) -> ModelWeights[W]:
    """Check every tensor of the file against the configuration, read vectors, pack matrices.

    Each matrix is handed to `pack` and its pages are released afterwards, so that the memory
    held is that of the packed weights and of one tensor.

    Parameters
    ----------
    file
        An open GGUF file.
    config
        Its configuration.
    pack
        Called with a matrix's info and its bytes, ``(rows, row_bytes)`` uint8, a read-only view
        of the mapped file, experts one below the other, and what the weights are multiplied by,
        (1,) or one for each expert, if anything; returns the packed matrix.
    progress
        Called after each tensor with the bytes loaded and the bytes to load.
    expect
        Called once, before the first `pack`, with all vectors, and where each matrix lies in the
        file; where matrices share a tensor, its rows of each.
    ctx
        Most tokens of a sequence; of two tables for LongRoPE it chooses one.

    Raises
    ------
    ModelError
        Tensors are missing, unknown, of another shape or, for vectors, of a quantized format;
        lists them. Or a rotary frequency factor is not positive, or a matrix's scale is too large.
    """
    tables = rope_tables(config, file.tensors)
    shapes = tensor_shapes(config, tables)
    if problems := tensor_problems(file, config):
        raise ModelError(f"{file.path}: {'; '.join(problems)}")
    loaded = [name for name in shapes if name != "token_embd.weight" or config.tied_output]
    total = sum(file.tensors[name].nbytes for name in loaded)
    loader = _Loader(file, pack, progress, read_scales(file), total)
    factors = {name: loader.factors(name) for name in tables}
    table = ROPE_FREQS
    if config.row.long_rope:
        table = LONG_ROPE[ctx > config.rope.original_ctx]
    unpacked = ModelWeights(
        token_embd=file.tensors["token_embd.weight"],
        rope_freqs=factors.get(table),
        layers=tuple(_layer(loader, config, i) for i in range(config.n_layers)),
        output_norm=loader.vector("output_norm.weight"),
        output_norm_bias=(
            loader.vector("output_norm.bias") if "output_norm" in config.biases else None
        ),
        output=file.tensors["token_embd.weight" if config.tied_output else "output.weight"],
    )
    if expect is not None:
        expect(unpacked)
    return unpacked.map(loader.matrix)


@dataclass
class _Loader(Generic[W]):
    file: GGUFFile
    pack: Pack[W]
    progress: Progress | None
    scales: Mapping[str, Vector]
    total: int
    done: int = 0

    def matrix(self, info: TensorInfo) -> W:
        raw = self.file.tensor(info.name)
        raw = raw.reshape(-1, raw.shape[-1])
        first = (info.offset - self.file.tensors[info.name].offset) // raw.shape[-1]
        own = raw[first : first + math.prod(info.shape[:-1])]
        packed = self.pack(info, own, self.scales.get(info.name))
        self._finish(info)
        return packed

    def factors(self, name: str) -> Vector:
        values = self.vector(name)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ModelError(
                f"{self.file.path}: {name}: got values from {values.min()} to {values.max()}, "
                "wanted finite positive factors"
            )
        return values

    def vector(self, name: str) -> Vector:
        values: NDArray[Any] = dequantize(self.file.tensor(name), self.file.tensors[name].format)
        # A copy of its own: a view would keep the file's pages, and the map, alive.
        own = np.array(values.reshape(-1), dtype=np.float32)
        self._finish(self.file.tensors[name])
        return own

    def _finish(self, info: TensorInfo) -> None:
        self.file.release(info.name)
        self.done += info.nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)


def _layer(loader: _Loader[Any], config: ModelConfig, index: int) -> LayerWeights[TensorInfo]:
    tensors, row = loader.file.tensors, config.row
    experts = "_exps" if config.experts else ""

    def matrix(name: str) -> TensorInfo:
        info = tensors[f"blk.{index}.{name}.weight"]
        return replace(info, shape=(1, *info.shape)) if len(info.shape) == 1 else info

    def optional(name: str) -> TensorInfo | None:
        return matrix(name) if f"blk.{index}.{name}.weight" in tensors else None

    def vectors() -> Iterator[tuple[str, Vector]]:
        names = {
            **_VECTORS,
            "ffn_norm": f"{row.ffn_norm_tensor}.weight",
            **{f"ffn_{part}_bias": f"ffn_{part}{experts}.bias" for part in ("gate", "up", "down")},
        }
        if row.norm_places == "before":  # some call the norm before the feed-forward part so
            del names["attn_post_norm"]
        for field, name in names.items():
            if f"blk.{index}.{name}" in tensors:
                yield field, loader.vector(f"blk.{index}.{name}")

    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    found = dict(vectors())
    if config.fused_qkv:
        q, k, v = _rows_of(matrix("attn_qkv"), (q_rows, kv_rows, kv_rows))
        if "attn_qkv" in config.biases:
            bias = loader.vector(f"blk.{index}.attn_qkv.bias")
            parts = np.split(bias, (q_rows, q_rows + kv_rows))
            found.update(zip(("attn_q_bias", "attn_k_bias", "attn_v_bias"), parts, strict=True))
    else:
        q, k, v = (matrix(f"attn_{part}") for part in "qkv")
    up, gate = matrix(f"ffn_up{experts}"), optional(f"ffn_gate{experts}")
    if row.fused_gate_up:
        gate, up = _rows_of(up, (config.d_ff, config.d_ff))
        if "ffn_up_bias" in found:
            found["ffn_gate_bias"], found["ffn_up_bias"] = np.split(found["ffn_up_bias"], 2)
    return LayerWeights(
        index=index,
        attn_q=q,
        attn_k=k,
        attn_v=v,
        attn_output=matrix("attn_output"),
        ffn_gate=gate,
        ffn_up=up,
        ffn_down=matrix(f"ffn_down{experts}"),
        ffn_router=optional("ffn_gate_inp"),
        shared_router=optional("ffn_gate_inp_shexp"),
        shared_gate=optional("ffn_gate_shexp"),
        shared_up=optional("ffn_up_shexp"),
        shared_down=optional("ffn_down_shexp"),
        **found,
    )


def _rows_of(info: TensorInfo, counts: Sequence[int]) -> list[TensorInfo]:
    """Matrices that stand one below the other in a tensor, each with so many rows."""
    row_bytes = info.format.row_bytes(info.shape[-1])
    firsts = np.cumsum([0, *counts[:-1]]).tolist()
    return [
        replace(
            info,
            shape=(count, info.shape[-1]),
            offset=info.offset + first * row_bytes,
            nbytes=count * row_bytes,
        )
        for first, count in zip(firsts, counts, strict=True)
    ]
