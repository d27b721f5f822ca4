"""Dequantizing 4096 × 4096 weights of every format to float32, and the size of each format.

Times are of the public `ops.dequantize`, blocks and result cold: on the CPU host times, on a GPU
device times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmforge import ops
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases, reference
from rocmforge.ops.matrix import Matrix
from rocmforge.timing import seconds_per_call

from .cold import cold, own
from .devices import DEVICES, backend, clock
from .samples import Timed, track

N = 4096


@functools.cache
def cold_dequantize(name: str, device: str, n: int) -> Callable[[], object]:
    """Make n × n weights and copies, check each against the reference, return them as one call."""
    on = backend(device)
    case = cases.DequantizeCase(n, n, name)
    matrix = case.inputs()

    def copy() -> Callable[[], Any]:
        blocks = Matrix(own(on, matrix.data), matrix.format)
        return functools.partial(ops.dequantize, blocks, on, np.empty((n, n), np.float32))

    wanted = reference.dequantize(matrix)
    return cold(f"dequantize {name}", on, case.bytes, copy, wanted, case.tolerance)


class Dequantize(Timed):
    """One pass over the matrix."""

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.call = cold_dequantize(format, device, N)

    def time_dequantize(self, format: str, device: str) -> None:  # noqa: A002
        self.call()

    def track_elements_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([N * N / s for s in seconds_per_call(self.call, clock=clock)])

    def track_input_gb_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        """Blocks read."""
        read = FORMATS[format].nbytes((N, N))
        return track([read / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    def track_output_gb_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        """float32 written."""
        return track([4e-9 * N * N / s for s in seconds_per_call(self.call, clock=clock)])

    def track_gb_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        """Both together."""
        moved = cases.DequantizeCase(N, N, format).bytes
        return track([moved / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_elements_per_second.unit = "elements/s"
    track_elements_per_second.direction = "higher"
    track_input_gb_per_second.unit = "GB/s"
    track_input_gb_per_second.direction = "higher"
    track_output_gb_per_second.unit = "GB/s"
    track_output_gb_per_second.direction = "higher"
    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"


class Size:
    """Bits that a weight takes in each format; 32 over it is the compression against F32."""

    params = tuple(FORMATS)
    param_names = ("format",)

    def track_bits_per_weight(self, format: str) -> float:  # noqa: A002
        return 8 * FORMATS[format].nbytes((N, N)) / (N * N)

    track_bits_per_weight.unit = "bits"
