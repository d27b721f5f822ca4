"""Bytes and flops of steps: counted by hand for small shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases
from rocmforge.plan.cost import Cost, Costs
from rocmforge.plan.fused_records import (
    AddExpertsRmsnorm,
    AllReduceRmsnorm,
    EmbedRmsnorm,
    GateUpSwiglu,
    MatmulRmsnorm,
    ReduceRmsnorm,
    RmsnormRoute,
    RopeAttention,
    RopeKvAppend,
    SelectLayernorm,
    SelectRmsnorm,
)
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Embedding, Rotation, RowScale, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllGather,
    AllReduce,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Receive,
    Rmsnorm,
    Rope,
    Route,
    Sample,
    SelectOutputs,
    Softcap,
    Swiglu,
)

# Two sequences get 3 and 1 tokens and then have 5 and 8; logits of 2 tokens are wanted.
COSTS = Costs(
    counts=(3, 1),
    lengths=(5, 8),
    outputs=2,
    kv_token_bytes=100,
    nbytes=lambda dtype, rows, columns: rows * columns * {"f32": 4, "q8": 1}[dtype],
)
X, H = Tensor("x", 16), Tensor("h", 16)
Q, K, V = Tensor("q", 8), Tensor("k", 4), Tensor("v", 4)
GATE, UP = Tensor("gate", 32), Tensor("up", 32)
SCORES, EXPERTS, SHARES = Tensor("scores", 4), Tensor("experts", 2), Tensor("shares", 2)
HIDDEN, PARTS = Tensor("hidden", 2 * 32), Tensor("parts", 2 * 16)
LAST, LOGITS = Tensor("last", 16, "outputs"), Tensor("logits", 64, "outputs")
NORM, HEAD_NORM = np.ones(16, np.float32), np.ones(4, np.float32)
TABLE = Embedding(np.zeros((64, 34), np.uint8), FORMATS["Q8_0"])
TURN = Rotation(np.ones(2), 1.0, False)  # turns 4 dims, all of a head
MATRIX, OTHER = SimpleNamespace(nbytes=1000), SimpleNamespace(nbytes=500)
BIAS = np.ones(8, np.float32)

# op, bytes of weights, of activations, of keys and values, flops
BY_HAND: tuple[tuple[Op, int, int, int, int], ...] = (
    (Embed(TABLE, X), 4 * 34, 4 * 64, 0, 2 * 64),
    (Receive(X), 0, 4 * 64, 0, 0),
    (Rmsnorm(X, NORM, 1e-5, H), 64, 2 * 4 * 64, 0, 4 * 64),
    (EmbedRmsnorm(TABLE, X, NORM, 1e-5, H), 4 * 34 + 64, 2 * 4 * 64, 0, 6 * 64),
    (SelectOutputs(X, LAST), 0, 2 * 4 * 32, 0, 0),
    (SelectRmsnorm(X, NORM, 1e-5, LAST), 64, 2 * 4 * 32, 0, 4 * 32),
    (
        Matmul(H, (MATRIX, OTHER), (Q, K), (BIAS, None)),
        1500 + 32,
        4 * 4 * (16 + 8 + 4),
        0,
        2 * 4 * 16 * 12,
    ),
    (  # what is added to is read and written
        Matmul(H, (MATRIX,), (X,), (None,), accumulate=True),
        1000,
        4 * 4 * 3 * 16,
        0,
        2 * 4 * 16 * 16,
    ),
    (Matmul(LAST, (MATRIX,), (LOGITS,), (None,)), 1000, 4 * 2 * (16 + 64), 0, 2 * 2 * 16 * 64),
    (Rope(Q, TURN, 4), 4 * 4 * 4, 2 * 4 * 32, 0, 3 * 4 * 2 * 4),
    (KvAppend(K, V, 0, 4), 0, 4 * 4 * 8, 4 * 100, 0),
    (
        RopeKvAppend(Q, K, V, HEAD_NORM, None, 1e-5, 0, TURN, 4),
        4 * 4 * 4 + 16,
        4 * 4 * (8 + 4 + 4 + 8),
        4 * 100,
        3 * 4 * 3 * 4 + 4 * 32,
    ),
    # the three tokens see 3, 4 and 5 tokens, the one sees 8
    (Attention(Q, 0, H, 0.5, 1, 4), 0, 4 * 4 * (8 + 16), 13 * 100, 4 * 20 * 2 * 4),
    (
        RopeAttention(Q, K, V, HEAD_NORM, None, 1e-5, 0, TURN, 4, H, 0.5),
        4 * 4 * 4 + 16,
        4 * 4 * (8 + 4 + 4 + 16),
        13 * 100,  # the last tokens are written, the others read
        3 * 4 * 3 * 4 + 4 * 32 + 4 * 20 * 2 * 4,
    ),
    (  # of three tokens each query sees two, so that four are read; the one sees two
        Attention(Q, 0, H, 0.5, 1, 4, window=2),
        0,
        4 * 4 * (8 + 16),
        6 * 100,
        4 * 8 * 2 * 4,
    ),
    (Swiglu(GATE, UP, GATE), 0, 3 * 4 * 128, 0, 5 * 128),
    (Gelu(GATE, GATE), 0, 2 * 4 * 128, 0, 5 * 128),
    (Softcap(LOGITS, 30.0), 0, 2 * 4 * 2 * 64, 0, 5 * 2 * 64),
    (Layernorm(X, NORM, None, 1e-5, H), 64, 2 * 4 * 64, 0, 7 * 64),
    (Layernorm(X, NORM, NORM, 1e-5, H), 128, 2 * 4 * 64, 0, 7 * 64),
    (SelectLayernorm(X, NORM, NORM, 1e-5, LAST), 128, 2 * 4 * 32, 0, 7 * 32),
    (Rmsnorm(H, NORM, 1e-5, X, accumulate=True), 64, 3 * 4 * 64, 0, 4 * 64),
    (
        GateUpSwiglu(H, MATRIX, OTHER, GATE),
        1500,
        4 * 4 * (16 + 32),
        0,
        2 * 4 * 16 * 64 + 5 * 128,
    ),
    (
        MatmulRmsnorm(H, MATRIX, None, X, NORM, Q, Tensor("squares", 2), ""),
        1000 + 64,
        4 * 4 * (16 + 16 + 16 + 8 + 2),
        0,
        2 * 4 * 16 * 16 + 4 * 64,
    ),
    (  # the sums of squares are read too
        Matmul(H, (MATRIX,), (Q,), (None,), x_scale=RowScale(Tensor("squares", 2), 1e-5)),
        1000,
        4 * 4 * (16 + 8 + 2),
        0,
        2 * 4 * 16 * 8,
    ),
    (
        GateUpSwiglu(H, MATRIX, OTHER, GATE, x_scale=RowScale(Tensor("squares", 2), 1e-5)),
        1500,
        4 * 4 * (16 + 32 + 2),
        0,
        2 * 4 * 16 * 64 + 5 * 128,
    ),
    (Route(SCORES, EXPERTS, SHARES, True), 0, 4 * 4 * (4 + 2 + 2), 0, 3 * 4 * 4),
    (
        RmsnormRoute(X, NORM, 1e-5, H, MATRIX, BIAS, Route(SCORES, EXPERTS, SHARES, True)),
        1000 + 64 + 32,
        4 * 4 * (16 + 16 + 2 + 2),
        0,
        2 * 4 * 16 * 4 + 4 * 64 + 3 * 4 * 4,
    ),
    (  # each expert is missed by one token with 1 / 2, by four with 1 / 16
        ExpertGateUp(H, MATRIX, OTHER, EXPERTS, 4, HIDDEN),
        1406,
        4 * 4 * (16 + 2 + 64),
        0,
        2 * 4 * 16 * 128 + 5 * 4 * 64,
    ),
    (
        ExpertMatmul(HIDDEN, MATRIX, EXPERTS, 4, PARTS),
        938,
        4 * 4 * (64 + 2 + 32),
        0,
        2 * 4 * 32 * 32,
    ),
    (AddExperts(PARTS, SHARES, X), 0, 4 * 4 * (32 + 2 + 16 + 16), 0, 2 * 4 * 32),
    (
        AddExpertsRmsnorm(PARTS, SHARES, X, NORM, H, Tensor("squares", 2)),
        64,
        4 * 4 * (32 + 2 + 16 + 16 + 16 + 2),
        0,
        2 * 4 * 32 + 4 * 64,
    ),
    (AllReduce(X), 0, 4 * 4 * (16 + 16), 0, 64),
    (AllGather(Tensor("own", 32, "outputs"), LOGITS), 0, 4 * 2 * (32 + 64), 0, 0),
    (
        AllReduceRmsnorm(X, NORM, H, Tensor("squares", 2)),
        64,
        4 * 4 * (16 + 16 + 16 + 2),
        0,
        64 + 4 * 64,
    ),
    (ReduceRmsnorm(X, NORM, 1e-5, H), 64, 4 * 4 * (16 + 16 + 16), 0, 64 + 4 * 64),
    (
        Sample(LOGITS, Tensor("parts", 8, "outputs"), Tensor("token", 1, "outputs")),
        0,
        4 * 2 * (64 + 8 + 1),
        0,
        0,
    ),
)


@pytest.mark.parametrize("wanted", BY_HAND, ids=lambda row: row[0].label)
def test_costs_are_those_counted_by_hand(wanted: tuple[Op, int, int, int, int]) -> None:
    op, weights, activations, kv, flops = wanted
    reads, writes = ([(t, "f32") for t in tensors] for tensors in (op.reads, op.writes))
    assert COSTS.of(op, reads, writes) == Cost(weights, activations, kv, flops)


def test_every_op_is_counted_by_hand() -> None:
    assert {type(op) for op, *_ in BY_HAND} == set(get_args(Op))


def test_activations_count_in_the_dtype_that_they_have() -> None:
    op = Matmul(H, (MATRIX,), (Q,), (None,))
    assert COSTS.of(op, [(H, "q8")], [(Q, "f32")]).activation_bytes == 4 * 16 + 4 * 4 * 8
    assert COSTS.moved([(H, "f32")], [(H, "q8")]) == Cost(activation_bytes=5 * 4 * 16)


def test_costs_add_up() -> None:
    whole = Cost(1, 20, 300, 4) + Cost(2, 30, 400, 5)
    assert whole == Cost(3, 50, 700, 9)
    assert whole.bytes == 753


def test_a_pass_costs_what_the_cases_of_its_ops_do() -> None:
    costs = Costs((512,), (512,), 1, 4 * 4 * 64, lambda dtype, rows, columns: 4 * rows * columns)
    prompt, _ = cases.ATTENTION_MODELS["1.1B"]
    q, out = Tensor("q", 32 * 64), Tensor("out", 32 * 64)
    cost = costs.of(Attention(q, 0, out, 0.125, 4, 64), [(q, "f32")], [(out, "f32")])
    assert (cost.bytes, cost.flops) == (prompt.bytes, prompt.flops)


def test_labels_name_ops_and_what_a_pass_has_several_of() -> None:
    labels = [op.label for op, *_ in BY_HAND]
    assert labels == [
        *("embed", "receive", "rmsnorm_h", "embed_rmsnorm", "select_outputs", "select_rmsnorm"),
        *("matmul_q_k", "matmul_x", "matmul_logits", "rope_q", "kv_append", "rope_kv_append"),
        *("attention", "rope_attention", "attention", "swiglu", "gelu", "softcap"),
        *("layernorm_h", "layernorm_h", "select_layernorm", "rmsnorm_h", "gate_up_swiglu"),
        *("matmul_x_norm", "matmul_q", "gate_up_swiglu"),
        *(
            "route",
            "rmsnorm_route",
            "expert_gate_up",
            "expert_matmul",
            "add_experts",
            "add_experts_rmsnorm",
            "all_reduce",
            "all_gather",
            "all_reduce_rmsnorm",
            "reduce_rmsnorm",
            "sample",
        ),
    ]
    assert Matmul(H, (MATRIX,), (Q,), (None,), role="qkv").label == "matmul_qkv"
