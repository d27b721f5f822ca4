"""The decoder against a float64 forward pass written here, and against llama.cpp where it is.

`forward` reads files by the gguf package and computes with plain numpy, whole sequences at once;
it shares no code with rocmforge. Models are small, with F32 weights unless said otherwise.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from model.gguf_files import BASE
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.model.synthetic import make_model

Doubles = NDArray[np.float64]
TOKENS = 75  # two pages of 32 and a part


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
        return cls(arch, keys, weights)


def turn_per_position(model: Plain, dim: int) -> tuple[Doubles, float]:
    """Angle of each pair from one position to the next, and the factor of cos and sin."""
    keys = model.keys
    base = keys.get("rope.freq_base", 10000.0)
    turn = np.array([base ** -(2 * i / dim) for i in range(dim // 2)])
    if "rope_freqs.weight" in model.weights:
        turn = turn / model.weights["rope_freqs.weight"]
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0)) or 1.0
    kind = keys.get("rope.scaling.type", "linear")
    magnitude = keys.get("rope.scaling.attn_factor", 1.0)
    if kind == "none":
        return turn, magnitude
    if kind == "linear":
        return turn / factor, magnitude
    original = keys.get("rope.scaling.original_context_length", keys["context_length"])

    def pair_with_turns(turns: float) -> float:
        # base^(-2 i / dim) * original = 2 pi turns, solved for i
        return dim / 2 * math.log(original / (2 * math.pi * turns), base)

    low = max(math.floor(pair_with_turns(keys.get("rope.scaling.yarn_beta_fast", 32.0))), 0)
    high = math.ceil(pair_with_turns(keys.get("rope.scaling.yarn_beta_slow", 1.0)))
    high = min(high, dim - 1)
    for i in range(dim // 2):
        slowed = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        turn[i] *= (1 - slowed) + slowed / factor
    return turn, magnitude * (1 + 0.1 * math.log(factor))


def normalize(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def forward(model: Plain, ids: list[int]) -> Doubles:
    """Logits (T, V) after each of the ids."""
    keys, w = model.keys, model.weights
    heads = keys["attention.head_count"]
    kv_heads = keys.get("attention.head_count_kv", heads)
    dim = keys.get("attention.key_length", keys["embedding_length"] // heads)
    eps = keys["attention.layer_norm_rms_epsilon"]
    turn, magnitude = turn_per_position(model, dim)
    phase = magnitude * np.exp(1j * np.arange(len(ids))[:, None, None] * turn)
    causal = np.tril(np.ones((len(ids), len(ids)), bool))

    def rotate(x: Doubles) -> Doubles:
        if model.arch == "llama":
            pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * phase
            return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
        pairs = (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) * phase
        return np.concatenate([pairs.real, pairs.imag], -1)

    x = w["token_embd.weight"][ids]
    for layer in range(keys["block_count"]):

        def part(name: str, default: float = 0.0, layer: int = layer) -> Any:
            return w.get(f"blk.{layer}.{name}", default)

        h = normalize(x, part("attn_norm.weight"), eps)
        q, k, v = (
            (h @ part(f"attn_{n}.weight").T + part(f"attn_{n}.bias")).reshape(len(ids), -1, dim)
            for n in "qkv"
        )
        if model.arch == "qwen3":
            q = normalize(q, part("attn_q_norm.weight"), eps)
            k = normalize(k, part("attn_k_norm.weight"), eps)
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        scores = np.where(causal, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", share, v).reshape(len(ids), -1)
        x = x + mixed @ part("attn_output.weight").T
        h = normalize(x, part("ffn_norm.weight"), eps)
        gate = h @ part("ffn_gate.weight").T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (h @ part("ffn_up.weight").T))
            @ part("ffn_down.weight").T
        )
    output = w.get("output.weight", w["token_embd.weight"])
    return normalize(x, w["output_norm.weight"], eps) @ output.T


def synthetic(architecture: str, mix: str = "F32", **options: Any) -> Callable[[Path], Path]:
    return lambda path: make_model(
        path, "tiny", mix, seed=3, layers=2, architecture=architecture, **options
    )


def written(architecture: str, *, tied: bool = False, **keys: Any) -> Callable[[Path], Path]:
    """A model of odd sizes, made here; keys with `__` for the dots of GGUF's."""
    named = {key.replace("__", "."): value for key, value in keys.items()}
    bias = named.pop("bias", architecture == "qwen2")
    freqs = named.pop("freqs", False)

    def write(path: Path) -> Path:
        sizes = {**BASE, "context_length": 512, "vocab_size": 97, **named}
        rng = np.random.default_rng(11)
        width, inner = sizes["embedding_length"], sizes["feed_forward_length"]
        heads, kv_heads = sizes["attention.head_count"], sizes["attention.head_count_kv"]
        dim = sizes.get("attention.key_length", width // heads)

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)

        def vector(size: int, mean: float) -> NDArray[np.float32]:
            return mean + rng.standard_normal(size, np.float32) / 4

        tensors = {
            "token_embd.weight": 2 * matrix(97, width),
            "output_norm.weight": vector(width, 1),
        }
        if not tied:
            tensors["output.weight"] = matrix(97, width)
        if freqs:
            tensors["rope_freqs.weight"] = rng.uniform(1, 8, dim // 2).astype(np.float32)
        for layer in range(sizes["block_count"]):
            block = {
                "attn_norm.weight": vector(width, 1),
                "ffn_norm.weight": vector(width, 1),
                "attn_output.weight": matrix(width, heads * dim),
                "ffn_gate.weight": matrix(inner, width),
                "ffn_up.weight": matrix(inner, width),
                "ffn_down.weight": matrix(width, inner),
            }
            for n, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                block[f"attn_{n}.weight"] = matrix(count * dim, width)
                if bias:
                    block[f"attn_{n}.bias"] = vector(count * dim, 0)
                if architecture == "qwen3" and n != "v":
                    block[f"attn_{n}_norm.weight"] = vector(dim, 1)
            tensors.update({f"blk.{layer}.{name}": value for name, value in block.items()})
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_string("tokenizer.ggml.model", "none")
        for key, value in sizes.items():
            # llama.cpp takes no wider integers here.
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{architecture}.{key}", value)
        for name, array in tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
WIDE_HEAD = {"attention__key_length": 48, "attention__value_length": 48}

MODELS: Mapping[str, Callable[[Path], Path]] = {
    "llama": synthetic("llama"),
    "llama rope_freqs": synthetic("llama", rope_factor=8.0),
    "llama linear": synthetic("llama", rope_scaling={"type": "linear", "factor": 2.5}),
    "llama none": synthetic("llama", rope_scaling={"type": "none", "factor": 2.5}),
    "llama yarn": synthetic("llama", rope_scaling=YARN),
    "llama yarn betas": synthetic(
        "llama",
        rope_scaling={**YARN, "attn_factor": 1.25, "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
    ),
    "llama yarn attn_factor": synthetic("llama", rope_scaling={**YARN, "attn_factor": 1.25}),
    "llama linear attn_factor": synthetic(
        "llama", rope_scaling={"type": "linear", "factor": 2.0, "attn_factor": 1.25}
    ),
    "llama yarn rope_freqs": synthetic("llama", rope_scaling=YARN, rope_factor=8.0),
    "llama Q4_K_M": synthetic("llama", "Q4_K_M"),
    "qwen2": synthetic("qwen2"),
    "qwen2 yarn": synthetic("qwen2", rope_scaling={**YARN, "original_context_length": 64}),
    "qwen2 linear": synthetic("qwen2", rope_scaling={"factor": 3.0}),
    "qwen3": synthetic("qwen3"),
    "qwen3 yarn": synthetic("qwen3", rope_scaling=YARN),
    "llama tied": written("llama", tied=True),
    "llama biases": written("llama", bias=True),
    "llama MQA": written("llama", attention__head_count_kv=1),
    "llama MHA": written("llama", attention__head_count_kv=4),
    "llama eps and base": written(
        "llama", attention__layer_norm_rms_epsilon=0.05, rope__freq_base=500.0
    ),
    "llama random factors": written("llama", freqs=True, tied=True),
    "llama old linear key": written("llama", rope__scale_linear=2.0),
    "qwen2 tied": written("qwen2", tied=True),
    "qwen2 no GQA": written("qwen2", attention__head_count_kv=4),
    "qwen3 tied": written("qwen3", tied=True),
    "qwen3 wide heads": written("qwen3", **WIDE_HEAD),
    "llama wide heads": written("llama", **WIDE_HEAD),
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a model by its name in MODELS, made once."""
    folder = tmp_path_factory.mktemp("models")

    def path_of(name: str) -> Path:
        path = folder / f"{name.replace(' ', '-')}.gguf"
        return path if path.exists() else MODELS[name](path)

    return path_of


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")


def some_ids(vocabulary: int) -> list[int]:
    return np.random.default_rng(1).integers(0, vocabulary, TOKENS).tolist()


def relative(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_a_plain_forward_pass(
    name: str, model_path: Callable[[str], Path]
) -> None:
    path = model_path(name)
    model = Plain.read(path)
    with Engine.from_gguf(path, ctx=128, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        got = engine.logits(ids)
    wanted = forward(model, ids)
    assert got.shape == wanted.shape
    assert relative(got, wanted) < 1e-5
    # A late token feels rotation most; by itself it must agree as well.
    assert relative(got[-1], wanted[-1]) < 2e-5


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama rope_freqs", "rope.freq_base", 10500.0),
        ("llama linear", "rope.scaling.factor", 2.6),
        ("llama yarn", "rope.scaling.factor", 4.1),
        ("llama yarn", "rope.scaling.original_context_length", 400),
        ("llama yarn betas", "rope.scaling.attn_factor", 1.251),
        ("llama yarn betas", "rope.scaling.yarn_beta_fast", 16.0),
        ("qwen3", "attention.layer_norm_rms_epsilon", 1e-3),
    ],
)
def test_the_comparison_would_notice_another_value(
    name: str, key: str, value: float, model_path: Callable[[str], Path]
) -> None:
    path = model_path(name)
    model = Plain.read(path)
    other = Plain(model.arch, {**model.keys, key: value}, model.weights)
    with Engine.from_gguf(path, ctx=128, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        assert relative(engine.logits(ids), forward(other, ids)) > 1e-4


def logits_of_llama_cpp(path: Path, ids: list[int]) -> NDArray[np.float32]:
    """(T, V) by llama.cpp's CPU backend, keys and values in F32, one batch."""
    cpp = pytest.importorskip("llama_cpp")
    silent = cpp.llama_log_callback(lambda level, text, data: None)
    cpp.llama_log_set(silent, ctypes.c_void_p(0))
    cpp.llama_backend_init()
    model_params = cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = cpp.llama_model_load_from_file(str(path).encode(), model_params)
    assert model, f"llama.cpp does not load {path}"
    params = cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.n_threads = params.n_threads_batch = 2
    params.type_k = params.type_v = cpp.GGML_TYPE_F32
    params.flash_attn_type = 0  # off
    context = cpp.llama_init_from_model(model, params)
    assert context
    batch = cpp.llama_batch_init(len(ids), 0, 1)
    try:
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert cpp.llama_decode(context, batch) == 0
        vocabulary = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
        flat = np.ctypeslib.as_array(cpp.llama_get_logits(context), (len(ids) * vocabulary,))
        return flat.reshape(len(ids), vocabulary).copy()
    finally:
        cpp.llama_batch_free(batch)
        cpp.llama_free(context)
        cpp.llama_model_free(model)


@pytest.mark.peer
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", [n for n in MODELS if "Q4_K_M" not in n and "betas" not in n])
def test_logits_are_those_of_llama_cpp(name: str, model_path: Callable[[str], Path]) -> None:
    """F32 weights only: quantized ones meet rounded activations there."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    path = model_path(name)
    with Engine.from_gguf(path, ctx=128, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        got = engine.logits(ids)
    theirs = logits_of_llama_cpp(path, ids)
    plain = forward(Plain.read(path), ids)
    print(
        f"\n{name:24} llama.cpp to ROCmForge {relative(got, theirs):.1e}, "
        f"to float64 {relative(theirs, plain):.1e}"
    )
    assert relative(got, theirs) < 1e-4
    assert relative(got[-1], theirs[-1]) < 1e-4


@pytest.mark.peer
def test_llama_cpp_does_not_read_the_betas_of_yarn(model_path: Callable[[str], Path]) -> None:
    """Where ROCmForge honours yarn_beta_fast and yarn_beta_slow, llama.cpp takes its defaults."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    path = model_path("llama yarn betas")
    model = Plain.read(path)
    ids = some_ids(1024)
    theirs = logits_of_llama_cpp(path, ids)
    keys = {key: value for key, value in model.keys.items() if "yarn_beta" not in key}
    assert relative(theirs, forward(Plain(model.arch, keys, model.weights), ids)) < 1e-4
    assert relative(theirs, forward(model, ids)) > 1e-2
