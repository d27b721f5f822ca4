"""From the steps of a pass to launches of kernels, for one batch shape on one GPU.

Which kernel runs an op depends on the number of rows: up to 8, matrices are read once for all of
them; beyond, tiles go through the matrix units. It knows no model and no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rocmforge.backend import Floats
from rocmforge.gpu import arrays
from rocmforge.gpu.batch_shape import Inputs, Shape
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.dtypes import F16, F32, Q8, Convert, Place, Step
from rocmforge.gpu.launch import Arguments, Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops.attention import attention, choose_splits, scratch_bytes
from rocmforge.gpu.ops.attention_prompt import attention_prompt
from rocmforge.gpu.ops.dot_rows import MAX_TOKENS
from rocmforge.gpu.ops.embed import embed
from rocmforge.gpu.ops.kv_append import kv_append
from rocmforge.gpu.ops.matmul import gate_up_swiglu, matmul
from rocmforge.gpu.ops.matmul_dot4 import matmul_dot4
from rocmforge.gpu.ops.matmul_prompt import (
    gate_up_swiglu_prompt,
    matmul_prompt,
    prompt_kernel,
)
from rocmforge.gpu.ops.quantize import quantize
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.ops.rope import rope
from rocmforge.gpu.ops.rope_kv_append import rope_kv_append
from rocmforge.gpu.ops.swiglu import swiglu
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.graph import (
    Attention,
    Embed,
    Embedding,
    EmbedRmsnorm,
    GateUpSwiglu,
    Geometry,
    KvAppend,
    Matmul,
    Op,
    Rmsnorm,
    Rope,
    RopeKvAppend,
    SelectRmsnorm,
    Swiglu,
    Tensor,
)

VECTOR_ROWS = MAX_TOKENS  # up to which `matmul` reads the weights once for all rows


def activation_form(architecture: str, fmt: str, rows: int) -> str:
    """Form of the activations that a matmul with weights of a format reads, by their rows."""
    if rows <= VECTOR_ROWS:
        return F32 if fmt in DENSE else Q8
    return F16 if prompt_kernel(architecture, fmt) == "matmul_prompt" else Q8


class Pages(Protocol):
    """Keys and values in device memory; see `rocmforge.gpu.cache.DeviceKVCache`."""

    @property
    def page_size(self) -> int:
        """P."""

    @property
    def dtype(self) -> str:
        """Form of the stored numbers: "f16", "f32" or "q8_0"."""

    def pages(self, layer: int) -> tuple[int, int]:
        """Addresses of a layer's keys and values."""

    def scales(self, layer: int) -> tuple[int, int]:
        """Addresses of their scales."""


class BuildRecorder:
    """Stands where `Kernels` do and only notes what would be compiled.

    Parameters
    ----------
    runtime
        The device.

    Attributes
    ----------
    builds : list of Build
        What was asked for.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.builds: list[Build] = []

    def launch(
        self,
        file: str,
        name: str,
        defines: Mapping[str, int | str] | None,
        grid: tuple[int, int, int],
        threads: int,
        layout: str,
        *values: int | float,
    ) -> Launch:
        """Note the kernel; the launch that comes back cannot run."""
        self.builds.append(Build(file, {name: layout}, defines))
        return Launch(name, None, grid, threads, Arguments(layout, values, self.runtime.platform))


class Emitter:
    """Makes the launches of one graph on one device.

    Parameters
    ----------
    kernels
        The device.
    geometry
        Of attention.
    cache
        Where keys and values lie.
    ctx
        Most tokens of a sequence.
    constant
        Gives the device's address of a host array.
    """

    def __init__(
        self,
        kernels: Kernels | BuildRecorder,
        geometry: Geometry,
        cache: Pages,
        ctx: int,
        constant: Callable[[Any], int],
    ) -> None:
        self._kernels: Any = kernels
        self._geometry = geometry
        self._cache = cache
        self._ctx = ctx
        self._constant = constant
        self._properties = kernels.runtime.properties

    def reading(self, shape: Shape) -> Callable[[Op, Tensor], Sequence[str]]:
        """Forms in which an op reads a tensor, as `forms.lower` asks."""

        def forms(op: Op, tensor: Tensor) -> Sequence[str]:
            if isinstance(op, GateUpSwiglu):
                return (self._form(op.gate, shape.tokens),)
            if isinstance(op, Matmul) and tensor == op.x:
                rows = shape.rows(tensor)
                return tuple(dict.fromkeys(self._form(w, rows) for w in op.weights))
            return (F32,)

        return forms

    def writing(self, shape: Shape) -> Callable[[Op], Sequence[str]]:
        """Forms that an op can write, as `forms.lower` asks."""

        def forms(op: Op) -> Sequence[str]:
            width = op.writes[0].columns if op.writes else 0
            whole = (Q8,) if width % arrays.GROUP == 0 else ()
            match op:
                case Rmsnorm() if op.x == op.out:
                    return (F32,)
                case EmbedRmsnorm() | Rmsnorm() | SelectRmsnorm() | Swiglu():
                    return (F32, F16, *whole)
                case Attention():
                    return (F32, F16, *whole) if shape.single else (F32, F16)
                case GateUpSwiglu():
                    return (F32, *whole) if shape.tokens <= VECTOR_ROWS else (F16,)
                case _:
                    return (F32,)

        return forms

    def nbytes(self, place: Place, shape: Shape) -> int:
        """Memory of a tensor in a form."""
        tensor, form = place
        rows, columns = shape.rows(tensor), tensor.columns
        if form == Q8:
            return arrays.Q8.nbytes(rows, columns)
        return rows * columns * (4 if form == F32 else 2)

    def scratch_bytes(self, shape: Shape) -> int:
        """Memory that attention needs beside its tensors."""
        geometry = self._geometry
        if not shape.single:
            return 0
        return max(
            scratch_bytes(sequences, geometry.heads, geometry.head_dim, self._splits(sequences))
            for sequences in range(1, shape.sequences + 1)
        )

    def launches(
        self,
        steps: Sequence[Step],
        shape: Shape,
        inputs: Inputs,
        address: Callable[[Place], int],
        scratch: int,
    ) -> list[Launch]:
        """Return the launches of a pass.

        Parameters
        ----------
        steps
            From `forms.lower`.
        shape, inputs
            The batch.
        address
            Where a tensor lies in a form.
        scratch
            Address of `scratch_bytes`.
        """
        run = _Pass(self, shape, inputs, address, scratch)
        return [launch for step in steps for launch in run.step(step)]

    def _form(self, weights: DeviceMatrix, rows: int) -> str:
        return activation_form(self._properties.architecture, weights.format, rows)

    def _splits(self, sequences: int) -> int:
        units = self._properties.compute_units
        architecture, geometry = self._properties.architecture, self._geometry
        heads, kv_heads = geometry.heads, geometry.kv_heads
        return choose_splits(architecture, units, sequences, heads, kv_heads, self._ctx)


class _Pass:
    """One pass of one shape, with its addresses."""

    def __init__(
        self,
        emitter: Emitter,
        shape: Shape,
        inputs: Inputs,
        address: Callable[[Place], int],
        scratch: int,
    ) -> None:
        self.emitter = emitter
        self.kernels = emitter._kernels
        self.geometry = emitter._geometry
        self.cache = emitter._cache
        self.constant = emitter._constant
        self.shape = shape
        self.inputs = inputs
        self.address = address
        self.scratch = scratch

    def f32(self, tensor: Tensor) -> int:
        return self.address((tensor, F32))

    def form(self, tensor: Tensor, form: str) -> Any:
        """A tensor in a form, as the kernels' functions take it."""
        at = self.address((tensor, form))
        if form == Q8:
            return arrays.Q8.at(at, self.shape.rows(tensor), tensor.columns)
        return arrays.F32(at) if form == F32 else arrays.F16(at)

    def step(self, step: Step) -> Sequence[Launch]:
        """Launches of one step."""
        kernels, shape = self.kernels, self.shape
        match step.op:
            case Matmul() as op:
                return self.matmul(op)
            case Rmsnorm() as op:
                width = op.weight.size
                rows = shape.rows(op.x) * op.x.columns // width
                return [self.norm(op.weight, op.eps, self.f32(op.x), self.out(step, op.out), rows)]
            case SelectRmsnorm() as op:
                return self.select(op, self.out(step, op.out))
            case RopeKvAppend() as op:
                return [self.rope_kv_append(op)]
            case Attention() as op:
                return self.attention(op, self.out(step, op.out))
            case GateUpSwiglu() as op:
                few = shape.tokens <= VECTOR_ROWS
                run = gate_up_swiglu if few else gate_up_swiglu_prompt
                x = self.form(op.x, self.emitter._form(op.gate, shape.tokens))
                out = self.out(step, op.out)
                tokens = shape.tokens
                return [run(kernels, x=x, gate=op.gate, up=op.up, out=out, tokens=tokens)]
            case Swiglu() as op:
                out = self.out(step, op.out)
                rows, columns = shape.rows(op.out), op.out.columns
                gate, up = self.f32(op.gate), self.f32(op.up)
                return [swiglu(kernels, gate=gate, up=up, out=out, rows=rows, columns=columns)]
            case Convert() as op:
                out = self.form(op.x, op.form)
                rows, columns = shape.rows(op.x), op.x.columns
                return [quantize(kernels, x=self.f32(op.x), out=out, rows=rows, columns=columns)]
            case Embed() as op:
                return [self.embed(op.embedding, op.out)]
            case EmbedRmsnorm() as op:
                normed = self.out(step, op.out)
                weight = self.constant(op.weight)
                norm = {"norm_weight": weight, "eps": op.eps, "normed": normed}
                return [self.embed(op.embedding, op.x, **norm)]
            case Rope() as op:
                return [self.rope(op)]
            case KvAppend() as op:
                return [self.kv_append(op)]
            case op:
                raise NotImplementedError(f"no kernel runs {type(op).__name__}")

    def out(self, step: Step, tensor: Tensor) -> Any:
        return self.form(tensor, step.form(tensor))

    def embed(self, embedding: Embedding, out: Tensor, **norm: Any) -> Launch:
        return embed(
            self.kernels,
            table=self.constant(embedding.rows),
            format=embedding.format.name,
            tokens=self.inputs.tokens,
            out=self.f32(out),
            count=self.shape.tokens,
            columns=out.columns,
            **norm,
        )

    def norm(self, weight: Floats, eps: float, x: int, out: Any, rows: int) -> Launch:
        address = self.constant(weight)
        return rmsnorm(
            self.kernels, x=x, weight=address, out=out, rows=rows, columns=weight.size, eps=eps
        )

    def select(self, op: SelectRmsnorm, out: Any) -> Sequence[Launch]:
        """One launch for all rows, or one for each that is wanted."""
        x, columns = self.f32(op.x), op.x.columns
        if self.shape.outputs is None:
            return [self.norm(op.weight, op.eps, x, out, self.shape.tokens)]
        return [
            self.norm(op.weight, op.eps, x + 4 * columns * row, out.row(i, columns), 1)
            for i, row in enumerate(self.shape.outputs)
        ]

    def matmul(self, op: Matmul) -> Sequence[Launch]:
        rows = self.shape.rows(op.x)
        parts = [
            (w, self.f32(out), None if bias is None else self.constant(bias))
            for w, out, bias in zip(op.weights, op.outs, op.biases, strict=True)
        ]
        if rows > VECTOR_ROWS:
            return [self.prompt_matmul(op, rows, *part) for part in parts]
        launches = []
        forms = [self.emitter._form(w, rows) for w in op.weights]
        for form in dict.fromkeys(forms):
            own = [part for part, own_form in zip(parts, forms, strict=True) if own_form == form]
            weights, outs, biases = zip(*own, strict=True)
            launches.append(
                matmul(
                    self.kernels,
                    x=self.form(op.x, form),
                    weights=weights,
                    outs=outs,
                    biases=biases,
                    tokens=rows,
                    accumulate=op.accumulate,
                )
            )
        return launches

    def prompt_matmul(
        self, op: Matmul, rows: int, weight: DeviceMatrix, out: int, bias: int | None
    ) -> Launch:
        form = self.emitter._form(weight, rows)
        run = matmul_prompt if form == F16 else matmul_dot4
        return run(
            self.kernels,
            x=self.form(op.x, form),
            weight=weight,
            out=arrays.F32(out),
            bias=bias,
            tokens=rows,
            accumulate=op.accumulate,
        )

    def rope_kv_append(self, op: RopeKvAppend) -> Launch:
        return rope_kv_append(
            self.kernels,
            q=self.f32(op.q),
            k=self.f32(op.k),
            v=self.f32(op.v),
            heads=self.geometry.heads,
            q_norm=None if op.q_norm is None else self.constant(op.q_norm),
            k_norm=None if op.k_norm is None else self.constant(op.k_norm),
            eps=op.eps,
            **self.rotation(),
            **self.slots(op.layer),
        )

    def rope(self, op: Rope) -> Launch:
        heads = op.x.columns // self.geometry.head_dim
        return rope(
            self.kernels,
            x=self.f32(op.x),
            tokens=self.shape.tokens,
            heads=heads,
            head_dim=self.geometry.head_dim,
            **self.rotation(),
        )

    def kv_append(self, op: KvAppend) -> Launch:
        return kv_append(self.kernels, k=self.f32(op.k), v=self.f32(op.v), **self.slots(op.layer))

    def rotation(self) -> dict[str, Any]:
        return {
            "cos": self.inputs.cos,
            "sin": self.inputs.sin,
            "positions": self.inputs.positions,
            "rotated": self.geometry.rotated,
            "interleaved": self.geometry.interleaved,
        }

    def slots(self, layer: int) -> dict[str, Any]:
        return {
            **self.pages(layer),
            "pages": self.inputs.pages,
            "offsets": self.inputs.offsets,
            "tokens": self.shape.tokens,
        }

    def pages(self, layer: int) -> dict[str, Any]:
        (k, v), (k_scales, v_scales) = self.cache.pages(layer), self.cache.scales(layer)
        return {
            "k_pages": k,
            "v_pages": v,
            "k_scales": k_scales,
            "v_scales": v_scales,
            "kv_heads": self.geometry.kv_heads,
            "head_dim": self.geometry.head_dim,
            "page_size": self.cache.page_size,
            "kv": self.cache.dtype,
        }

    def attention(self, op: Attention, out: Any) -> Sequence[Launch]:
        common = {
            **self.pages(op.layer),
            "q": self.f32(op.q),
            "page_table": self.inputs.page_table,
            "max_pages": self.inputs.max_pages,
            "lengths": self.inputs.lengths,
            "out": out,
            "sequences": self.shape.sequences,
            "heads": self.geometry.heads,
            "scale": op.scale,
        }
        if self.shape.single:
            splits = self.emitter._splits(self.shape.sequences)
            return attention(self.kernels, scratch=self.scratch, splits=splits, **common)
        return [
            attention_prompt(
                self.kernels,
                starts=self.inputs.starts,
                tokens=self.shape.tokens,
                max_queries=self.shape.longest,
                **common,
            )
        ]
