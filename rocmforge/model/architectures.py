"""The supported architectures: one row each, with what their forward passes differ in.

An architecture that needs more than a row adds it to `metadata` (keys), `config` (fields),
`weights` (tensors) and `decoder` (ops); CONTRIBUTING.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

RopeLayout = Literal["interleaved", "halves"]


@dataclass(frozen=True)
class Architecture:
    """A row of `ARCHITECTURES`.

    Parameters
    ----------
    name
        ``general.architecture`` of the file, and the prefix of its metadata keys.
    rope_layout
        Which dimensions of a head are rotated together: ``"interleaved"``: 2i and 2i + 1;
        ``"halves"``: i and i + R / 2.
    qkv_bias
        The q, k and v projections always have biases. Otherwise they have them where the file does.
    qk_norm
        Each head of q and k is RMS-normalized before rotation.
    rope_factors
        The file may have ``rope_freqs.weight``, which divides the rotary frequencies (Llama 3).
    """

    name: str
    rope_layout: RopeLayout
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_factors: bool = False


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        row.name: row
        for row in (
            Architecture("llama", "interleaved", rope_factors=True),
            Architecture("qwen2", "halves", qkv_bias=True),
            Architecture("qwen3", "halves", qk_norm=True),
        )
    }
)
"""Every supported architecture by name. "llama" is Llama 1 to 3, Mistral and TinyLlama."""
