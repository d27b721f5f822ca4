"""Each fused kernel against the same work unfused: time, bytes moved, launches.

On the CPU and on GPUs: the product with packed weights, which unpacks them in registers, against
writing them out as float32 and multiplying; one flash pass of attention against softmax(q kᵀ) v by
three ops; the kernel of each fusion rule against those of the ops that it replaces, as executors
run them. On GPUs a whole decode step too, with each rule alone, with those that passes take by
default and with none.
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
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.model.mixes import find_mix, mix_names, tensor_format
from rocmforge.model.presets import find_preset
from rocmforge.ops import cases, reference
from rocmforge.ops.matrix import Matrix
from rocmforge.timing import collect

from . import attention, inference, matmul
from .checks import check_engine
from .cold import cold, own
from .devices import DEVICES, backend
from .memory import counted
from .models import model_path
from .rule_steps import WAYS, rule_steps
from .samples import ROUNDS, Timed, track

TOKENS = (1, 128)
CACHED = (*inference.KV_DTYPES, "fp8_e4m3")  # dtypes of keys and values on a GPU
MODEL = inference.WHOLE[1]
F32 = np.dtype(np.float32).itemsize
ATTENTION = dict(zip(attention.WORK, cases.ATTENTION_MODELS["1.1B"], strict=True))
LLAMA = find_preset("7B").config
EMBEDDINGS = tuple(
    dict.fromkeys(
        tensor_format(find_mix(name), LLAMA, "token_embd.weight", (LLAMA.vocab_size, LLAMA.d_model))
        for name in mix_names()
    )
)
"""Formats in which mixes store an embedding."""


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

    def copy() -> Callable[[], Any]:
        blocks = Matrix(own(on, matrix.data), matrix.format)
        written = np.empty((case.rows, case.columns), np.float32)
        floats = ops.pack(Matrix(matrix.to_floats().view(np.uint8), FORMATS["F32"]), on)

        def call() -> Any:
            ops.dequantize(blocks, on, written)
            return ops.matmul(x, floats)

        return call

    tolerance = case.tolerance(on.matmul_precision("F32", tokens))
    wanted = reference.matmul(x, matrix)
    return cold(f"matmul {case}, {way}", on, unfused_bytes(case), copy, wanted, tolerance)


def unfused_bytes(case: cases.MatmulCase) -> int:
    """Bytes of a product that also writes its weights as float32 and reads them."""
    return case.bytes + 2 * F32 * case.rows * case.columns


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
        case = cases.MatmulCase(tokens, matmul.N, matmul.N, format)
        return case.bytes if way == "fused" else unfused_bytes(case)

    track_bytes_moved.unit = "bytes"


class _Rule:
    """A fused kernel beside the ops that it replaces: time of one call of either, and its bytes.

    The executor of the device runs a small graph with the rule and without it. What is added up are
    the steps that only this way has, conversions of dtypes included. Bytes are those that they read
    and write at least, by `rocmforge.plan.cost`.
    """

    timeout = 300

    def setup(self, work: str, tokens: int, way: str, device: str) -> None:
        self.steps, self.copies = rule_steps(self.rule, work, tokens, way, device)

    def track_us(self, work: str, tokens: int, way: str, device: str) -> dict[str, Any]:
        def measure() -> float:
            return sum(step.calls * step.seconds() for step in self.steps) / self.copies

        return track([1e6 * s for s in collect(measure)])

    def track_bytes_moved(self, work: str, tokens: int, way: str, device: str) -> int:
        return sum(step.cost.bytes for step in self.steps) // self.copies

    track_us.unit = "us"
    track_bytes_moved.unit = "bytes"


class GateUpSwiglu(_Rule):
    """Gate and up of a 7B model with SwiGLU, weights cold."""

    rule = "gate_up_swiglu"
    params = (tuple(FORMATS), TOKENS, WAYS, DEVICES)
    param_names = ("format", "tokens", "way", "device")


class EmbedRmsnorm(_Rule):
    """Embedding rows of a 7B model and the first norm, hot."""

    rule = "embed_rmsnorm"
    params = (EMBEDDINGS, TOKENS, WAYS, ("gpu",))
    param_names = ("format", "tokens", "way", "device")


class RmsnormRoute(_Rule):
    """A norm over 4096 columns, a router of 32 experts and its choice of four, hot."""

    rule = "rmsnorm_route"
    params = (("F32", "BF16"), (1, 4), WAYS, ("gpu",))
    param_names = ("format", "tokens", "way", "device")


class AddExpertsRmsnorm(_Rule):
    """Results of four experts that are added to 4096 activations, and their norm; hot.

    What the reader of the norm then does more is in neither way's time, as in `MatmulRmsnorm`.
    """

    rule = "add_experts_rmsnorm"
    params = (("Q4_K", "Q8_0"), (1, 4), WAYS, ("gpu",))
    param_names = ("format", "tokens", "way", "device")


class MatmulRmsnorm(_Rule):
    """A product by 4096 × 4096 that is added to activations, and their norm; weights cold.

    What the reader of the norm then does more, a sum and a multiplication at its end, is in neither
    way's time: its step has the same name in both.
    """

    rule = "matmul_rmsnorm"
    params = (tuple(FORMATS), (1, 4), WAYS, ("gpu",))
    param_names = ("format", "tokens", "way", "device")


class RopeKvAppend(_Rule):
    """Rotation of queries and keys of a 7B model, and their way into the cache of 8 layers."""

    rule = "rope_kv_append"
    params = (CACHED, TOKENS, WAYS, ("gpu",))
    param_names = ("kv", "tokens", "way", "device")


class RopeAttention(_Rule):
    """The same and the attention of one token over a short context, which follows."""

    rule = "rope_attention"
    params = (CACHED, (1,), WAYS, ("gpu",))
    param_names = ("kv", "tokens", "way", "device")


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

    heads = given.q.transpose(1, 0, 2) * np.float32(given.scale)  # (H, T, D)
    grouped = np.ascontiguousarray(heads).reshape(case.kv_heads, group * queries, case.head_dim)
    seen = np.arange(length) <= length - queries + np.arange(queries)[:, None]
    mask = np.tile(np.where(seen, np.float32(0), np.float32(-np.inf)), (group, 1))

    def copy() -> Callable[[], Any]:
        keys = [packed(k[g, :length]) for g in range(case.kv_heads)]
        values = [packed(v[g, :length].T) for g in range(case.kv_heads)]

        def call() -> Any:
            mixed = []
            for q, key, value in zip(grouped, keys, values, strict=True):
                scores = ops.matmul(q, key)
                if queries > 1:
                    scores += mask
                mixed.append(ops.matmul(ops.softmax(scores, on), value))
            out = np.stack(mixed).reshape(case.heads, queries, case.head_dim)
            return out.transpose(1, 0, 2)

        return call

    tolerance = case.tolerance(on.matmul_precision("F32", group * queries))
    return cold(f"attention {case}, {way}", on, three_ops_bytes(case), copy, wanted, tolerance)


def three_ops_bytes(case: cases.AttentionCase) -> int:
    """Bytes that attention by three ops reads and writes.

    They are queries and output, float32 keys and values, and scores: written, read and written by
    softmax, read again; in a prompt also read and written with the mask, which is read.
    """
    length, queries = case.lengths[0], case.queries[0]
    passes = 4 if queries == 1 else 7
    return F32 * (
        2 * queries * case.heads * case.head_dim
        + 2 * length * case.kv_heads * case.head_dim
        + passes * case.heads * queries * length
    )


class FlashAttention(Timed):
    """32 heads over 4 KV heads of 64: a prompt, and one token over a context."""

    params = (tuple(ATTENTION), WAYS, DEVICES)
    param_names = ("work", "way", "device")

    def setup(self, work: str, way: str, device: str) -> None:
        self.call = attended(work, way, device)

    def time_attention(self, work: str, way: str, device: str) -> None:
        self.call()


class FlashAttentionBytes:
    """Bytes that the ops of either way read and write."""

    params = (tuple(ATTENTION), WAYS)
    param_names = ("work", "way")

    def track_bytes_moved(self, work: str, way: str) -> int:
        case = ATTENTION[work]
        return case.bytes if way == "fused" else three_ops_bytes(case)

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
        sequence = self.engine.add_sequence()
        timed = self.engine.timed_pass([sequence], [[3]])
        self.engine.remove_sequence(sequence)
        timed.close()
        return sum(step.cost.activation_bytes for step in timed.steps)

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS
    track_launches.unit = "launches"
    track_activation_bytes.unit = "bytes"
