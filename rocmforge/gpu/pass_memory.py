"""Where the tensors of one pass lie, and what else its launches are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocmforge.array_types import Floats
from rocmforge.gpu import arrays
from rocmforge.gpu.batch_shape import BatchAddresses, BatchShape
from rocmforge.gpu.dtypes import F32, PERMUTED, Q8, Place
from rocmforge.gpu.lowering import Lowering
from rocmforge.plan.operands import Tensor


@dataclass(frozen=True)
class PassMemory:
    """Memory of one pass.

    Parameters
    ----------
    lowering
        The device.
    shape, batch
        The batch, and where its description lies.
    address
        Where a tensor lies in a dtype.
    scratch
        Address of the memory of `Lowering.scratch_bytes`, by label.
    """

    lowering: Lowering
    shape: BatchShape
    batch: BatchAddresses
    address: Callable[[Place], int]
    scratch: Callable[[str], int]

    @property
    def kernels(self) -> Any:
        """What compiles kernels; may be a BuildRecorder."""
        return self.lowering.kernels

    def f32(self, tensor: Tensor) -> int:
        """Address of a tensor in float32."""
        return self.address((tensor, F32))

    def in_dtype(self, tensor: Tensor, dtype: str) -> Any:
        """Return a tensor in a dtype, as the kernels' functions take it."""
        at = self.address((tensor, dtype))
        if dtype == Q8:
            return arrays.Q8.at(at, self.shape.rows(tensor), tensor.columns)
        if dtype == PERMUTED:
            return arrays.Permuted(at)
        return arrays.F32(at) if dtype == F32 else arrays.F16(at)

    def optional(self, array: Floats | None) -> int | None:
        """Address of a constant, if there is one."""
        return None if array is None else self.lowering.constant(array)
