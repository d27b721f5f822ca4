"""The CPU backend: the compiled ops of rocmforge.cpu._cpu behind the Backend protocol.

Chooses the instruction set and the number of threads; the kernels do the rest. Arguments are those
that `rocmforge.ops` or an executor has checked.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from numpy.typing import NDArray

from rocmforge import env
from rocmforge.array_types import Bytes, Floats, Ints
from rocmforge.cpu.executor import OnHost
from rocmforge.errors import DeviceError, MeasurementError
from rocmforge.gguf.formats import PLAIN_FORMATS, Format
from rocmforge.kv.batch import Queries, Slots
from rocmforge.plan.operands import Activation
from rocmforge.plan.protocols import Precision

try:
    from rocmforge.cpu import _cpu
except ImportError as error:
    raise DeviceError(
        f"the compiled CPU kernels are missing ({error}); install the package with pip, which "
        "builds them, and do not run Python in the repository with a non-editable install"
    ) from error


DENSE_FORMATS = (*PLAIN_FORMATS, "MXFP6_E3M2")  # whose activations are not rounded to int8
TILE_ROWS = 16  # rows that the packed layout interleaves
PIECE_BYTES = 16 << 20  # of a matrix packed at once
READ_PER_THREAD = 64 << 20  # bytes that a ceiling is read from at most: no cache holds more a core,
LEAST_MOST_READ, MOST_MOST_READ = 256 << 20, 4 << 30  # within these bounds
LEAST_READ = 32 << 20  # bytes read in a sample


def available_threads() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


class CpuBackend(OnHost):
    """The ops of the CPU, on one instruction set and a fixed number of threads.

    Parameters
    ----------
    threads
        1 or more; None: `ROCMFORGE_THREADS`, else the cores that this process may run on.
    exact
        True: matmul keeps activations in float32; False: it rounds them to int8, see `ops.matmul`.
        None: `ROCMFORGE_CPU_EXACT`.
    isa
        "avx512", "avxvnni", "avx2" or "portable"; None: `ROCMFORGE_CPU_ISA`, else the best that
        runs here.
    bf16
        True: F32, F16 and BF16 weights are packed as bfloat16, and multiplied with activations that
        are rounded to it too. None: `ROCMFORGE_CPU_BF16`.

    Raises
    ------
    ValueError
        `threads` is below 1 or above 1024, or both `exact` and `bf16` are wanted.
    DeviceError
        This processor or build does not have the instruction set, or no products of bfloat16, or
        the system does not grant the threads.
    """

    name = "cpu"

    def __init__(
        self,
        threads: int | None = None,
        exact: bool | None = None,
        isa: str | None = None,
        bf16: bool | None = None,
    ) -> None:
        wanted = env.cpu_isa() if isa is None else isa
        if wanted and wanted not in instruction_sets():
            raise DeviceError(
                f"CPU instruction set: got {wanted!r}, "
                f"wanted one of {', '.join(instruction_sets())} on this processor"
            )
        count = threads if threads is not None else env.threads() or available_threads()
        if not 1 <= count <= env.MAX_THREADS:
            raise ValueError(f"threads: got {count}, wanted 1 to {env.MAX_THREADS}")
        self.exact = env.cpu_exact() if exact is None else exact
        self.bf16 = env.cpu_bf16() if bf16 is None else bf16
        if self.exact and self.bf16:
            raise ValueError("exact and bf16 (ROCMFORGE_CPU_EXACT, _BF16): got both, wanted one")
        try:
            self._kernels = _cpu.Kernels(wanted or "", count)
        except RuntimeError as error:
            raise DeviceError(f"threads: got {count}, wanted fewer: {error}") from error
        if self.bf16 and not self._kernels.multiplies_pairs:
            raise DeviceError(
                "bf16 (ROCMFORGE_CPU_BF16): wanted a processor with AVX512-BF16 and the instruction"
                f" set avx512, got one that runs {', '.join(instruction_sets())}, and {self.isa}"
            )

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._kernels.isa)

    @property
    def threads(self) -> int:
        """Threads that an op may use."""
        return int(self._kernels.threads)

    def pack(
        self,
        raw: Bytes,
        fmt: Format,
        columns: int,
        on_piece: Callable[[], None] | None = None,
        factors: Floats | None = None,
    ) -> _cpu.PackedMatrix:
        """Interleave GGUF rows (N, row_bytes) in tiles of 16, in huge pages where there are any."""
        rows = raw.shape[0]
        each = [1.0] if factors is None else factors.tolist()
        own = rows // len(each)
        pairs = self.bf16 and fmt.name in PLAIN_FORMATS
        packed = self._kernels.empty(fmt.name, rows, columns, pairs)
        step = max(1, PIECE_BYTES // (TILE_ROWS * raw.shape[1])) * TILE_ROWS
        for begin, factor in zip(range(0, rows, own), each, strict=True):
            for first in range(begin, begin + own, step):
                piece = raw[first : min(first + step, begin + own)]
                self._kernels.pack(packed, piece, first, factor)
                if on_piece is not None:
                    on_piece()
        return packed

    def matmul(
        self,
        x: Floats,
        weights: Sequence[_cpu.PackedMatrix],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> None:
        """outs[i] (T, N_i) = or += scale · (x (T, K) · weights[i]ᵀ + biases[i])."""
        self._kernels.matmul(
            x, weights, outs, biases or [None] * len(weights), accumulate, scale, self.exact
        )

    def gate_up_swiglu(
        self,
        x: Floats,
        gate: _cpu.PackedMatrix,
        up: _cpu.PackedMatrix,
        activation: Activation,
        out: Floats,
    ) -> None:
        """Out (T, N) = swiglu(x · gateᵀ, x · upᵀ), a tile of both at a time."""
        self._kernels.gate_up_swiglu(x, gate, up, activation, out, self.exact)

    def route(
        self,
        scores: Floats,
        normalized: bool,
        sigmoid: bool,
        scale: float,
        bias: Floats | None,
        experts: Ints,
        shares: Floats,
    ) -> None:
        """Choose k of E experts by scores (T, E)."""
        self._kernels.route(scores, normalized, sigmoid, scale, bias, experts, shares)

    def expert_gate_up_swiglu(
        self,
        x: Floats,
        gate: _cpu.PackedMatrix,
        up: _cpu.PackedMatrix,
        biases: tuple[Floats | None, Floats | None],
        activation: Activation,
        experts: Ints,
        count: int,
        out: Floats,
    ) -> None:
        """Out (T, k · F) = swiglu(x · gateᵀ, x · upᵀ), tokens of one expert together."""
        self._kernels.expert_gate_up_swiglu(
            x, gate, up, *biases, activation, experts, count, out, self.exact
        )

    def expert_matmul(
        self,
        x: Floats,
        weight: _cpu.PackedMatrix,
        bias: Floats | None,
        experts: Ints,
        count: int,
        out: Floats,
    ) -> None:
        """Out (T, k · N) = x (T, k · K) · weightᵀ + bias, tokens of one expert together."""
        self._kernels.expert_matmul(x, weight, bias, experts, count, out, self.exact)

    def add_experts(self, parts: Floats, shares: Floats, x: Floats) -> None:
        """X (T, K) += Σ_i shares (T, k) · parts (T, k · K)."""
        self._kernels.add_experts(parts, shares, x)

    def matmul_precision(self, fmt: str, tokens: int) -> Precision:
        """int8 if quantized, unless exact was asked for; else exact, or bf16 if asked for."""
        if self.bf16 and fmt in PLAIN_FORMATS:
            return "bf16"
        return "exact" if self.exact or fmt in DENSE_FORMATS else "int8"

    def attention_precision(self, queries: int) -> Precision:
        """Sums and weights are float32 or more."""
        return "exact"

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats) -> None:
        """Out (rows, columns) = the weights of GGUF rows (rows, row_bytes)."""
        self._kernels.dequantize(raw, fmt.name, out)

    def rmsnorm(
        self, x: Floats, weight: Floats, eps: float, out: Floats, accumulate: bool = False
    ) -> None:
        """Out (rows, K) = or += x / √(mean(x²) + eps) · weight."""
        self._kernels.rmsnorm(x, weight, eps, out, accumulate)

    def layernorm(
        self, x: Floats, weight: Floats, bias: Floats | None, eps: float, out: Floats
    ) -> None:
        """Out (rows, K) = (x − mean) / √(variance + eps) · weight + bias."""
        self._kernels.layernorm(x, weight, bias, eps, out)

    def rope(self, x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
        """Rotate pairs of x (T, heads, D) in place."""
        self._kernels.rope(x, cos, sin, interleaved)

    def softmax(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = softmax of each row."""
        self._kernels.softmax(x, out)

    def swiglu(
        self, gate: Floats, up: Floats, out: Floats, activation: Activation = "silu"
    ) -> None:
        """Out = gate · sigmoid(gate) · up, or as another `Activation` has it."""
        self._kernels.swiglu(gate, up, activation, out)

    def gelu(self, x: Floats, out: Floats) -> None:
        """Out = gelu(x)."""
        self._kernels.gelu(x, out)

    def softcap(self, x: Floats, cap: float, out: Floats) -> None:
        """Out = cap · tanh(x / cap)."""
        self._kernels.softcap(x, cap, out)

    def kv_append(
        self, k: Floats, v: Floats, k_pages: NDArray[Any], v_pages: NDArray[Any], slots: Slots
    ) -> None:
        """Write k, v (T, G, D) into slots of one layer's pages."""
        self._kernels.kv_append(k, v, k_pages, v_pages, slots.pages, slots.offsets)

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        queries: Queries,
        scale: float,
        out: Floats,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Floats | None = None,
    ) -> None:
        """Causal attention of q (T, H, D) over one layer's pages."""
        where = queries.page_table, queries.lengths, queries.starts
        self._kernels.attention(
            q, k_pages, v_pages, *where, scale, window or 0, softcap or 0.0, sinks, out
        )

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """Run ops, and return what runs them again without Python between them."""
        return functools.partial(self._kernels.replay, self._kernels.record(calls))

    def read_rates(self, working_set: int) -> Generator[float, None, None]:
        """Yield bytes a second at which all threads read the same memory, sample by sample.

        Parameters
        ----------
        working_set
            Bytes, 1 or more; rounded up to 64, and to no more than 64 MiB a thread or 256 MiB,
            which are memory's already. Each thread reads a part of its own, in huge pages where
            there are any.

        Raises
        ------
        MeasurementError
            The sum of what was read is wrong.
        """
        most = min(max(LEAST_MOST_READ, READ_PER_THREAD * self.threads), MOST_MOST_READ)
        buffer = self._kernels.read_buffer(min(-(-working_set // 64) * 64, most))
        repeats = -(-LEAST_READ // buffer.nbytes)
        laps, rest = divmod(buffer.nbytes // 4, 128)  # the words are 0 to 127, again and again
        wanted = repeats * (laps * 128 * 127 // 2 + rest * (rest - 1) // 2)
        while True:
            begin = time.perf_counter()
            got = self._kernels.peak_reads(buffer, repeats)
            took = time.perf_counter() - begin
            if got != wanted:
                raise MeasurementError(f"read bandwidth: got sum {got}, wanted {wanted}")
            yield repeats * buffer.nbytes / took

    def operation_rates(self, precision: str) -> Generator[float, None, None]:
        """Yield operations a second of all threads, a multiply-add being two, sample by sample.

        Parameters
        ----------
        precision
            "f32": fused multiply-adds of float32; on portable C++ a product and a sum. "f16": the
            same, since matmul turns halves into float32 before it multiplies. "int8": the dot
            products of bytes of matmul's formats of four bits (VNNI, or sums of 16 bits).

        Raises
        ------
        MeasurementError
            The sum of the products is wrong.
        """
        while True:
            begin = time.perf_counter()
            count, total = self._kernels.peak_products(precision == "int8")
            took = time.perf_counter() - begin
            if 2 * total != 3 * count:
                raise MeasurementError(f"products: got sum {total}, wanted {3 * count / 2}")
            yield 2 * count / took

    def close(self) -> None:
        """Nothing to do: memory and threads go with the objects."""


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this build has and this processor runs, best first."""
    return tuple(_cpu.instruction_sets())
