"""How far each kind of work is from what the device could do at best: seconds over ideal seconds.

Ideal is what the bytes and the operations of the work take at the speeds that the same process
measures just before, for a working set of that size: a busy or slow machine moves both, so that the
figure stays comparable between runs and between machines. 1 is the roofline; lower is better.
"""

from __future__ import annotations

import math
from typing import Any

from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.reader import GGUFFile
from rocmforge.ops import cases

from . import attention, dequantize, inference, matmul
from .common import (
    DEVICES,
    MODELS,
    ROUNDS,
    TIMES_ROOFLINE,
    backend,
    model_path,
    roofline,
    times_roofline,
    track,
)

PRECISIONS = {"exact": "f32", "half": "f16", "int8": "int8"}


class Matmul:
    """4096 × 4096 weights of every format, for one token and a prompt of 128."""

    params = (tuple(FORMATS), (1, 128), DEVICES)
    param_names = ("format", "tokens", "device")

    def setup(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.case = cases.MatmulCase(tokens, matmul.N, matmul.N, format)
        self.call = matmul.prepared(self.case, device)

    def track_inverse_roofline_fraction(
        self,
        format: str,  # noqa: A002
        tokens: int,
        device: str,
    ) -> dict[str, Any]:
        precision = PRECISIONS[backend(device).matmul_precision(format, tokens)]
        return times_roofline(self.call, self.case.bytes, self.case.flops, device, precision)

    track_inverse_roofline_fraction.unit = TIMES_ROOFLINE


class Attention:
    """One token of the 1.1B shape over a context."""

    params = ((1024, 4096, 32768), DEVICES)
    param_names = ("context", "device")

    def setup(self, context: int, device: str) -> None:
        self.case = attention.DECODE[context]
        self.call = attention.prepared(self.case, device)

    def track_inverse_roofline_fraction(self, context: int, device: str) -> dict[str, Any]:
        return times_roofline(self.call, self.case.bytes, self.case.flops, device, "f32")

    track_inverse_roofline_fraction.unit = TIMES_ROOFLINE
    track_inverse_roofline_fraction.rounds = ROUNDS


class Dequantize:
    """4096 × 4096 weights of every format to float32."""

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.case = cases.DequantizeCase(dequantize.N, dequantize.N, format)
        self.call = dequantize.prepared(format, device, dequantize.N)

    def track_inverse_roofline_fraction(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return times_roofline(self.call, self.case.bytes, self.case.flops, device, "f32")

    track_inverse_roofline_fraction.unit = TIMES_ROOFLINE


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
        nbytes = engine.weight_bytes + context * engine.cache.bytes_per_token
        operations = 2 * multiplied_weights(model)
        peaks = roofline(engine.backend, nbytes, operations, "int8")
        ideal = peaks.ideal_seconds(nbytes, operations)
        return track([s / ideal for s in inference.decode_seconds(engine, 1)])

    track_inverse_roofline_fraction.unit = TIMES_ROOFLINE
    track_inverse_roofline_fraction.rounds = ROUNDS


def multiplied_weights(model: str) -> int:
    """Weights that a token is multiplied with: all matrices, but an embedding that is no output."""
    with GGUFFile(model_path(model)) as file:
        shapes = {info.name: info.shape for info in file.tensors.values() if len(info.shape) == 2}
    if "output.weight" in shapes:
        del shapes["token_embd.weight"]
    return sum(math.prod(shape) for shape in shapes.values())
