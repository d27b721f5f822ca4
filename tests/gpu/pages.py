"""Pages of one layer's cache in device memory, filled with 0xFF, and what was written to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from guarded import Gpu
from numpy.typing import DTypeLike, NDArray

from rocmforge.gguf.nvfp4 import E4M3

_DTYPES: dict[str, DTypeLike] = {
    "f16": np.float16,
    "f32": np.float32,
    "q8_0": np.int8,
    "fp8_e4m3": np.uint8,
}
_POSITIVE = np.append(E4M3, np.nan)
_NUMBERS = np.concatenate([_POSITIVE, -_POSITIVE])  # of E4M3, by their codes


@dataclass(frozen=True)
class Pages:
    """Keys or values (pages, G, P, D) of a dtype, and scales.

    Those of q8_0 are (pages, G, P, D / 32), those of fp8_e4m3 (pages, G, P, 1).
    """

    gpu: Gpu
    dtype: str
    shape: tuple[int, int, int, int]
    address: int
    scales: int

    @classmethod
    def empty(cls, gpu: Gpu, dtype: str, shape: tuple[int, int, int, int]) -> Pages:
        size = int(np.prod(shape))
        address = gpu.empty(size * np.dtype(_DTYPES[dtype]).itemsize)
        groups = {"q8_0": shape[3] // 32, "fp8_e4m3": 1}.get(dtype)
        scales = gpu.empty(size // shape[3] * groups * 2) if groups else 0
        return cls(gpu, dtype, shape, address, scales)

    def read(self) -> NDArray[np.float64]:
        """The numbers; NaN where nothing was written."""
        found = self.gpu.download(self.address, self.shape, _DTYPES[self.dtype])
        if not self.scales:
            return found.astype(np.float64)
        q8 = self.dtype == "q8_0"
        group, largest = (32, 127) if q8 else (self.shape[3], 448)
        values = found.astype(np.float64) if q8 else _NUMBERS[found]
        shape = (*self.shape[:3], self.shape[3] // group)
        scales = self.gpu.download(self.scales, shape, np.float16).astype(np.float64)
        used = np.isfinite(scales) & (scales != 0)
        assert np.all(np.abs(values).reshape(*shape, group).max(axis=-1)[used] == largest)
        with np.errstate(invalid="ignore"):
            return values * np.repeat(scales, group, axis=-1) / (1 if q8 else 256)


def expect(
    got: NDArray[np.float64],
    dtype: str,
    wanted: NDArray[np.floating],
    pages: NDArray[np.int32],
    offsets: NDArray[np.int32],
    tolerance: float = 0.0,
) -> None:
    """Check the slots of the tokens, (T, G, D), and that no other was written.

    `tolerance` is the relative error of the numbers before they were rounded to the dtype.
    """
    written = np.zeros((got.shape[0], got.shape[2]), bool)
    kept = pages >= 0
    written[pages[kept], offsets[kept]] = True
    assert np.isnan(got.transpose(0, 2, 1, 3)[~written]).all()
    at_slots, wanted = got[pages[kept], :, offsets[kept]], wanted[kept].astype(np.float64)
    if dtype == "q8_0":
        groups = wanted.reshape(*wanted.shape[:2], -1, 32)
        step = np.abs(groups).max(axis=-1, keepdims=True) / 127
        error = np.abs(at_slots.reshape(groups.shape) - groups)
        assert np.all(error <= step * (0.5 + 127 * 2**-11 + 127 * tolerance))
        assert np.linalg.norm(at_slots - wanted) <= 0.008 * np.linalg.norm(wanted)
    elif dtype == "fp8_e4m3":
        largest = np.abs(wanted).max(axis=-1, keepdims=True)
        least = largest / 448 * 2**-10  # half a step of subnormal numbers
        bound = np.maximum(np.abs(wanted) * 2**-4, least) + largest * (tolerance + 2**-10)
        assert np.all(np.abs(at_slots - wanted) <= bound)
        assert np.linalg.norm(at_slots - wanted) <= 0.03 * np.linalg.norm(wanted)
    elif tolerance == 0:
        np.testing.assert_array_equal(at_slots, wanted.astype(_DTYPES[dtype]))
    else:
        bits = 2**-11 if dtype == "f16" else 0.0
        error = np.linalg.norm(at_slots - wanted) / np.linalg.norm(wanted)
        assert error <= tolerance + bits
