"""Shapes of published models, and a tiny one, as configurations without a file.

For the model maker, and to compute with models too large to make. The numbers are those of each
model's published config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import ExpertConfig, ModelConfig, Scales, WindowConfig
from rocmforge.model.rope import RopeConfig
from rocmforge.suggestions import did_you_mean

Vocabulary = Literal["llama-spm", "llama-bpe", "qwen2"]


@dataclass(frozen=True)
class Preset:
    """A model shape by name.

    Parameters
    ----------
    name
        As the command line takes it.
    describes
        The published model of this shape.
    config
        Its configuration.
    vocabulary
        Kind of tokenizer.
    rope_factor
        Llama 3's frequency scaling factor; None for models without ``rope_freqs.weight``.
    """

    name: str
    describes: str
    config: ModelConfig
    vocabulary: Vocabulary
    rope_factor: float | None = None


def _llama(
    n_layers: int,
    d_model: int,
    heads: tuple[int, int],
    d_ff: int,
    vocab_size: int,
    ctx: int,
    *,
    base: float = 10000.0,
    tied: bool = False,
) -> ModelConfig:
    head_dim = d_model // heads[0]
    return ModelConfig(
        architecture="llama",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=heads[0],
        n_kv_heads=heads[1],
        head_dim=head_dim,
        d_ff=d_ff,
        vocab_size=vocab_size,
        ctx_train=ctx,
        norm_eps=1e-5,
        rope=RopeConfig(dim=head_dim, base=base, layout="interleaved", original_ctx=ctx),
        tied_output=tied,
    )


def with_architecture(config: ModelConfig, architecture: str) -> ModelConfig:
    """Return the same shape as another architecture: its rotary layout, biases and q/k norms.

    Parameters
    ----------
    config
        The shape.
    architecture
        A name of `ARCHITECTURES`.

    Raises
    ------
    ValueError
        If `architecture` is another, or always has experts and the shape has none.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture: got {architecture!r}, wanted one of {', '.join(ARCHITECTURES)}"
            f"{did_you_mean(architecture, ARCHITECTURES)}"
        )
    row = ARCHITECTURES[architecture]
    experts = config.experts
    if experts is None and row.mixture == "always":
        raise ValueError(
            f"architecture: got {architecture}, wanted one for a model without experts, "
            "or a preset with experts"
        )
    if experts is not None:
        normalized = replace(experts, normalized=row.normalized_shares)
        experts = None if row.mixture == "never" else normalized
    return replace(
        config,
        architecture=row.name,
        rope=replace(config.rope, layout=row.rope_layout),
        biases=tuple(sorted(row.required_biases)),
        qk_norm=row.qk_norm,
        experts=experts,
        no_rope_layer_interval=row.no_rope_layer_interval,
        tied_output=config.tied_output or row.always_tied,
        scales=Scales(embedding=math.sqrt(config.d_model) if row.scaled_embedding else 1.0),
    )


_QWEN2_HALF_B = with_architecture(
    replace(_llama(24, 896, (14, 2), 4864, 151936, 32768, base=1e6, tied=True), norm_eps=1e-6),
    "qwen2",
)
_LLAMA_32_1B = _llama(16, 2048, (32, 8), 8192, 128256, 131072, base=5e5, tied=True)
_LLAMA_32_3B = _llama(28, 3072, (24, 8), 8192, 128256, 131072, base=5e5, tied=True)
_LLAMA_3_8B = _llama(32, 4096, (32, 8), 14336, 128256, 8192, base=5e5)
_LLAMA_3_70B = _llama(80, 8192, (64, 8), 28672, 128256, 8192, base=5e5)

_QWEN3_30B_A3B = with_architecture(
    replace(
        _llama(48, 2048, (32, 4), 768, 151936, 40960),
        head_dim=128,
        rope=RopeConfig(dim=128, base=1e6, layout="halves", original_ctx=40960),
        norm_eps=1e-6,
        experts=ExpertConfig(128, 8, normalized=True),
    ),
    "qwen3moe",
)
_MIXTRAL_8X7B = replace(
    _llama(32, 4096, (32, 8), 14336, 32000, 32768, base=1e6),
    experts=ExpertConfig(8, 2, normalized=True),
)
_GEMMA3_1B = replace(
    with_architecture(_llama(26, 1152, (4, 1), 6912, 262144, 32768, base=1e6), "gemma3"),
    head_dim=256,
    rope=RopeConfig(dim=256, base=1e6, layout="halves", original_ctx=32768),
    norm_eps=1e-6,
    tied_output=True,
    window=WindowConfig(512, 6, RopeConfig(dim=256, base=1e4, layout="halves", original_ctx=32768)),
)
_GPT_OSS_20B = with_architecture(
    replace(
        _llama(24, 2880, (64, 8), 2880, 201088, 131072),
        head_dim=64,
        rope=RopeConfig(
            dim=64,
            base=150000.0,
            layout="halves",
            scaling="yarn",
            factor=32.0,
            original_ctx=4096,
        ),
        experts=ExpertConfig(32, 4, normalized=True),
        window=WindowConfig(128, 2, None),
    ),
    "gpt-oss",
)
_TINY = _llama(4, 256, (4, 2), 512, 1024, 2048)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset("tiny", "for tests", _TINY, "llama-spm"),
            Preset(
                "tiny-moe",
                "for tests",
                replace(_TINY, d_ff=256, experts=ExpertConfig(8, 2, normalized=True)),
                "llama-spm",
            ),
            Preset("0.5B", "Qwen2 0.5B", _QWEN2_HALF_B, "qwen2"),
            Preset(
                "1.1B", "TinyLlama 1.1B", _llama(22, 2048, (32, 4), 5632, 32000, 2048), "llama-spm"
            ),
            Preset("gemma3-1B", "Gemma 3 1B, with attention windows", _GEMMA3_1B, "llama-spm"),
            Preset("1B", "Llama 3.2 1B", _LLAMA_32_1B, "llama-bpe", rope_factor=32.0),
            Preset("3B", "Llama 3.2 3B", _LLAMA_32_3B, "llama-bpe", rope_factor=32.0),
            Preset("7B", "Llama 2 7B", _llama(32, 4096, (32, 32), 11008, 32000, 4096), "llama-spm"),
            Preset("8B", "Llama 3 8B", _LLAMA_3_8B, "llama-bpe"),
            Preset(
                "13B", "Llama 2 13B", _llama(40, 5120, (40, 40), 13824, 32000, 4096), "llama-spm"
            ),
            Preset("gpt-oss-20B", "gpt-oss 20B, a mixture of experts", _GPT_OSS_20B, "qwen2"),
            Preset("30B-A3B", "Qwen3 30B A3B, a mixture of experts", _QWEN3_30B_A3B, "qwen2"),
            Preset("8x7B", "Mixtral 8x7B, a mixture of experts", _MIXTRAL_8X7B, "llama-spm"),
            Preset("70B", "Llama 3 70B", _LLAMA_3_70B, "llama-bpe"),
        )
    }
)
"""Every preset by name, smallest first."""


def find_preset(name: str, *, layers: int | None = None, architecture: str | None = None) -> Preset:
    """Return a preset, cut to fewer layers or turned into another architecture.

    Parameters
    ----------
    name
        A key of `PRESETS`.
    layers
        Blocks to keep; all by default.
    architecture
        Passed to `with_architecture`; the vocabulary of a qwen architecture becomes qwen2's.

    Raises
    ------
    ValueError
        If the name or the architecture is unknown, or `layers` is not from 1 to the preset's.
    """
    if name not in PRESETS:
        nearest = did_you_mean(name, PRESETS)
        raise ValueError(f"preset: got {name!r}, wanted one of {', '.join(PRESETS)}{nearest}")
    preset = PRESETS[name]
    if layers is not None:
        if not 1 <= layers <= preset.config.n_layers:
            raise ValueError(f"layers: got {layers}, wanted 1 to {preset.config.n_layers}")
        preset = replace(preset, config=replace(preset.config, n_layers=layers))
    if architecture is not None and architecture != preset.config.architecture:
        config = with_architecture(preset.config, architecture)
        if architecture == "llama":
            return replace(preset, config=config)
        preset = replace(preset, config=config, vocabulary="qwen2", rope_factor=None)
    return preset


def llama3_freq_factors(rope: RopeConfig, factor: float) -> NDArray[np.float32]:
    """Return what Llama 3 divides rotary frequencies by, the tensor ``rope_freqs.weight``.

    With f the plain frequency and n = 8192 · f / 2π the turns it makes in the original context:
    1 where n ≥ 4, s where n ≤ 1, and between them 1 / ((1 − t) / s + t), t = (n − 1) / 3.

    Parameters
    ----------
    rope
        The rotary embedding; its own scaling is left out.
    factor
        s, 8 for Llama 3.1 and 32 for Llama 3.2.

    Returns
    -------
    ``(dim / 2,)`` float32.
    """
    plain = replace(rope, scaling="none").frequencies(None)
    blend = np.clip((8192.0 * plain / (2.0 * math.pi) - 1.0) / 3.0, 0.0, 1.0)
    return (1.0 / ((1.0 - blend) / factor + blend)).astype(np.float32)
