"""The weights of a model: the name and shape of every tensor, and loading them all.

Loading is total: a tensor that the architecture does not have, or lacks, or that has another
shape, is an error which lists it. A backend's `pack` turns the bytes of a matrix into the layout
that its matmul reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import ModelError
from rocmforge.gguf.formats import PLAIN_FORMATS
from rocmforge.gguf.quants import dequantize
from rocmforge.gguf.reader import GGUFFile, TensorInfo
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import ModelConfig
from rocmforge.plan.protocols import Progress

W = TypeVar("W")
V = TypeVar("V")
Pack = Callable[[TensorInfo, NDArray[np.uint8]], W]
Vector = NDArray[np.float32]

_LISTED = 12
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_OPTIONAL = ("attn_q_bias", "attn_k_bias", "attn_v_bias", "attn_q_norm", "attn_k_norm")


@dataclass(frozen=True)
class LayerWeights(Generic[W]):
    """One block. D head dim, H query heads, G kv heads, K = d_model, F = d_ff.

    Parameters
    ----------
    attn_norm, ffn_norm
        ``(K,)`` float32, RMSNorm weights.
    attn_q, attn_k, attn_v, attn_output
        Packed ``(H·D, K)``, ``(G·D, K)``, ``(G·D, K)``, ``(K, H·D)``.
    attn_q_bias, attn_k_bias, attn_v_bias
        ``(H·D,)``, ``(G·D,)``, ``(G·D,)`` float32; None without biases.
    attn_q_norm, attn_k_norm
        ``(D,)`` float32, RMSNorm weights of each head; None without.
    ffn_gate, ffn_up, ffn_down
        Packed ``(F, K)``, ``(F, K)``, ``(K, F)``.
    """

    attn_norm: Vector
    attn_q: W
    attn_k: W
    attn_v: W
    attn_output: W
    attn_q_bias: Vector | None
    attn_k_bias: Vector | None
    attn_v_bias: Vector | None
    attn_q_norm: Vector | None
    attn_k_norm: Vector | None
    ffn_norm: Vector
    ffn_gate: W
    ffn_up: W
    ffn_down: W

    def matrices(self) -> tuple[W, ...]:
        """The matrices, in the order in which a forward pass uses them."""
        return tuple(getattr(self, name) for name in _MATRICES)

    def map(self, function: Callable[[W], V]) -> LayerWeights[V]:
        """Return the block with something else for each matrix."""
        changed: dict[str, Any] = {name: function(getattr(self, name)) for name in _MATRICES}
        return cast(LayerWeights[V], replace(self, **changed))


@dataclass(frozen=True)
class ModelWeights(Generic[W]):
    """All weights of a model.

    Parameters
    ----------
    token_embd
        ``(V, K)``: where the embedding lies in the file; rows are dequantized on demand.
    rope_freqs
        ``(D / 2,)`` float32, positive, divides the rotary frequencies; None without.
    layers
        The blocks, first to last.
    output_norm
        ``(K,)`` float32, RMSNorm weights before the output.
    output
        Packed ``(V, K)``; of the token embedding where the output is tied to it.
    """

    token_embd: TensorInfo
    rope_freqs: Vector | None
    layers: tuple[LayerWeights[W], ...]
    output_norm: Vector
    output: W

    def matrices(self) -> tuple[W, ...]:
        """The matrices, in the order in which a forward pass uses them."""
        return (*(matrix for layer in self.layers for matrix in layer.matrices()), self.output)

    def map(self, function: Callable[[W], V]) -> ModelWeights[V]:
        """Return the model with something else for each matrix, in the order of `matrices`."""
        changed: dict[str, Any] = {"layers": tuple(layer.map(function) for layer in self.layers)}
        changed["output"] = function(self.output)
        return cast(ModelWeights[V], replace(self, **changed))

    def different_layers(self) -> ModelWeights[W]:
        """Return the model with one of each kind of block: with equal matrices and like vectors."""
        kinds = {
            (layer.matrices(), *(getattr(layer, name) is None for name in _OPTIONAL)): layer
            for layer in reversed(self.layers)
        }
        return replace(self, layers=tuple(reversed(kinds.values())))


def tensor_shapes(config: ModelConfig, *, rope_freqs: bool) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a model of this configuration consists of.

    Parameters
    ----------
    config
        The model.
    rope_freqs
        Whether the file carries rotary frequency factors (Llama 3), which no key announces.

    Returns
    -------
    GGUF tensor names to shapes in numpy order, ``(rows, columns)`` for matrices, in the order in
    which a forward pass uses them.
    """
    width, inner, head = config.d_model, config.d_ff, config.head_dim
    q_rows, kv_rows = config.n_heads * head, config.n_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, width)}
    if rope_freqs:
        shapes["rope_freqs.weight"] = (config.rope.dim // 2,)
    for layer in range(config.n_layers):
        block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,)}
        for name, rows in (("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)):
            block[f"{name}.weight"] = (rows, width)
            if config.qkv_bias:
                block[f"{name}.bias"] = (rows,)
        if config.qk_norm:
            block["attn_q_norm.weight"] = block["attn_k_norm.weight"] = (head,)
        block["attn_output.weight"] = (width, q_rows)
        block["ffn_norm.weight"] = (width,)
        block["ffn_gate.weight"] = block["ffn_up.weight"] = (inner, width)
        block["ffn_down.weight"] = (width, inner)
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
    shapes["output_norm.weight"] = (width,)
    if not config.tied_output:
        shapes["output.weight"] = (config.vocab_size, width)
    return shapes


def load_weights(
    file: GGUFFile,
    config: ModelConfig,
    pack: Pack[W],
    progress: Progress | None = None,
    expect: Callable[[ModelWeights[TensorInfo]], None] | None = None,
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
        of the mapped file; returns the packed matrix.
    progress
        Called after each tensor with the bytes loaded and the bytes to load.
    expect
        Called once, before the first `pack`, with all vectors, and where each matrix lies in the
        file.

    Raises
    ------
    ModelError
        Tensors are missing, unknown, of another shape or, for vectors, of a quantized format;
        lists them. Or a rotary frequency factor is not positive.
    """
    # In an architecture without factors the tensor is unknown, and an error says so.
    has_freqs = (
        ARCHITECTURES[config.architecture].rope_factors and "rope_freqs.weight" in file.tensors
    )
    shapes = tensor_shapes(config, rope_freqs=has_freqs)
    _check_total(file, shapes)
    loaded = [name for name in shapes if name != "token_embd.weight" or config.tied_output]
    loader = _Loader(file, pack, progress, sum(file.tensors[name].nbytes for name in loaded))
    freqs = loader.vector("rope_freqs.weight") if has_freqs else None
    if freqs is not None and not (np.isfinite(freqs) & (freqs > 0)).all():
        raise ModelError(
            f"{file.path}: rope_freqs.weight: got values from {freqs.min()} to {freqs.max()}, "
            "wanted finite positive factors"
        )
    unpacked = ModelWeights(
        token_embd=file.tensors["token_embd.weight"],
        rope_freqs=freqs,
        layers=tuple(_layer(loader, config, f"blk.{i}.") for i in range(config.n_layers)),
        output_norm=loader.vector("output_norm.weight"),
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
    total: int
    done: int = 0

    def matrix(self, info: TensorInfo) -> W:
        packed = self.pack(info, self.file.tensor(info.name))
        self._finish(info.name)
        return packed

    def vector(self, name: str) -> Vector:
        values: NDArray[Any] = dequantize(self.file.tensor(name), self.file.tensors[name].format)
        # A copy of its own: a view would keep the file's pages, and the map, alive.
        own = np.array(values, dtype=np.float32)
        self._finish(name)
        return own

    def _finish(self, name: str) -> None:
        self.file.release(name)
        self.done += self.file.tensors[name].nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)


def _layer(loader: _Loader[Any], config: ModelConfig, prefix: str) -> LayerWeights[TensorInfo]:
    def matrix(name: str) -> TensorInfo:
        return loader.file.tensors[f"{prefix}{name}.weight"]

    def vector(name: str, present: bool) -> Vector | None:
        return loader.vector(prefix + name) if present else None

    return LayerWeights(
        attn_norm=loader.vector(f"{prefix}attn_norm.weight"),
        attn_q=matrix("attn_q"),
        attn_k=matrix("attn_k"),
        attn_v=matrix("attn_v"),
        attn_output=matrix("attn_output"),
        attn_q_bias=vector("attn_q.bias", config.qkv_bias),
        attn_k_bias=vector("attn_k.bias", config.qkv_bias),
        attn_v_bias=vector("attn_v.bias", config.qkv_bias),
        attn_q_norm=vector("attn_q_norm.weight", config.qk_norm),
        attn_k_norm=vector("attn_k_norm.weight", config.qk_norm),
        ffn_norm=loader.vector(f"{prefix}ffn_norm.weight"),
        ffn_gate=matrix("ffn_gate"),
        ffn_up=matrix("ffn_up"),
        ffn_down=matrix("ffn_down"),
    )


def _check_total(file: GGUFFile, shapes: dict[str, tuple[int, ...]]) -> None:
    problems: list[str] = []
    missing = [name for name in shapes if name not in file.tensors]
    unknown = [name for name in file.tensors if name not in shapes]
    if missing:
        problems.append(f"missing tensors: {_listing(missing)}")
    if unknown:
        problems.append(f"unknown tensors: {_listing(unknown)}")
    present = {name: shape for name, shape in shapes.items() if name in file.tensors}
    wrong = [
        f"{name} (got {file.tensors[name].shape}, wanted {shape})"
        for name, shape in present.items()
        if file.tensors[name].shape != shape
    ]
    if wrong:
        problems.append(f"tensors of another shape: {_listing(wrong)}")
    quantized = [
        f"{name} (got {file.tensors[name].format.name})"
        for name, shape in present.items()
        if len(shape) == 1 and file.tensors[name].format.name not in PLAIN_FORMATS
    ]
    if quantized:
        wanted = ", ".join(PLAIN_FORMATS)
        problems.append(f"vectors of a format other than {wanted}: {_listing(quantized)}")
    if problems:
        raise ModelError(f"{file.path}: {'; '.join(problems)}")


def _listing(items: Iterable[str]) -> str:
    found = list(items)
    rest = len(found) - _LISTED
    return ", ".join(found[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
