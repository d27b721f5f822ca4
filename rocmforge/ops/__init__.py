"""The public op API: `from rocmforge import ops`, then `ops.matmul(x, ops.pack(matrix, backend))`.

`matrix` holds weights, `api` checks and calls, `reference` is the numpy truth, `cases` lists what
tests and benchmarks run. This file only names the public parts.
"""

from rocmforge.kv.batch import Queries, Slots
from rocmforge.ops.api import (
    Weights,
    attention,
    dequantize,
    kv_append,
    matmul,
    pack,
    rmsnorm,
    rope,
    softmax,
    swiglu,
)
from rocmforge.ops.matrix import Matrix

__all__ = [
    "Matrix",
    "Queries",
    "Slots",
    "Weights",
    "attention",
    "dequantize",
    "kv_append",
    "matmul",
    "pack",
    "rmsnorm",
    "rope",
    "softmax",
    "swiglu",
]
