"""Each fused kernel against the same work unfused: time, bytes moved, launches.

On the CPU and on GPUs: the product with packed weights, which unpacks them in registers, against
writing them out as float32 and multiplying; one flash pass of attention against softmax(q kᵀ) v by
three ops. On the CPU gate and up with SwiGLU, all that its executor fuses. On GPUs a whole decode
step, with each rule of `rocmforge.gpu.fusion` alone, with those that passes take by default
and with none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from rocmforge import ops
from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.dtypes import lower
from rocmforge.gpu.fusion import FUSIONS, gpu_rules
from rocmforge.ops import cases, reference
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.fusion import fuse

from . import attention, inference, matmul
from .checks import check_engine, checked
from .devices import DEVICES, backend
from .memory import counted
from .models import model_path
from .samples import ROUNDS, Timed, track

WAYS = ("fused", "unfused")
STEP = BatchShape(tokens=1, sequences=1, outputs=None, single=True, longest=1)
MODEL = inference.WHOLE[1]
F32 = np.dtype(np.float32).itemsize
ATTENTION = dict(zip(attention.WORK, cases.ATTENTION_MODELS["1.1B"], strict=True))


@functools.cache
def product(fmt: str, tokens: int, way: str, device: str) -> Callable[[], Any]:
    """Return a checked product with 4096 × 4096 weights: one op, or dequantize and then matmul.

    The second multiplies with a packed copy of the float32 weights made before, so that packing is
    in neither time.
    """
    case = cases.MatmulCase(tokens, matmul.N, matmul.N, fmt)
    if way == "fused":
        return matmul.cold_matmul(case, device)
    on = backend(device)
    x, matrix = case.inputs()
    written = np.empty((case.rows, case.columns), np.float32)
    floats = ops.pack(Matrix(matrix.to_floats().view(np.uint8), FORMATS["F32"]), on)

    def call() -> Any:
        ops.dequantize(matrix, on, written)
        return ops.matmul(x, floats)

    tolerance = case.tolerance(on.matmul_precision("F32", tokens))
    return checked(f"matmul {case}, {way}", call, reference.matmul(x, matrix), tolerance)


class DequantizeMatmul(Timed):
    """4096 × 4096 weights times one token and a prompt of 128."""

    params = (("Q4_0", "Q4_K", "Q6_K", "Q8_0"), (1, 128), WAYS, DEVICES)
    param_names = ("format", "tokens", "way", "device")

    def setup(self, format: str, tokens: int, way: str, device: str) -> None:  # noqa: A002
        self.call = product(format, tokens, way, device)

    def time_matmul(self, format: str, tokens: int, way: str, device: str) -> None:  # noqa: A002
        self.call()


class DequantizeMatmulBytes:
    """Bytes that either way reads and writes, float32 weights written and read once."""

    params = (("Q4_0", "Q4_K", "Q6_K", "Q8_0"), (1, 128), WAYS)
    param_names = ("format", "tokens", "way")

    def track_bytes_moved(self, format: str, tokens: int, way: str) -> int:  # noqa: A002
        fused = cases.MatmulCase(tokens, matmul.N, matmul.N, format).bytes
        return fused if way == "fused" else fused + 2 * F32 * matmul.N**2

    track_bytes_moved.unit = "bytes"


@functools.cache
def gated(fmt: str, tokens: int, way: str) -> Callable[[], Any]:
    """Return a checked SwiGLU of two products with 4096 × 4096 weights: one op, or two."""
    case = cases.MatmulCase(tokens, matmul.N, matmul.N, fmt)
    on = backend("cpu")
    x, gate = case.inputs()
    up = Matrix(np.ascontiguousarray(gate.data[::-1]), gate.format)
    wanted = reference.swiglu(reference.matmul(x, gate), reference.matmul(x, up))
    packed = [ops.pack(matrix, on).packed for matrix in (gate, up)]
    outs = [np.empty_like(wanted, np.float32) for _ in packed]

    def call() -> Any:
        if way == "fused":
            on.gate_up_swiglu(x, packed[0], packed[1], outs[0])
        else:
            on.matmul(x, packed, outs)
            on.swiglu(outs[0], outs[1], outs[0])
        return outs[0]

    tolerance = 2 * case.tolerance(on.matmul_precision(fmt, tokens))
    return checked(f"gate_up_swiglu {case}, {way}", call, wanted, tolerance)


class GateUpSwiglu(Timed):
    """Gate and up of 4096 × 4096 weights with SwiGLU, times one token and a prompt of 128."""

    params = (("Q4_0", "Q4_K"), (1, 128), WAYS)
    param_names = ("format", "tokens", "way")

    def setup(self, format: str, tokens: int, way: str) -> None:  # noqa: A002
        self.call = gated(format, tokens, way)

    def time_swiglu(self, format: str, tokens: int, way: str) -> None:  # noqa: A002
        self.call()


@functools.cache
def attended(work: str, way: str, device: str) -> Callable[[], Any]:
    """Return checked attention: one op, or for each KV head two products and a softmax between.

    Keys and values of the second are packed matrices, made before; the mask is added on the host.
    """
    case = ATTENTION[work]
    if way == "fused":
        return attention.cold_attention(case, device)
    on = backend(device)
    given = case.inputs()
    wanted = reference.attention(*given.arguments)
    length, queries, group = case.lengths[0], case.queries[0], case.heads // case.kv_heads
    pages = given.page_table[0, : -(-length // case.page_size)]
    k = given.k_pages[pages].transpose(1, 0, 3, 2).reshape(case.kv_heads, -1, case.head_dim)
    v = given.v_pages[pages].transpose(1, 0, 2, 3).reshape(case.kv_heads, -1, case.head_dim)

    def packed(floats: Any) -> ops.Weights:
        return ops.pack(Matrix.from_floats(np.ascontiguousarray(floats, np.float32), "F32"), on)

    keys = [packed(k[g, :length]) for g in range(case.kv_heads)]
    values = [packed(v[g, :length].T) for g in range(case.kv_heads)]
    heads = given.q.transpose(1, 0, 2) * np.float32(given.scale)  # (H, T, D)
    grouped = np.ascontiguousarray(heads).reshape(case.kv_heads, group * queries, case.head_dim)
    seen = np.arange(length) <= length - queries + np.arange(queries)[:, None]
    mask = np.tile(np.where(seen, np.float32(0), np.float32(-np.inf)), (group, 1))

    def call() -> Any:
        mixed = []
        for q, key, value in zip(grouped, keys, values, strict=True):
            scores = ops.matmul(q, key)
            if queries > 1:
                scores += mask
            mixed.append(ops.matmul(ops.softmax(scores, on), value))
        out = np.stack(mixed).reshape(case.heads, queries, case.head_dim)
        return out.transpose(1, 0, 2)

    tolerance = case.tolerance(on.matmul_precision("F32", group * queries))
    return checked(f"attention {case}, {way}", call, wanted, tolerance)


class FlashAttention(Timed):
    """32 heads over 4 KV heads of 64: a prompt, and one token over a context."""

    params = (tuple(ATTENTION), WAYS, DEVICES)
    param_names = ("work", "way", "device")

    def setup(self, work: str, way: str, device: str) -> None:
        self.call = attended(work, way, device)

    def time_attention(self, work: str, way: str, device: str) -> None:
        self.call()


class FlashAttentionBytes:
    """Bytes that the ops of either way read and write.

    Unfused they are queries and output, float32 keys and values, and scores: written, read and
    written by softmax, read again; in a prompt also read and written with the mask, which is read.
    """

    params = (tuple(ATTENTION), WAYS)
    param_names = ("work", "way")

    def track_bytes_moved(self, work: str, way: str) -> int:
        case = ATTENTION[work]
        if way == "fused":
            return case.bytes
        length, queries = case.lengths[0], case.queries[0]
        passes = 4 if queries == 1 else 7
        return F32 * (
            2 * queries * case.heads * case.head_dim
            + 2 * length * case.kv_heads * case.head_dim
            + passes * case.heads * queries * length
        )

    track_bytes_moved.unit = "bytes"


@functools.cache
def stepper(model: str, rules: str, device: str) -> Engine:
    """Return an engine on a GPU whose executor takes some of the rules, its logits checked."""
    ctx = inference.DECODE_CONTEXT + inference.GROWTH
    own = inference.engine(model, device, ctx, 1)
    executor = own.backend.executor(graph_of(own), own.cache, own.ctx, chosen(rules))
    made = Engine(ExitStack(), own.config, executor, own.backend, own.ctx, own.weight_bytes)
    check_engine(made, model_path(model))
    return made


def chosen(rules: str) -> tuple[Any, ...]:
    """Turn a parameter into rules."""
    return {"default": FUSIONS, "none": ()}.get(rules, (rules,))


def graph_of(engine: Engine) -> Any:
    """The graph that an engine's executor runs."""
    return engine._executor._graph


class DecodeStep:
    """One token of one sequence through the 1.1B model, neighbouring ops fused by some rules."""

    params = ((MODEL,), ("none", *FUSIONS, "default"), ("gpu",))
    param_names = ("model", "rules", "device")
    timeout = 900

    def setup(self, model: str, rules: str, device: str) -> None:
        self.engine = stepper(model, rules, device)

    def track_decode_ms_per_token(self, model: str, rules: str, device: str) -> dict[str, Any]:
        return track([1e3 * s for s in inference.decode_seconds(self.engine, 1)])

    def track_launches(self, model: str, rules: str, device: str) -> int:
        """Kernels of a step, which a replayed graph launches all at once."""
        sequence = self.engine.add_sequence(2)
        self.engine.prefill(sequence, [3])  # a single token: the step's shape, not yet captured
        with counted(self.engine.backend.kernels.runtime, "launch") as calls:
            self.engine.decode([sequence], [3])
        self.engine.remove_sequence(sequence)
        if not calls["launch"]:
            raise MeasurementError(f"{rules}: got no launch in a step, wanted those of its kernels")
        return calls["launch"]

    def track_activation_bytes(self, model: str, rules: str, device: str) -> int:
        """Activations that the step's kernels read and write, weights and cache left out."""
        engine = self.engine
        graph = graph_of(engine)
        lowering = engine._executor._lowering
        reading, writing = lowering.reading(STEP), lowering.writing(STEP)
        steps = lower(fuse(graph.ops, gpu_rules(STEP, reading, chosen(rules))), reading, writing)
        return sum(lowering.nbytes(p, STEP) for s in steps for p in (*s.reads, *s.writes))

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS
    track_launches.unit = "launches"
    track_activation_bytes.unit = "bytes"
