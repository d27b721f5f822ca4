"""The decoder against a float64 forward pass written here, and against llama.cpp where it is.

`plain_model` reads files by the gguf package and computes with plain numpy, whole sequences at
once. Models are small, with F32 weights unless said otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.plain_model import CTX, GEMMAS, Plain, forward
from model.small_models import written
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.synthetic import make_model

TOKENS = 75  # two pages of 32 and a part


def synthetic(
    architecture: str, mix: str = "F32", preset: str = "tiny", **options: Any
) -> Callable[[Path], Path]:
    return lambda path: make_model(
        path, preset, mix, seed=3, layers=2, architecture=architecture, **options
    )


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
EXPERTS = {"expert_count": 5, "expert_used_count": 3}
INNER = {"expert_feed_forward_length": 96}
LONG_ROPE = {
    "long_rope": True,
    "rope__scaling__type": "longrope",
    "rope__scaling__attn_factor": 1.19,
}
WINDOW = {"attention__sliding_window": 19}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
YARN_KEYS = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 32,
}
GRANITE = {
    "logit_scale": 4.0,
    "residual_scale": 0.3,
    "embedding_scale": 6.0,
    "attention__scale": 0.15,
}
ROPE_48 = {"rope__dimension_count": 48}
NVFP4 = {"nvfp4": True, "feed_forward_length": 128}
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
    "llama experts": synthetic("llama", preset="tiny-moe"),
    "llama experts rope_freqs": synthetic("llama", preset="tiny-moe", rope_factor=8.0),
    "llama experts Q4_K_M": synthetic("llama", "Q4_K_M", preset="tiny-moe"),
    "qwen3moe": synthetic("qwen3moe", preset="tiny-moe"),
    "olmoe": written("olmoe", attention__head_count_kv=4, **EXPERTS),
    "phi3": written("phi3"),
    "phi3 partial rotation": written("phi3", rope__dimension_count=8, attention__head_count_kv=4),
    "phi3 short": written("phi3", **LONG_ROPE, rope__scaling__original_context_length=256),
    "phi3 long": written(
        "phi3", **LONG_ROPE, rope__scaling__original_context_length=32, rope__dimension_count=12
    ),
    "llama fused, biases": written("llama", fused=True, bias=True),
    "smollm3": written("smollm3", block_count=5, tied=True),
    "ernie4_5": written("ernie4_5", tied=True),
    "exaone": written("exaone", freqs=True),
    "internlm2": written("internlm2"),
    "llama all experts": written("llama", expert_count=3, expert_used_count=3),
    "llama window": written("llama", **WINDOW, **WIDE_HEAD),
    "llama all biases": written("llama", bias=True, all_biases=True),
    "gemma": written("gemma", **WIDE_HEAD),
    "gemma2": written("gemma2", **CAPS, **WINDOW, block_count=4),
    "gemma2 without caps": written("gemma2", **WIDE_HEAD, final_logit_softcapping=30.0),
    "gemma3": written("gemma3", **WINDOW, block_count=7, rope__freq_base=1e6),
    "gemma3 linear": written(
        "gemma3",
        **WINDOW,
        attention__sliding_window_pattern=2,
        block_count=3,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        rope__freq_base=1e6,
        rope__freq_base_swa=5000.0,
    ),
    "gemma3 global": written("gemma3", final_logit_softcapping=20.0),
    "gpt-oss": written("gpt-oss", **EXPERTS, **INNER, **WINDOW, **YARN_KEYS, block_count=3),
    "gpt-oss wide heads": written("gpt-oss", **EXPERTS, **INNER, **WINDOW, **WIDE_HEAD, **ROPE_48),
    "qwen2moe": written(
        "qwen2moe", **EXPERTS, **INNER, shared=48, attention__head_count_kv=4, bias=True
    ),
    "granite": written("granite", **GRANITE, tied=True),
    "granite scaled logits": written("granite", logit_scale=8.0),
    "granitemoe": written("granitemoe", **EXPERTS, **GRANITE),
    "granitemoe shared": written("granitemoe", **EXPERTS, **GRANITE, shared=32),
    "olmo2": written("olmo2"),
    "olmo2 windows": written("olmo2", **WINDOW, **YARN_KEYS, block_count=5),
    "glm4": written("glm4", rope__dimension_count=8, bias=True),
    "cohere2": written("cohere2", **WINDOW, block_count=5, logit_scale=0.25),
    "command-r": written("command-r", logit_scale=0.0625),
    "starcoder2": written("starcoder2"),
    "starcoder2 tied": written("starcoder2", tied=True),
    "mistral3": written(
        "mistral3",
        **YARN_KEYS,
        rope__scaling__yarn_log_multiplier=0.7,
        attention__temperature_scale=0.1,
    ),
    "seed_oss": written("seed_oss", bias=True, **WIDE_HEAD),
    "llama NVFP4": written("llama", **NVFP4, bias=True),
    "llama experts NVFP4": written("llama", **NVFP4, **EXPERTS),
    "phi3 NVFP4": written("phi3", **NVFP4),
    "gpt-oss NVFP4": written("gpt-oss", **NVFP4, **EXPERTS, expert_feed_forward_length=128),
    "qwen2moe NVFP4": written(
        "qwen2moe", **NVFP4, **EXPERTS, expert_feed_forward_length=128, shared=64
    ),
    **{
        f"{name} head dim {dim}": written(
            name, attention__key_length=dim, attention__value_length=dim
        )
        for name, dim in (("llama", 320), ("qwen3", 512), ("gemma", 300))
    },
    **{
        f"{name} half turned": written(
            name,
            rope__dimension_count=8,
            **(EXPERTS | INNER if ARCHITECTURES[name].mixture == "always" else {}),
        )
        for name in ARCHITECTURES
    },
}
# With what llama.cpp does not read: betas of YaRN, windows that all layers have; and with what it
# refuses in most architectures: heads that are turned in part.
PARTLY_TURNED_THERE = (*GEMMAS, "phi3", "glm4", "command-r")
UNREAD = (
    *("llama yarn betas", "llama window"),
    *(f"{name} half turned" for name in ARCHITECTURES if name not in PARTLY_TURNED_THERE),
)
QUANTIZED = "Q4_K_M", "NVFP4"
# What GELU reads from a table of float16 there.
OF_TABLES = (*GEMMAS, "starcoder2")


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
    with Engine.from_gguf(path, ctx=CTX, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        got = engine.logits(ids)
    wanted = forward(model, ids)
    assert got.shape == wanted.shape
    assert relative(got, wanted) < 1e-5
    # A late token feels rotation most; by itself it must agree as well.
    assert relative(got[-1], wanted[-1]) < 2e-5


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3", "gpt-oss", "olmo2 windows", "cohere2", "llama window"]
)
@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_pieces_and_batches_cross_a_windows_borders(
    name: str, kv_dtype: Any, model_path: Callable[[str], Path]
) -> None:
    """A prompt in pieces, then single tokens beside those of another sequence."""
    path = model_path(name)
    tolerance = 1e-5 if kv_dtype == "f32" else 2e-3
    with Engine.from_gguf(path, ctx=CTX, kv_dtype=kv_dtype, sequences=2, page_size=16) as engine:
        ids = some_ids(engine.config.vocab_size)
        wanted = forward(Plain.read(path), ids)
        first, second = engine.add_sequence(), engine.add_sequence()
        at = 0
        for size in (1, 17, 3, 20, 6):
            assert relative(engine.prefill(first, ids[at : at + size]), wanted[at + size - 1]) < (
                tolerance
            )
            at += size
        engine.prefill(second, ids[:12])
        for step in range(at, at + 10):
            rows = engine.decode([second, first], [ids[step - at + 12], ids[step]])
            assert relative(rows[0], wanted[step - at + 12]) < tolerance
            assert relative(rows[1], wanted[step]) < tolerance


@pytest.mark.usefixtures("exact")
def test_weights_that_are_quantized_anew_keep_the_scales(
    model_path: Callable[[str], Path],
) -> None:
    path = model_path("llama experts NVFP4")
    with (
        Engine.from_gguf(path, ctx=CTX) as stored,
        Engine.from_gguf(path, ctx=CTX, weight_format="F32") as anew,
    ):
        ids = some_ids(stored.config.vocab_size)
        assert relative(anew.logits(ids), stored.logits(ids)) < 1e-5


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
    with Engine.from_gguf(path, ctx=CTX, kv_dtype="f32") as engine:
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
    params.n_ctx = params.n_batch = params.n_ubatch = CTX
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
@pytest.mark.parametrize(
    "name", [n for n in MODELS if n not in UNREAD and not n.endswith(QUANTIZED)]
)
def test_logits_are_those_of_llama_cpp(name: str, model_path: Callable[[str], Path]) -> None:
    """F32 weights only: quantized ones meet rounded activations there."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    path = model_path(name)
    with Engine.from_gguf(path, ctx=CTX, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        got = engine.logits(ids)
    theirs = logits_of_llama_cpp(path, ids)
    plain = forward(Plain.read(path), ids)
    print(
        f"\n{name:24} llama.cpp to ROCmForge {relative(got, theirs):.1e}, "
        f"to float64 {relative(theirs, plain):.1e}"
    )
    tolerance = 2e-3 if name.split()[0] in OF_TABLES else 1e-4
    assert relative(got, theirs) < tolerance
    assert relative(got[-1], theirs[-1]) < tolerance


@pytest.mark.peer
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["llama NVFP4", "llama experts NVFP4"])
def test_scales_of_nvfp4_are_those_of_llama_cpp(
    name: str, model_path: Callable[[str], Path]
) -> None:
    """Activations are rounded there. It does not use all scales of phi3 and qwen2moe."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    path = model_path(name)
    with Engine.from_gguf(path, ctx=CTX, kv_dtype="f32") as engine:
        ids = some_ids(engine.config.vocab_size)
        got = engine.logits(ids)
    error = relative(got, logits_of_llama_cpp(path, ids))
    print(f"\n{name:24} llama.cpp to ROCmForge {error:.1e}")
    assert error < 0.2


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
