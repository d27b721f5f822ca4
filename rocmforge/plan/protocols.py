"""What an engine asks of a device, as protocols: a backend, its KV cache and its executor.

A backend packs a model's matrices, makes the cache, and makes the executor that runs the model's
graph (`rocmforge.plan.graph`). It also has every op on its own, which `rocmforge.ops` calls. The
CPU implements the three in `rocmforge/cpu`, GPUs in `rocmforge/gpu`.

Arrays are float32 unless said otherwise. Ops write their `out` arguments and return nothing. The
caller has checked all shapes. Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes, Floats, Ints
from rocmforge.gguf.formats import Format
from rocmforge.kv.batch import Batch, Queries, Slots
from rocmforge.kv.page_table import PageTable
from rocmforge.plan.cost import Cost
from rocmforge.plan.graph import Graph
from rocmforge.plan.observation import Observer

MAX_HEAD_DIM = 512
"""Largest D of attention, the same in rocmforge/cpu/ops.h; a model with more is refused when its
configuration is read."""

MAX_EXPERTS = 1024
"""Most experts of a layer; the same in rocmforge/cpu/ops.h."""

EXPERT_ROWS = 16
"""The rows of each expert's matrices are a multiple of it: no tile of a packed matrix has two."""

Precision = Literal["exact", "half", "bf16", "int8"]
"""How an op rounds operands: not, to float16, to bfloat16, or activations to int8."""

Progress = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


class Cache(Protocol):
    """Keys and values of all sequences, wherever they lie."""

    table: PageTable

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it has taken so far, on a CPU of the whole pool."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""

    def grow(self, pages: int) -> None:
        """Have memory for the pages below a number; OutOfMemoryError changes nothing."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""


class StageCache(Cache, Protocol):
    """The cache of one device, for a whole model or for a stage; a stage's table is not used."""

    def grow_kind(self, windowed: bool, pages: int) -> None:
        """As `grow`, in the layers with a window, or in those without."""

    def copy_page(self, windowed: bool, source: int, target: int) -> None:
        """Copy a page of the layers with a window, or of those without, to another."""


class TimedStep(Protocol):
    """The same step of all layers of a pass, for timing."""

    @property
    def label(self) -> str:
        """Name of the step, as "attention" or "matmul_qkv"."""

    @property
    def calls(self) -> int:
        """How many calls of it a pass makes."""

    @property
    def cost(self) -> Cost:
        """Bytes and flops of all these calls."""

    def seconds(self) -> float:
        """Run the calls of all layers, often enough to be timed; return seconds of one call.

        They run one after another as in the pass, so that weights, keys and values are those of
        all layers in turn. On a GPU it is device time.
        """


class TimedPass(Protocol):
    """A pass that can be run again and again, whole or step by step, for timing."""

    @property
    def steps(self) -> Sequence[TimedStep]:
        """Each step of the pass is in one of them."""

    def seconds(self) -> float:
        """Run the whole pass again; return its seconds, on a GPU device time."""

    def copy_seconds(self) -> tuple[float, float] | None:
        """Return the device time of the pass's copies, to the device and from it.

        None where nothing is copied.
        """

    def close(self) -> None:
        """Give back what timing needed; to be called before the executor is closed."""


@dataclass(frozen=True, slots=True)
class ExecutorMemory:
    """Bytes of memory that an executor holds besides weights, keys and values.

    Parameters
    ----------
    activations
        Scratch memory of passes; on a GPU the arena.
    constants
        Norm weights, embedding rows and tables of angles, copied to a GPU. A CPU has the tables
        alone, as far as its sequences came; it reads the others from the file.
    inputs
        What describes a batch, on a GPU; its page table included.
    page_table
        Of `inputs`: the device's copy of the page table.
    pinned
        Page-locked memory of the host.
    """

    activations: int
    constants: int
    inputs: int
    page_table: int
    pinned: int


class Executor(Protocol):
    """A model that is ready to run.

    Attributes
    ----------
    observer : Observer or None
        Told of each pass of `forward`, for profiles. Without one nothing is noted.
    prefill_chunk : int
        Most tokens of a prompt to run in one pass, which bounds the memory of activations.
    runs_ahead : bool
        Whether `next_tokens` makes use of `following`.
    """

    observer: Observer | None
    runs_ahead: bool

    @property
    def prefill_chunk(self) -> int:
        """See above."""

    @property
    def cache(self) -> Cache:
        """Keys and values; a pass lengthens its sequences."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Do ahead what would delay the first passes, and tell after each step how far it is."""

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences through the model.

        Parameters
        ----------
        tokens
            (T,) ids, those of the first sequence first.
        sequences, counts
            S ids of the cache's page table, and how many of the tokens belong to each.
        rows
            (R,) indices into the T tokens, rising: those whose logits are wanted.

        Returns
        -------
        (R, V) float32 logits, the caller's own.

        Raises
        ------
        OutOfPagesError
            The KV cache cannot hold the new tokens; nothing is changed.
        """

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
    ) -> list[int]:
        """Run new tokens as `forward` does, and choose the token that follows each sequence.

        No logits come to the host.

        With `following`, a device may run the next step while the host looks at these tokens. It
        is thrown away unless the next call wants just that: the same sequences, with the tokens
        that this call returns, and these draws.

        Parameters
        ----------
        tokens, sequences, counts
            As of `forward`.
        draws
            (S,) records `rocmforge.sampling.DRAW`: how to draw each token.
        following
            How the next call will draw, where all sequences are expected to go on.

        Raises
        ------
        OutOfPagesError
            The KV cache cannot hold the new tokens; nothing is changed.
        ValueError
            The logits of a sequence hold NaN or +inf, or forbid every token.
        """

    def memory(self) -> ExecutorMemory:
        """Return what it holds now: memory grows with the first passes."""

    def timed_pass(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> TimedPass:
        """Run new tokens as `forward` does, and return their pass for timing.

        It writes keys and values to the pages of these sequences whenever it is timed. Nothing
        else may run meanwhile.
        """

    def close(self) -> None:
        """Let go of the device's memory; nothing may be run any more."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """What a stage of a model on several devices runs on.

    Parameters
    ----------
    batch
        Where the new tokens stand: their places are taken once, for all stages.
    received
        (T, K) activations from the stage before; None: this one is the first.
    ahead
        Where one more token of each sequence would go; None: a sequence has no page for it yet, or
        nobody will ask.
    """

    batch: Batch
    received: Floats | None
    ahead: Batch | None = None


class StageExecutor(Executor, Protocol):
    """An executor that also runs a stage: some layers of a model that lies on several devices.

    Its methods take what the stage runs on; None: it is a whole model, and takes places itself.
    """

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> Floats:
        """Run new tokens as an `Executor` does.

        A stage that is not the last takes all T tokens as `rows` and returns (T, K) activations.
        """

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
        stage: StageInput | None = None,
    ) -> list[int]:
        """Choose the next tokens as an `Executor` does: the last stage, without `following`."""

    def timed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> TimedPass:
        """Return a pass for timing as an `Executor` does."""


class MatrixShape(NamedTuple):
    """A weight matrix (N, K) that is not packed yet; `format` is its name in `FORMATS`."""

    format: str
    rows: int
    columns: int


class PackedMatrix(Protocol):
    """A weight matrix (N, K) in the layout that its backend's matmul reads."""

    @property
    def rows(self) -> int:
        """N."""

    @property
    def columns(self) -> int:
        """K."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, in bytes."""


W = TypeVar("W", bound=PackedMatrix)


class Backend(Protocol[W]):
    """One open device.

    Attributes
    ----------
    name : str
        Of the device, as users give it.
    """

    name: str

    def free_bytes(self) -> int | None:
        """Bytes of the device's own memory that are free; None where it uses the host's."""

    def expect(self, matrices: Sequence[MatrixShape]) -> None:
        """Take memory for the matrices that `pack` will be given.

        A GPU's driver rounds each allocation up, so that one for all takes less than one for each.

        Raises
        ------
        OutOfMemoryError
            They do not fit into device memory.
        """

    def pack(
        self,
        raw: Bytes,
        fmt: Format,
        columns: int,
        on_piece: Callable[[], None] | None = None,
        factors: Floats | None = None,
    ) -> W:
        """Bring GGUF rows (N, row_bytes) of format `fmt` into the layout of `matmul`.

        Reads the rows in pieces and calls `on_piece` after each, so that the caller can let go of
        the memory that was read.

        `factors` (E,) multiply the weights, each those of N / E rows, a multiple of `EXPERT_ROWS`
        where E is above 1. Only NVFP4 has any. The products with the scales of its blocks are
        rounded to float16: by 2^-12 of each, or by 2^-25 where it is below 2^-14.
        """

    def cache(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_pages: int,
        page_size: int,
        dtype: str,
        windows: Sequence[int | None] = (),
    ) -> StageCache:
        """Return an empty KV cache.

        Parameters
        ----------
        n_layers, n_kv_heads, head_dim
            L, G and D of the model.
        n_pages
            Pages in the pool.
        page_size
            P, tokens in a page: 16, 32 or 64.
        dtype
            Of a stored number, one of `rocmforge.kv.KV_DTYPES`.
        windows
            (L,) tokens that a query of each layer sees at most, None: all. Layers with a window
            have memory behind those pages alone that it reaches: `rocmforge.kv.windows`. Nothing:
            no layer has one.

        Raises
        ------
        ValueError
            An argument is out of its range, or the host does not lend so much memory.
        OutOfMemoryError
            The pool does not fit into a GPU's memory.
        """

    def executor(self, graph: Graph, cache: Any, ctx: int) -> StageExecutor:
        """Return what runs a graph; nothing is packed on this backend afterwards.

        Parameters
        ----------
        graph
            The forward pass or a stage of it, its matrices packed by this backend.
        cache
            From `cache` of this backend.
        ctx
            Most tokens of one sequence.
        """

    def compile_ahead(self, graph: Graph, cache: Any, ctx: int) -> None:
        """Begin to compile, while matrices are packed, what an executor will need.

        Parameters
        ----------
        graph
            As of `executor`, with a `MatrixShape` for each matrix; layers that are alike may be
            one.
        cache, ctx
            As of `executor`.
        """

    def seconds(self) -> float:
        """Clock of this device's work: differences of two readings time the ops between them."""

    def timed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return what to call between two readings of `seconds`: they differ by one call's time.

        On the CPU each time the next of the calls runs. On a GPU each time all of them are
        replayed, and `seconds` advances by the mean: by device time, without the host's launches.

        Parameters
        ----------
        calls
            Calls of this backend's ops that do the same work on memory of their own: together more
            than a cache holds, or the time is of hot caches.
        """

    def matmul(
        self,
        x: Floats,
        weights: Sequence[W],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
    ) -> None:
        """outs[i] (T, N_i) = or += x (T, K) · weights[i]ᵀ + biases[i] (N_i,)."""

    def matmul_precision(self, fmt: str, tokens: int) -> Precision:
        """How `matmul` rounds for a format and T."""

    def attention_precision(self, queries: int) -> Precision:
        """How `attention` rounds where a sequence has at most so many queries."""

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats) -> None:
        """Out (rows, columns) = the weights of GGUF rows (rows, row_bytes)."""

    def rmsnorm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        """Out (rows, K) = x / √(mean(x²) + eps) · weight; may be in place."""

    def rope(self, x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
        """Rotate pairs of x (T, heads, D) in place by angles given as cos and sin (T, R/2)."""

    def softmax(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = softmax of each row; may be in place."""

    def swiglu(self, gate: Floats, up: Floats, out: Floats) -> None:
        """Out = gate · sigmoid(gate) · up, elementwise (T, N); may be in place."""

    def kv_append(
        self, k: Floats, v: Floats, k_pages: NDArray[Any], v_pages: NDArray[Any], slots: Slots
    ) -> None:
        """Write k, v (T, G, D) into slots of one layer's pages."""

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        queries: Queries,
        scale: float,
        out: Floats,
    ) -> None:
        """Causal attention of q (T, H, D) over the pages of S sequences; see ops.attention."""

    def close(self) -> None:
        """Let go of the device and of everything that was packed for it."""
