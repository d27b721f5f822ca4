"""What describes a batch, where a GPU's kernels find it: brought there by one copy a pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Ints
from rocmforge.gpu.batch_shape import BatchAddresses
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime
from rocmforge.kv.batch import Batch
from rocmforge.sampling import DRAW


class InputBlock:
    """What describes a batch, as arrays in one block of device memory and its host mirror.

    In this order: draws, and as int32 positions, pages, offsets, lengths, starts, page_table, where
    layers have windows, theirs (a page table and pages), and tokens.

    Parameters
    ----------
    runtime
        The device.
    max_pages
        Most pages of one sequence.
    tokens, sequences
        The least that there is room for, from the first `grow` on.
    windowed
        Whether there are layers with a window.
    """

    def __init__(
        self, runtime: Runtime, max_pages: int, tokens: int, sequences: int, windowed: bool
    ) -> None:
        self._runtime = runtime
        self._max_pages = max_pages
        self._tokens = tokens
        self._sequences = sequences
        self._windowed = windowed
        self._address = 0
        self._host: NDArray[np.uint8] | None = None

    def needs_more(self, tokens: int, sequences: int) -> bool:
        """Whether a batch is too large for the block, as any is before the first `grow`."""
        small = tokens > self._tokens or sequences > self._sequences
        return small or self._host is None

    def grow(self, tokens: int, sequences: int) -> None:
        """Make room; addresses change."""
        self.close()
        wanted = (1 << (n - 1).bit_length() for n in (tokens, sequences))
        self._tokens, self._sequences = map(max, (self._tokens, self._sequences), wanted)
        nbytes = self._draws + 4 * (self._ids + self._tokens)
        try:
            self._address = self._runtime.allocate(nbytes)
            self._host = self._runtime.allocate_pinned(nbytes)
        except BaseException:  # Ctrl-C too
            self.close()
            raise
        self._host[:] = 0

    def close(self) -> None:
        """Give the memory back."""
        releases: list[Callable[[], None]] = []
        if self._address:
            releases.append(partial(self._runtime.free, self._address))
        if self._host is not None:
            releases.append(partial(self._runtime.free_pinned, self._host))
        self._address, self._host = 0, None
        release_all(*releases)

    def fill(self, tokens: NDArray[np.int64], batch: Batch) -> None:
        """Write a batch into the mirror."""
        assert self._host is not None
        words = self._host[self._draws :].view(np.int32)
        words[self._ids : self._ids + tokens.size] = tokens
        for i, values in enumerate((batch.positions, batch.pages, batch.offsets)):
            words[i * self._tokens : i * self._tokens + tokens.size] = values
        count = batch.lengths.size
        words[self._lengths : self._lengths + count] = batch.lengths
        words[self._starts : self._starts + count + 1] = batch.starts
        self._fill_table(words[self._table : self._window_table], batch.page_table)
        if self._windowed:
            behind = batch.of(True)
            self._fill_table(words[self._window_table : self._window_pages], behind.page_table)
            words[self._window_pages : self._window_pages + tokens.size] = behind.pages

    def _fill_table(self, words: Ints, rows: Ints) -> None:
        table = words.reshape(self._sequences, self._max_pages)
        width = min(rows.shape[1], self._max_pages)
        table[: len(rows), :width] = rows[:, :width]

    def fill_draws(self, draws: NDArray[Any]) -> None:
        """Write how to draw the next token of each sequence into the mirror."""
        assert self._host is not None
        self._host[: draws.nbytes] = draws.view(np.uint8)

    def send(self, stream: Any, *, tokens: bool = True) -> None:
        """Enqueue the copy of the mirror to the device; without tokens, those there stay."""
        assert self._host is not None
        held = self._host if tokens else self._host[: self._draws + 4 * self._ids]
        self._runtime.copy_to_device(self._address, held, stream)

    @property
    def nbytes(self) -> int:
        """Bytes of the block on the device, and of its mirror."""
        return 0 if self._host is None else self._host.nbytes

    @property
    def page_table_bytes(self) -> int:
        """Bytes of the block that are page tables."""
        tables = 2 if self._windowed else 1
        return 0 if self._host is None else 4 * tables * self._sequences * self._max_pages

    def addresses(self) -> BatchAddresses:
        """Where the kernels find the arrays."""
        words, size = self._address + self._draws, 4 * self._tokens
        return BatchAddresses(
            tokens=words + 4 * self._ids,
            positions=words,
            pages=words + size,
            offsets=words + 2 * size,
            page_table=words + 4 * self._table,
            max_pages=self._max_pages,
            window_pages=words + (4 * self._window_pages if self._windowed else size),
            window_table=words + 4 * (self._window_table if self._windowed else self._table),
            lengths=words + 4 * self._lengths,
            starts=words + 4 * self._starts,
            draws=self._address,
        )

    @property
    def _draws(self) -> int:
        return DRAW.itemsize * self._sequences

    @property
    def _lengths(self) -> int:
        return 3 * self._tokens

    @property
    def _starts(self) -> int:
        return self._lengths + self._sequences

    @property
    def _table(self) -> int:
        return self._starts + self._sequences + 1

    @property
    def _window_table(self) -> int:
        return self._table + self._sequences * self._max_pages

    @property
    def _window_pages(self) -> int:
        return self._window_table + self._sequences * self._max_pages

    @property
    def _ids(self) -> int:
        return self._window_pages + self._tokens if self._windowed else self._window_table
