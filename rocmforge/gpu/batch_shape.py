"""What the launches of a pass depend on: the shape of its batch, and where its description lies.

It knows no op, no kernel and no address of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.plan.graph import Tensor


@dataclass(frozen=True)
class Shape:
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
    """

    tokens: int
    sequences: int
    outputs: tuple[int, ...] | None
    single: bool
    longest: int

    @property
    def output_rows(self) -> int:
        """How many logits are wanted."""
        return self.tokens if self.outputs is None else len(self.outputs)

    def rows(self, tensor: Tensor) -> int:
        """Rows of a tensor."""
        return self.tokens if tensor.rows == "tokens" else self.output_rows


@dataclass(frozen=True)
class Inputs:
    """Addresses of what describes a batch: int32 arrays, and the tables cos and sin (ctx, R / 2).

    Parameters
    ----------
    tokens, positions, pages, offsets
        (T,) each.
    page_table, max_pages
        (S, max_pages).
    lengths, starts
        (S,) and (S + 1,).
    cos, sin
        float32 by position.
    """

    tokens: int
    positions: int
    pages: int
    offsets: int
    page_table: int
    max_pages: int
    lengths: int
    starts: int
    cos: int
    sin: int
