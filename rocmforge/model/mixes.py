"""Which tensor gets which format: llama.cpp's file types, and one format for everything.

The rules are those of llama.cpp's quantizer for models that are no mixture of eight experts:
without importance data, but for IQ2 and IQ1, which it refuses to write without, and for IQ3_XXS.
They read names and shapes of tensors alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rocmforge.gguf.formats import FORMATS, PLAIN_FORMATS, fitting_format
from rocmforge.model.config import ModelConfig
from rocmforge.suggestions import did_you_mean

PURE = "-pure"


@dataclass(frozen=True)
class Mix:
    """How the matrices of a file are stored.

    Parameters
    ----------
    name
        As `find_mix` takes it.
    base
        Format of every matrix that no rule raises or lowers.
    file_type
        ``general.file_type`` in the metadata.
    pure
        No rule but the fallback applies.
    """

    name: str
    base: str
    file_type: int
    pure: bool


# llama.cpp's file types of these names: base format and number.
_FILE_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "F32": ("F32", 0),
        "F16": ("F16", 1),
        "BF16": ("BF16", 32),
        "Q4_0": ("Q4_0", 2),
        "Q4_1": ("Q4_1", 3),
        "Q5_0": ("Q5_0", 8),
        "Q5_1": ("Q5_1", 9),
        "Q8_0": ("Q8_0", 7),
        "Q2_K": ("Q2_K", 10),
        "Q3_K_M": ("Q3_K", 12),
        "Q4_K_M": ("Q4_K", 15),
        "Q5_K_M": ("Q5_K", 17),
        "Q6_K": ("Q6_K", 18),
        "IQ4_NL": ("IQ4_NL", 25),
        "IQ4_XS": ("IQ4_XS", 30),
        "IQ3_M": ("IQ3_S", 27),
        "IQ3_S": ("IQ3_S", 26),
        "IQ3_XS": ("IQ3_S", 22),
        "IQ3_XXS": ("IQ3_XXS", 23),
        "IQ2_M": ("IQ2_S", 29),
        "IQ2_S": ("IQ2_XS", 28),
        "IQ2_XS": ("IQ2_XS", 20),
        "IQ2_XXS": ("IQ2_XXS", 19),
        "IQ1_M": ("IQ1_M", 31),
        "IQ1_S": ("IQ1_S", 24),
        "TQ2_0": ("TQ2_0", 37),
        "TQ1_0": ("TQ1_0", 36),
        "NVFP4": ("NVFP4", 39),
        "MXFP4": ("MXFP4", 38),
    }
)
_IQ2_AND_1 = ("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
_EMBEDDINGS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("IQ3_XXS", "IQ2_M", "IQ2_S"), "IQ3_S"),
        **dict.fromkeys(("IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"), "Q2_K"),
        **dict.fromkeys(("TQ2_0", "TQ1_0"), "Q4_K"),
    }
)
_ATTENTION_OUTPUTS: Mapping[str, str] = MappingProxyType(
    {
        "Q2_K": "Q3_K",
        "Q3_K_M": "Q4_K",
        "IQ3_M": "Q4_K",
        **dict.fromkeys(("IQ3_XXS", "IQ2_M", "IQ2_S"), "IQ3_S"),
        **dict.fromkeys(("IQ1_M", "IQ1_S"), "IQ2_XXS"),
    }
)
# One format for every matrix: the number of the plainest file type of that format.
_PURE_FILE_TYPES: Mapping[str, int] = MappingProxyType(
    dict(_FILE_TYPES.values())
    | {"Q3_K": 11, "Q4_K": 14, "Q5_K": 16, "IQ3_S": 26, "IQ2_S": 29, "IQ2_XS": 20}
)


def mix_names() -> tuple[str, ...]:
    """Return every name that `find_mix` takes."""
    formats = [name for name in _PURE_FILE_TYPES if name not in _FILE_TYPES]
    pure = [f"{name}{PURE}" for name in _PURE_FILE_TYPES if name not in PLAIN_FORMATS]
    return (*_FILE_TYPES, *formats, *pure)


def find_mix(name: str) -> Mix:
    """Return the mix of a name.

    Parameters
    ----------
    name
        A file type of llama.cpp's, e.g. ``"Q4_K_M"`` or ``"Q4_0"`` (whose output matrix is
        Q6_K), ``"MXFP4"`` (embedding and output Q8_0), or every matrix in one format:
        ``"<format>-pure"``, without the suffix where no file type has the format's name.

    Raises
    ------
    ValueError
        If there is none of that name; lists them.
    """
    if name in _FILE_TYPES:
        base, number = _FILE_TYPES[name]
        return Mix(name, base, number, pure=base in PLAIN_FORMATS)
    base = name.removesuffix(PURE)
    if base not in _PURE_FILE_TYPES:
        nearest = did_you_mean(name, mix_names())
        raise ValueError(f"mix: got {name!r}, wanted one of {', '.join(mix_names())}{nearest}")
    return Mix(name, base, _PURE_FILE_TYPES[base], pure=True)


def tensor_format(mix: Mix, config: ModelConfig, name: str, shape: tuple[int, ...]) -> str:
    """Return the name of the format in which a tensor is stored: `mix_format`, or its fallback.

    The fallback is for columns that do not fill its blocks. Parameters as of `mix_format`.
    """
    return fitting_format(mix_format(mix, config, name, shape), shape[-1]) or "F16"


def mix_format(mix: Mix, config: ModelConfig, name: str, shape: tuple[int, ...]) -> str:
    """Return the name of the format that a mix means for a tensor.

    Parameters
    ----------
    mix
        The mix.
    config
        The model; its layers and heads enter the rules.
    name, shape
        Of the tensor, ``(rows, columns)`` for a matrix, ``(experts, rows, columns)`` for experts.
        Vectors, biases of experts and their scores' matrix are F32.
    """
    if len(shape) == 1 or name.endswith((".bias", ".ffn_gate_inp.weight")):
        return "F32"
    return mix.base if mix.pure else _by_rule(mix, config, name, shape[-1])


def _by_rule(mix: Mix, config: ModelConfig, name: str, columns: int) -> str:
    is_embedding = name == "token_embd.weight"
    if mix.name == "MXFP4":
        return "Q8_0" if is_embedding or name == "output.weight" else mix.base
    if name == "output.weight" or (is_embedding and config.tied_output):
        whole_blocks = columns % FORMATS[mix.base].block_len == 0
        wanted = "Q5_K" if mix.name in (*_IQ2_AND_1, "IQ3_XXS") else "Q6_K"
        return wanted if whole_blocks and mix.base != "Q8_0" else "Q8_0"
    if is_embedding:
        return _EMBEDDINGS.get(mix.name, mix.base)
    _, layer, part, _ = name.split(".")
    if part == "attn_qkv":
        raised = {"Q3_K_M": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
        return raised.get(mix.name, mix.base)
    if part in ("attn_q", "attn_k"):
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(mix.name, mix.base)
    if part == "attn_v":
        return _of_attn_v(mix, config, int(layer))
    if part == "attn_output":
        return _ATTENTION_OUTPUTS.get(mix.name, mix.base)
    if part in ("ffn_down", "ffn_down_exps"):
        return _of_ffn_down(mix, config, int(layer))
    eighth = config.n_layers // 8
    if mix.name == "IQ3_XS" and eighth <= int(layer) < 7 * config.n_layers // 8:
        return "IQ3_XXS"
    return mix.base


def _more_bits(layer: int, n_layers: int) -> bool:
    """Return whether a layer is in the first or last eighth, or every third between them."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _of_attn_v(mix: Mix, config: ModelConfig, layer: int) -> str:
    grouped = config.n_heads // config.n_kv_heads >= 4
    chosen = mix.base
    if mix.name == "Q2_K":
        chosen = "Q4_K" if grouped else "Q3_K"
    elif mix.name in _IQ2_AND_1:
        chosen = "Q4_K" if grouped or _many_experts(config) else _early(mix)
    elif mix.name == "IQ3_M" or (mix.name in ("IQ3_S", "IQ3_XS", "IQ3_XXS") and grouped):
        chosen = "Q4_K"
    elif mix.name == "Q3_K_M":
        chosen = "Q5_K" if layer < 2 else "Q4_K"
    elif mix.name in ("IQ4_NL", "IQ4_XS") and grouped:
        chosen = "Q5_K"
    elif mix.name in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, config.n_layers):
        chosen = "Q6_K"
    # llama.cpp calls a model of 80 layers with grouped heads a 70B and spares its small attn_v.
    if config.n_layers == 80 and config.n_heads != config.n_kv_heads and chosen in ("Q3_K", "Q4_K"):
        chosen = "Q5_K"
    return chosen


def _many_experts(config: ModelConfig) -> bool:
    return config.experts is not None and config.experts.count >= 4


def _early(mix: Mix) -> str:
    """Return what IQ2 and IQ1 take for matrices that matter more."""
    return "IQ3_S" if mix.name in ("IQ2_M", "IQ2_S") else "Q2_K"


def _of_ffn_down(mix: Mix, config: ModelConfig, layer: int) -> str:
    n_layers = config.n_layers
    if mix.name == "Q2_K":
        return "Q3_K"
    if mix.name == "Q3_K_M":
        return "Q5_K" if layer < n_layers // 16 else "Q4_K"
    if layer < n_layers // 8:
        if mix.name in _IQ2_AND_1:
            return _early(mix)
        if mix.name in ("IQ4_NL", "IQ4_XS"):
            return "Q5_K"
        if mix.name == "IQ3_M":
            return "Q4_K"
    if mix.name in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, n_layers):
        return "Q6_K"
    return mix.base
