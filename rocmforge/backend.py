"""What an engine asks of a device: the ops of a decoder, as one protocol.

`cpu/backend.py` and `gpu/backend.py` implement it. Arrays are C-contiguous float32 unless said
otherwise, `out` arguments are written and nothing is returned, shapes have been checked by the
caller (`rocmforge.ops`, `Decoder`). This file knows no device and does no work.

The legend of letters, for every shape in the package: T tokens, S sequences, H query heads,
G KV heads, D head dim, R rotated dims, P page size, K columns (inputs), N rows (outputs),
V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.formats import Format

MAX_HEAD_DIM = 256
"""Largest D of attention; a model with more is refused when its configuration is read."""

Precision = Literal["exact", "half", "bf16", "int8"]
"""How an op rounds operands: not, to float16, to bfloat16, or activations to int8."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]


class PackedMatrix(Protocol):
    """A weight matrix (N, K) in the layout that its backend's matmul reads."""

    @property
    def rows(self) -> int:
        """N."""

    @property
    def columns(self) -> int:
        """K."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, in bytes."""


W = TypeVar("W", bound=PackedMatrix)


class Backend(Protocol[W]):
    """The ops of one device."""

    name: str

    def pack(
        self,
        raw: Bytes,
        fmt: Format,
        columns: int,
        on_piece: Callable[[], None] | None = None,
    ) -> W:
        """Bring GGUF rows (N, row_bytes) of format `fmt` into the layout of `matmul`.

        Reads the rows in pieces and calls `on_piece` after each, so that the caller can let go of
        the memory that was read.
        """

    def matmul(
        self,
        x: Floats,
        weights: Sequence[W],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
    ) -> None:
        """outs[i] (T, N_i) = or += x (T, K) · weights[i]ᵀ + biases[i] (N_i,)."""

    def matmul_precision(self, fmt: str, tokens: int) -> Precision:
        """How `matmul` rounds for a format and T."""

    def attention_precision(self, queries: int) -> Precision:
        """How `attention` rounds where a sequence has at most so many queries."""

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats) -> None:
        """Out (rows, columns) = the weights of GGUF rows (rows, row_bytes)."""

    def rmsnorm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        """Out (rows, K) = x / √(mean(x²) + eps) · weight; may be in place."""

    def rope(self, x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
        """Rotate pairs of x (T, heads, D) in place by angles given as cos and sin (T, R/2)."""

    def softmax(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = softmax of each row; may be in place."""

    def swiglu(self, gate: Floats, up: Floats, out: Floats) -> None:
        """Out = gate · sigmoid(gate) · up, elementwise (T, N); may be in place."""

    def kv_append(
        self,
        k: Floats,
        v: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        pages: Ints,
        offsets: Ints,
    ) -> None:
        """Write k, v (T, G, D) into slots `offsets` (T,) of `pages` (T,) of one layer's cache."""

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        page_table: Ints,
        lengths: Ints,
        starts: Ints,
        scale: float,
        out: Floats,
    ) -> None:
        """Causal attention of q (T, H, D) over the pages of S sequences; see ops.attention."""

    def close(self) -> None:
        """Let go of the device and of everything that was packed for it."""


class HostBackend(Backend[W], Protocol[W]):
    """The ops of a device whose arrays are the host's."""

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """Run `calls`, and return what runs the same ops again.

        They then read what their arrays hold by that time. It keeps arrays and matrices alive.
        """

    def gate_up_swiglu(self, x: Floats, gate: W, up: W, out: Floats) -> None:
        """Out (T, N) = swiglu(x · gateᵀ, x · upᵀ) of x (T, K) and two matrices (N, K)."""
