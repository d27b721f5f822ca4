"""What an engine asks of whatever runs its graph, as protocols.

`cpu/executor.py` runs a graph on the CPU, `gpu/executor.py` on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rocmforge.backend import Floats, Ints
from rocmforge.kv.page_table import PageTable


class Cache(Protocol):
    """Keys and values of all sequences, wherever they lie."""

    table: PageTable

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""


class Executor(Protocol):
    """A model that is ready to run."""

    @property
    def cache(self) -> Cache:
        """Keys and values; a pass lengthens its sequences."""

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences through the model.

        Parameters
        ----------
        tokens
            (T,) ids, those of the first sequence first.
        sequences, counts
            S ids of the cache's page table, and how many of the tokens belong to each.
        rows
            (R,) indices into the T tokens: those whose logits are wanted.

        Returns
        -------
        (R, V) float32 logits, the caller's own.

        Raises
        ------
        OutOfPagesError
            The KV cache cannot hold the new tokens; nothing is changed.
        """

    def close(self) -> None:
        """Let go of the device's memory; nothing may be run any more."""
