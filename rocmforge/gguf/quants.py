"""The numpy reference of every tensor format: bytes to float32 weights and back.

Decoders, and the encoders of the simple formats, are the `gguf` package's; the K, IQ, NV and MX
formats have encoders of our own. Arrays are worked on in pieces, so that working memory
stays at a few megabytes beside the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.iq4_nl import encode_iq4_nl
from rocmforge.gguf.iq4_xs import encode_iq4_xs
from rocmforge.gguf.iq_blocks import (
    encode_iq1_m,
    encode_iq1_s,
    encode_iq2_s,
    encode_iq2_xs,
    encode_iq2_xxs,
    encode_iq3_s,
    encode_iq3_xxs,
)
from rocmforge.gguf.mx import (
    decode_mxfp6_e2m3,
    decode_mxfp6_e3m2,
    encode_mxfp4,
    encode_mxfp6_e2m3,
    encode_mxfp6_e3m2,
)
from rocmforge.gguf.nvfp4 import LARGEST as NVFP4_LARGEST
from rocmforge.gguf.nvfp4 import encode_nvfp4
from rocmforge.gguf.quantize_k import (
    encode_q2_k,
    encode_q3_k,
    encode_q4_k,
    encode_q5_k,
    encode_q6_k,
)

_PIECE = 1 << 16
"""Weights worked on at a time: a dozen float32 arrays of them stay in a core's cache."""


def _numbers(raw: Bytes) -> Floats:
    """F32: norms and biases are, so that a start needs no `gguf` for them."""
    return raw.view("<f4")


_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = MappingProxyType(
    {"F32": _numbers, "MXFP6_E2M3": decode_mxfp6_e2m3, "MXFP6_E3M2": decode_mxfp6_e3m2}
)

# MXFP4 is here although gguf has an encoder: that one's scale wraps for weights under 2^-125.
_ENCODERS: Mapping[str, Callable[[Floats], Bytes]] = MappingProxyType(
    {
        "Q2_K": encode_q2_k,
        "Q3_K": encode_q3_k,
        "Q4_K": encode_q4_k,
        "Q5_K": encode_q5_k,
        "Q6_K": encode_q6_k,
        "IQ4_NL": encode_iq4_nl,
        "IQ4_XS": encode_iq4_xs,
        "IQ3_S": encode_iq3_s,
        "IQ3_XXS": encode_iq3_xxs,
        "IQ2_S": encode_iq2_s,
        "IQ2_XS": encode_iq2_xs,
        "IQ2_XXS": encode_iq2_xxs,
        "IQ1_M": encode_iq1_m,
        "IQ1_S": encode_iq1_s,
        "NVFP4": encode_nvfp4,
        "MXFP4": encode_mxfp4,
        "MXFP6_E2M3": encode_mxfp6_e2m3,
        "MXFP6_E3M2": encode_mxfp6_e3m2,
    }
)

_F16_MAX = 65504.0
_WIDE_RANGE: Mapping[str, float] = MappingProxyType(
    {
        "F32": float(np.finfo(np.float32).max),
        "BF16": (2 - 2**-7) * 2.0**127,
        "NVFP4": NVFP4_LARGEST,
        "MXFP4": 2.0**127,
        "MXFP6_E2M3": 2.0**127,
        "MXFP6_E3M2": 2.0**127,
    }
)
"""Largest weight of the formats whose scale is no f16; the others take up to 65504."""

_VANISHING = np.float32(2**-26)
"""A weight under half an f16 step (2^-24) is 0 in a format with f16 scales."""


def _check_format(fmt: Format) -> None:
    if FORMATS.get(fmt.name) != fmt:
        raise ValueError(f"format: got {fmt}, wanted one of FORMATS: {', '.join(FORMATS)}")


def _pieces(n_blocks: int, fmt: Format) -> Iterator[slice]:
    step = _PIECE // fmt.block_len
    for start in range(0, n_blocks, step):
        yield slice(start, min(start + step, n_blocks))


def _package() -> Any:
    """The `gguf` package: 20 ms to import, and an engine starts without it."""
    import gguf.quants

    return gguf


def dequantize(data: Bytes, fmt: Format) -> Floats:
    """Decode rows of a tensor to float32.

    Any bytes decode: a scale that is NaN or infinite gives weights that are NaN or infinite.
    The E8M0 scale 255 is NaN in MXFP6, as OCP has it, and 2^128 in MXFP4, as ggml has it.

    Parameters
    ----------
    data
        ``(…, row_bytes)`` uint8, row_bytes a multiple of ``fmt.block_bytes``; rows are blocks
        one after another, as in a GGUF file (little-endian).
    fmt
        One of `FORMATS`.

    Returns
    -------
    numpy.ndarray
        ``(…, columns)`` float32, a new array.

    Raises
    ------
    ValueError
        If `data` is no uint8 array, has no axis or ends in a broken block, or `fmt` is unknown.

    Notes
    -----
    Sources: ggml's block layouts through `gguf.quants`; for MXFP6 OCP MX v1.0 and `mx`.
    """
    _check_format(fmt)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim == 0:
        raise ValueError(f"{fmt.name} bytes: got {describe(data)}, wanted uint8 (…, row_bytes)")
    n_blocks_row, rest = divmod(data.shape[-1], fmt.block_bytes)
    if rest:
        raise ValueError(
            f"bytes of a {fmt.name} row: got {data.shape[-1]}, "
            f"wanted a multiple of {fmt.block_bytes}"
        )
    out = np.empty((*data.shape[:-1], n_blocks_row * fmt.block_len), np.float32)
    flat = out.reshape(out.size // fmt.block_len, fmt.block_len)
    blocks = np.ascontiguousarray(data).reshape(len(flat), fmt.block_bytes)
    decode = _DECODERS.get(fmt.name)
    with np.errstate(all="ignore"):  # NaN and infinite scales are data here, not mistakes
        for piece in _pieces(len(flat), fmt):
            if decode is not None:
                flat[piece] = decode(blocks[piece])
            else:
                flat[piece] = (
                    _package()
                    .quants.dequantize(
                        blocks[piece].reshape(1, -1), _package().GGMLQuantizationType[fmt.name]
                    )
                    .reshape(-1, fmt.block_len)
                )
    return out


def quantize(x: Floats, fmt: Format) -> Bytes:
    """Encode rows of float32 weights, minimizing the plain squared error within each block.

    Relative RMS error, ‖x̂ − x‖ / ‖x‖, on Gaussian weights: Q8_0 0.54 %, Q6_K 1.7 %,
    MXFP6_E2M3 2.8 %, Q5_K 3.5 %, Q5_1 3.8 %, Q5_0 4.3 %, MXFP6_E3M2 5.3 %, Q4_K 7.0 %,
    IQ4_NL 7.3 %, IQ4_XS 7.5 %, Q4_1 7.8 %, Q4_0 8.6 %, NVFP4 9.1 %, MXFP4 11.2 %, IQ3_S 13.1 %,
    Q3_K 14.4 %, IQ3_XXS 17.8 %, IQ2_S 23.9 %, Q2_K 26.4 %, IQ2_XS 28.5 %, IQ2_XXS 32.8 %,
    IQ1_M 41.3 %, IQ1_S 44.5 %, TQ2_0 and TQ1_0 81 %.

    Parameters
    ----------
    x
        ``(…, columns)`` float32, columns a multiple of ``fmt.block_len``; all finite and within
        what the format can hold: 65504 by magnitude where it is F16 or its scales are, 2688 for
        NVFP4, 2^127 for MX, the type's own range for BF16 and F32.
    fmt
        One of `FORMATS`.

    Returns
    -------
    numpy.ndarray
        ``(…, fmt.row_bytes(columns))`` uint8, a new array.

    Raises
    ------
    ValueError
        If `x` is no float32 array, has no axis, has columns that do not fill whole blocks, holds
        NaN, infinity or a weight too large for the format, or `fmt` is unknown.

    Notes
    -----
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ2_0 and TQ1_0 are coded as ggml does, from a block's extremes:
    the ternary ones are for models that were trained to be ternary. Like ggml's,
    their codes assume a scale that f16 holds in full: blocks whose largest weight is under about
    10^-4 lose accuracy, and keep only their order of magnitude near 10^-6.

    NVFP4's scales have steps of 2^-9 below 2^-6: weights of deviation 0.01 have an error of 10 %,
    of 0.002 one of 58 %. NVIDIA's own files have a scale of the whole matrix beside it; such
    tensors are not read here.
    """
    _check_format(fmt)
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim == 0:
        raise ValueError(f"weights: got {describe(x)}, wanted float32 (…, columns)")
    out = np.empty((*x.shape[:-1], fmt.row_bytes(x.shape[-1])), np.uint8)
    flat = out.reshape(out.size // fmt.block_bytes, fmt.block_bytes)
    blocks = np.ascontiguousarray(x).reshape(len(flat), fmt.block_len)
    largest = _WIDE_RANGE.get(fmt.name, _F16_MAX)
    encode = _ENCODERS.get(fmt.name)
    for piece in _pieces(len(flat), fmt):
        part = blocks[piece]
        magnitude = np.abs(part)
        if not magnitude.max() <= largest:  # NaN compares false
            at = piece.start * fmt.block_len + int((~(magnitude <= largest)).argmax())
            index = tuple(int(i) for i in np.unravel_index(at, x.shape))
            raise ValueError(
                f"weight at {index}: got {x[index]}, wanted a finite value "
                f"of at most {largest:g} by magnitude for {fmt.name}"
            )
        if fmt.block_len > 1 and largest == _F16_MAX:
            part = np.where(magnitude < _VANISHING, np.float32(0), part)
        if encode is not None:
            flat[piece] = encode(part)
        else:
            flat[piece] = (
                _package()
                .quants.quantize(part.reshape(1, -1), _package().GGMLQuantizationType[fmt.name])
                .view(np.uint8)
                .reshape(-1, fmt.block_bytes)
            )
    return out


def describe(value: object) -> str:
    """Return what an argument is, for a message: dtype and shape of an array, else its type."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__
