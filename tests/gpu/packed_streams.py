"""Weights of a matrix in device memory, and what numpy reads back from its packed streams.

An independent reading of the layout that kernels/packed.h describes.
"""

from __future__ import annotations

import numpy as np
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import Q8
from rocmforge.gpu.matrix import DENSE, LAYOUTS, DeviceMatrix, stream_bytes
from rocmforge.gpu.ops.pack import pack
from rocmforge.ops import Matrix

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

ZEROS = {"Q4_0": 8, "Q5_0": 16, "Q3_K": 4, "Q6_K": 32, "TQ2_0": 1, "TQ1_0": 1}
NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
IQ3 = {"IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15), "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62)}
FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
TABLES = {
    "IQ4_NL": NON_LINEAR,
    "IQ4_XS": NON_LINEAR,
    **{name: (*sizes, *(-size for size in sizes)) for name, sizes in IQ3.items()},
    **dict.fromkeys(("IQ2_S", "IQ2_XS", "IQ2_XXS"), (8, 25, 43, 0, -8, -25, -43, 0)),
    **dict.fromkeys(("IQ1_M", "IQ1_S"), (-7, 1, 9, 0, -9, -1, 7, 0)),
    "NVFP4": FLOAT4,
    "MXFP4": FLOAT4,
}
UNITS = {"MXFP4": -128, "MXFP6_E2M3": -130}
"""Power of two that a scale byte of 0 stands for, of a step of the table or of an eighth."""
STEPS = {"IQ3_XXS": 1 / 4, "NVFP4": 1 / 2} | dict.fromkeys(
    ("IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"), 1 / 8
)
"""What the table's entries are multiplied with, besides the scales."""


def upload(gpu: Gpu, matrix: Matrix, first: int = 0, factor: float = 1.0) -> DeviceMatrix:
    """Bring a matrix to the device; with `first`, its rows from there on come before the others."""
    name = matrix.format.name
    streams = [gpu.empty(n) if n else 0 for n in stream_bytes(name, matrix.rows, matrix.columns)]
    placed = DeviceMatrix(matrix.rows, matrix.columns, name, *streams, 0)
    if DENSE.get(name) == name:
        gpu.runtime.copy_to_device(placed.codes, matrix.data)
        return placed
    for start, rows in ((first, matrix.rows - first), (0, first)):
        if rows:
            raw = gpu.upload(matrix.data[start : start + rows])
            own = {"first": start, "count": rows, "factor": factor}
            gpu.run(pack(gpu.kernels, raw=raw, matrix=placed, **own))
    return placed


def round_activations(x: Floats) -> tuple[NDArray[np.int8], Floats, NDArray[np.uint32]]:
    """Codes, scales and sums of x (T, K) as `arrays.Q8` has them, by plain rounding."""
    groups = x.reshape(x.shape[0], -1, 32)
    scales = np.abs(groups).max(2) / np.float32(127)
    codes = np.rint(groups / np.where(scales > 0, scales, 1)[..., None]).astype(np.int8)
    halves = codes.reshape(*codes.shape[:2], 2, 16).sum(3, dtype=np.int16)
    sums = np.ascontiguousarray(halves).view(np.uint32)[..., 0]
    return codes.reshape(x.shape), scales.astype(np.float32), sums


def upload_q8(gpu: Gpu, x: Floats) -> tuple[Q8, NDArray[np.float64]]:
    """Bring rounded activations to the device, and say what they stand for."""
    codes, scales, sums = round_activations(x)
    exact = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, 1)
    return Q8(*(gpu.upload(a) for a in (codes, scales, sums))), exact


def download_weights(gpu: Gpu, placed: DeviceMatrix) -> Floats:
    """Weights (N, K) from the streams."""
    name, shape = placed.format, (placed.rows, placed.columns)
    sizes = stream_bytes(name, *shape)
    codes, high, scales, supers = (
        gpu.download(address, size, np.uint8) if size else np.empty(0, np.uint8)
        for address, size in zip(placed.addresses, sizes, strict=True)
    )
    if placed.dense:
        kind = DENSE[name]
        if kind == "BF16":
            return (codes.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return (
            codes.view(kind.replace("F", "f").replace("f32", "f4").replace("f16", "f2"))
            .astype(np.float32)
            .reshape(shape)
        )
    groups = placed.rows * placed.columns // 32
    words = _codes(name, codes, groups)
    if high.size:
        words |= _high(name, high, groups)
    steps = words.astype(np.int16) - ZEROS.get(name, 0)
    if name in TABLES:
        steps = np.array(TABLES[name], np.int16)[words]
    elif LAYOUTS[name].codes == 32:
        steps = words.view(np.int8).astype(np.int16)
    scale, offset = _scales(name, scales, supers, groups)
    scale = scale * np.float32(STEPS.get(name, 1))
    with np.errstate(all="ignore"):
        weights = scale * steps.reshape(groups, scale.shape[1], -1).astype(np.float32)
        if offset is not None:
            weights += offset
    return weights.reshape(shape)


def _codes(name: str, stream: Bytes, groups: int) -> Bytes:
    """The low bits of each column, (groups, 32)."""
    if LAYOUTS[name].codes == 32:
        return stream.reshape(groups, 32)
    if LAYOUTS[name].codes == 16:
        b = stream.reshape(groups, 16)
        return np.concatenate([b & 15, b >> 4], axis=1)
    return _pairs(stream, groups)


def _pairs(stream: Bytes, groups: int) -> Bytes:
    """Two bits a column: word 4m + j of a group lies at bits 2j of the four bytes of half m."""
    halves = stream.reshape(groups, 2, 1, 4)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (halves >> shifts & 3).reshape(groups, 32)


def _high(name: str, stream: Bytes, groups: int) -> Bytes:
    if LAYOUTS[name].high == 8:
        return _pairs(stream, groups) << 4
    bits = stream.reshape(groups, 1, 4) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return bits.reshape(groups, 32) << (4 if LAYOUTS[name].codes == 16 else 2)


def _scales(name: str, scales: Bytes, supers: Bytes, groups: int) -> tuple[Floats, Floats | None]:
    """Scale and offset of each sub-block, (groups, subs, 1)."""
    if name in UNITS:
        exponent = scales.astype(np.int32) + UNITS[name]
        value = np.ldexp(np.float32(1), exponent)
        if name != "MXFP4":
            value = np.where(scales == 255, np.float32(np.nan), value)
        return value.reshape(groups, 1, 1), None
    if name == "NVFP4":
        return scales.view(np.float16).astype(np.float32).reshape(groups, 2, 1), None
    if not supers.size:
        halves = scales.view(np.float16).astype(np.float32).reshape(groups, -1, 1, 1)
        return halves[:, 0], halves[:, 1] if halves.shape[1] == 2 else None
    deltas = supers.view(np.float16).astype(np.float32).reshape(groups // 8, -1).repeat(8, 0)
    if deltas.shape[1] == 1:
        small = scales.view(np.int8).reshape(groups, -1, 1).astype(np.float32)
        return deltas[:, :1, None] * small, None
    if name == "Q2_K":
        scales = np.stack([scales & 15, scales >> 4]).reshape(2, groups, 2).transpose(1, 0, 2)
    small = scales.reshape(groups, 2, -1, 1).astype(np.float32)
    return deltas[:, :1, None] * small[:, 0], -deltas[:, 1:, None] * small[:, 1]
