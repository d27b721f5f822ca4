"""A model file and its float64 forward pass, by the gguf package and plain numpy.

It shares no code with rocmforge: what architectures differ in is written down here once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
CTX = 128

INTERLEAVED = (
    *("llama", "smollm3", "ernie4_5", "internlm2", "granite", "granitemoe"),
    *("glm4", "cohere2", "command-r", "mistral3"),
)
GEMMAS = "gemma", "gemma2", "gemma3"
POST_NORMS = "gemma2", "gemma3", "olmo2", "glm4"
LAYERNORMS = "cohere2", "command-r", "starcoder2"
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "olmo2": 4}
UNTURNED_EVERY = {"smollm3": 4, "cohere2": 4}


@dataclass(frozen=True)
class Plain:
    """A model file as the gguf package reads it: metadata without prefix, weights in float64."""

    arch: str
    keys: Mapping[str, Any]
    weights: Mapping[str, Doubles]

    @classmethod
    def read(cls, path: Path) -> Plain:
        reader = gguf.GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
        keys = {
            name.removeprefix(f"{arch}."): field.contents()
            for name, field in reader.fields.items()
            if name.startswith(f"{arch}.")
        }
        weights = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            for t in reader.tensors
        }
        for name in [name for name in weights if name.endswith(".scale")]:
            scaled = weights[name.replace(".scale", ".weight")]
            scaled *= weights[name].reshape(-1, *[1] * (scaled.ndim - 1))
        return cls(arch, keys, weights)

    def is_windowed(self, layer: int) -> bool:
        every = self.keys.get("attention.sliding_window_pattern", GLOBAL_EVERY.get(self.arch, 0))
        if isinstance(every, list):
            return bool(every[layer])
        windowed = every == 0 or layer % every < every - 1
        return windowed and "attention.sliding_window" in self.keys


def turn_per_position(model: Plain, dim: int, windowed: bool) -> tuple[Doubles, float]:
    """Angle of each pair from one position to the next, and the factor of cos and sin."""
    keys = model.keys
    base = keys.get("rope.freq_base", 10000.0)
    if windowed:
        base = keys.get("rope.freq_base_swa", 10000.0 if model.arch == "gemma3" else base)
    turn = np.array([base ** -(2 * i / dim) for i in range(dim // 2)])
    original = keys.get("rope.scaling.original_context_length", keys["context_length"])
    for name in ("freqs", "factors_long" if original < CTX else "factors_short"):
        turn = turn / model.weights.get(f"rope_{name}.weight", 1.0)
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0)) or 1.0
    kind = keys.get("rope.scaling.type", "linear")
    magnitude = keys.get("rope.scaling.attn_factor", 1.0)
    if windowed and model.arch in ("gemma3", "olmo2"):
        return turn, 1.0
    if kind == "none":
        return turn, magnitude
    if kind in ("linear", "longrope"):
        return turn / factor, magnitude

    def pair_with_turns(turns: float) -> float:
        # base^(-2 i / dim) * original = 2 pi turns, solved for i
        return dim / 2 * math.log(original / (2 * math.pi * turns), base)

    low = max(math.floor(pair_with_turns(keys.get("rope.scaling.yarn_beta_fast", 32.0))), 0)
    high = math.ceil(pair_with_turns(keys.get("rope.scaling.yarn_beta_slow", 1.0)))
    high = min(high, dim - 1)
    for i in range(dim // 2):
        slowed = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        turn[i] *= (1 - slowed) + slowed / factor
    small = 1 + 0.1 * keys.get("rope.scaling.yarn_log_multiplier", 0.0) * math.log(factor)
    return turn, magnitude * (1 + 0.1 * math.log(factor)) / small


def normalize(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def gelu(x: Doubles) -> Doubles:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def activated(arch: str, gate: Doubles, up: Doubles) -> Doubles:
    if arch in GEMMAS:
        return gelu(gate) * up
    if arch == "gpt-oss":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    return gate * sigmoid(gate) * up


def mixture(model: Plain, h: Doubles, part: Callable[[str], Any]) -> Doubles:
    """Token by token, the experts of its largest scores, and one for all where there is one."""
    used, normalized = model.keys["expert_used_count"], model.arch not in ("olmoe", "qwen2moe")
    out = np.zeros_like(h)
    gates, ups, downs = (part(f"ffn_{name}_exps.weight") for name in ("gate", "up", "down"))
    biases = [
        np.zeros(gates.shape[:2])
        if np.ndim(part(f"ffn_{name}_exps.bias")) == 0
        else part(f"ffn_{name}_exps.bias")
        for name in ("gate", "up")
    ]
    for t, x in enumerate(h):
        odds = np.exp(part("ffn_gate_inp.weight") @ x + part("ffn_gate_inp.bias"))
        chosen = sorted(range(len(odds)), key=lambda e: -odds[e])[:used]
        total = sum(odds[e] for e in chosen) if normalized else odds.sum()
        for e in chosen:
            inner = activated(model.arch, gates[e] @ x + biases[0][e], ups[e] @ x + biases[1][e])
            down = downs[e] @ inner
            if np.ndim(part("ffn_down_exps.bias")):
                down = down + part("ffn_down_exps.bias")[e]
            out[t] += odds[e] / total * down
    if np.ndim(part("ffn_up_shexp.weight")):
        inner = activated(
            model.arch, h @ part("ffn_gate_shexp.weight").T, h @ part("ffn_up_shexp.weight").T
        )
        shared = inner @ part("ffn_down_shexp.weight").T
        if np.ndim(part("ffn_gate_inp_shexp.weight")):
            shared = shared * sigmoid(h @ part("ffn_gate_inp_shexp.weight"))[:, None]
        out += shared
    return out


def forward(model: Plain, ids: list[int]) -> Doubles:
    """Logits (T, V) after each of the ids."""
    keys, w, arch = model.keys, model.weights, model.arch
    heads, width = keys["attention.head_count"], keys["embedding_length"]
    kv_heads = keys.get("attention.head_count_kv", heads)
    dim = keys.get("attention.key_length", width // heads)
    eps = keys.get("attention.layer_norm_rms_epsilon", keys.get("attention.layer_norm_epsilon"))
    turned = keys.get("rope.dimension_count", dim)
    ago = np.arange(len(ids))[:, None] - np.arange(len(ids))
    residual = keys.get("residual_scale", 1.0)
    scale = keys.get("attention.scale", 0.0) or 1 / math.sqrt(dim)

    def norm(x: Doubles, name: str, bias: Any = 0.0) -> Doubles:
        if arch in LAYERNORMS:
            x = x - x.mean(-1, keepdims=True)
        return normalize(x, w[name], eps) + w.get(name.replace(".weight", ".bias"), 0.0)

    def rotate(x: Doubles, phase: NDArray[np.complex128]) -> Doubles:
        x, rest = x[..., :turned], x[..., turned:]
        if arch in INTERLEAVED:
            pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * phase
            parts = [np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)]
        else:
            pairs = (x[..., : turned // 2] + 1j * x[..., turned // 2 :]) * phase
            parts = [pairs.real, pairs.imag]
        return np.concatenate([*parts, rest], -1)

    x = w["token_embd.weight"][ids] * keys.get("embedding_scale", 1.0)
    if arch in GEMMAS:
        x = x * math.sqrt(width)
    for layer in range(keys["block_count"]):

        def part(name: str, default: float = 0.0, layer: int = layer) -> Any:
            return w.get(f"blk.{layer}.{name}", default)

        block = f"blk.{layer}."
        h = x if arch == "olmo2" else norm(x, f"{block}attn_norm.weight")
        attended = h
        if f"{block}attn_qkv.weight" in w:
            all_three = h @ part("attn_qkv.weight").T + part("attn_qkv.bias")
            rows = heads * dim, (heads + kv_heads) * dim
            q, k, v = (a.reshape(len(ids), -1, dim) for a in np.split(all_three, rows, axis=1))
        else:
            q, k, v = (
                (h @ part(f"attn_{n}.weight").T + part(f"attn_{n}.bias")).reshape(len(ids), -1, dim)
                for n in "qkv"
            )
        if arch in ("olmoe", "olmo2"):
            q, k = (
                normalize(a.reshape(len(ids), -1), part(f"attn_{n}_norm.weight"), eps).reshape(
                    a.shape
                )
                for n, a in (("q", q), ("k", k))
            )
        if arch.startswith("qwen3") or arch == "gemma3":
            q = normalize(q, part("attn_q_norm.weight"), eps)
            k = normalize(k, part("attn_k_norm.weight"), eps)
        windowed = model.is_windowed(layer)
        every = UNTURNED_EVERY.get(arch)
        if every is None or layer % every != every - 1:
            turn, magnitude = turn_per_position(model, turned, windowed)
            phase = magnitude * np.exp(1j * np.arange(len(ids))[:, None, None] * turn)
            q, k = rotate(q, phase), rotate(k, phase)
        if "attention.temperature_scale" in keys:
            original = keys["rope.scaling.original_context_length"]
            grown = np.log(np.arange(len(ids)) // original + 1)
            q = q * (1 + keys["attention.temperature_scale"] * grown)[:, None, None]
        k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * scale
        if cap := keys.get("attn_logit_softcapping"):
            scores = cap * np.tanh(scores / cap)
        seen = (ago >= 0) & (ago < keys["attention.sliding_window"] if windowed else ago >= 0)
        scores = np.where(seen, scores, -np.inf)
        if arch == "gpt-oss":
            sinks = np.tile(part("attn_sinks.weight")[:, None, None], (1, len(ids), 1))
            scores = np.concatenate([scores, sinks], axis=-1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", share[..., : len(ids)], v).reshape(len(ids), -1)
        added = mixed @ part("attn_output.weight").T + part("attn_output.bias")
        if arch in POST_NORMS:
            added = norm(added, f"{block}post_attention_norm.weight")
        x = x + residual * added
        name = "post_attention_norm" if arch in ("gpt-oss", "seed_oss") else "ffn_norm"
        if arch in ("cohere2", "command-r"):
            h = attended
        elif arch == "olmo2":
            h = x
        else:
            h = norm(x, f"{block}{name}.weight")
        if "expert_count" in keys:
            x = x + residual * mixture(model, h, part)
            continue
        up = h @ part("ffn_up.weight").T + part("ffn_up.bias")
        if arch == "starcoder2":
            inner = gelu(up)
        elif arch in ("phi3", "glm4"):
            gate, up = np.split(up, 2, axis=1)
            inner = activated(arch, gate, up)
        else:
            inner = activated(arch, h @ part("ffn_gate.weight").T + part("ffn_gate.bias"), up)
        added = inner @ part("ffn_down.weight").T + part("ffn_down.bias")
        if arch in POST_NORMS:
            added = norm(added, f"{block}post_ffw_norm.weight")
        x = x + residual * added
    output = w.get("output.weight", w["token_embd.weight"])
    logits = norm(x, "output_norm.weight") @ output.T
    scaled = keys.get("logit_scale", 1.0)
    logits = logits / scaled if arch.startswith("granite") else logits * scaled
    if cap := keys.get("final_logit_softcapping"):
        logits = cap * np.tanh(logits / cap)
    return logits
