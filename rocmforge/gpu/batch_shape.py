"""What the launches of a pass depend on: the shape of its batch, and where its description lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rocmforge.array_types import Ints
from rocmforge.gpu.ops.attention_prompt import is_deep
from rocmforge.gpu.ops.dot_rows import DOT_TOKENS
from rocmforge.gpu.ops.dot_rows import MAX_TOKENS as GEMV_ROWS
from rocmforge.plan.operands import Tensor

LEAST_ROOM = 512  # tokens of a prompt that may always be one pass

NORMED_ROWS = 4
"""Most rows of `matmul_rmsnorm`. With 8 a step of 7B took 1.00 (Q4_K_M) and 1.12 (Q8_0) of its time
on an H200, with 1 to 4 it took 0.94 to 0.99."""

ROOMS = (NORMED_ROWS, DOT_TOKENS, GEMV_ROWS, 128, 256, 384, LEAST_ROOM)
"""Rows of the plans that passes share; larger ones are powers of two. Where dtypes of activations
change, a plan ends: at GEMVs, at `matmul_batch.most_tokens`, and before `lowering.LEAST_SPACED`. So
does one where weights become float16 first (`matmul_f16.least_unpacked`). Those of 256, 384 and 512
spare memory where prompts run in short passes."""


@dataclass(frozen=True)
class BatchShape:
    """What the launches of a pass depend on.

    Parameters
    ----------
    tokens, sequences
        T and S.
    outputs
        Tokens whose logits are wanted; None: all of them.
    single
        Whether every sequence has one new token.
    longest
        Most new tokens of one sequence.
    deep
        Of `attention_prompt.is_deep`.
    """

    tokens: int
    sequences: int
    outputs: tuple[int, ...] | None
    single: bool
    longest: int
    deep: bool = False

    @property
    def output_rows(self) -> int:
        """How many logits are wanted."""
        return self.tokens if self.outputs is None else len(self.outputs)

    def rows(self, tensor: Tensor) -> int:
        """Rows of a tensor."""
        return self.tokens if tensor.rows == "tokens" else self.output_rows


def step_shape(sequences: int) -> BatchShape:
    """Return the shape of a step in which each sequence grows by a token."""
    return BatchShape(sequences, sequences, None, True, 1)


def prompt_shape(tokens: int) -> BatchShape:
    """Return the shape of a prompt of one sequence whose last token's logits are wanted."""
    return BatchShape(tokens, 1, (tokens - 1,), False, tokens)


def batch_shape(counts: Sequence[int], rows: Ints, before: int) -> BatchShape:
    """Return the shape of a batch.

    Parameters
    ----------
    counts
        New tokens of each sequence.
    rows
        Of the tokens whose logits are wanted.
    before
        Tokens that the sequences had, together; for single tokens it does not matter.
    """
    tokens = sum(counts)
    return BatchShape(
        tokens=tokens,
        sequences=len(counts),
        outputs=None if rows.size == tokens else tuple(rows.tolist()),  # each comes once, in order
        single=max(counts) == 1,
        longest=max(counts),
        deep=is_deep(tokens, before, len(counts)),
    )


def room_of(shape: BatchShape) -> BatchShape:
    """Return the largest shape that shares a plan with this one."""
    tokens = _rounded(shape.tokens)
    outputs = _rounded(shape.output_rows)
    return replace(
        shape,
        tokens=tokens,
        sequences=tokens if shape.single else 1,
        outputs=None if outputs == tokens else tuple(range(outputs)),
        longest=1,
        deep=False,
    )


def least_of(room: int) -> int:
    """Return a number that a pass's rows exceed, if its room is `room`."""
    if room > ROOMS[-1]:
        return max(room // 2, ROOMS[-1])
    return max((most for most in ROOMS if most < room), default=0)


def _rounded(rows: int) -> int:
    return next((most for most in ROOMS if rows <= most), 1 << (rows - 1).bit_length())


@dataclass(frozen=True)
class BatchAddresses:
    """Addresses of the int32 arrays that describe a batch; 0 for those that no op reads.

    Parameters
    ----------
    tokens, positions, pages, offsets
        (T,) each.
    page_table, max_pages
        (S, max_pages).
    window_pages, window_table
        As `pages` and `page_table`, of layers with a window.
    lengths, starts
        (S,) and (S + 1,).
    draws
        (S,) records `rocmforge.sampling.DRAW`, not int32.
    chosen
        (S,) in page-locked memory of the host, which gets the chosen tokens.
    """

    tokens: int = 0
    positions: int = 0
    pages: int = 0
    offsets: int = 0
    page_table: int = 0
    max_pages: int = 0
    window_pages: int = 0
    window_table: int = 0
    lengths: int = 0
    starts: int = 0
    draws: int = 0
    chosen: int = 0
