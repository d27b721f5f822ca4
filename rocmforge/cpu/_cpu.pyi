"""Types of the compiled module; bindings.cpp defines it.

Arrays must have the right type and be C-contiguous: none is converted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int32]

class PackedMatrix:
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def format(self) -> str: ...

class ReadBuffer:
    @property
    def nbytes(self) -> int: ...

class Recording: ...

class Kernels:
    def __init__(self, isa: str, threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def multiplies_pairs(self) -> bool: ...
    def empty(self, fmt: str, rows: int, columns: int, pairs: bool) -> PackedMatrix: ...
    def pack(
        self, out: PackedMatrix, raw: NDArray[np.uint8], first_row: int, factor: float
    ) -> None: ...
    def matmul(
        self,
        x: _Floats,
        weights: Sequence[PackedMatrix],
        outs: Sequence[_Floats],
        biases: Sequence[_Floats | None],
        accumulate: bool,
        scale: float,
        exact: bool,
    ) -> None: ...
    def gate_up_swiglu(
        self,
        x: _Floats,
        gate: PackedMatrix,
        up: PackedMatrix,
        activation: str,
        out: _Floats,
        exact: bool,
    ) -> None: ...
    def expert_matmul(
        self,
        x: _Floats,
        weight: PackedMatrix,
        bias: _Floats | None,
        experts: _Ints,
        count: int,
        out: _Floats,
        exact: bool,
    ) -> None: ...
    def expert_gate_up_swiglu(
        self,
        x: _Floats,
        gate: PackedMatrix,
        up: PackedMatrix,
        gate_bias: _Floats | None,
        up_bias: _Floats | None,
        activation: str,
        experts: _Ints,
        count: int,
        out: _Floats,
        exact: bool,
    ) -> None: ...
    def route(
        self,
        scores: _Floats,
        normalized: bool,
        sigmoid: bool,
        scale: float,
        bias: _Floats | None,
        experts: _Ints,
        shares: _Floats,
    ) -> None: ...
    def add_experts(self, parts: _Floats, shares: _Floats, x: _Floats) -> None: ...
    def dequantize(self, raw: NDArray[np.uint8], fmt: str, out: _Floats) -> None: ...
    def rmsnorm(
        self, x: _Floats, weight: _Floats, eps: float, out: _Floats, accumulate: bool
    ) -> None: ...
    def layernorm(
        self, x: _Floats, weight: _Floats, bias: _Floats | None, eps: float, out: _Floats
    ) -> None: ...
    def rope(self, x: _Floats, cos: _Floats, sin: _Floats, interleaved: bool) -> None: ...
    def softmax(self, x: _Floats, out: _Floats) -> None: ...
    def swiglu(self, gate: _Floats, up: _Floats, activation: str, out: _Floats) -> None: ...
    def gelu(self, x: _Floats, out: _Floats) -> None: ...
    def softcap(self, x: _Floats, cap: float, out: _Floats) -> None: ...
    def kv_append(
        self,
        k: _Floats,
        v: _Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        pages: _Ints,
        offsets: _Ints,
    ) -> None: ...
    def attention(
        self,
        q: _Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        page_table: _Ints,
        lengths: _Ints,
        starts: _Ints,
        scale: float,
        window: int,
        softcap: float,
        sinks: _Floats | None,
        out: _Floats,
    ) -> None: ...
    def record(self, calls: Callable[[], None]) -> Recording: ...
    def replay(self, recording: Recording) -> None: ...
    def read_buffer(self, nbytes: int) -> ReadBuffer: ...
    def peak_reads(self, buffer: ReadBuffer, repeats: int) -> int: ...
    def peak_products(self, int8: bool) -> tuple[int, int]: ...

def instruction_sets() -> list[str]: ...
