"""Types of the compiled module; bindings.cpp defines it.

Arrays must have the right type and be C-contiguous: none is converted.
"""

from collections.abc import Sequence
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

class Kernels:
    def __init__(self, isa: str, threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def empty(self, fmt: str, rows: int, columns: int) -> PackedMatrix: ...
    def pack(self, out: PackedMatrix, raw: NDArray[np.uint8], first_row: int) -> None: ...
    def matmul(
        self,
        x: _Floats,
        weights: Sequence[PackedMatrix],
        outs: Sequence[_Floats],
        biases: Sequence[_Floats | None],
        accumulate: bool,
        exact: bool,
    ) -> None: ...
    def dequantize(self, raw: NDArray[np.uint8], fmt: str, out: _Floats) -> None: ...
    def rmsnorm(self, x: _Floats, weight: _Floats, eps: float, out: _Floats) -> None: ...
    def rope(self, x: _Floats, cos: _Floats, sin: _Floats, interleaved: bool) -> None: ...
    def softmax(self, x: _Floats, out: _Floats) -> None: ...
    def swiglu(self, gate: _Floats, up: _Floats, out: _Floats) -> None: ...
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
        out: _Floats,
    ) -> None: ...
    def read_buffer(self, nbytes: int) -> ReadBuffer: ...
    def peak_reads(self, buffer: ReadBuffer, repeats: int) -> int: ...
    def peak_products(self, int8: bool) -> tuple[int, int]: ...

def instruction_sets() -> list[str]: ...
