"""What the steps of a pass move and compute: bytes and flops, from their records and the batch.

Each byte that a step needs counts once, however often a kernel reads it: it is the least that the
step has to move. A multiply-add is two flops, an exponential or a root one. The formulas of single
ops are those that the cases of tests and benchmarks use too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from rocmforge.plan.operands import Embedding, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllReduce,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Softcap,
    Swiglu,
)

RMSNORM_FLOPS = 4
"""Of each value."""
LAYERNORM_FLOPS = 7
"""Of each value: mean, variance, and what it becomes."""
SOFTCAP_FLOPS = 5
"""Of each value."""
ROUTE_FLOPS = 3
"""Of each score: an exponential, a sum, a comparison."""
SWIGLU_FLOPS = 5
"""Of each value that it writes."""
DEQUANTIZE_FLOPS = 2
"""Of each weight: a scale and a minimum."""

Places = Sequence[tuple[Tensor, str]]
"""Tensors, and the dtype of each."""


@dataclass(frozen=True)
class Cost:
    """What a step moves and computes.

    Parameters
    ----------
    weight_bytes
        Read of what never changes: matrices, biases, norms, embedding rows, cosines and sines.
    activation_bytes
        Of activations, read and written.
    kv_bytes
        Of the KV cache, read and written.
    flops
        Operations.
    """

    weight_bytes: int = 0
    activation_bytes: int = 0
    kv_bytes: int = 0
    flops: int = 0

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes

    def __add__(self, other: Cost) -> Cost:
        """What both steps move and compute."""
        return Cost(
            self.weight_bytes + other.weight_bytes,
            self.activation_bytes + other.activation_bytes,
            self.kv_bytes + other.kv_bytes,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Costs:
    """Costs of the steps of one pass.

    Parameters
    ----------
    counts, lengths
        New tokens of each of S sequences, and its tokens in the cache, the new ones included.
    outputs
        Tokens whose logits are wanted.
    kv_token_bytes
        Bytes of one token's keys and values in one layer.
    nbytes
        Memory of activations, from dtype, rows and columns.
    """

    counts: Sequence[int]
    lengths: Sequence[int]
    outputs: int
    kv_token_bytes: int
    nbytes: Callable[[str, int, int], int]

    def of(self, op: Op, reads: Places, writes: Places) -> Cost:
        """Return the cost of an op that reads and writes tensors in these dtypes."""
        if isinstance(
            op, SelectOutputs | SelectRmsnorm | SelectLayernorm
        ):  # reads the rows that it selects
            reads = [(Tensor(t.name, t.columns, "outputs"), dtype) for t, dtype in reads]
        kv_tokens = {
            Attention: self._read(op) if isinstance(op, Attention) else 0,
            KvAppend: self._tokens,
            RopeKvAppend: self._tokens,
            # what it writes of them it need not read
            RopeAttention: sum(self.lengths),
        }
        return Cost(
            weight_bytes=self._weight_bytes(op),
            activation_bytes=self.moved(reads, writes).activation_bytes,
            kv_bytes=kv_tokens.get(type(op), 0) * self.kv_token_bytes,
            flops=self._flops(op),
        )

    def moved(self, reads: Places, writes: Places) -> Cost:
        """Return the cost of a step that does no more than write tensors in another dtype."""
        places = (*reads, *writes)
        return Cost(
            activation_bytes=sum(
                self.nbytes(dtype, self._rows(t), t.columns) for t, dtype in places
            )
        )

    def _weight_bytes(self, op: Op) -> int:
        match op:
            case Matmul():
                biases = (bias.nbytes for bias in op.biases if bias is not None)
                return sum(int(w.nbytes) for w in op.weights) + sum(biases)
            case MatmulRmsnorm():
                bias = op.bias.nbytes if op.bias is not None else 0
                return int(op.weight.nbytes) + bias + op.norm.nbytes
            case AllReduceRmsnorm() | ReduceRmsnorm():
                return op.norm.nbytes
            case GateUpSwiglu():
                return int(op.gate.nbytes + op.up.nbytes)
            case ExpertGateUp():
                return self._expert_bytes(op.gate.nbytes + op.up.nbytes, op)
            case ExpertMatmul():
                return self._expert_bytes(op.weight.nbytes, op)
            case Rmsnorm() | SelectRmsnorm():
                return int(op.weight.nbytes)
            case Layernorm() | SelectLayernorm():
                return int(op.weight.nbytes) + (op.bias.nbytes if op.bias is not None else 0)
            case Embed():
                return self._embedding_bytes(op.embedding)
            case AddExpertsRmsnorm():
                return op.norm.nbytes
            case RmsnormRoute():
                bias = op.bias.nbytes if op.bias is not None else 0
                return int(op.router.nbytes) + bias + op.norm.nbytes
            case EmbedRmsnorm():
                return self._embedding_bytes(op.embedding) + int(op.weight.nbytes)
            case Rope():
                return 4 * self._tokens * op.rotation.rotated
            case RopeKvAppend() | RopeAttention():
                norms = (norm.nbytes for norm in (op.q_norm, op.k_norm) if norm is not None)
                return 4 * self._tokens * op.rotation.rotated + sum(norms)
        return 0

    def _flops(self, op: Op) -> int:
        match op:
            case Matmul():
                columns = sum(out.columns for out in op.outs)
                return matmul_flops(self._rows(op.x), columns, op.x.columns)
            case MatmulRmsnorm():
                product = matmul_flops(self._tokens, op.out.columns, op.x.columns)
                return product + RMSNORM_FLOPS * self._values(op.out)
            case GateUpSwiglu():
                product = matmul_flops(self._tokens, 2 * op.out.columns, op.x.columns)
                return product + SWIGLU_FLOPS * self._values(op.out)
            case Swiglu() | Gelu():
                return SWIGLU_FLOPS * self._values(op.out)
            case Softcap():
                return SOFTCAP_FLOPS * self._values(op.x)
            case Route():
                return ROUTE_FLOPS * self._values(op.scores)
            case ExpertGateUp():
                product = matmul_flops(self._tokens, 2 * op.out.columns, op.x.columns)
                return product + SWIGLU_FLOPS * self._values(op.out)
            case ExpertMatmul():
                columns = op.x.columns // op.experts.columns
                return matmul_flops(self._tokens, op.out.columns, columns)
            case AddExperts():
                return 2 * self._values(op.parts)
            case AllReduce():
                return self._values(op.x)
            case AllReduceRmsnorm() | ReduceRmsnorm():
                return (1 + RMSNORM_FLOPS) * self._values(op.x)
            case Rmsnorm() | SelectRmsnorm():
                return RMSNORM_FLOPS * self._values(op.out)
            case Layernorm() | SelectLayernorm():
                return LAYERNORM_FLOPS * self._values(op.out)
            case Embed():
                return DEQUANTIZE_FLOPS * self._values(op.out)
            case AddExpertsRmsnorm():
                return 2 * self._values(op.parts) + RMSNORM_FLOPS * self._values(op.x)
            case RmsnormRoute():
                product = matmul_flops(self._tokens, op.scores.columns, op.x.columns)
                normed = RMSNORM_FLOPS * self._values(op.out)
                return product + normed + ROUTE_FLOPS * self._values(op.scores)
            case EmbedRmsnorm():
                return (DEQUANTIZE_FLOPS + RMSNORM_FLOPS) * self._values(op.out)
            case Rope():
                return rope_flops(self._tokens, op.x.columns // op.head_dim, op.rotation.rotated)
            case RopeAttention():
                return self._attention_flops(op) + self._turn_flops(op)
            case RopeKvAppend():
                return self._turn_flops(op)
            case Attention():
                return self._attention_flops(op)
        return 0

    def _attention_flops(self, op: Attention | RopeAttention) -> int:
        return attention_flops(self.counts, self.lengths, op.heads, op.head_dim, op.window)

    def _read(self, op: Attention | RopeAttention) -> int:
        """Tokens whose keys and values an attention reads: the windows of all queries."""
        window = op.window or max(self.lengths)
        counted = zip(self.counts, self.lengths, strict=True)
        return sum(min(length, window + count - 1) for count, length in counted)

    def _turn_flops(self, op: RopeKvAppend | RopeAttention) -> int:
        heads = (op.q.columns + op.k.columns) // op.head_dim
        normed = (op.q_norm is not None, op.q), (op.k_norm is not None, op.k)
        norms = sum(RMSNORM_FLOPS * self._values(x) for norm, x in normed if norm)
        return rope_flops(self._tokens, heads, op.rotation.rotated) + norms

    def _expert_bytes(self, nbytes: int, op: ExpertGateUp | ExpertMatmul) -> int:
        return round(nbytes * experts_read(op.experts.columns / op.count, self._tokens))

    def _embedding_bytes(self, embedding: Embedding) -> int:
        return int(self._tokens * embedding.rows.shape[1])

    def _values(self, tensor: Tensor) -> int:
        return self._rows(tensor) * tensor.columns

    def _rows(self, tensor: Tensor) -> int:
        return self._tokens if tensor.rows == "tokens" else self.outputs

    @property
    def _tokens(self) -> int:
        return sum(self.counts)


def matmul_flops(tokens: int, rows: int, columns: int) -> int:
    """Flops of x (T, K) · weights (N, K)ᵀ: two a product."""
    return 2 * tokens * rows * columns


def experts_read(share: float, tokens: int) -> float:
    """Share of a layer's experts that some tokens need: 1 − (1 − share)^tokens, all as likely.

    Parameters
    ----------
    share
        k / E, of the experts that each token goes to.
    tokens
        T.
    """
    return float(1.0 - (1.0 - share) ** tokens)


def rope_flops(tokens: int, heads: int, rotated: int) -> int:
    """Flops of turning R dims of (T, H, D): four products and two sums a pair."""
    return 3 * tokens * heads * rotated


def attention_flops(
    counts: Sequence[int],
    lengths: Sequence[int],
    heads: int,
    head_dim: int,
    window: int | None = None,
) -> int:
    """Flops of causal attention: two matrix products over the visible pairs of query and token.

    Parameters
    ----------
    counts, lengths
        Queries of each sequence, which are its last tokens, and its tokens.
    heads, head_dim
        H and D.
    window
        Tokens that a query sees at most; None: all before it.
    """
    pairs = 0
    for n, length in zip(counts, lengths, strict=True):
        first = length - n + 1  # tokens that the first query sees
        whole = length + 1 if window is None else window
        growing = min(max(whole - first, 0), n)  # queries that see less than a window
        pairs += growing * first + growing * (growing - 1) // 2 + (n - growing) * whole
    return 4 * pairs * heads * head_dim
