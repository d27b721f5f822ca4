"""The scales of whole matrices that may stand beside weights of NVFP4 in a file.

Beside ``NAME.weight`` may stand ``NAME.scale``, float32: its products are multiplied by it, before
a bias is added. A matrix has one, experts' matrices have one each. Products here have it in the
scales of the weights' blocks (`rocmforge.plan.protocols.Backend.pack`).

``NAME.input_scale`` may stand there too. It is for engines that round activations to four bits, and
changes nothing here, as in llama.cpp: its shape is checked, its values are not read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rocmforge.array_types import Floats
from rocmforge.errors import ModelError
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.quants import dequantize
from rocmforge.gguf.reader import GGUFFile

LARGEST_SCALE = 128.0
"""In size: 448 times it, a block's largest scale, fits float16."""


def scale_names(name: str) -> tuple[str, str]:
    """Return what the two tensors beside a matrix are called."""
    stem = name.removesuffix(".weight")
    return f"{stem}.scale", f"{stem}.input_scale"


def scale_shapes(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the scales of a file: (1,), or (E,) of experts' matrices.

    Only matrices of NVFP4 have any, and the token embedding has none: of others they are unknown
    tensors.

    Parameters
    ----------
    tensors
        Those of the file, by name.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, info in tensors.items():
        if info.format.name != "NVFP4" or name == "token_embd.weight":
            continue
        count = info.shape[0] if len(info.shape) == 3 else 1
        shapes.update({beside: (count,) for beside in scale_names(name) if beside in tensors})
    return shapes


def read_scales(file: GGUFFile) -> dict[str, Floats]:
    """Return the factors of weights, by the name of the matrix: (1,) or (E,) float32.

    Parameters
    ----------
    file
        An open file.

    Raises
    ------
    ModelError
        One has another shape, is not finite, or is so large that scales of blocks would not fit
        float16.
    """
    shapes = scale_shapes(file.tensors)
    found: dict[str, Floats] = {}
    for name in file.tensors:
        scale, _ = scale_names(name)
        if scale not in shapes:
            continue
        info = file.tensors[scale]
        if info.shape != shapes[scale]:
            raise ModelError(
                f"{file.path}: {scale}: got shape {info.shape}, wanted {shapes[scale]}"
            )
        values = np.array(dequantize(file.tensor(scale), info.format), np.float32).reshape(-1)
        if not (np.abs(values) <= LARGEST_SCALE).all():  # also where one is NaN
            raise ModelError(
                f"{file.path}: {scale}: got values from {values.min()} to {values.max()}, "
                f"wanted {-LARGEST_SCALE} to {LARGEST_SCALE}"
            )
        found[name] = values
    return found


def of_rows(factors: Floats | None, rows: int) -> Floats:
    """Return the factor of each of N rows, as (N, 1), from (1,) or (E,); ones of None."""
    each = np.ones(1, np.float32) if factors is None else factors
    return np.repeat(each, rows // each.size)[:, None]
