"""Writes small models of odd sizes and every architecture, by the gguf package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from model.gguf_files import BASE
from model.plain_model import GEMMAS, LAYERNORMS, POST_NORMS
from numpy.typing import NDArray


def written(architecture: str, *, tied: bool = False, **keys: Any) -> Callable[[Path], Path]:
    """A model of odd sizes, made here; keys with `__` for the dots of GGUF's."""
    named = {key.replace("__", "."): value for key, value in keys.items()}
    every = architecture in ("gpt-oss", "starcoder2")
    bias = named.pop("bias", every or architecture == "qwen2")
    all_biases = named.pop("all_biases", every)
    freqs, long_rope = named.pop("freqs", False), named.pop("long_rope", False)
    fused = named.pop("fused", architecture == "phi3")
    tied = tied or architecture in (*GEMMAS, "cohere2", "command-r")
    scaled = named.pop("nvfp4", False)

    def write(path: Path) -> Path:
        sizes = {**BASE, "context_length": 512, "vocab_size": 97, **named}
        if architecture in LAYERNORMS:
            sizes["attention.layer_norm_epsilon"] = sizes.pop("attention.layer_norm_rms_epsilon")
        rng = np.random.default_rng(11)
        width, inner = sizes["embedding_length"], sizes["feed_forward_length"]
        heads, kv_heads = sizes["attention.head_count"], sizes["attention.head_count_kv"]
        dim = sizes.get("attention.key_length", width // heads)
        experts, shared = sizes.get("expert_count"), sizes.pop("shared", 0)
        if shared:
            sizes["expert_shared_feed_forward_length"] = shared

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)

        def vector(size: int, mean: float) -> NDArray[np.float32]:
            return mean + rng.standard_normal(size, np.float32) / 4

        def block() -> dict[str, NDArray[np.float32]]:
            found = {"attn_output.weight": matrix(width, heads * dim)}
            norms = ["attn_norm", "ffn_norm"]
            if architecture in ("cohere2", "command-r"):
                norms = ["attn_norm"]
            if architecture in POST_NORMS:
                norms = ["post_attention_norm", "post_ffw_norm"]
                norms += [] if architecture == "olmo2" else ["attn_norm", "ffn_norm"]
            if architecture in ("gpt-oss", "seed_oss"):
                norms = ["attn_norm", "post_attention_norm"]
            for name in norms:
                found[f"{name}.weight"] = vector(width, 1)
                if architecture == "starcoder2":
                    found[f"{name}.bias"] = vector(width, 0)
            if architecture == "gpt-oss":
                found["attn_sinks.weight"] = vector(heads, 1)
            if all_biases:
                found["attn_output.bias"] = vector(width, 0)
            products = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
            if architecture == "starcoder2":
                del products["gate"]
            for name, shape in products.items():
                if experts:
                    stacked = np.stack([matrix(*shape) for _ in range(experts)])
                    found[f"ffn_{name}_exps.weight"] = stacked
                    if all_biases:
                        biases = [vector(shape[0], 0) for _ in range(experts)]
                        found[f"ffn_{name}_exps.bias"] = np.stack(biases)
                else:
                    found[f"ffn_{name}.weight"] = matrix(*shape)
                    if all_biases:
                        found[f"ffn_{name}.bias"] = vector(shape[0], 0)
            if experts:
                found["ffn_gate_inp.weight"] = matrix(experts, width)
                if all_biases:
                    found["ffn_gate_inp.bias"] = vector(experts, 0)
            if shared:
                found["ffn_gate_shexp.weight"] = matrix(shared, width)
                found["ffn_up_shexp.weight"] = matrix(shared, width)
                found["ffn_down_shexp.weight"] = matrix(width, shared)
                if architecture == "qwen2moe":
                    found["ffn_gate_inp_shexp.weight"] = matrix(1, width)[0]
            if architecture in ("phi3", "glm4"):
                found["ffn_up.weight"] = np.vstack(
                    [found.pop("ffn_gate.weight"), found["ffn_up.weight"]]
                )
            normed = architecture.startswith(("qwen3", "gemma3", "olmo"))
            parts = [("q", heads), ("k", kv_heads), ("v", kv_heads)]
            for n, count in [("qkv", heads + 2 * kv_heads)] if fused else parts:
                found[f"attn_{n}.weight"] = matrix(count * dim, width)
                if bias:
                    found[f"attn_{n}.bias"] = vector(count * dim, 0)
                if normed and n != "v":
                    whole = count if architecture.startswith("olmo") else 1
                    found[f"attn_{n}_norm.weight"] = vector(whole * dim, 1)
            return found

        tensors = {
            "token_embd.weight": 2 * matrix(97, width),
            "output_norm.weight": vector(width, 1),
        }
        if architecture in GEMMAS:
            tensors["token_embd.weight"] /= 8
        if architecture == "starcoder2":
            tensors["output_norm.bias"] = vector(width, 0)
        if not tied:
            tensors["output.weight"] = matrix(97, width)
        tables = ["freqs"] if freqs else ["factors_short", "factors_long"] if long_rope else []
        for name in tables:
            turned = sizes.get("rope.dimension_count", dim)
            tensors[f"rope_{name}.weight"] = rng.uniform(1, 8, turned // 2).astype(np.float32)
        for layer in range(sizes["block_count"]):
            tensors.update({f"blk.{layer}.{name}": value for name, value in block().items()})
        write_model(path, architecture, sizes, as_nvfp4(tensors, rng) if scaled else tensors)
        return path

    return write


def as_nvfp4(
    tensors: dict[str, NDArray[np.float32]], rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Other matrices of the same shapes and sizes in NVFP4, and the scales beside them.

    Scales have 7 bits, so that their products with those of blocks are exact in float16.
    """
    found: dict[str, NDArray[Any]] = dict(tensors)
    for name, array in tensors.items():
        if array.ndim < 2 or name.endswith((".bias", "token_embd.weight", "ffn_gate_inp.weight")):
            continue
        *rows, columns = array.shape
        blocks = rng.integers(0, 256, (*rows, columns // 64, 36), np.uint8)
        blocks[..., :4] = rng.integers(48, 72, blocks[..., :4].shape)  # 0.5 to 3.75
        found[name] = blocks.reshape(*rows, -1)
        count = array.shape[0] if array.ndim == 3 else 1
        stem = name.removesuffix("weight")
        power = round(np.log2(4 * columns**0.5))  # numbers of E2M1 by 0.5 to 3.75 are about 4
        scales = rng.integers(64, 128, count) / 2.0 ** (power + 6)
        found[f"{stem}scale"] = scales.astype(np.float32)
        found[f"{stem}input_scale"] = np.full(count, 0.02, np.float32)
    return found


def write_model(
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    tensors: dict[str, NDArray[Any]],
) -> None:
    """Write a file of an architecture: keys without its prefix; empty arrays are left out.

    Bytes are matrices of NVFP4.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("tokenizer.ggml.model", "none")
    for key, value in keys.items():
        # llama.cpp takes no wider integers here.
        add: Any = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        if isinstance(value, str):
            add = writer.add_string
        if isinstance(value, bool):
            add = writer.add_bool
        if isinstance(value, list):
            if not value:
                continue
            add = writer.add_array
        add(f"{architecture}.{key}", value)
    for name, array in tensors.items():
        nvfp4 = gguf.GGMLQuantizationType.NVFP4 if array.dtype == np.uint8 else None
        writer.add_tensor(name, array, raw_dtype=nvfp4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
