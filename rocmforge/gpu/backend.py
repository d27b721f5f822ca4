"""The ops of a GPU on arrays of the host: each call uploads, runs the kernels, and downloads.

For tests, benchmarks and users of `rocmforge.ops`, which has checked the arguments. An engine asks
only `pack`, `cache` and `executor` of this: its tensors stay on the device. Ops that an engine runs
take the same way here, from their record to launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes, Floats
from rocmforge.errors import MeasurementError
from rocmforge.gguf.formats import Format
from rocmforge.gpu import arrays
from rocmforge.gpu.ahead import builds_ahead
from rocmforge.gpu.batch_shape import BatchAddresses, BatchShape
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.dtypes import F16, F32, Q8, Convert, lifetimes, lower
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.fusion import Fusion
from rocmforge.gpu.head_dims import wanted_head_dim
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import Lowering, activation_dtype
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.op_memory import NO_PAGES, OpMemory, OpPages
from rocmforge.gpu.ops.dequantize import dequantize
from rocmforge.gpu.ops.pack import is_needed, pack
from rocmforge.gpu.ops.peaks import ELEMENT, PeakLaunch, blocks, peak_products, peak_reads
from rocmforge.gpu.ops.rope import rope
from rocmforge.gpu.ops.softmax import softmax
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.peers import NO_PEERS, Peers
from rocmforge.gpu.release import release_all
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.upload import Uploader
from rocmforge.kv.batch import Queries, Slots
from rocmforge.plan.arena import assign
from rocmforge.plan.graph import Graph, Op
from rocmforge.plan.operands import Tensor
from rocmforge.plan.protocols import MatrixShape, Precision
from rocmforge.plan.records import Attention, KvAppend, Matmul, Rmsnorm, Swiglu

MOST_READ = 1 << 30  # bytes that a ceiling is read from; no cache holds them


class GpuBackend:
    """The ops of one GPU.

    Parameters
    ----------
    kernels
        The device and its kernels.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._seconds = 0.0
        self._timed: _Timed | None = None  # what `timed` is collecting
        self._replays: list[Callable[[], None]] = []  # what ends those that `timed` made
        self.name = kernels.runtime.platform
        self._runtime = kernels.runtime
        self._uploader: Uploader | None = None
        self._matrices: list[int] = []  # addresses of what was allocated for them
        self._streamed: list[NDArray[np.uint8]] = []  # of the host's memory
        self._room = (0, 0)  # where the next expected matrix goes, and what is left from there
        event = self._runtime.create_event
        self._events: tuple[Any, ...] = event(), event()  # start and end of an op; empty: closed

    def free_bytes(self) -> int:
        """Bytes of device memory that are free, of all processes."""
        return self._runtime.memory_info()[0]

    def expect(self, matrices: Sequence[MatrixShape]) -> None:
        """Allocate at once what the next calls of `pack` take; see `Backend.expect`."""
        nbytes = sum(DeviceMatrix.at(0, *matrix).nbytes for matrix in matrices)
        self._room = self._allocate(nbytes), nbytes

    def pack(
        self,
        raw: Bytes,
        fmt: Format,
        columns: int,
        on_piece: Callable[[], None] | None = None,
        factors: Floats | None = None,
        streamed: bool = False,
    ) -> DeviceMatrix:
        """Upload GGUF rows (N, row_bytes) and bring them into the layout of `matmul` there.

        Of a matrix that is `streamed` the result lies in page-locked memory of the host, which
        kernels read over the bus; see `Backend.pack` for the others.
        """
        if self._uploader is None:
            self._uploader = Uploader(self._runtime)
        uploader = self._uploader
        layout = (fmt.name, raw.shape[0], columns)
        nbytes = DeviceMatrix.at(0, *layout).nbytes
        host = self._host_memory(nbytes) if streamed else None
        place = self._place(nbytes) if host is None else host.ctypes.data
        matrix = DeviceMatrix.at(place, *layout)
        if is_needed(matrix):
            staged = uploader.staging(raw.nbytes)
            uploader.copy(staged, raw, on_piece)
            each = [1.0] if factors is None else factors.tolist()
            rows = matrix.rows // len(each)
            for i, factor in enumerate(each):
                own = {"first": i * rows, "count": rows, "factor": factor}
                at = staged + i * rows * raw.shape[1]
                launch = pack(self.kernels, raw=at, matrix=matrix, **own)
                launch.enqueue(self._runtime, uploader.stream)
        elif host is None:
            uploader.copy(matrix.codes, raw, on_piece)
        else:
            uploader.copy_on_host(host, raw, on_piece)
        return matrix

    def _place(self, nbytes: int) -> int:
        """Address for a matrix: in the room for expected ones, or of memory of its own."""
        address, left = self._room
        if nbytes > left:
            return self._allocate(nbytes)
        self._room = address + nbytes, left - nbytes
        return address

    def _host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked memory for a matrix, which begins a page."""
        memory = self._runtime.allocate_pinned(nbytes)
        self._streamed.append(memory)
        return memory

    def _allocate(self, nbytes: int) -> int:
        address = self._runtime.allocate(nbytes)
        self._matrices.append(address)
        return address

    def finish_packing(self) -> None:
        """Wait for uploads under way and give back the memory that they needed."""
        uploader, self._uploader = self._uploader, None
        if uploader is not None:
            uploader.close()

    def close(self) -> None:
        """Let go of the device and of all matrices that were packed, whatever fails.

        Idempotent: what a first call could not release is not tried again.
        """
        events, self._events = self._events, ()
        if not events:
            return
        matrices, self._matrices = self._matrices, []
        streamed, self._streamed = self._streamed, []
        replays, self._replays = self._replays, []
        release_all(
            self.finish_packing,
            *replays,
            *(partial(self._runtime.free, address) for address in matrices),
            *(partial(self._runtime.free_pinned, memory) for memory in streamed),
            *(partial(self._runtime.destroy_event, event) for event in events),
            self.kernels.close,
            self._runtime.close,
        )

    def cache(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_pages: int,
        page_size: int,
        dtype: str,
        windows: Sequence[int | None] = (),
    ) -> DeviceKVCache:
        """Return an empty KV cache in device memory; see `Backend.cache`."""
        shape = (n_layers, n_kv_heads, head_dim, n_pages, page_size)
        return DeviceKVCache(self._runtime, *shape, dtype, windows)

    def executor(
        self,
        graph: Graph,
        cache: DeviceKVCache,
        ctx: int,
        fused: Collection[Fusion] | None = None,
        peers: Peers = NO_PEERS,
    ) -> GpuExecutor:
        """Return what runs a graph; see `Backend.executor`, and `GpuExecutor` for the others."""
        self.finish_packing()
        return GpuExecutor(graph, self.kernels, cache, ctx, fused, peers)

    def compile_ahead(self, graph: Graph, cache: DeviceKVCache, ctx: int) -> None:
        """Begin to compile what an executor will need; see `Backend.compile_ahead`."""
        self.kernels.begin(builds_ahead(graph, self.kernels, cache, ctx))

    def seconds(self) -> float:
        """Device time of all ops so far, without the copies."""
        return self._seconds

    def timed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
        """Return what replays the launches of all calls as one graph; see `Backend.timed`.

        Each call runs once, and what it brought to the device stays there until `close`. Launches
        that only convert what it was given are left out: in a pass the op before writes that dtype.
        """
        collected = self._timed = _Timed([], [])
        try:
            for call in calls:
                call()
        finally:
            self._timed = None
            self._replays += [partial(self._runtime.free, address) for address in collected.held]
        if not collected.launches:
            raise ValueError("calls: got no launch of a kernel, wanted ops of this device")
        replay = Replay(self._runtime, collected.launches, len(calls))
        self._replays.insert(0, replay.close)

        def run() -> None:
            self._seconds += replay.seconds()

        return run

    def matmul(
        self,
        x: Floats,
        weights: Sequence[DeviceMatrix],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
    ) -> None:
        """outs[i] (T, N_i) = or += x (T, K) · weights[i]ᵀ + biases[i]."""
        self.finish_packing()
        source = Tensor("x", x.shape[1])
        targets = [Tensor(f"out {i}", out.shape[1]) for i, out in enumerate(outs)]
        given = dict(zip(targets, outs, strict=True))
        each = tuple(biases or [None] * len(weights))
        op = Matmul(source, tuple(weights), tuple(targets), each, accumulate)
        self._run(op, {source: x, **(given if accumulate else {})}, given)

    def matmul_precision(self, fmt: str, tokens: int) -> Precision:
        """Of the kernel that the number of tokens and the architecture lead to."""
        architecture = self._runtime.properties.architecture
        names: dict[str, Precision] = {F32: "exact", F16: "half", Q8: "int8"}
        return names[activation_dtype(architecture, fmt, tokens)]

    def attention_precision(self, queries: int) -> Precision:
        """Of `attention_prompt`, unless each sequence has one query."""
        return "half" if queries > 1 else "exact"

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats) -> None:
        """Out (rows, columns) = the weights of GGUF rows (rows, row_bytes)."""
        with self._memory() as memory:
            target = memory.empty(out.nbytes)
            launch = dequantize(
                self.kernels,
                raw=memory.upload(raw),
                format=fmt.name,
                out=arrays.F32(target),
                rows=out.shape[0],
                columns=out.shape[1],
            )
            self._enqueue([launch])
            self._runtime.copy_to_host(out, target)

    def softmax(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = softmax of each row."""
        with self._memory() as memory:
            target = memory.empty(out.nbytes)
            rows, columns = x.shape
            launch = softmax(
                self.kernels, x=memory.upload(x), out=target, rows=rows, columns=columns
            )
            self._enqueue([launch])
            self._runtime.copy_to_host(out, target)

    def rmsnorm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        """Out (rows, K) = x / √(mean(x²) + eps) · weight."""
        source, target = Tensor("x", x.shape[1]), Tensor("out", x.shape[1])
        self._run(Rmsnorm(source, weight, eps, target), {source: x}, {target: out})

    def swiglu(self, gate: Floats, up: Floats, out: Floats) -> None:
        """Out = gate · sigmoid(gate) · up."""
        first, second, target = (Tensor(name, gate.shape[1]) for name in ("gate", "up", "out"))
        self._run(Swiglu(first, second, target), {first: gate, second: up}, {target: out})

    def rope(self, x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
        """Rotate pairs of x (T, heads, D) in place."""
        tokens, heads, head_dim = x.shape
        with self._memory() as memory:
            at = memory.upload(x)
            launch = rope(
                self.kernels,
                x=at,
                cos=memory.upload(cos),
                sin=memory.upload(sin),
                positions=memory.upload(np.arange(tokens, dtype=np.int32)),
                tokens=tokens,
                heads=heads,
                head_dim=head_dim,
                rotated=2 * cos.shape[1],
                interleaved=interleaved,
            )
            self._enqueue([launch])
            self._runtime.copy_to_host(x, at)

    def kv_append(
        self, k: Floats, v: Floats, k_pages: NDArray[Any], v_pages: NDArray[Any], slots: Slots
    ) -> None:
        """Write k, v (T, G, D) into slots of one layer's pages."""
        tokens, kv_heads, head_dim = k.shape
        keys, values = (Tensor(name, kv_heads * head_dim) for name in ("k", "v"))
        with self._memory() as memory:
            cache = OpPages(memory, k_pages, v_pages)
            self._run(
                KvAppend(keys, values, 0, head_dim),
                {keys: k.reshape(tokens, -1), values: v.reshape(tokens, -1)},
                {},
                vars(slots),
                cache,
            )
            cache.download(k_pages, v_pages)

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        queries: Queries,
        scale: float,
        out: Floats,
    ) -> None:
        """Causal attention of q (T, H, D) over one layer's pages; ValueError if D does not fit."""
        tokens, heads, head_dim = q.shape
        if wanted := wanted_head_dim(head_dim):
            raise ValueError(f"q: got head dim {head_dim}, {wanted}")
        queried, mixed = (Tensor(name, heads * head_dim) for name in ("q", "out"))
        with self._memory() as memory:
            self._run(
                Attention(queried, 0, mixed, scale, k_pages.shape[1], head_dim),
                {queried: q.reshape(tokens, -1)},
                {mixed: out.reshape(tokens, -1)},
                vars(queries),
                OpPages(memory, k_pages, v_pages),
            )

    def read_rates(self, working_set: int) -> Generator[float, None, None]:
        """Yield bytes a second at which the device reads the same memory, sample by sample.

        Parameters
        ----------
        working_set
            Bytes, 1 or more; rounded up to 16, and to no more than 1 GiB and half of what is free.
            Reads pass by the caches of the compute units, as those of weights do.

        Raises
        ------
        MeasurementError
            The sum of what was read is wrong.
        """
        most = min(MOST_READ, self._runtime.memory_info()[0] // 2)
        nbytes = max(1, min(-(-working_set // ELEMENT), most // ELEMENT)) * ELEMENT
        with self._memory() as memory:
            data, out = memory.empty(nbytes), memory.empty(4 * blocks(self.kernels))
            self._runtime.fill(data, 1, nbytes)
            yield from self._rates(
                peak_reads(self.kernels, data=data, nbytes=nbytes, word=0x01010101, out=out), out
            )

    def operation_rates(self, precision: str) -> Generator[float, None, None]:
        """Yield operations a second of the device, a multiply-add being two, sample by sample.

        Parameters
        ----------
        precision
            "f32": multiply-adds of float32. "int8": dot products of four bytes, of which the
            matmuls of quantized weights consist; no kernel uses matrix units of int8. "f16": what
            prompts are multiplied by, which is the matrix unit (on NVIDIA by mma.sync) or dot
            products of two halves where there is none.

        Raises
        ------
        MeasurementError
            The sum of the products is wrong.
        """
        with self._memory() as memory:
            out = memory.empty(4 * blocks(self.kernels))
            yield from self._rates(peak_products(self.kernels, precision=precision, out=out), out)

    def _rates(self, peak: PeakLaunch, out: int) -> Generator[float, None, None]:
        """Replay a launch again and again, check its sum, and yield what it does in a second."""
        sums = np.empty(blocks(self.kernels), np.uint32)
        replay = Replay(self._runtime, [peak.launch], 1)
        try:
            while True:
                took = replay.seconds()
                self._runtime.copy_to_host(sums, out)
                if peak.total(sums) != peak.wanted:
                    raise MeasurementError(
                        f"{peak.launch.name}: got sum {peak.total(sums)}, wanted {peak.wanted}"
                    )
                yield peak.amount / took
        finally:
            replay.close()

    def _run(
        self,
        op: Op,
        reads: Mapping[Tensor, Floats],
        writes: Mapping[Tensor, Floats],
        described: Mapping[str, NDArray[Any]] | None = None,
        cache: OpPages | None = None,
    ) -> None:
        """Run one record: tensors up, its launches, tensors down."""
        described = described or {}
        rows = next(iter(reads.values())).shape[0]
        with self._memory() as memory:
            addresses = {name: memory.upload(array) for name, array in described.items()}
            if "page_table" in described:
                addresses["max_pages"] = described["page_table"].shape[1]
            counts = np.diff(described["starts"]) if "starts" in described else np.ones(rows, int)
            shape = BatchShape(
                rows, len(counts), None, bool((counts == 1).all()), int(counts.max(initial=1))
            )
            ctx = int(described["lengths"].max()) if "lengths" in described else 1
            pages = cache or OpPages(memory, NO_PAGES, NO_PAGES)
            lowering = Lowering(self.kernels, pages, ctx, memory.upload, lambda _: (0, 0))
            steps = lower([op], lowering.reading(shape), lowering.writing(shape))
            held = lifetimes(
                steps,
                lambda place: lowering.nbytes(place, shape),
                [(tensor, F32) for tensor in reads],
            )
            offsets, total = assign(held)
            scratch = max(lowering.scratch_bytes(steps, shape).values(), default=0)
            base = memory.empty(total + scratch)
            for tensor, array in reads.items():
                self._runtime.copy_to_device(base + offsets[tensor, F32], array)
            batch = BatchAddresses(**addresses)
            run = PassLowering(
                PassMemory(
                    lowering, shape, batch, lambda at: base + offsets[at], lambda _: base + total
                )
            )
            given = next(i for i, step in enumerate(steps) if not isinstance(step.op, Convert))
            self._enqueue(run.launches(steps[:given]), timed=False)
            self._enqueue(run.launches(steps[given:]))
            for tensor, array in writes.items():
                self._runtime.copy_to_host(array, base + offsets[tensor, F32])

    def _memory(self) -> OpMemory:
        """Memory for one op; what `timed` collects keeps it."""
        return OpMemory(self._runtime, None if self._timed is None else self._timed.held)

    def _enqueue(self, launches: Sequence[Launch], timed: bool = True) -> None:
        """Run launches between two events and wait for them."""
        if timed and self._timed is not None:
            self._timed.launches.extend(launches)
        runtime, start, end = self._runtime, *self._events
        runtime.record_event(start)
        for launch in launches:
            launch.enqueue(runtime)
        runtime.record_event(end)
        runtime.synchronize_event(end)
        self._seconds += runtime.elapsed_seconds(start, end)


@dataclass(frozen=True)
class _Timed:
    """The launches of calls, and the memory that they use."""

    launches: list[Launch]
    held: list[int]
