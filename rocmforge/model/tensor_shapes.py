"""The tensors of a model by its configuration: their names and shapes, and what a file has else."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from rocmforge.gguf.formats import PLAIN_FORMATS
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.matrix_scales import scale_shapes

_LISTED = 12
ROPE_FREQS = "rope_freqs.weight"  # Llama 3
LONG_ROPE = ("rope_factors_short.weight", "rope_factors_long.weight")


def layer_of(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to by its name; None: to no block."""
    block, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if block == "blk" else None


def rope_tables(config: ModelConfig, names: Container[str]) -> tuple[str, ...]:
    """Return which tables of rotary frequency factors of the architecture are among some names.

    In another architecture such a tensor is unknown, and an error says so.
    """
    row = config.row
    own = (ROPE_FREQS,) if row.rope_factors else LONG_ROPE if row.long_rope else ()
    return tuple(name for name in own if name in names)


def tensor_shapes(config: ModelConfig, tables: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a model of this configuration consists of.

    Parameters
    ----------
    config
        The model.
    tables
        Its tables of rotary frequency factors, see `rope_tables`: no key announces them.

    Returns
    -------
    GGUF tensor names to shapes in numpy order, ``(rows, columns)`` for matrices and ``(experts,
    rows, columns)`` for those of experts, in the order in which a forward pass uses them.
    """
    width, head = config.d_model, config.head_dim
    q_rows, kv_rows = config.n_heads * head, config.n_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, width)}
    shapes.update(dict.fromkeys(tables, (config.rope.dim // 2,)))
    row = config.row
    block: dict[str, tuple[int, ...]] = {}  # names without ".weight"
    if row.norm_places != "after":
        block["attn_norm"] = (width,)
    if config.fused_qkv:
        block["attn_qkv"] = (q_rows + 2 * kv_rows, width)
    else:
        block.update(attn_q=(q_rows, width), attn_k=(kv_rows, width), attn_v=(kv_rows, width))
    if config.qk_norm:
        whole = config.qk_norm == "whole"
        block["attn_q_norm"] = (q_rows if whole else head,)
        block["attn_k_norm"] = (kv_rows if whole else head,)
    if row.attention_sinks:
        block["attn_sinks"] = (config.n_heads,)
    block["attn_output"] = (width, q_rows)
    if row.norm_places != "before":
        block["post_attention_norm"] = (width,)
    if row.norm_places != "after" and not row.parallel_residual:
        block[row.ffn_norm_tensor] = (width,)
    block.update(_feed_forward_shapes(config))
    if row.norm_places != "before":
        block["post_ffw_norm"] = (width,)
    for layer in range(config.n_layers):
        for name, shape in block.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
            if name in config.biases:  # experts have a row of it each
                shapes[f"blk.{layer}.{name}.bias"] = shape[:-1] if len(shape) > 1 else shape
    shapes["output_norm.weight"] = (width,)
    if "output_norm" in config.biases:
        shapes["output_norm.bias"] = (width,)
    if not config.tied_output:
        shapes["output.weight"] = (config.vocab_size, width)
    return shapes


def _feed_forward_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner, experts = config.d_model, config.d_ff, config.experts
    if experts is None:
        gate, down = (inner, width), (width, inner)
        if config.row.fused_gate_up:
            return {"ffn_up": (2 * inner, width), "ffn_down": down}
        if not config.row.has_gate:
            return {"ffn_up": gate, "ffn_down": down}
        return {"ffn_gate": gate, "ffn_up": gate, "ffn_down": down}
    wide, narrow = (experts.count, inner, width), (experts.count, width, inner)
    shapes: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp": (experts.count, width),
        "ffn_gate_exps": wide,
        "ffn_up_exps": wide,
        "ffn_down_exps": narrow,
    }
    if experts.shared:
        gate, down = (experts.shared, width), (width, experts.shared)
        shapes.update(ffn_gate_shexp=gate, ffn_up_shexp=gate, ffn_down_shexp=down)
    if experts.shared_gate:
        shapes["ffn_gate_inp_shexp"] = (width,)
    return shapes


def tensor_problems(file: GGUFFile, config: ModelConfig) -> list[str]:
    """Return what is wrong with the tensors of a file for its configuration; nothing is read."""
    shapes = tensor_shapes(config, rope_tables(config, file.tensors))
    shapes.update(scale_shapes(file.tensors))
    problems: list[str] = []
    missing = [name for name in shapes if name not in file.tensors]
    unknown = [name for name in file.tensors if name not in shapes]
    if missing:
        problems.append(f"missing tensors: {_listing(missing)}")
    if unknown:
        problems.append(f"unknown tensors: {_listing(unknown)}")
    present = {name: shape for name, shape in shapes.items() if name in file.tensors}
    wrong = [
        f"{name} (got {file.tensors[name].shape}, wanted {shape})"
        for name, shape in present.items()
        if file.tensors[name].shape != shape
    ]
    if wrong:
        problems.append(f"tensors of another shape: {_listing(wrong)}")
    quantized = [
        f"{name} (got {file.tensors[name].format.name})"
        for name, shape in present.items()
        if (len(shape) == 1 or name.endswith(".bias"))
        and file.tensors[name].format.name not in PLAIN_FORMATS
    ]
    if quantized:
        wanted = ", ".join(PLAIN_FORMATS)
        problems.append(f"vectors of a format other than {wanted}: {_listing(quantized)}")
    return problems


def _listing(items: Iterable[str]) -> str:
    found = list(items)
    rest = len(found) - _LISTED
    return ", ".join(found[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
