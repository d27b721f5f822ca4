"""Activations in each dtype that kernels write, made and read back, with the error each may have.

Reading Q8 checks that its sums are those of its codes.
"""

from __future__ import annotations

import numpy as np
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F16, F32, Q8, Halves, Permuted
from rocmforge.gpu.ops.matmul_batch import reads_permuted

Dtype = type[F32] | type[F16] | type[Permuted] | type[Q8]

TOLERANCES: dict[Dtype, float] = {F32: 0.0, F16: 4e-4, Permuted: 4e-4, Q8: 0.012}
"""Relative RMS that rounding to the dtype adds: to float16 2.1e-4 on average, to Q8 0.005 for
Gaussian numbers and more for those with longer tails."""


def fitting(columns: int, spaced: bool = False) -> list[Dtype]:
    """The dtypes that rows of some columns can have; permuted ones with room between them."""
    whole_groups: list[Dtype] = [] if columns % 32 else [Q8]
    return [F32, F16, *whole_groups, *([] if columns % (32 if spaced else 128) else [Permuted])]


def make(gpu: Gpu, dtype: Dtype, rows: int, columns: int) -> F32 | Halves | Q8:
    """Memory for (rows, columns); Q8's three arrays each with guards of their own."""
    if dtype is Q8:
        groups = 4 * rows * columns // 32
        return Q8(gpu.empty(rows * columns), gpu.empty(groups), gpu.empty(groups))
    stride = Permuted.stride(columns) if dtype is Permuted else columns
    return dtype(gpu.empty(rows * stride * (4 if dtype is F32 else 2)))


def batch_input(gpu: Gpu, x: NDArray[np.float16], spaced: bool = False) -> Halves:
    """Activations (T, K) in the order in which matmul_batch reads them on this device.

    `spaced`: also where rows are no whole 128 columns; what stands between rows is NaN.
    """
    stride = Permuted.stride(x.shape[1])
    if not reads_permuted(gpu.runtime.properties.architecture, stride if spaced else x.shape[1]):
        return F16(gpu.upload(x))
    rows = np.full((len(x), stride), np.nan, np.float16)
    rows[:, : x.shape[1]] = x
    pairs = rows.reshape(len(x), -1, 4, 16, 2)
    return Permuted(gpu.upload(np.ascontiguousarray(pairs.swapaxes(2, 3))))


def read(gpu: Gpu, out: F32 | Halves | Q8, rows: int, columns: int) -> NDArray[np.float64]:
    """The numbers that an array stands for."""
    shape = (rows, columns)
    if isinstance(out, Permuted):
        stride = Permuted.stride(columns)
        pairs = gpu.download(out.address, (rows, stride // 128, 16, 4, 2), np.float16)
        return pairs.swapaxes(2, 3).reshape(rows, stride)[:, :columns].astype(np.float64)
    if isinstance(out, F16):
        return gpu.download(out.address, shape, np.float16).astype(np.float64)
    if isinstance(out, F32):
        return gpu.download(out.address, shape, np.float32).astype(np.float64)
    codes = gpu.download(out.codes, shape, np.int8).astype(np.int64)
    scales = gpu.download(out.scales, (rows, columns // 32), np.float32)
    sums = gpu.download(out.sums, (rows, columns // 32, 2), np.int16)
    np.testing.assert_array_equal(sums, codes.reshape(*sums.shape, 16).sum(axis=-1))
    assert codes.min() >= -127
    return codes * np.repeat(scales, 32, axis=1).astype(np.float64)
