"""How an op's module tells its kernel where to write activations, and in which dtype.

The dtype becomes the macro OUT, a name of `Dtype` in kernels/output.h; the addresses become
the three pointers of `Output` there.
"""

from __future__ import annotations

from rocmforge.gpu.arrays import F16, F32, Q8, Halves, Permuted

DTYPES = tuple(array.__name__ for array in (F32, F16, Q8, Permuted))


def dtypes(architecture: str) -> tuple[str, ...]:
    """Names of the dtypes that kernels of an architecture write: those that its products read."""
    return DTYPES if architecture == "sm_90" else DTYPES[:-1]


def dtype(out: F32 | Halves | Q8) -> str:
    """Name of the dtype, as `Dtype` in kernels/output.h has it."""
    return type(out).__name__


def addresses(out: F32 | Halves | Q8) -> tuple[int, int, int]:
    """Addresses of values or codes, of scales and of sums; the latter two are 0 unless Q8."""
    if isinstance(out, Q8):
        return out.codes, out.scales, out.sums
    return out.address, 0, 0
