"""ModelConfig: what it reads, what it refuses, and the rotary frequencies that follow."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf

from rocmforge.errors import GGUFError, ModelError, RocmforgeError, UnsupportedModelError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import ExpertConfig, ModelConfig
from rocmforge.model.problems import config_problems
from rocmforge.model.rope import RopeConfig
from rocmforge.plan.protocols import MAX_HEAD_DIM

LAYERNORM = {"attention.layer_norm_epsilon": 1e-5}


def read(path: Path, **arguments: Any) -> ModelConfig:
    with GGUFFile(write_gguf(path / "model.gguf", **arguments)) as file:
        return ModelConfig.from_gguf(file)


def test_every_field_of_a_plain_file(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelConfig(
        architecture="llama",
        n_layers=2,
        d_model=64,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        d_ff=96,
        vocab_size=32,
        ctx_train=128,
        norm_eps=float(np.float32(1e-5)),
        rope=RopeConfig(dim=16, base=10000.0, layout="interleaved", original_ctx=128),
        tied_output=True,
    )


@pytest.mark.parametrize(
    ("architecture", "layout", "bias", "norm"),
    [
        ("llama", "interleaved", False, None),
        ("qwen2", "halves", True, None),
        ("qwen3", "halves", False, "head"),
        ("qwen3moe", "halves", False, "head"),
        ("olmoe", "halves", False, "whole"),
    ],
)
def test_what_an_architecture_implies(
    tmp_path: Path, architecture: str, layout: str, bias: bool, norm: str | None
) -> None:
    always = {"expert_count": 8, "expert_used_count": 2}
    keys = always if ARCHITECTURES[architecture].mixture == "always" else {}
    config = read(tmp_path, architecture=architecture, keys=keys)
    biases = ("attn_k", "attn_q", "attn_v") if bias else ()
    assert (config.rope.layout, config.biases, config.qk_norm) == (layout, biases, norm)


def test_biases_and_an_output_are_seen_in_the_tensors(tmp_path: Path) -> None:
    small = np.zeros(64, "f4")
    config = read(tmp_path, tensors={"blk.0.attn_q.bias": small, "output.weight": small})
    assert config.biases == ("attn_q",)
    assert not config.tied_output


def test_optional_keys_are_honoured(tmp_path: Path) -> None:
    keys = {
        "attention.head_count_kv": None,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 32,
        "rope.freq_base": 5e5,
    }
    config = read(tmp_path, keys=keys)
    assert (config.n_kv_heads, config.head_dim, config.rope.base) == (4, 32, 5e5)


def test_vocabulary_size_is_the_token_list_before_the_key(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": ["a", "b", "c"]}
    assert read(tmp_path, general=tokens).vocab_size == 3
    assert read(tmp_path, keys={"vocab_size": None}).vocab_size == 32  # the embedding's rows
    huge = {"token_embd.weight": np.zeros((1 << 23, 1), np.float16)}
    with pytest.raises(ModelError, match=r"vocab_size: got 8388608, wanted from 1 to"):
        read(tmp_path, keys={"vocab_size": None}, tensors=huge)


@pytest.mark.parametrize("window", [0, 128])
def test_a_window_that_holds_all_tokens_is_none(tmp_path: Path, window: int) -> None:
    assert read(tmp_path, keys={"attention.sliding_window": window}).window is None


@pytest.mark.parametrize(
    ("architecture", "pattern", "windowed"),
    [
        ("llama", None, [1, 1, 1, 1, 1, 1]),
        ("gemma2", None, [1, 0, 1, 0, 1, 0]),
        ("gemma3", None, [1, 1, 1, 1, 1, 0]),
        ("gemma3", 3, [1, 1, 0, 1, 1, 0]),
        ("gemma3", [True, False] * 3, [1, 0, 1, 0, 1, 0]),
        ("gpt-oss", [True] * 6, [1, 1, 1, 1, 1, 1]),
        ("olmo2", 0, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_which_layers_have_a_window(
    tmp_path: Path, architecture: str, pattern: Any, windowed: list[int]
) -> None:
    keys = {"block_count": 6, "attention.sliding_window": 48}
    if architecture == "gpt-oss":
        keys |= {"expert_count": 2, "expert_used_count": 1}
    if pattern is not None:
        keys["attention.sliding_window_pattern"] = pattern
    config = read(tmp_path, architecture=architecture, keys=keys)
    assert config.ctx_train == 128
    assert [config.layer_window(i) is not None for i in range(6)] == [bool(w) for w in windowed]


@pytest.mark.parametrize(
    ("architecture", "keys", "named"),
    [
        ("gemma3", {"attention.sliding_window_pattern": [True, False, False]}, "false in every"),
        ("cohere2", {"attention.sliding_window_pattern": 2, **LAYERNORM}, "4 in this architecture"),
        ("llama", {"attention.sliding_window_pattern": 2}, "unknown effect"),
        ("llama", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping = 30"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "wanted a number from 0 to 1e9"),
        ("gemma2", {"final_logit_softcapping": float("nan")}, "wanted a number from 0 to 1e9"),
        ("granite", {"residual_scale": float("inf")}, "wanted a number from 0 to 1e9"),
        ("starcoder2", {}, "attention.layer_norm_epsilon"),
    ],
)
def test_windows_and_scales_that_no_model_has(
    tmp_path: Path, architecture: str, keys: dict[str, Any], named: str
) -> None:
    given = {"block_count": 3, "attention.sliding_window": 48, **keys}
    with pytest.raises((ModelError, GGUFError), match=named):
        read(tmp_path, architecture=architecture, keys=given)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    keys = {"expert_count": 8, "expert_used_count": [2, 2], "expert_feed_forward_length": 32}
    config = read(tmp_path, architecture="qwen3moe", keys=keys)
    assert (config.experts, config.d_ff) == (ExpertConfig(8, 2, normalized=True), 32)
    config = read(tmp_path, keys={"expert_count": 4, "expert_used_count": 4})
    assert (config.experts, config.d_ff) == (ExpertConfig(4, 4, normalized=True), 96)
    olmoe = read(tmp_path, architecture="olmoe", keys=keys).experts
    assert olmoe is not None
    assert not olmoe.normalized


@pytest.mark.parametrize(
    ("architecture", "keys", "named"),
    [
        ("qwen2", {"expert_count": 8, "expert_used_count": 2}, "expert_count = 8"),
        ("llama", {"expert_count": 8}, "expert_used_count: got 0, wanted 1 to expert_count"),
        ("llama", {"expert_count": 8, "expert_used_count": 9}, "which is 8"),
        ("llama", {"expert_count": 1 << 20, "expert_used_count": 2}, "from 0 to 1024"),
        ("qwen3moe", {}, "expert_used_count: got 0"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": [1, 2]}, "same value in every layer"),
        (
            "llama",
            {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 40},
            "feed_forward_length = 40 is not supported; supported: a multiple of 16",
        ),
    ],
)
def test_wrong_mixtures_are_named(
    tmp_path: Path, architecture: str, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(named)):
        read(tmp_path, architecture=architecture, keys=keys)


def test_neutral_values_of_unsupported_features_pass(tmp_path: Path) -> None:
    keys = {
        "expert_count": 0,
        "logit_scale": 1.0,
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "use_parallel_residual": False,
        "expert_used_count": [0, 0],
        "tensor_data_layout": "Meta AI original pth",
        "rope.scaling.finetuned": True,
    }
    assert read(tmp_path, keys=keys) == read(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("attention.scale", 0.25, "0.25"),
        ("logit_scale", 0.0625, "0.0625"),
        ("residual_scale", 0.5, "0.5"),
        ("attention.causal", False, "supported: True"),
        ("final_logit_softcapping", 30.0, "30.0"),
        ("rope.scaling.type", "longrope", "none, linear, yarn"),
        ("rope.scaling.yarn_log_multiplier", 1.0, "supported: 0.0"),
        ("attention.value_length", 8, "length of the keys (16)"),
        ("attention.head_count_kv", [2, 4], "[2, 4] is not supported; supported: the same value"),
        ("attention.head_count", [4, 2], "[4, 2] is not supported; supported: the same value"),
        ("feed_forward_length", [96, 64], "[96, 64] is not supported; supported: the same value"),
        ("hidden_activation", "gelu", "silu"),
        ("attention.flux_capacitor", 3, "unknown effect"),
    ],
)
def test_unsupported_features_are_named(tmp_path: Path, key: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read(tmp_path, keys={key: value})
    assert f"llama.{key} = " in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("general", "named"),
    [
        ({"general.type": "adapter"}, "'adapter'"),
    ],
)
def test_files_that_are_no_whole_model(tmp_path: Path, general: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(tmp_path, general=general)


def test_an_unsupported_architecture_names_itself_and_the_supported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba2' is not .*: llama, qwen2, qwen3"):
        read(tmp_path, architecture="mamba2")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 1 << 40),
        ("embedding_length", 0),
        ("feed_forward_length", -1),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 15),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("context_length", 1 << 30),
        ("rope.freq_base", 1.0),
        ("rope.freq_base", math.inf),
        ("rope.scaling.factor", -0.5),
        ("rope.scaling.factor", math.nan),
        ("rope.scaling.attn_factor", 0.0),
        ("rope.scaling.original_context_length", 0),
        ("rope.scaling.yarn_beta_fast", -1.0),
        ("vocab_size", 1 << 62),
        ("attention.head_count_kv", [2, 2, 2]),  # three layers of two
        ("attention.head_count_kv", [0, 0]),
    ],
)
def test_values_out_of_range_are_model_errors_that_name_the_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}: got")) as error:
        read(tmp_path, keys={key: value})
    assert "wanted" in str(error.value)


@pytest.mark.parametrize("value", [-2, 0, 15, 18, 1 << 24])
def test_the_rotated_dimensions_have_the_head_dim_for_a_bound(tmp_path: Path, value: int) -> None:
    wanted = f"rope.dimension_count: got {value}, wanted an even number from 2 to the head dim, 16"
    with pytest.raises(ModelError, match=wanted):
        read(tmp_path, keys={"rope.dimension_count": value})


@pytest.mark.parametrize("keys", [{"attention.key_length": 640}, {"embedding_length": 2560}])
def test_a_head_that_no_kernel_takes_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.key_length = 640 is not "):
        read(tmp_path, keys=keys)
    with pytest.raises(UnsupportedModelError, match=f"supported: head dims up to {MAX_HEAD_DIM}"):
        read(tmp_path, keys=keys)
    both = {"attention.key_length": MAX_HEAD_DIM, "attention.value_length": MAX_HEAD_DIM}
    assert read(tmp_path, keys=both).head_dim == MAX_HEAD_DIM


HOSTILE = "x" * 100_000 + "\x1b[2J"


@pytest.mark.parametrize(
    "arguments",
    [
        {"architecture": HOSTILE[:60_000]},
        {"general": {"general.type": HOSTILE}},
        {"keys": {"hidden_activation": HOSTILE}},
        {"keys": {"rope.scaling.type": HOSTILE}},
        {"keys": {"flux_capacitor": HOSTILE}},
        {"keys": {"flux_capacitor": list(range(100_000))}},
        {"keys": {"x" * 60_000: 1}},
        {"keys": {"block_count": HOSTILE}},
    ],
)
def test_what_a_file_holds_does_not_fill_a_message(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(RocmforgeError) as error:
        read(tmp_path, **arguments)
    message = str(error.value).replace(str(tmp_path), "")
    assert 20 < len(message) < 600
    assert "\x1b" not in message


def test_heads_must_divide_the_width(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"head_count: got 4, wanted a divisor of the width 66"):
        read(tmp_path, keys={"embedding_length": 66})


@pytest.mark.parametrize(
    "key", ["block_count", "embedding_length", "attention.head_count", "context_length"]
)
@pytest.mark.parametrize("value", [None, "many", -1, 0, 1 << 31, 1.5, ["a"], [1.5, 1.5]])
def test_hostile_values_raise_our_errors_only(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(RocmforgeError, match=key):
        read(tmp_path, keys={key: value})


def test_equal_values_in_an_array_are_one_value(tmp_path: Path) -> None:
    keys = {
        "attention.head_count": [4, 4],
        "attention.head_count_kv": [2, 2],
        "feed_forward_length": [96, 96],
    }
    assert read(tmp_path, keys=keys) == read(tmp_path)


@pytest.mark.parametrize(
    ("keys", "scaling", "factor"),
    [
        ({}, "none", 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "none", 1.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"rope.scale_linear": 4.0}, "linear", 4.0),
        ({"rope.scaling.factor": 0.0}, "none", 1.0),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "yarn", 4.0),
    ],
)
def test_rope_scaling_is_read(
    tmp_path: Path, keys: dict[str, Any], scaling: str, factor: float
) -> None:
    rope = read(tmp_path, keys=keys).rope
    assert (rope.scaling, rope.factor) == (scaling, factor)


def test_plain_and_linear_frequencies() -> None:
    rope = RopeConfig(dim=4, base=100.0, layout="halves")
    np.testing.assert_allclose(rope.frequencies(None), [1.0, 0.1])
    np.testing.assert_allclose(rope.frequencies(np.array([1.0, 8.0])), [1.0, 0.0125])
    linear = RopeConfig(dim=4, base=100.0, layout="halves", scaling="linear", factor=4.0)
    np.testing.assert_allclose(linear.frequencies(None), [0.25, 0.025])
    assert rope.magnitude == linear.magnitude == 1.0


def test_yarn_blends_between_the_two() -> None:
    rope = RopeConfig(
        dim=64,
        base=1e4,
        layout="interleaved",
        scaling="yarn",
        factor=4.0,
        original_ctx=512,
        attn_factor=1.5,
    )
    plain = RopeConfig(dim=64, base=1e4, layout="interleaved").frequencies(None)
    blended = rope.frequencies(None)
    # 32 turns in 512 positions fall on pair 3.25, one turn on pair 15.29: 3 to 16.
    np.testing.assert_allclose(blended[:4], plain[:4])
    np.testing.assert_allclose(blended[16:], plain[16:] / 4)
    np.testing.assert_allclose(blended[8], plain[8] * (8 / 13 + 5 / 13 / 4))
    assert rope.magnitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))
    factors = np.linspace(1.0, 8.0, 32)
    np.testing.assert_allclose(rope.frequencies(factors), blended / factors)


def test_frequency_factors_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got shape \(3,\), wanted \(2,\)"):
        RopeConfig(dim=4, base=100.0, layout="halves").frequencies(np.ones(3))


@pytest.mark.parametrize("dense", [0, [96, 64], None])
def test_the_inner_width_that_experts_leave_unread_is_no_reason(
    tmp_path: Path, dense: int | list[int] | None
) -> None:
    keys = {"feed_forward_length": dense, "expert_feed_forward_length": 256}
    mixed = {"expert_count": 8, "expert_used_count": 2, "embedding_length": 256}
    assert problems_of(tmp_path, "qwen3moe", {**keys, **mixed}) == []
    assert problems_of(tmp_path, "qwen3moe", {**keys, **mixed, "flux": 1}) == ["flux"]
    assert problems_of(tmp_path, "of_tomorrow", {**keys, **mixed}) == ["architecture"]


def test_the_inner_width_that_counts_is_judged(tmp_path: Path) -> None:
    differ = [96, 64]
    dense = {"feed_forward_length": differ, "expert_feed_forward_length": 256, "flux": 1}
    assert problems_of(tmp_path, "llama", dense) == ["flux", "feed_forward_length"]
    keys = {**dense, "expert_count": 8, "expert_used_count": 2}
    own = {**keys, "expert_feed_forward_length": differ}
    wanted = ["flux", "expert_feed_forward_length"]
    assert problems_of(tmp_path, "qwen3moe", own) == wanted
    del keys["expert_feed_forward_length"]
    assert problems_of(tmp_path, "qwen3moe", keys) == ["flux", "feed_forward_length"]


def problems_of(path: Path, architecture: str, keys: dict[str, Any]) -> list[str]:
    """The keys that the reasons name."""
    with GGUFFile(write_gguf(path / "m.gguf", architecture=architecture, keys=keys)) as file:
        told = [str(error).removeprefix(f"{file.path}: ") for error in config_problems(file)]
    return [re.split("[ :]", one.removeprefix(f"{architecture}."))[0] for one in told]
