"""The numpy reference as a backend, and a model's reference logits kept on disk.

What an engine is checked against before its speed counts: the same decoder, every op computed by
`rocmforge.ops.reference` in float64. Slow on purpose.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge import env
from rocmforge.array_types import Bytes, Floats, Ints
from rocmforge.atomic import whole_file
from rocmforge.cpu import _cpu
from rocmforge.cpu.executor import OnHost
from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.gguf.formats import Format
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.reader import GGUFFile
from rocmforge.kv.batch import Queries, Slots
from rocmforge.kv.page_table import pages_for_context
from rocmforge.model.config import ModelConfig
from rocmforge.model.decoder import decoder_graph
from rocmforge.model.matrix_scales import of_rows
from rocmforge.model.weights import load_weights
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.operands import Activation, Embedding
from rocmforge.plan.protocols import Precision

_CHUNK_WEIGHTS = 8 << 20  # weights dequantized to float64 at a time: 64 MiB
_PAGE_SIZE = 32


def check_close(
    what: str, got: NDArray[np.floating[Any]], wanted: NDArray[np.floating[Any]], tolerance: float
) -> float:
    """Refuse a wrong result: ‖got − wanted‖ / ‖wanted‖ must be at most `tolerance`.

    Parameters
    ----------
    what
        Name of the work, for the message.
    got, wanted
        Arrays of one shape.
    tolerance
        Largest relative RMS.

    Returns
    -------
    The relative RMS.

    Raises
    ------
    MeasurementError
        The result is farther off, not finite, or of another shape: it must not be timed.
    """
    if got.shape != wanted.shape:
        raise MeasurementError(f"{what}: got shape {got.shape}, wanted {wanted.shape}")
    error = relative_rms(got, wanted)
    if not error <= tolerance:  # also true of NaN
        raise MeasurementError(
            f"{what}: wrong result, not timed: got relative RMS {error:.3g} against the "
            f"reference, wanted at most {tolerance:.3g}"
        )
    return error


@dataclass(frozen=True)
class ReferenceMatrix(Matrix):
    """A matrix of `ReferenceBackend`: the file's own bytes, and a factor (N, 1) of each row."""

    factors: Floats

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.data.nbytes)

    def part(self, rows: slice) -> ReferenceMatrix:
        """Some of its rows."""
        return ReferenceMatrix(self.data[rows], self.format, self.factors[rows])

    def to_floats(self) -> Floats:
        """Weights (N, K), float32."""
        return super().to_floats() * self.factors


class ReferenceBackend(OnHost):
    """Every op by the numpy reference, float32 between ops."""

    name = "reference"

    def pack(
        self,
        raw: Bytes,
        fmt: Format,
        columns: int,
        on_piece: Callable[[], None] | None = None,
        factors: Floats | None = None,
    ) -> ReferenceMatrix:
        """Keep GGUF rows (N, row_bytes) as they are."""
        return ReferenceMatrix(raw, fmt, of_rows(factors, len(raw)))

    def matmul(
        self,
        x: Floats,
        weights: Sequence[ReferenceMatrix],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> None:
        """outs[i] (T, N_i) = or += scale · (x · weights[i]ᵀ + biases[i]), some rows at a time."""
        for i, (w, out) in enumerate(zip(weights, outs, strict=True)):
            bias = biases[i] if biases else None
            step = max(1, _CHUNK_WEIGHTS // w.columns)
            for at in range(0, w.rows, step):
                rows = slice(at, at + step)
                part = scale * reference.matmul(
                    x, w.part(rows), None if bias is None else bias[rows]
                )
                out[:, rows] = out[:, rows] + part if accumulate else part

    def gate_up_swiglu(
        self,
        x: Floats,
        gate: ReferenceMatrix,
        up: ReferenceMatrix,
        activation: Activation,
        out: Floats,
    ) -> None:
        """Out (T, N) = swiglu(x · gateᵀ, x · upᵀ)."""
        other = np.empty_like(out)
        self.matmul(x, [gate, up], [out, other])
        self.swiglu(out, other, out, activation)

    def route(
        self,
        scores: Floats,
        normalized: bool,
        sigmoid: bool,
        scale: float,
        bias: Floats | None,
        experts: Ints,
        shares: Floats,
    ) -> None:
        """Choose k of E experts by scores (T, E)."""
        chosen = experts.shape[1]
        experts[:], shares[:] = reference.route(scores, chosen, normalized, sigmoid, scale, bias)

    def expert_gate_up_swiglu(
        self,
        x: Floats,
        gate: ReferenceMatrix,
        up: ReferenceMatrix,
        biases: tuple[Floats | None, Floats | None],
        activation: Activation,
        experts: Ints,
        count: int,
        out: Floats,
    ) -> None:
        """Out (T, k · F) = swiglu(x · gateᵀ, x · upᵀ)."""
        other = np.empty_like(out)
        self.expert_matmul(x, gate, biases[0], experts, count, out)
        self.expert_matmul(x, up, biases[1], experts, count, other)
        self.swiglu(out, other, out, activation)

    def expert_matmul(
        self,
        x: Floats,
        weight: ReferenceMatrix,
        bias: Floats | None,
        experts: Ints,
        count: int,
        out: Floats,
    ) -> None:
        """Out (T, k · N) = x · weightᵀ + bias, of x (T, K) or (T, k · K), expert by expert."""
        rows = weight.rows // count
        ins = np.broadcast_to(
            x.reshape(len(x), -1, weight.columns), (*experts.shape, weight.columns)
        )
        outs = out.reshape(*experts.shape, rows)
        for expert in range(count):
            at = experts == expert
            one = slice(expert * rows, (expert + 1) * rows)
            own = weight.part(one)
            if at.any():
                outs[at] = reference.matmul(ins[at], own, None if bias is None else bias[one])

    def add_experts(self, parts: Floats, shares: Floats, x: Floats) -> None:
        """X (T, K) += Σ_i shares (T, k) · parts (T, k · K)."""
        x[:] = x + reference.add_experts(parts, shares)

    def matmul_precision(self, fmt: str, tokens: int) -> Precision:
        """Exact."""
        return "exact"

    def attention_precision(self, queries: int) -> Precision:
        """Sums and weights are float32 or more."""
        return "exact"

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats) -> None:
        """Out (rows, columns) = the weights of GGUF rows (rows, row_bytes)."""
        out[:] = reference.dequantize(Matrix(np.ascontiguousarray(raw), fmt))

    def rmsnorm(
        self, x: Floats, weight: Floats, eps: float, out: Floats, accumulate: bool = False
    ) -> None:
        """Out (rows, K) = or += x / √(mean(x²) + eps) · weight."""
        out[:] = reference.rmsnorm(x, weight, eps) + (out if accumulate else 0.0)

    def layernorm(
        self, x: Floats, weight: Floats, bias: Floats | None, eps: float, out: Floats
    ) -> None:
        """Out (rows, K) = (x − mean) / √(variance + eps) · weight + bias."""
        out[:] = reference.layernorm(x, weight, bias, eps)

    def rope(self, x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
        """Rotate pairs of x (T, heads, D) in place."""
        x[:] = reference.rope(x, cos, sin, interleaved)

    def softmax(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = softmax of each row."""
        out[:] = reference.softmax(x)

    def swiglu(
        self, gate: Floats, up: Floats, out: Floats, activation: Activation = "silu"
    ) -> None:
        """Out = gate · sigmoid(gate) · up, or as another `Activation` has it."""
        out[:] = reference.swiglu(gate, up, activation)

    def gelu(self, x: Floats, out: Floats) -> None:
        """Out = gelu(x)."""
        out[:] = reference.gelu(x)

    def softcap(self, x: Floats, cap: float, out: Floats) -> None:
        """Out = cap · tanh(x / cap)."""
        out[:] = reference.softcap(x, cap)

    def kv_append(
        self, k: Floats, v: Floats, k_pages: NDArray[Any], v_pages: NDArray[Any], slots: Slots
    ) -> None:
        """Write k, v (T, G, D) into slots of one layer's pages."""
        reference.kv_append(k, v, k_pages, v_pages, slots)

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        queries: Queries,
        scale: float,
        out: Floats,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Floats | None = None,
    ) -> None:
        """Causal attention of q (T, H, D) over one layer's pages."""
        out[:] = reference.attention(q, k_pages, v_pages, queries, scale, window, softcap, sinks)

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """Run ops, and return what runs them again."""
        calls()
        return calls

    def close(self) -> None:
        """Nothing to do."""


def reference_logits(path: str | os.PathLike[str], ids: Sequence[int]) -> NDArray[np.float32]:
    """Compute a model's logits by the numpy reference.

    Parameters
    ----------
    path
        GGUF file.
    ids
        (T,) token ids, at least one. LongRoPE's factors for long contexts are taken where there
        are more of them than the original context.

    Returns
    -------
    (T, V) float32: row t scores the token that follows ids[0..t]. Some 100 million weights a
    second; beyond the result it needs about 200 MB.

    Raises
    ------
    GGUFError, ModelError
        The file is broken, or not a model that can be run.
    """
    backend = ReferenceBackend()
    tokens = np.asarray(ids, np.int64)
    with GGUFFile(path) as file:
        config = ModelConfig.from_gguf(file)
        pages = pages_for_context(tokens.size, 1, _PAGE_SIZE)
        cache = backend.cache(
            config.n_layers, config.n_kv_heads, config.head_dim, pages, _PAGE_SIZE, "f32"
        )

        def pack(info: TensorInfo, raw: Bytes, factors: Floats | None) -> ReferenceMatrix:
            return backend.pack(raw, info.format, info.shape[-1], factors=factors)

        weights = load_weights(file, config, pack, ctx=tokens.size)
        table = weights.token_embd
        embedding = Embedding(file.tensor(table.name), table.format)
        executor = backend.executor(
            decoder_graph(config, weights, embedding, tokens.size), cache, tokens.size
        )
        rows = np.arange(tokens.size, dtype=np.int32)
        return executor.forward(tokens, [cache.table.add_sequence()], [tokens.size], rows)


def cached_reference_logits(
    path: str | os.PathLike[str], ids: Sequence[int]
) -> NDArray[np.float32]:
    """Return `reference_logits`, computed once for each file and kept in the cache directory.

    Another process computes them, so that the peak memory of the calling one stays its own. A
    file that changes its size or its time of change counts as another one.

    Raises
    ------
    MeasurementError
        The other process failed; its message is included.
    ValueError
        The cache cannot be written.
    """
    return _cached_logits(path, ids)


def cached_exact_logits(path: str | os.PathLike[str], ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits of our CPU engine with activations in float32, cached in the same way.

    For large models: on one of 3B it takes a fifth of the time of `reference_logits`, from which it
    differs by 6e-4. It needs the memory of all weights. Other CPU kernels count as other logits.
    """
    kernels = hashlib.sha256(Path(_cpu.__file__).read_bytes()).hexdigest()
    return _cached_logits(path, ids, kernels)


def _cached_logits(
    path: str | os.PathLike[str], ids: Sequence[int], kernels: str = ""
) -> NDArray[np.float32]:
    """Logits by the numpy reference, or by the CPU engine of these kernels."""
    model = Path(path).resolve()
    stat = model.stat()
    key = f"{model}\n{stat.st_size}\n{stat.st_mtime_ns}\n{list(ids)}{kernels}"
    name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    target = env.cache_dir().absolute() / "logits" / f"{name}.npy"
    if not os.path.isfile(target):
        env.cache_folder("logits")
        kind = "exact" if kernels else "reference"
        command = [sys.executable, "-m", "rocmforge.testing", kind, str(model), str(target)]
        done = subprocess.run(
            [*command, *map(str, ids)],
            cwd=Path(__file__).resolve().parents[1],  # -m takes the package of the current folder
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env.EXACT},
        )
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MeasurementError(f"{model}: no {kind} logits: {why}")
    logits: NDArray[np.float32] = np.load(target, mmap_mode="r")  # only rows that are compared
    return logits


def _main(arguments: Sequence[str]) -> None:
    """Write the logits of a model: reference|exact MODEL TARGET.npy ID…"""
    kind, model, target, *ids = arguments
    tokens = [int(i) for i in ids]
    if kind == "reference":
        logits = reference_logits(model, tokens)
    else:
        with Engine.from_gguf(model, "cpu", ctx=len(tokens)) as engine:
            logits = engine.logits(tokens)
    with whole_file(Path(target)) as file:
        np.save(file, logits)


if __name__ == "__main__":
    _main(sys.argv[1:])
