"""Fusion rules: what they find in a decoder's graph, and what they leave alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rocmforge.gguf.formats import FORMATS
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
    SelectRmsnorm,
)
from rocmforge.plan.fusion import (
    add_experts_rmsnorm,
    all_reduce_rmsnorm,
    embed_rmsnorm,
    fuse,
    gate_up_swiglu,
    matmul_rmsnorm,
    reduce_rmsnorm,
    rmsnorm_route,
    rope_attention,
    rope_kv_append,
    select_norm,
)
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Embedding, Rotation, RowScale, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllReduce,
    Attention,
    Embed,
    KvAppend,
    Matmul,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Softcap,
    Swiglu,
)

X, H, Q, K, V = (Tensor(name, 64) for name in ("x", "h", "q", "k", "v"))
GATE, UP, ACT = (Tensor(name, 96) for name in ("gate", "up", "act"))
NORM = np.ones(32, np.float32)
TURN, OTHER = (Rotation(np.ones(16), 1.0, interleaved) for interleaved in (True, False))
RULES = (rope_kv_append, gate_up_swiglu, select_norm)


def names(ops: list[Op]) -> list[str]:
    return [type(op).__name__ for op in ops]


def rotation(*, norms: bool) -> list[Op]:
    ops: list[Op] = []
    for x, weight in ((Q, NORM), (K, NORM + 1)):
        if norms:
            ops.append(Rmsnorm(x, weight, 1e-5, x))
        ops.append(Rope(x, TURN, 32))
    return [*ops, KvAppend(K, V, 3, 32)]


def feed_forward(out: Tensor) -> list[Op]:
    return [Matmul(H, ("g", "u"), (GATE, UP), (None, None)), Swiglu(GATE, UP, out)]


@pytest.mark.parametrize("norms", [False, True])
def test_rotation_and_append_become_one_op(norms: bool) -> None:
    (op,) = fuse(rotation(norms=norms), RULES)
    assert isinstance(op, RopeKvAppend)
    assert (op.q, op.k, op.v, op.layer) == (Q, K, V, 3)
    assert (op.rotation, op.head_dim) == (TURN, 32)
    if norms:
        assert op.q_norm is NORM
        assert op.k_norm is not None
        assert op.k_norm[0] == 2
        assert op.eps == 1e-5
    else:
        assert op.q_norm is op.k_norm is None


def test_rotation_stays_where_another_tensor_is_appended() -> None:
    other = rotation(norms=False)
    other[-1] = KvAppend(V, K, 3, 32)
    assert fuse(other, RULES) == other


@pytest.mark.parametrize("change", [{"rotation": OTHER}, {"head_dim": 16}])
def test_rotations_that_differ_stay(change: dict[str, Any]) -> None:
    q, k, append = rotation(norms=False)
    for ops in ([replace(q, **change), k, append], [q, replace(k, **change), append]):
        assert fuse(ops, RULES) == ops


def test_of_norms_with_different_eps_the_first_stays_outside() -> None:
    uneven = rotation(norms=True)
    uneven[2] = replace(uneven[2], eps=1e-6)
    norm, fused = fuse(uneven, RULES)
    assert norm is uneven[0]
    assert isinstance(fused, RopeKvAppend)
    assert fused.q_norm is None
    assert fused.eps == 1e-6


ATTENTION = Attention(Q, 3, H, 0.5, 2, 32)


@pytest.mark.parametrize("norms", [False, True])
def test_rotation_and_attention_become_one_op(norms: bool) -> None:
    (op,) = fuse([*rotation(norms=norms), ATTENTION], (rope_attention, *RULES))
    (first,) = fuse(rotation(norms=norms), RULES)
    assert isinstance(op, RopeAttention)
    assert isinstance(first, RopeKvAppend)
    assert (op.q, op.k, op.v, op.layer, op.rotation) == (Q, K, V, 3, first.rotation)
    assert op.q_norm is first.q_norm
    assert (op.k_norm is None, op.eps) == (first.k_norm is None, first.eps)
    assert (op.out, op.scale, op.heads, op.kv_heads, op.head_dim) == (H, 0.5, 2, 2, 32)


@pytest.mark.parametrize(
    "change", [{"q": X}, {"layer": 2}, {"kv_heads": 1}, {"head_dim": 16}, {"out": Q}]
)
def test_attention_to_something_else_stays(change: dict[str, Any]) -> None:
    other = replace(ATTENTION, **change)
    first, second = fuse([*rotation(norms=False), other], (rope_attention, *RULES))
    assert isinstance(first, RopeKvAppend)
    assert second is other


def test_attention_stays_where_rotated_queries_are_read_again() -> None:
    again = Matmul(Q, ("d",), (X,), (None,))
    found = fuse([*rotation(norms=False), ATTENTION, again], (rope_attention, *RULES))
    assert names(found) == ["RopeKvAppend", "Attention", "Matmul"]
    assert names(fuse(rotation(norms=False), (rope_attention,))) == ["Rope", "Rope", "KvAppend"]


@pytest.mark.parametrize("out", [GATE, ACT])
def test_both_projections_and_swiglu_become_one_op(out: Tensor) -> None:
    down = Matmul(out, ("d",), (X,), (None,), accumulate=True)
    first, second = fuse([*feed_forward(out), down], RULES)
    assert first == GateUpSwiglu(H, "g", "u", out)
    assert second is down


def test_projections_stay_where_one_is_read_again_or_has_a_bias() -> None:
    again: list[Op] = [*feed_forward(ACT), Matmul(UP, ("d",), (X,), (None,))]
    assert fuse(again, RULES) == again
    biased = [replace(feed_forward(GATE)[0], biases=(NORM, None)), feed_forward(GATE)[1]]
    assert fuse(biased, RULES) == biased


def test_wanted_rows_and_their_norm_become_one_op() -> None:
    last = Tensor("last", 32, "outputs")
    ops: list[Op] = [SelectOutputs(X, last), Rmsnorm(last, NORM, 1e-5, last)]
    (op,) = fuse(ops, RULES)
    assert isinstance(op, SelectRmsnorm)
    assert (op.x, op.out) == (X, last)


def test_embedded_rows_and_the_first_norm_become_one_op() -> None:
    embed = Embed(Embedding(np.zeros((4, 36), np.uint8), FORMATS["Q4_0"]), X)
    norm = Rmsnorm(X, np.ones(64, np.float32), 1e-5, H)
    (op,) = fuse([embed, norm], (embed_rmsnorm,))
    assert isinstance(op, EmbedRmsnorm)
    assert op.writes == (X, H)
    in_place: list[Op] = [embed, replace(norm, out=X)]
    assert fuse(in_place, (embed_rmsnorm,)) == in_place


NARROW = Tensor("narrow", 24)  # no whole group of squares
ADDED = Matmul(ACT, ("d",), (X,), (None,), accumulate=True, role="down")
NORMED = Rmsnorm(X, np.ones(64, np.float32), 1e-5, H)
QKV = Matmul(H, ("q", "k", "v"), (Q, K, V), (None,) * 3, role="qkv")


def any_product(op: Matmul) -> bool:
    return True


def test_a_product_that_is_added_takes_the_norm_behind_it_and_readers_get_its_factor() -> None:
    gated, seen = GateUpSwiglu(H, "g", "u", GATE), []

    def scales(op: Op, x: Tensor) -> bool:
        seen.append((op, x))
        return True

    found = matmul_rmsnorm([ADDED, NORMED, QKV, gated, ADDED, NORMED, gated], any_product, scales)
    wanted = ["MatmulRmsnorm", "Matmul", "GateUpSwiglu", "MatmulRmsnorm", "GateUpSwiglu"]
    assert names(found) == wanted
    first, second, third, *_ = found
    squares = Tensor("squares_for_h", 2)
    assert isinstance(first, MatmulRmsnorm)
    assert (first.x, first.weight, first.bias, first.role) == (ACT, "d", None, "down")
    assert first.norm is NORMED.weight
    assert first.writes == (X, H, squares)
    assert first.reads == (ACT, X)
    assert second == replace(QKV, x_scale=RowScale(squares, 1e-5))
    assert third == replace(gated, x_scale=RowScale(squares, 1e-5))
    assert second.reads == third.reads == (H, squares)
    assert seen == [(QKV, H), (gated, H), (gated, H)]


def test_a_sum_over_devices_takes_the_norm_behind_it() -> None:
    squares, ops = Tensor("squares_for_h", 2), [ADDED, AllReduce(X), NORMED, QKV]
    first, fused, reader = all_reduce_rmsnorm(ops, lambda x: x == X, lambda op, x: True)
    assert first is ADDED
    assert isinstance(fused, AllReduceRmsnorm)
    assert (fused.x, fused.normed, fused.squares) == (X, H, squares)
    assert fused.norm is NORMED.weight
    assert (fused.reads, fused.writes) == ((X,), (X, H, squares))
    assert reader == replace(QKV, x_scale=RowScale(squares, 1e-5))
    assert all_reduce_rmsnorm(ops, lambda x: False, lambda op, x: True) == ops
    assert all_reduce_rmsnorm(ops, lambda x: True, lambda op, x: False) == ops


@pytest.mark.parametrize(
    "ops",
    [
        [AllReduce(H), NORMED, QKV],
        [AllReduce(X), replace(NORMED, accumulate=True), QKV],
        [AllReduce(X), NORMED, QKV, Swiglu(H, H, ACT)],
        [AllReduce(X), replace(NORMED, out=X), replace(QKV, x=X)],
        [AllReduce(NARROW), replace(NORMED, x=NARROW, weight=NORM[:24]), QKV],
    ],
)
def test_a_norm_stays_behind_another_sum_or_where_readers_cannot_finish_it(ops: list[Op]) -> None:
    assert all_reduce_rmsnorm(ops, lambda x: True, lambda op, x: True) == ops


def test_sums_and_norms_of_a_prompt_are_made_by_rows() -> None:
    part = replace(ADDED, accumulate=False)
    last = [part, AllReduce(X), SelectRmsnorm(X, NORM, 1e-5, H)]
    gated = Matmul(H, ("g", "u"), (GATE, UP), (None, None))
    ops = [NORMED, QKV, ADDED, AllReduce(X), NORMED, gated, *last]
    found = reduce_rmsnorm(ops, lambda op: op.weights == ("d",), lambda op, x: x == H)
    first, qkv, added, fused, reader, *rest = found
    assert [first, qkv, reader] == [NORMED, QKV, gated]
    assert added == replace(ADDED, by_rows=True)
    assert fused == ReduceRmsnorm(X, NORMED.weight, NORMED.eps, H)
    assert (fused.reads, fused.writes) == ((X,), (X, H))
    assert rest == [replace(part, by_rows=True), *last[1:]]
    assert rest[0].reads == (ACT, X)
    assert reduce_rmsnorm(ops, lambda op: False, lambda op, x: True) == ops
    assert reduce_rmsnorm(ops, lambda op: True, lambda op, x: False) == ops


@pytest.mark.parametrize(
    "layer",
    [
        [ADDED, AllReduce(X), replace(NORMED, out=X), QKV],
        [ADDED, AllReduce(X), replace(NORMED, accumulate=True), QKV],
        [ADDED, AllReduce(X), NORMED, replace(QKV, x=X)],  # x is read where it is not whole
        [ADDED, ADDED, AllReduce(X), NORMED, QKV],
        [replace(ADDED, scale=2.0), AllReduce(X), NORMED, QKV],
        [Swiglu(H, H, ACT), AllReduce(X), NORMED, QKV],
        [ADDED, AllReduce(X), QKV],
        [],
    ],
)
def test_rows_are_made_everywhere_or_nowhere(layer: list[Op]) -> None:
    ops = [NORMED, QKV, ADDED, AllReduce(X), NORMED, QKV, *layer, ADDED, AllReduce(X)]
    found = reduce_rmsnorm(ops, lambda op: True, lambda op, x: True)
    assert (found == ops) == bool(layer)


@pytest.mark.parametrize(
    "ops",
    [
        [replace(ADDED, accumulate=False), NORMED, QKV],
        [replace(ADDED, scale=2.0), NORMED, QKV],
        [ADDED, replace(NORMED, x=K), QKV],
        [ADDED, replace(NORMED, accumulate=True), QKV],
        [ADDED, replace(NORMED, weight=NORM), QKV],  # of heads
        [ADDED, replace(NORMED, out=X), replace(QKV, x=X)],
        [ADDED, NORMED, QKV, Swiglu(H, H, ACT)],  # that reader multiplies by nothing
        [ADDED, NORMED],
        [NORMED, ADDED, QKV],
        [replace(ADDED, x=H), NORMED, QKV],  # it would read what its end writes
        [replace(ADDED, x_scale=RowScale(Tensor("s", 3), 1e-5)), NORMED, QKV],
        [replace(ADDED, weights=("d", "e"), outs=(X, K), biases=(None, None)), NORMED, QKV],
        [replace(ADDED, outs=(NARROW,)), replace(NORMED, x=NARROW, weight=NORM[:24]), QKV],
    ],
)
def test_norms_stay_where_their_readers_cannot_finish_them(ops: list[Op]) -> None:
    assert matmul_rmsnorm(ops, any_product, lambda op, x: True) == ops


def test_norms_stay_where_a_device_does_not_multiply_by_factors() -> None:
    ops: list[Op] = [ADDED, NORMED, QKV]
    assert matmul_rmsnorm(ops, any_product, lambda op, x: False) == ops
    assert matmul_rmsnorm(ops, lambda op: op is not ADDED, lambda op, x: True) == ops


def test_without_rules_the_graph_stays() -> None:
    ops = rotation(norms=True) + feed_forward(GATE)
    assert fuse(ops, ()) == ops
    assert Counter(names(fuse(ops, (gate_up_swiglu,))))["Rope"] == 2


def test_a_norm_a_router_and_a_choice_become_one_op() -> None:
    weight = np.ones(64, np.float32)
    scores, experts, shares = Tensor("scores", 8), Tensor("experts", 2), Tensor("shares", 2)
    norm = Rmsnorm(X, weight, 1e-5, H)
    matmul = Matmul(H, ("r",), (scores,), (None,), role="router")
    route = Route(scores, experts, shares, True)
    (op,) = fuse([norm, matmul, route], (rmsnorm_route,))
    assert op == RmsnormRoute(X, weight, 1e-5, H, "r", None, route)
    assert op.writes == (H, experts, shares)
    left: list[list[Op]] = [
        [replace(norm, out=X), replace(matmul, x=X), route],
        [replace(norm, x=Q, accumulate=True), matmul, route],
        [norm, replace(matmul, x=Q), route],
        [norm, replace(matmul, scale=2.0), route],
        [norm, matmul, replace(route, scores=Tensor("others", 8))],
        [norm, matmul, route, Softcap(scores, 5.0)],
        [norm, matmul],
    ]
    for ops in left:
        assert fuse(ops, (rmsnorm_route,)) == ops


def test_what_is_added_to_h_takes_the_norm_behind_it() -> None:
    weight = np.ones(64, np.float32)
    parts, shares = Tensor("parts", 128), Tensor("shares", 2)
    add, norm = AddExperts(parts, shares, X), Rmsnorm(X, weight, 1e-5, H)
    reader = Matmul(H, ("q",), (Q,), (None,))
    fused, scaled = add_experts_rmsnorm([add, norm, reader], lambda op, x: True)
    assert isinstance(fused, AddExpertsRmsnorm)
    assert (fused.x, fused.normed) == (X, H)
    assert scaled == replace(reader, x_scale=RowScale(fused.squares, 1e-5))
    left: list[list[Op]] = [
        [replace(add, x=V), norm, reader],
        [add, replace(norm, accumulate=True), reader],
        [add, norm, Softcap(H, 5.0)],
        [add, norm],
    ]
    for ops in left:
        assert add_experts_rmsnorm(ops, lambda op, x: True) == ops
    apart = [add, norm, reader]
    assert add_experts_rmsnorm(apart, lambda op, x: False) == apart
