"""Which neighbouring ops of a graph become one kernel: rules, and the pass that applies them.

A rule looks at the ops from one place on and says what replaces how many of them; a pass without
rules leaves the graph as the model wrote it. An executor names the rules for which its device has
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
from rocmforge.plan.operands import SQUARES_GROUP, RowScale, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllReduce,
    Attention,
    Embed,
    KvAppend,
    Layernorm,
    Matmul,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Swiglu,
)

Rule = Callable[[Sequence[Op]], "tuple[Op, int] | None"]
"""Given the ops from one place on: the fused op and how many ops it replaces, or None."""


def rope_kv_append(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """[norm q,] rotate q, [norm k,] rotate k, append k and v → one op."""
    at = 0
    norms: list[Rmsnorm | None] = []
    ropes: list[Rope] = []
    for _ in range(2):
        first = ops[at] if at < len(ops) else None
        norm = first if isinstance(first, Rmsnorm) and first.x == first.out else None
        at += norm is not None
        rope = ops[at] if at < len(ops) else None
        if not isinstance(rope, Rope) or (norm is not None and norm.out != rope.x):
            return None
        if norm is not None and norm.weight.size != rope.head_dim:  # the fused op norms each head
            return None
        norms.append(norm)
        ropes.append(rope)
        at += 1
    append = ops[at] if at < len(ops) else None
    if not isinstance(append, KvAppend) or append.k != ropes[1].x:
        return None
    q, k = ropes
    if (q.rotation, q.head_dim) != (k.rotation, k.head_dim) or append.head_dim != k.head_dim:
        return None
    if readers(ops[at + 1 :], append.k):  # the fused op leaves k as it was
        return None
    q_norm, k_norm = norms
    if q_norm is not None and k_norm is not None and q_norm.eps != k_norm.eps:
        return None
    some = q_norm or k_norm
    fused = RopeKvAppend(
        q=q.x,
        k=append.k,
        v=append.v,
        q_norm=q_norm.weight if q_norm else None,
        k_norm=k_norm.weight if k_norm else None,
        eps=some.eps if some else 0.0,
        layer=append.layer,
        rotation=q.rotation,
        head_dim=q.head_dim,
    )
    return fused, at + 1


def rope_attention(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """What becomes rope_kv_append, and attention of the same layer → one op."""
    found = rope_kv_append(ops)
    attention = ops[found[1]] if found and found[1] < len(ops) else None
    if found is None or not isinstance(attention, Attention):
        return None
    first, count = found[0], found[1] + 1
    if not isinstance(first, RopeKvAppend):
        return None
    shape = (first.q, first.layer, first.head_dim, first.k.columns // first.head_dim)
    if shape != (attention.q, attention.layer, attention.head_dim, attention.kv_heads):
        return None
    if attention.out == first.q or readers(ops[count:], first.q):  # the fused op leaves q as it was
        return None
    fields = {name: getattr(first, name) for name in first.__dataclass_fields__}
    fused = RopeAttention(
        **fields,
        out=attention.out,
        scale=attention.scale,
        window=attention.window,
        softcap=attention.softcap,
        sinks=attention.sinks,
    )
    return fused, count


def gate_up_swiglu(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """Both projections of a feed-forward part and SwiGLU → one op."""
    if len(ops) < 2 or not (isinstance(ops[0], Matmul) and isinstance(ops[1], Swiglu)):
        return None
    matmul, swiglu = ops[0], ops[1]
    plain = not matmul.accumulate and all(bias is None for bias in matmul.biases)
    plain = plain and matmul.scale == 1.0
    if not plain or matmul.outs != (swiglu.gate, swiglu.up):
        return None
    if any(readers(ops[2:], out) for out in matmul.outs if out != swiglu.out):
        return None
    gate, up = matmul.weights
    return GateUpSwiglu(matmul.x, gate, up, swiglu.out, swiglu.activation), 2


def embed_rmsnorm(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """Embedding rows and the first norm → one op."""
    if len(ops) < 2 or not (isinstance(ops[0], Embed) and isinstance(ops[1], Rmsnorm)):
        return None
    embed, norm = ops[0], ops[1]
    if norm.x != embed.out or norm.out == norm.x or norm.weight.size != norm.x.columns:
        return None
    if embed.scale != 1.0 or norm.accumulate:
        return None
    return EmbedRmsnorm(embed.embedding, embed.out, norm.weight, norm.eps, norm.out), 2


def rmsnorm_route(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """The norm in front of a router, the router's product and the choice of experts → one op."""
    if len(ops) < 3:
        return None
    norm, matmul, route = ops[:3]
    if not (isinstance(norm, Rmsnorm) and isinstance(matmul, Matmul) and isinstance(route, Route)):
        return None
    plain = norm.out != norm.x and not norm.accumulate and norm.weight.size == norm.x.columns
    plain = plain and matmul.x == norm.out and not matmul.accumulate and matmul.scale == 1.0
    if not plain or matmul.outs != (route.scores,) or readers(ops[3:], route.scores):
        return None
    (router,), (bias,) = matmul.weights, matmul.biases
    return RmsnormRoute(norm.x, norm.weight, norm.eps, norm.out, router, bias, route), 3


def select_norm(ops: Sequence[Op]) -> tuple[Op, int] | None:
    """Rows whose logits are wanted, and their norm → one op."""
    if len(ops) < 2 or not isinstance(ops[0], SelectOutputs):
        return None
    select, norm = ops[0], ops[1]
    if not isinstance(norm, Rmsnorm | Layernorm) or norm.x != select.out:
        return None
    if norm.out != select.out and readers(ops[2:], select.out):
        return None
    if isinstance(norm, Layernorm):
        return SelectLayernorm(select.x, norm.weight, norm.bias, norm.eps, norm.out), 2
    if norm.weight.size != norm.x.columns or norm.accumulate:
        return None
    return SelectRmsnorm(select.x, norm.weight, norm.eps, norm.out), 2


def fuse(ops: Sequence[Op], rules: Sequence[Rule]) -> list[Op]:
    """Replace what the rules find, from the first op to the last; the first rule that fits wins.

    Parameters
    ----------
    ops
        A forward pass.
    rules
        To try at each place, in order; none: the ops come back as they are.
    """
    fused: list[Op] = []
    at = 0
    while at < len(ops):
        found = next((hit for rule in rules if (hit := rule(ops[at:]))), None)
        op, count = found or (ops[at], 1)
        fused.append(op)
        at += count
    return fused


def matmul_rmsnorm(
    ops: Sequence[Op], runs: Callable[[Matmul], bool], scales: Callable[[Op, Tensor], bool]
) -> list[Op]:
    """A product that is added to h, and the norm of h behind it → one op, everywhere in a pass.

    Parameters
    ----------
    ops
        A pass.
    runs
        Whether a kernel for this product and its norm is wanted.
    scales
        Whether a reader of a normed tensor can multiply by the factor of its rows.
    """

    def fused(op: Op, norm: Rmsnorm, squares: Tensor) -> Op | None:
        if not isinstance(op, Matmul) or not op.accumulate or op.outs != (norm.x,):
            return None
        if op.scale != 1.0 or op.x_scale is not None or op.x == norm.out or not runs(op):
            return None
        return MatmulRmsnorm(
            x=op.x,
            weight=op.weights[0],
            bias=op.biases[0],
            out=norm.x,
            norm=norm.weight,
            normed=norm.out,
            squares=squares,
            role=op.role,
        )

    return _take_norms(ops, fused, scales)


def all_reduce_rmsnorm(
    ops: Sequence[Op], runs: Callable[[Tensor], bool], scales: Callable[[Op, Tensor], bool]
) -> list[Op]:
    """A sum of h over devices, and the norm of h behind it → one op, likewise.

    `runs` says whether a kernel for both is wanted for h.
    """

    def fused(op: Op, norm: Rmsnorm, squares: Tensor) -> Op | None:
        if not isinstance(op, AllReduce) or op.x != norm.x or not runs(op.x):
            return None
        return AllReduceRmsnorm(op.x, norm.weight, norm.out, squares)

    return _take_norms(ops, fused, scales)


def reduce_rmsnorm(
    ops: Sequence[Op], runs: Callable[[Matmul], bool], reads: Callable[[Op, Tensor], bool]
) -> list[Op]:
    """Sums of x over devices, each of a product, and the norms of x behind them → one op each.

    All of a pass but the last, behind which x is whole, or none: between them x is whole nowhere.

    Parameters
    ----------
    ops
        A pass.
    runs
        Whether a product can add to some rows alone.
    reads
        Whether a reader of a normed tensor can take it as it would be.
    """
    sums = [at for at, op in enumerate(ops) if isinstance(op, AllReduce)]
    if len(sums) < 2:
        return list(ops)
    done: list[Op | None] = list(ops)
    expected = set()  # to read or write x, from the first product to the last sum
    for at in sums:
        total, product = ops[at], ops[at - 1]
        if not isinstance(total, AllReduce) or not isinstance(product, Matmul):
            return list(ops)
        if product.outs != (total.x,) or product.scale != 1.0 or not runs(product):
            return list(ops)
        done[at - 1] = replace(product, by_rows=True)
        expected |= {at - 1, at}
        if at == sums[-1]:
            break
        norm = ops[at + 1]
        if not isinstance(norm, Rmsnorm) or norm.x != total.x or norm.out == norm.x:
            return list(ops)
        if norm.accumulate or norm.weight.size != norm.x.columns:
            return list(ops)
        if not all(reads(op, norm.out) for op in readers(ops[at + 2 :], norm.out)):
            return list(ops)
        expected.add(at + 1)
        done[at], done[at + 1] = ReduceRmsnorm(total.x, norm.weight, norm.eps, norm.out), None
    first, last = sums[0] - 1, sums[-1]
    x = ops[first].writes[0]
    touching = {at for at in range(first, last + 1) if x in (*ops[at].reads, *ops[at].writes)}
    return [op for op in done if op is not None] if touching == expected else list(ops)


def add_experts_rmsnorm(ops: Sequence[Op], scales: Callable[[Op, Tensor], bool]) -> list[Op]:
    """Results of experts that are added to h, and the norm of h behind it → one op, likewise."""

    def fused(op: Op, norm: Rmsnorm, squares: Tensor) -> Op | None:
        if not isinstance(op, AddExperts) or not op.accumulate:
            return None
        if op.x != norm.x or norm.out in op.reads:
            return None
        return AddExpertsRmsnorm(op.parts, op.shares, op.x, norm.weight, norm.out, squares)

    return _take_norms(ops, fused, scales)


def _take_norms(
    ops: Sequence[Op],
    fused: Callable[[Op, Rmsnorm, Tensor], Op | None],
    scales: Callable[[Op, Tensor], bool],
) -> list[Op]:
    """Replace ops and the norms behind them, where all readers of what is normed can follow.

    The norm's factor, one for a whole row, goes to the readers of the normed tensor: products
    multiply by it at their end. That changes ops which no rule sees together, so this follows the
    rules.

    Parameters
    ----------
    ops
        A pass.
    fused
        Gives what becomes of an op, the norm behind it and a tensor for squares, or None.
    scales
        As of `matmul_rmsnorm`.
    """
    done: list[Op | None] = list(ops)
    for at in range(len(ops) - 1):
        first, norm = done[at], ops[at + 1]
        if first is None or not isinstance(norm, Rmsnorm) or norm.out == norm.x:
            continue
        columns = norm.x.columns // SQUARES_GROUP
        squares = Tensor(f"squares_for_{norm.out.name}", columns, norm.out.rows)
        plain = not norm.accumulate and norm.weight.size == norm.x.columns
        plain = plain and norm.x.columns % SQUARES_GROUP == 0
        found = fused(first, norm, squares) if plain else None
        if found is None:
            continue
        places = _readers_at(ops, norm.out, at + 2)
        scaled = {
            place: replace(op, x_scale=RowScale(squares, norm.eps))
            for place in places
            if isinstance(op := ops[place], Matmul | GateUpSwiglu) and scales(op, norm.out)
        }
        if not places or len(scaled) < len(places):
            continue
        done[at], done[at + 1] = found, None
        for place, op in scaled.items():
            done[place] = op
    return [op for op in done if op is not None]


def readers(ops: Sequence[Op], tensor: Tensor) -> list[Op]:
    """Return the ops that read a tensor before it is written anew."""
    return [ops[place] for place in _readers_at(ops, tensor)]


def _readers_at(ops: Sequence[Op], tensor: Tensor, first: int = 0) -> list[int]:
    """Return where they stand, from op number `first` on."""
    found: list[int] = []
    for place in range(first, len(ops)):
        reads = tensor in ops[place].reads
        if reads:
            found.append(place)
        if tensor in ops[place].writes and not reads:
            break
    return found
