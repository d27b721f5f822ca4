"""How far each kind of work is from the roofline: its seconds over the least possible seconds.

The least is what the work's bytes and operations take at the best speeds that the same process
measures, reading as much as the work does: ops what no cache holds, a small model what a cache may
hold from one step to the next. Each byte counts once, and writes count as
reads. A slower clock or GPU changes both, so that values of different machines can be compared.
Other load raises the value: the median of the work suffers more from it than the best of many
samples. 1 is the roofline; lower is better.
"""

from __future__ import annotations

from typing import Any

from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases
from rocmforge.speed.ideal import CEILINGS, matrices, step_work

from . import attention, dequantize, inference, matmul
from .cold import cold_bytes
from .devices import DEVICES, backend
from .ideal_time import TIMES_IDEAL, inverse_roofline_fraction, over_ideal
from .models import MODELS, model_path
from .samples import ROUNDS


def ceiling(precision: str) -> str:
    """The rate of operations that bounds products of that precision; n/a where none is measured."""
    if precision not in CEILINGS:
        raise NotImplementedError(f"no ceiling of {precision} products is measured")
    return CEILINGS[precision]


class Matmul:
    """4096 × 4096 weights of every format: one token, and a prompt of 128."""

    params = (tuple(FORMATS), (1, 128), DEVICES)
    param_names = ("format", "tokens", "device")

    def setup(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.case = cases.MatmulCase(tokens, matmul.N, matmul.N, format)
        self.call = matmul.cold_matmul(self.case, device)

    def track_inverse_roofline_fraction(
        self,
        format: str,  # noqa: A002
        tokens: int,
        device: str,
    ) -> dict[str, Any]:
        precision = ceiling(backend(device).matmul_precision(format, tokens))
        case = self.case
        return inverse_roofline_fraction(self.call, case.bytes, case.flops, device, precision)

    track_inverse_roofline_fraction.unit = TIMES_IDEAL


class Attention:
    """One token of the 1.1B shape over a context."""

    params = ((1024, 4096, 32768), DEVICES)
    param_names = ("context", "device")

    def setup(self, context: int, device: str) -> None:
        self.case = attention.DECODE[context]
        self.call = attention.cold_attention(self.case, device)

    def track_inverse_roofline_fraction(self, context: int, device: str) -> dict[str, Any]:
        return inverse_roofline_fraction(self.call, self.case.bytes, self.case.flops, device, "f32")

    track_inverse_roofline_fraction.unit = TIMES_IDEAL
    track_inverse_roofline_fraction.rounds = ROUNDS


class Dequantize:
    """4096 × 4096 weights of every format to float32."""

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.case = cases.DequantizeCase(dequantize.N, dequantize.N, format)
        self.call = dequantize.cold_dequantize(format, device, dequantize.N)

    def track_inverse_roofline_fraction(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return inverse_roofline_fraction(self.call, self.case.bytes, self.case.flops, device, "f32")

    track_inverse_roofline_fraction.unit = TIMES_IDEAL


class Decode:
    """A whole model's step of one sequence, the choice of the token included: host time."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.engine = inference.engine(
            model, device, inference.DECODE_CONTEXT + inference.GROWTH, 1
        )

    def track_inverse_roofline_fraction(self, model: str, device: str) -> dict[str, Any]:
        engine = self.engine
        context = inference.DECODE_CONTEXT + inference.GROWTH // 2
        multiplied = matrices(model_path(model))
        work = step_work(engine, multiplied, context, 1)
        precision = ceiling(engine.backend.matmul_precision(multiplied.format, 1))

        def timed() -> list[float]:
            return inference.decode_seconds(engine, 1)

        on = engine.backend
        reads = min(work.nbytes, cold_bytes(on.name))  # a cache may hold all of a small model
        return over_ideal(timed, on, work.nbytes, work.operations, precision, reads)

    track_inverse_roofline_fraction.unit = TIMES_IDEAL
    track_inverse_roofline_fraction.rounds = ROUNDS
