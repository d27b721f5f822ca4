"""Parts of a model for several devices: together they are the model, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import ModelError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.header import TensorInfo
from rocmforge.model.config import ExpertConfig, ModelConfig
from rocmforge.model.presets import PRESETS
from rocmforge.model.shards import Shards, cut
from rocmforge.model.weights import LayerWeights, ModelWeights

TINY = PRESETS["tiny"].config
MIXED = replace(TINY, d_ff=96, experts=ExpertConfig(3, 2, normalized=True, shared=160))


def info(name: str, *shape: int, fmt: str = "F32") -> TensorInfo:
    return TensorInfo(f"blk.0.{name}.weight", shape, FORMATS[fmt], 0, FORMATS[fmt].nbytes(shape))


def split(config: ModelConfig, count: int, matrices: Sequence[TensorInfo] = ()) -> Shards:
    return cut(config, [(each, each.format) for each in matrices], count)


@pytest.mark.parametrize("fmt", ["F16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("attn_q", (256, 64), -2),
        ("attn_v", (128, 64), -2),
        ("attn_output", (64, 256), -1),
        ("ffn_gate_exps", (3, 96, 64), -2),
        ("ffn_down_exps", (3, 64, 96), -1),
        ("ffn_up_shexp", (160, 64), -2),
        ("ffn_down_shexp", (64, 160), -1),
        ("output", (257, 64), -2),
    ],
)
def test_parts_put_together_are_the_matrix(
    name: str, shape: tuple[int, ...], axis: int, fmt: str
) -> None:
    matrix = info(name, *shape, fmt=fmt)
    shards = split(MIXED, 2, [matrix])
    raw = np.random.default_rng(1).integers(0, 256, matrix.nbytes, np.uint8)
    raw = raw.reshape(-1, matrix.format.row_bytes(shape[-1]))
    parts = []
    for rank in range(2):
        own = shards.part_rows(matrix, raw, matrix.format, rank)
        assert own.flags.c_contiguous
        of_part = shards.part_info(matrix, rank).shape
        assert own.shape == (np.prod(of_part[:-1]), matrix.format.row_bytes(of_part[-1]))
        parts.append(own.reshape(*of_part[:-1], -1))
    together = np.concatenate(parts, axis)
    np.testing.assert_array_equal(together.reshape(raw.shape), raw)


@pytest.mark.parametrize("name", ["attn_norm", "ffn_gate_inp", "ffn_gate_inp_shexp"])
def test_what_is_not_cut_is_whole_in_each_part(name: str) -> None:
    matrix, raw = info(name, 3, 64), np.zeros((3, 256), np.uint8)
    shards = split(MIXED, 2)
    for rank in range(2):
        assert shards.part_info(matrix, rank) is matrix
        assert shards.part_rows(matrix, raw, matrix.format, rank) is raw


@pytest.mark.parametrize(
    ("fmt", "d_ff", "count", "borders"),
    [
        ("F32", 96, 2, (0, 32, 96)),
        ("F32", 512, 2, (0, 256, 512)),
        ("Q8_0", 160, 4, (0, 32, 64, 96, 160)),
        ("Q4_K", 768, 2, (0, 256, 768)),
        ("Q4_K", 11008 - 256, 4, (0, 2560, 5376, 7936, 10752)),
    ],
)
def test_borders_of_d_ff_lie_between_blocks(
    fmt: str, d_ff: int, count: int, borders: tuple[int, ...]
) -> None:
    config = replace(TINY, d_ff=d_ff, n_heads=4, n_kv_heads=4)
    shards = split(config, count, [info("ffn_down", 64, d_ff, fmt=fmt)])
    assert shards.borders["d_ff"] == borders
    parts = [shards.part_config(rank) for rank in range(count)]
    assert [part.d_ff for part in parts] == np.diff(borders).tolist()
    assert {(part.n_heads, part.n_kv_heads) for part in parts} == {(4 // count, 4 // count)}


def test_the_shared_experts_width_has_borders_of_its_own() -> None:
    shards = split(MIXED, 2)
    assert shards.borders == {"d_ff": (0, 32, 96), "shared": (0, 64, 160)}
    experts = [shards.part_config(rank).experts for rank in range(2)]
    assert [each.shared for each in experts if each] == [64, 96]


def layer(**vectors: Any) -> LayerWeights[Any]:
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    pairs = {name: (f"{name} of 0", f"{name} of 1") for name in names}
    return LayerWeights(index=0, **pairs, **vectors)


def numbers(size: int) -> Any:
    return np.arange(size, dtype=np.float32)


def test_vectors_of_a_part_and_those_that_are_added_once() -> None:
    added = ("attn_output_bias", "ffn_down_bias")
    whole = layer(
        attn_q_bias=numbers(256),
        attn_k_bias=numbers(128),
        attn_v_bias=numbers(128),
        attn_sinks=numbers(4),
        ffn_gate_bias=numbers(3 * 96),  # of three experts
        ffn_up_bias=None,
        attn_norm=numbers(64),
        **dict.fromkeys(added, numbers(64)),
    )
    matrix = info("token_embd", 8, 64)
    weights = ModelWeights(matrix, None, (whole,), numbers(64), None, ("output", "output"))
    shards = split(MIXED, 2)
    first, second = (shards.part(weights, rank).layers[0] for rank in range(2))
    assert (first.attn_q, second.ffn_down) == ("attn_q of 0", "ffn_down of 1")
    for name in ("attn_q_bias", "attn_k_bias", "attn_v_bias", "attn_sinks"):
        halves = [getattr(part, name) for part in (first, second)]
        assert halves[0].size == halves[1].size
        np.testing.assert_array_equal(np.concatenate(halves), getattr(whole, name))
    gates = [part.ffn_gate_bias.reshape(3, -1) for part in (first, second)]
    assert [gate.shape for gate in gates] == [(3, 32), (3, 64)]
    np.testing.assert_array_equal(np.concatenate(gates, 1).ravel(), whole.ffn_gate_bias)
    assert first.ffn_up_bias is second.ffn_up_bias is None
    assert first.attn_norm is second.attn_norm is whole.attn_norm
    assert all(getattr(first, name) is getattr(whole, name) for name in added)
    assert all(getattr(second, name) is None for name in added)


@pytest.mark.parametrize(
    ("changes", "count", "matrix", "told"),
    [
        ({}, 3, None, "a model cut for 3 GPUs: got 4 heads, wanted a multiple of 3"),
        ({}, 4, None, "got 2 KV heads, wanted a multiple of 4"),
        ({"qk_norm": "whole"}, 2, None, "norms over all heads together, wanted norms of each head"),
        ({"d_ff": 100}, 2, None, "part of 100 in blocks of 32, wanted a multiple of 32, at least"),
        ({"d_ff": 32}, 2, None, "part of 32 in blocks of 32, wanted a multiple of 32, at least 64"),
        ({"d_ff": 256}, 2, info("ffn_down", 64, 256, fmt="Q6_K"), "in blocks of 256, wanted"),
        ({}, 2, info("attn_output", 64, 96), "attn_output.weight: got 48 columns for each, .* 32"),
        ({}, 2, info("attn_output", 64, 256, fmt="Q4_K"), "got 128 columns .* 256 for Q4_K"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    changes: dict[str, Any], count: int, matrix: TensorInfo | None, told: str
) -> None:
    with pytest.raises(ModelError, match=told):
        split(replace(TINY, **changes), count, [] if matrix is None else [matrix])
