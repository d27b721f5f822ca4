"""The graph of a part of a model: where sums over devices stand, and what the first part adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model.small_models import written

from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.decoder import decoder_graph
from rocmforge.model.shards import cut
from rocmforge.model.weights import load_weights
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Embedding
from rocmforge.plan.records import AddExperts, AllGather, AllReduce, Matmul, Rmsnorm

EXPERTS = {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 96}


def ops_of(tmp_path: Path, architecture: str, rank: int | None, **keys: Any) -> list[Op]:
    """The first layer of a part of two, or of the whole model."""
    path = tmp_path / f"{architecture}.gguf"
    if not path.exists():
        written(architecture, block_count=1, **keys)(path)
    with GGUFFile(path) as file:
        config = ModelConfig.from_gguf(file)
        weights = load_weights(file, config, lambda info, raw, factors: (info, info))
        own, number = config, None
        if rank is None:
            part = weights.map(lambda pair: pair[0])
        else:
            shards = cut(config, [], 2)
            part, own = shards.part(weights, rank), shards.part_config(rank)
            number = shards.share(rank)
        table = part.token_embd
        embedding = Embedding(file.tensor(table.name).copy(), table.format)
        return list(decoder_graph(own, part, embedding, 64, number).ops)


def added(ops: list[Op]) -> list[str]:
    """What changes x, and sums over devices, in their order."""
    found = []
    for op in ops:
        match op:
            case AllReduce():
                found.append(f"sum {op.x.name}")
            case Matmul() if op.role in ("attention_output", "down", "shared_down"):
                found.append(f"{op.role} {'+=' if op.accumulate else '='} {op.outs[0].name}")
            case AddExperts():
                found.append(f"experts {'+=' if op.accumulate else '='} {op.x.name}")
            case Rmsnorm(accumulate=True):
                found.append(f"norm += {op.out.name}")
    return found


@pytest.mark.parametrize(
    ("architecture", "keys", "first", "second"),
    [
        (
            "llama",
            {},
            ["attention_output += x", "sum x", "down += x", "sum x"],
            ["attention_output = x", "sum x", "down = x", "sum x"],
        ),
        (
            "command-r",  # one sum for both parts of a layer
            {},
            ["attention_output += x", "down += x", "sum x"],
            ["attention_output = x", "down += x", "sum x"],
        ),
        (
            "gemma2",  # x is whole everywhere: what is normed is summed
            {},
            [
                *("attention_output = attended", "sum attended", "norm += x"),
                *("down = fed", "sum fed", "norm += x"),
            ],
            None,
        ),
        (
            "gpt-oss",
            EXPERTS,
            ["attention_output += x", "sum x", "experts += x", "sum x"],
            ["attention_output = x", "sum x", "experts = x", "sum x"],
        ),
        (
            "qwen2moe",
            {**EXPERTS, "shared": 96},
            [
                *("attention_output += x", "sum x", "shared_down = fed"),
                *("experts += x", "experts += x", "sum x"),
            ],
            [
                *("attention_output = x", "sum x", "shared_down = fed"),
                *("experts = x", "experts += x", "sum x"),
            ],
        ),
    ],
)
def test_sums_stand_where_x_is_read_and_one_part_alone_has_x_in_them(
    architecture: str, keys: dict[str, Any], first: list[str], second: list[str], tmp_path: Path
) -> None:
    for rank, wanted in ((0, first), (1, second or first)):
        ops = ops_of(tmp_path, architecture, rank, **keys)
        assert added(ops) == wanted
    whole = [one for one in first if not one.startswith("sum")]
    assert added(ops_of(tmp_path, architecture, None, **keys)) == whole


def test_biases_behind_a_sum_are_the_first_parts(tmp_path: Path) -> None:
    biased = []
    for rank in (0, 1):
        products = [op for op in ops_of(tmp_path, "starcoder2", rank) if isinstance(op, Matmul)]
        biased.append({op.role: [bias is not None for bias in op.biases] for op in products})
    roles = ("qkv", "attention_output", "up", "down")
    assert [all(biased[0][role]) for role in roles] == [True] * 4
    assert [any(biased[1][role]) for role in roles] == [True, False, True, False]


def test_each_part_computes_some_logits_and_all_gather_them(tmp_path: Path) -> None:
    whole = ops_of(tmp_path, "llama", None)[-1]
    assert isinstance(whole, Matmul)
    (logits,) = whole.outs
    widths = []
    for rank in (0, 1):
        product, gather = ops_of(tmp_path, "llama", rank)[-2:]
        assert isinstance(product, Matmul)
        assert gather == AllGather(product.outs[0], logits)
        widths.append(product.outs[0].columns)
    assert widths == [logits.columns // 2, -(-logits.columns // 2)]
    tied = ops_of(tmp_path, "gemma2", 0)  # the embedding is whole on each device
    assert not any(isinstance(op, AllGather) for op in tied)
