"""What the launches of a pass depend on: the shape of its batch, and where its description lies."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.plan.graph import Tensor


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
class BatchAddresses:
    """Addresses of the int32 arrays that describe a batch; 0 for those that no op reads.

    Parameters
    ----------
    tokens, positions, pages, offsets
        (T,) each.
    page_table, max_pages
        (S, max_pages).
    lengths, starts
        (S,) and (S + 1,).
    draws
        (S,) records `rocmforge.sampling.DRAW`, not int32.
    """

    tokens: int = 0
    positions: int = 0
    pages: int = 0
    offsets: int = 0
    page_table: int = 0
    max_pages: int = 0
    lengths: int = 0
    starts: int = 0
    draws: int = 0
