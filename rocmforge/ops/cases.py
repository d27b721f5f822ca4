"""The one list of shapes per op that correctness tests and benchmarks run, with their arithmetic.

Each case makes its own seeded inputs and states flops, bytes and tolerance, so that a test and a
benchmark of the same name mean the same work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.random_blocks import RandomBytes, random_blocks
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.batch import Queries, Slots
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.cost import (
    DEQUANTIZE_FLOPS,
    RMSNORM_FLOPS,
    SWIGLU_FLOPS,
    attention_flops,
    matmul_flops,
    rope_flops,
)
from rocmforge.plan.protocols import Precision

TOLERANCES: Mapping[Precision, float] = {"exact": 2e-6, "half": 2e-3, "bf16": 4e-3, "int8": 0.012}
"""Relative RMS that rounding may cost; Gaussian data costs 2e-4 to 1e-3 and 0.005."""


def relative_rms(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    """‖got − wanted‖ / ‖wanted‖, in float64; the distance itself where `wanted` is all zero."""
    difference = float(np.linalg.norm(got.astype(np.float64) - wanted))
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    return difference / size if size else difference


_LARGE = 1 << 20
"""From so many weights on, to quantize them takes a second or more, for IQ1 to IQ3 minutes."""


def random_matrix(rows: int, columns: int, name: str, random: np.random.Generator) -> Matrix:
    """Weights of standard deviation 1/√columns: Gaussian ones, or of random blocks if many."""
    fmt, deviation = FORMATS[name], 1 / math.sqrt(columns)
    if rows * columns >= _LARGE and fmt.ggml_type is not None:
        source = RandomBytes(rows * 31 + columns, name)
        blocks = np.concatenate([*random_blocks(fmt, rows * columns, deviation, source)])
        return Matrix(blocks.reshape(rows, -1), fmt)
    weights = random.standard_normal((rows, columns), np.float32) * np.float32(deviation)
    return Matrix.from_floats(weights, name)


@dataclass(frozen=True)
class MatmulCase:
    """x (tokens, columns) times weights (rows, columns) of one format."""

    tokens: int
    rows: int
    columns: int
    format: str

    @property
    def flops(self) -> int:
        """Two a product."""
        return matmul_flops(self.tokens, self.rows, self.columns)

    @property
    def bytes(self) -> int:
        """Weights once, activations in and out, in bytes."""
        weights = FORMATS[self.format].nbytes((self.rows, self.columns))
        return weights + 4 * self.tokens * (self.rows + self.columns)

    def tolerance(self, precision: Precision) -> float:
        """Largest relative RMS against the reference; more for few outputs, which may cancel."""
        few = 1.0 + 4.0 / math.sqrt(self.tokens * self.rows)
        return few * TOLERANCES[precision]

    def inputs(self) -> tuple[NDArray[np.float32], Matrix]:
        """Gaussian activations, and weights of `random_matrix`."""
        random = np.random.default_rng(self.rows * 31 + self.columns)
        x = random.standard_normal((self.tokens, self.columns), np.float32)
        return x, random_matrix(self.rows, self.columns, self.format, random)


@dataclass(frozen=True)
class AttentionCase:
    """Causal attention of the last `queries` tokens of each of some sequences."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int = 32
    dtype: str = "float16"

    @property
    def flops(self) -> int:
        """Two matrix products over the visible pairs of query and token."""
        return attention_flops(self.queries, self.lengths, self.heads, self.head_dim)

    @property
    def bytes(self) -> int:
        """Keys and values once, queries in and out, in bytes."""
        cache = 2 * sum(self.lengths) * self.kv_heads * self.head_dim
        return (
            cache * np.dtype(self.dtype).itemsize
            + 8 * sum(self.queries) * self.heads * self.head_dim
        )

    def tolerance(self, precision: Precision) -> float:
        """Largest relative RMS against the reference over the same cache contents.

        An average of n Gaussian values is as small as 1 / √n; the rounding of its sum is not.
        """
        return TOLERANCES[precision] * max(1.0, math.sqrt(max(self.lengths) / 4096))

    def inputs(self) -> AttentionInputs:
        """Gaussian queries and cache, pages in shuffled order, unused slots filled with NaN."""
        random = np.random.default_rng(sum(self.lengths))
        used = [-(-n // self.page_size) for n in self.lengths]
        order = random.permutation(sum(used) + 1).astype(np.int32)
        shape = (len(order), self.kv_heads, self.head_dim, self.page_size)
        k = np.full(shape, np.nan, self.dtype)
        v = np.full((*shape[:2], shape[3], shape[2]), np.nan, self.dtype)
        table = np.full((len(used), max(used)), -1, np.int32)
        at = 0
        for s, n in enumerate(used):
            table[s, :n] = order[at : at + n]
            at += n
            for i, page in enumerate(table[s, :n]):
                tokens = min(self.page_size, self.lengths[s] - i * self.page_size)
                k[page, ..., :tokens] = random.standard_normal((*shape[1:3], tokens))
                v[page, :, :tokens] = random.standard_normal((shape[1], tokens, shape[2]))
        starts = np.concatenate(([0], np.cumsum(self.queries))).astype(np.int32)
        q = random.standard_normal((int(starts[-1]), self.heads, self.head_dim), np.float32)
        lengths = np.array(self.lengths, np.int32)
        return AttentionInputs(q, k, v, table, lengths, starts, 1.0 / math.sqrt(self.head_dim))


@dataclass(frozen=True)
class AttentionInputs:
    """What goes into `ops.attention`."""

    q: NDArray[np.float32]
    k_pages: NDArray[np.floating]
    v_pages: NDArray[np.floating]
    page_table: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]
    scale: float

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As `ops.attention` takes them."""
        queries = Queries(self.page_table, self.lengths, self.starts)
        return self.q, self.k_pages, self.v_pages, queries, self.scale


@dataclass(frozen=True)
class RowsCase:
    """A rowwise op (rmsnorm, softmax, swiglu) on float32 (rows, columns)."""

    rows: int
    columns: int

    def flops(self, op: str) -> int:
        """Operations of `op`, an exponential counted as one."""
        return _ROWS_FLOPS[op] * self.rows * self.columns

    def bytes(self, op: str) -> int:
        """What `op` reads and writes, in bytes: swiglu reads two arrays, rmsnorm one weight row."""
        arrays = 3 if op == "swiglu" else 2
        return 4 * self.columns * (arrays * self.rows + (op == "rmsnorm"))

    def tolerance(self, op: str) -> float:
        """Largest relative RMS of `op` against the reference."""
        return _ROWS_TOLERANCES[op]

    def inputs(self, n: int = 1) -> list[NDArray[np.float32]]:
        """`n` Gaussian arrays."""
        random = np.random.default_rng(self.rows + self.columns)
        return [random.standard_normal((self.rows, self.columns), np.float32) for _ in range(n)]


_ROWS_FLOPS = {"rmsnorm": RMSNORM_FLOPS, "softmax": 4, "swiglu": SWIGLU_FLOPS}
_ROWS_TOLERANCES = {"rmsnorm": 3e-7, "softmax": 1e-6, "swiglu": 3e-7}


@dataclass(frozen=True)
class DequantizeCase:
    """Weights (rows, columns) of one format to float32."""

    rows: int
    columns: int
    format: str

    @property
    def flops(self) -> int:
        """A scale and a minimum for each weight."""
        return DEQUANTIZE_FLOPS * self.rows * self.columns

    @property
    def bytes(self) -> int:
        """Blocks read and float32 written, in bytes."""
        return FORMATS[self.format].nbytes((self.rows, self.columns)) + 4 * self.rows * self.columns

    @property
    def tolerance(self) -> float:
        """Largest relative RMS against the reference: none, it is the same arithmetic."""
        return 0.0

    def inputs(self) -> Matrix:
        """Weights of standard deviation 1/√columns."""
        random = np.random.default_rng(self.rows * 31 + self.columns)
        return random_matrix(self.rows, self.columns, self.format, random)


@dataclass(frozen=True)
class RopeCase:
    """Rotation of the first `rotated` dims of x (tokens, heads, head_dim)."""

    tokens: int
    heads: int
    head_dim: int
    rotated: int

    @property
    def flops(self) -> int:
        """Four products and two sums a pair."""
        return rope_flops(self.tokens, self.heads, self.rotated)

    @property
    def bytes(self) -> int:
        """x read and written, cos and sin read, in bytes."""
        return 4 * self.tokens * (2 * self.heads * self.head_dim + self.rotated)

    @property
    def tolerance(self) -> float:
        """Largest relative RMS against the reference."""
        return 2e-7

    def inputs(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Gaussian x, and cos and sin (tokens, rotated / 2) of angles up to ±1000."""
        random = np.random.default_rng(self.tokens + self.heads + self.head_dim)
        x = random.standard_normal((self.tokens, self.heads, self.head_dim), np.float32)
        angle = random.uniform(-1e3, 1e3, (self.tokens, self.rotated // 2))
        return x, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@dataclass(frozen=True)
class KvAppendCase:
    """Keys and values of some tokens, written to slots of one layer's pages."""

    tokens: int
    kv_heads: int
    head_dim: int
    page_size: int = 32
    dtype: str = "float16"

    @property
    def flops(self) -> int:
        """Nothing is computed."""
        return 0

    @property
    def bytes(self) -> int:
        """float32 read and cache written, in bytes."""
        numbers = 2 * self.tokens * self.kv_heads * self.head_dim
        return numbers * (4 + np.dtype(self.dtype).itemsize)

    @property
    def tolerance(self) -> float:
        """Largest relative RMS against the reference: none, numbers are rounded as numpy does."""
        return 0.0

    def inputs(self) -> KvAppendInputs:
        """Gaussian keys and values, shuffled slots, a cache that is all NaN with a spare page."""
        random = np.random.default_rng(self.tokens + self.head_dim)
        n_pages = -(-self.tokens // self.page_size) + 1
        shape = (n_pages, self.kv_heads, self.head_dim, self.page_size)
        k, v = random.standard_normal((2, self.tokens, self.kv_heads, self.head_dim), np.float32)
        slots = random.permutation(n_pages * self.page_size)[: self.tokens].astype(np.int32)
        pages, offsets = np.divmod(slots, np.int32(self.page_size))
        k_pages = np.full(shape, np.nan, self.dtype)
        v_pages = np.full((*shape[:2], shape[3], shape[2]), np.nan, self.dtype)
        return KvAppendInputs(k, v, k_pages, v_pages, pages, offsets)


@dataclass(frozen=True)
class KvAppendInputs:
    """What goes into `ops.kv_append`."""

    k: NDArray[np.float32]
    v: NDArray[np.float32]
    k_pages: NDArray[np.floating]
    v_pages: NDArray[np.floating]
    pages: NDArray[np.int32]
    offsets: NDArray[np.int32]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As `ops.kv_append` takes them."""
        return self.k, self.v, self.k_pages, self.v_pages, Slots(self.pages, self.offsets)


def _matmuls(name: str) -> tuple[MatmulCase, ...]:
    block = FORMATS[name].block_len
    small = max(block, 32)
    return (
        MatmulCase(1, 1, small, name),
        MatmulCase(1, 17, 3 * small, name),
        MatmulCase(2, 31, 2 * small, name),
        MatmulCase(3, 64, 5 * small, name),
        MatmulCase(5, 100, small, name),
        MatmulCase(9, 48, 9 * small, name),
        MatmulCase(15, 32, 2 * small, name),
        MatmulCase(17, 33, 2 * small, name),
        MatmulCase(131, 40, 2 * small, name),
    )


MATMUL_CHECKS: dict[str, tuple[MatmulCase, ...]] = {name: _matmuls(name) for name in FORMATS}
"""Awkward shapes of every format: 1, primes, one past a tile, one past a block of tokens."""

MATMUL_DENSE = tuple(
    MatmulCase(tokens, rows, columns, name)
    for name in ("F32", "F16")
    for tokens, columns, rows in (
        (512, 512, 512),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (2048, 4096, 2048),
        (1, 4096, 4096),
        (32, 128, 4096),
        (128, 128, 1024),
        (32, 32, 768),
    )
)
"""The dense shapes that the suite promises, (tokens, columns, rows)."""

ATTENTION_CHECKS = (
    AttentionCase((1,), (1,), 1, 1, 64),
    AttentionCase((17,), (17,), 4, 4, 32, page_size=16),
    AttentionCase((33,), (1,), 8, 2, 64, page_size=32),
    AttentionCase((65, 7, 130), (1, 1, 1), 6, 2, 80, page_size=64),
    AttentionCase((40, 70), (40, 3), 8, 1, 128, page_size=32, dtype="float32"),
    AttentionCase((129,), (100,), 14, 2, 64, page_size=64),
    AttentionCase((31,), (31,), 3, 3, 256, page_size=16),
    AttentionCase((20,), (5,), 40, 1, 24, page_size=16, dtype="float32"),
)
"""Awkward attention: one token, odd lengths, several sequences, MQA, head dims 24 to 256."""

ATTENTION_PREFILL = tuple(
    AttentionCase((n,), (n,), heads, heads, head_dim)
    for n, heads, head_dim in ((128, 4, 32), (256, 8, 32), (512, 8, 64), (1024, 16, 64))
)
"""The prompts that the suite promises: (sequence, heads, head dim)."""

ATTENTION_DECODE = tuple(
    AttentionCase((context,), (1,), 32, 4, 64)
    for context in (128, 1024, 2048, 4096, 8192, 16384, 32768)
)
"""One token of the 1.1B shape over a growing context."""

ATTENTION_HEAD_DIMS = tuple(
    AttentionCase((256,), (256,), 8, 8, head_dim) for head_dim in (32, 64, 128, 256, 512)
)
"""The head dims that the suite promises; GPUs have no kernel for the last one."""

ATTENTION_MODELS: Mapping[str, tuple[AttentionCase, AttentionCase]] = {
    model: (
        AttentionCase((512,), (512,), heads, kv_heads, head_dim),
        AttentionCase((4096,), (1,), heads, kv_heads, head_dim),
    )
    for model, heads, kv_heads, head_dim in (
        ("1.1B", 32, 4, 64),
        ("7B", 32, 32, 128),
        ("8B", 32, 8, 128),
    )
}
"""Heads of real models: a prompt of 512 tokens, and one token over a context of 4096."""

ROWS_CHECKS = (
    RowsCase(1, 1),
    RowsCase(1, 17),
    RowsCase(3, 64),
    RowsCase(7, 100),
    RowsCase(130, 896),
    RowsCase(2, 11008),
)

ROWS_TIMED: Mapping[str, tuple[RowsCase, ...]] = {
    "rmsnorm": (RowsCase(1, 4096), RowsCase(512, 4096)),
    "softmax": (RowsCase(1, 32000), RowsCase(512, 4096)),
    "swiglu": (RowsCase(1, 11008), RowsCase(512, 11008)),
}
"""Rows of a 7B model: one token, and a prompt; softmax over a vocabulary, and over scores."""

DEQUANTIZE_CHECKS = tuple(
    DequantizeCase(rows, blocks * FORMATS[name].block_len, name)
    for name in FORMATS
    for rows, blocks in ((1, 1), (7, 3), (33, 35 if FORMATS[name].block_len == 1 else 5))
)
"""One block, and odd numbers of rows and blocks, of every format."""

ROPE_CHECKS = (
    RopeCase(1, 1, 2, 2),
    RopeCase(1, 3, 64, 64),
    RopeCase(9, 2, 80, 80),
    RopeCase(5, 4, 64, 32),
    RopeCase(17, 1, 128, 6),
    RopeCase(33, 7, 13, 8),
)
"""One pair, whole and partial rotation, dims that are no whole vector."""

ROPE_TIMED = (RopeCase(1, 32, 128, 128), RopeCase(512, 32, 128, 128))
"""Queries of a 7B model: one token, and a prompt."""

KV_APPEND_CHECKS = tuple(
    KvAppendCase(tokens, kv_heads, head_dim, page_size, dtype)
    for dtype in ("float16", "float32")
    for tokens, kv_heads, head_dim, page_size in (
        (1, 1, 1, 16),
        (5, 3, 7, 32),
        (33, 2, 16, 32),
        (65, 1, 80, 64),
    )
)
"""One number, odd dims, one token past a page, each page size."""

KV_APPEND_TIMED = tuple(KvAppendCase(256, 32, 128, page_size) for page_size in PAGE_SIZES)
"""256 tokens of one layer of a 7B model."""
