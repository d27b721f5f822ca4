"""matmul as a GEMM for GPUs without matrix units: int8 activations, dot products of four bytes.

It runs in prefill, where `prompt_kernel` in matmul_prompt says so. Up to eight tokens are a GEMV:
matmul.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.arrays import F16, F32, Q8
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops.matmul_prompt import prompt_kernel
from rocmforge.gpu.ops.prompt_tiles import result_of

FILE = "matmul_dot4.hip"
LAYOUTS = {"matmul_dot4": "PPP" + "PPPP" + "PPiiii"}


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of matmul_dot4.hip.

    Parameters
    ----------
    TILE_TOKENS, TILE_ROWS
        Tokens and weight rows of a block.
    THREAD_TILE
        Tokens, and rows, of a thread.
    GROUPS
        32 columns each that a step takes; a block has a thread for each line of them.
    """

    TILE_TOKENS: int
    TILE_ROWS: int
    THREAD_TILE: int
    GROUPS: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.GROUPS * (self.TILE_TOKENS + self.TILE_ROWS)

    def grid(self, tokens: int, rows: int) -> tuple[int, int, int]:
        """Blocks for T tokens and N rows, those that share weights first."""
        return -(-tokens // self.TILE_TOKENS), -(-rows // self.TILE_ROWS), 1


LARGE = Constants(128, 128, 8, 1)
SMALL = Constants(64, 64, 4, 2)


def choose(tokens: int, rows: int, compute_units: int) -> Constants:
    """Constants for T tokens and N rows: small tiles where large ones leave units idle.

    Not measured: a large tile does twice the arithmetic for each byte that it reads from LDS.
    """
    across, down, _ = LARGE.grid(tokens, rows)
    return LARGE if across * down >= compute_units else SMALL


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel: none where there are matrix units."""
    for name in STREAMS:
        if prompt_kernel(architecture, name) == "matmul_dot4":
            for constants in (LARGE, SMALL):
                yield Build(FILE, LAYOUTS, _defines(constants, name))


def matmul_dot4(
    kernels: Kernels,
    *,
    x: Q8,
    weight: DeviceMatrix,
    out: F32 | F16,
    tokens: int,
    bias: int | None = None,
    accumulate: bool = False,
) -> Launch:
    """out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n], or that added to out.

    Parameters
    ----------
    x
        (T, K).
    weight
        (N, K), quantized.
    out
        (T, N).
    tokens
        T.
    bias
        Address of (N,) float32.
    accumulate
        Add to what `out` holds, which is F32 (the residual).
    """
    constants = choose(tokens, weight.rows, kernels.runtime.properties.compute_units)
    result = result_of(out, accumulate)
    return kernels.launch(
        FILE,
        "matmul_dot4",
        _defines(constants, weight.kernel_format),
        constants.grid(tokens, weight.rows),
        constants.threads,
        LAYOUTS["matmul_dot4"],
        *(x.codes, x.scales, x.sums, *weight.addresses, bias or 0, out.address),
        *(tokens, weight.rows, weight.columns, result),
    )


def _defines(constants: Constants, name: str) -> dict[str, int | str]:
    return {"FORMAT": name, **asdict(constants)}
