"""The rotary position embedding (RoPE) of a model, read from GGUF metadata.

`config` puts it beside the rest of a model's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.model.architectures import Architecture, RopeLayout
from rocmforge.model.metadata import Keys

RopeScaling = Literal["none", "linear", "yarn"]

_SCALINGS: Mapping[str, RopeScaling] = MappingProxyType(
    # What sets LongRoPE apart are factors of the frequencies, which are tensors.
    {"none": "none", "linear": "linear", "yarn": "yarn", "longrope": "linear"}
)

MAX_CONTEXT = 1 << 24
_MAX_FACTOR = 1e6


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: dimension pair i of a head is rotated by position · frequency[i].

    Parameters
    ----------
    dim
        Rotated dimensions of a head, its first ones, even.
    base
        b in frequency[i] = b^(−2i / dim).
    layout
        ``"interleaved"``: pair i is (2i, 2i + 1); ``"halves"``: pair i is (i, i + dim / 2).
    scaling
        How positions beyond the original context are reached: not, by linear interpolation, or
        by YaRN (Peng et al. 2023, arXiv:2309.00071).
    factor
        s, by which the context was stretched; 1 without scaling.
    original_ctx
        Tokens of context before stretching (YaRN).
    attn_factor
        Multiplies `magnitude`.
    beta_fast, beta_slow
        Turns within the original context above which a pair is not interpolated at all, and
        below which it is interpolated fully (YaRN). Honoured where a file states them, although
        llama.cpp takes its defaults, 32 and 1, for most of these architectures.
    log_multiplier
        m, divides `magnitude` by 1 + 0.1 · m · ln s (YaRN).
    temperature
        β, by which queries grow from `original_ctx` on: `rocmforge.plan.operands.Rotation`; 0: not.
    """

    dim: int
    base: float
    layout: RopeLayout
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_ctx: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    temperature: float = 0.0

    def frequencies(self, freq_factors: NDArray[np.floating[Any]] | None) -> NDArray[np.float64]:
        """Return the angle by which each pair turns from one position to the next.

        f[i] = base^(−2i / dim) / freq_factors[i]; linear: f / s;
        YaRN: f·r + (f / s)·(1 − r), where r = 1 − clamp((i − low) / (high − low), 0, 1),
        low = ⌊c(beta_fast)⌋, high = ⌈c(beta_slow)⌉, and c(β) = dim · ln(original_ctx / 2πβ)
        / (2 ln base) is the pair that makes β turns in the original context.

        Parameters
        ----------
        freq_factors
            ``(dim / 2,)``, positive: the tensor ``rope_freqs.weight`` (Llama 3); None without.

        Returns
        -------
        ``(dim / 2,)`` float64, radians per position.

        Raises
        ------
        ValueError
            If `freq_factors` has another shape.
        """
        pair = np.arange(self.dim // 2, dtype=np.float64)
        plain = self.base ** (-2.0 * pair / self.dim)
        if freq_factors is not None:
            if freq_factors.shape != pair.shape:
                raise ValueError(
                    f"freq_factors: got shape {freq_factors.shape}, wanted {pair.shape}"
                )
            plain = plain / freq_factors.astype(np.float64)
        if self.scaling == "none":
            return plain
        interpolated = plain / self.factor
        if self.scaling == "linear":
            return interpolated
        low = max(0, math.floor(self._pair_of_turns(self.beta_fast)))
        high = min(self.dim - 1, math.ceil(self._pair_of_turns(self.beta_slow)))
        kept = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
        return interpolated * (1.0 - kept) + plain * kept

    def _pair_of_turns(self, turns: float) -> float:
        return (
            self.dim
            * math.log(self.original_ctx / (2.0 * math.pi * turns))
            / (2.0 * math.log(self.base))
        )

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by.

        attn_factor; for YaRN with s > 1 times (1 + 0.1 · ln s) / (1 + 0.1 · m · ln s).
        """
        if self.scaling != "yarn" or self.factor <= 1.0:
            return self.attn_factor
        grown = 0.1 * math.log(self.factor)
        return self.attn_factor * (1.0 + grown) / (1.0 + self.log_multiplier * grown)


def read_rope(keys: Keys, row: Architecture, head_dim: int, ctx: int) -> RopeConfig:
    """Read and check it, for a head dim and a trained context."""
    dim = keys.file.get(f"{keys.arch}.rope.dimension_count", int, head_dim)
    if not 2 <= dim <= head_dim or dim % 2:
        wanted = f"an even number from 2 to the head dim, {head_dim}"
        raise keys.error("rope.dimension_count", dim, wanted)
    kind = keys.file.get(f"{keys.arch}.rope.scaling.type", str, "linear")
    known = [name for name in _SCALINGS if name != "longrope" or row.long_rope]
    if kind not in known:
        raise keys.unsupported("rope.scaling.type", kind, ", ".join(known))
    # A factor without a type means linear, and a factor of 0 means that there is none; both
    # are llama.cpp's reading. rope.scale_linear is the key's name in old files.
    name = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
    factor = keys.number(name, -1.0, _MAX_FACTOR, default=1.0) or 1.0
    if factor < 0.0:
        raise keys.error(name, factor, "0 (none) or a positive number")
    scaling = _SCALINGS[kind]
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        scaling, factor = "none", 1.0

    def own(key: str) -> float:
        return keys.optional(key) if key in row.own_keys else 0.0

    return RopeConfig(
        dim=dim,
        base=keys.number("rope.freq_base", 1.0, 1e12, default=10000.0),
        layout=row.rope_layout,
        scaling=scaling,
        factor=factor,
        original_ctx=keys.integer(
            "rope.scaling.original_context_length", 1, MAX_CONTEXT, default=ctx
        ),
        attn_factor=keys.number("rope.scaling.attn_factor", 0.0, _MAX_FACTOR, default=1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 0.0, _MAX_FACTOR, default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 0.0, _MAX_FACTOR, default=1.0),
        log_multiplier=own("rope.scaling.yarn_log_multiplier"),
        temperature=own("attention.temperature_scale"),
    )
