"""Which pages each sequence holds, in order, and how many tokens it has.

Token t of a sequence lies in slot t % P of its page number t // P. The table is one 2-D array, a
row a sequence, so that a decode step reads the rows of its batch with one copy.

Sequences that were added for prompts share the full pages in which these begin alike. Such a page
stays when its sequences end, until its room is needed. It is never written: a sequence writes from
its length on, where it has pages of its own. A last page that is not full is not shared, so only
`truncate` ever copies one.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import OutOfMemoryError, OutOfPagesError
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.prefixes import digests
from rocmforge.kv.windows import WindowPages

NO_PAGE = -1
FIRST_ROWS = 4
FIRST_COLUMNS = 16


def pages_for_context(n_tokens: int, n_sequences: int, page_size: int) -> int:
    """Pages that let each of many sequences grow to a full context: S * ceil(n / P).

    Parameters
    ----------
    n_tokens
        Context of one sequence, in tokens, at least 1.
    n_sequences
        S, at least 1.
    page_size
        P, tokens in a page, at least 1.

    Raises
    ------
    ValueError
        One of them is below 1.
    """
    given = {"n_tokens": n_tokens, "n_sequences": n_sequences, "page_size": page_size}
    for name, count in given.items():
        if count < 1:
            raise ValueError(f"{name}: got {count}, wanted at least 1")
    return n_sequences * -(-n_tokens // page_size)


@dataclass(slots=True)
class _Sequence:
    row: int
    owner: weakref.ref[object] | None
    prompt: NDArray[np.int64] | None  # whose pages later prompts may find once it has run
    found: int = 0  # tokens of the prompt that it began with
    passed: int = 0  # pages that windows have passed, and behind which nothing may lie
    marked: int | None = None  # length to which it may be truncated


class PageTable:
    """Pages and lengths of many sequences over one allocator.

    A reserve changes no length, and an extend within what is reserved cannot fail.

    An interrupt (Ctrl-C) between any two steps leaves each page free or with a sequence. End the
    sequence that was being changed: its length may or may not be the new one.

    Parameters
    ----------
    allocator
        The pool that pages come from, this table's alone.
    page_size
        P, tokens in a page: 16, 32 or 64.
    copy
        Called with two pages: copies what the first one holds to the second one.
    windows
        What lies behind the pages in layers with a window; None where there are no such layers.

    Raises
    ------
    ValueError
        `page_size` is another number, or the pool holds 2**31 tokens or more (positions are int32).
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        page_size: int,
        copy: Callable[[int, int], None] | None = None,
        windows: WindowPages | None = None,
    ) -> None:
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size: got {page_size}, wanted one of {PAGE_SIZES}")
        if allocator.n_pages * page_size >= 2**31:
            raise ValueError(
                f"n_pages: got {allocator.n_pages} pages of {page_size} tokens, "
                "wanted fewer than 2**31 tokens in all"
            )
        self.allocator = allocator
        self.page_size = page_size
        self.windows = windows
        self._copy = copy
        self._sequences: dict[int, _Sequence] = allocator.holders
        self._pages = np.full((FIRST_ROWS, FIRST_COLUMNS), NO_PAGE, np.int32)
        self._n_pages = np.zeros(FIRST_ROWS, np.int32)
        self._lengths = np.zeros(FIRST_ROWS, np.int32)
        self._ids = itertools.count()

    @property
    def nbytes(self) -> int:
        """Bytes of the table and of the allocator's list, room for further sequences included."""
        rows = self._pages.nbytes + self._n_pages.nbytes + self._lengths.nbytes
        windows = 0 if self.windows is None else self.windows.nbytes
        return rows + self.allocator.nbytes + windows

    def add_sequence(
        self,
        reserve_tokens: int = 0,
        owner: object = None,
        prompt: NDArray[np.int64] | None = None,
    ) -> int:
        """Start a sequence, which is empty unless it is for a prompt that begins as earlier ones.

        Parameters
        ----------
        reserve_tokens
            Tokens for which to take pages now, where the length is known ahead.
        owner
            Whose it is: `release` ends it by that, whether or not its id ever came to the caller,
            and so does the next `add_sequence` once the owner is gone. None: it lasts until
            `remove`.
        prompt
            Ids of what the sequence will hold. It begins with the full pages of earlier prompts
            that hold the same tokens, but at least one token is left to run: `length` says how
            many it has. None: nothing is shared.

        Returns
        -------
        int
            Its id: 0, 1, 2 …; an id is never used again.

        Raises
        ------
        OutOfPagesError
            Too few pages for `reserve_tokens`; no sequence is added.
        ValueError
            `reserve_tokens` is negative.
        TypeError
            There are no weak references to an owner of that type.
        """
        self._pages_of("reserve_tokens", reserve_tokens)
        self.release(None)
        taken = set(self._taken())
        row = next(row for row in itertools.count() if row not in taken)
        if row == len(self._pages):
            self._add_rows()
        self._pages[row] = NO_PAGE
        self._n_pages[row] = self._lengths[row] = 0
        sequence = next(self._ids)
        try:
            reference = None if owner is None else weakref.ref(owner)
            prompt = None if prompt is None else prompt.copy()  # the caller's may change
            self._sequences[sequence] = held = _Sequence(row, reference, prompt)
            if prompt is not None:
                pages = self.allocator.prefixes.find(digests(prompt[:-1], self.page_size))
                self._attach(row, pages)
                self._lengths[row] = held.found = len(pages) * self.page_size
            self.reserve(sequence, reserve_tokens)
        except BaseException:
            self._sequences.pop(sequence, None)
            raise
        return sequence

    def reserve(self, sequence: int, n_tokens: int) -> None:
        """Take pages until the sequence has room for `n_tokens` tokens in all.

        Nothing is given back where it has room for more already.

        Parameters
        ----------
        sequence
            Id from `add_sequence`.
        n_tokens
            Total length to make room for, those that it has included.

        Raises
        ------
        OutOfPagesError
            Too few pages are free; nothing is changed.
        ValueError
            No such sequence, or `n_tokens` is negative.
        """
        self._reserve([sequence], [self._row(sequence)], [n_tokens])

    def _reserve(
        self, sequences: Sequence[int], rows: Sequence[int], n_tokens: Sequence[int]
    ) -> None:
        held: list[int] = self._n_pages[rows].tolist()
        missing = [
            max(0, self._pages_of("n_tokens", n) - pages)
            for pages, n in zip(held, n_tokens, strict=True)
        ]
        if not any(missing):
            return
        pages = self._take(sequences, missing)
        for row, count in zip(rows, missing, strict=True):
            self._attach(row, pages[:count])
            pages = pages[count:]

    def extend(self, sequence: int, n_tokens: int) -> int:
        """Lengthen a sequence; see `extend_all`.

        Returns
        -------
        int
            Position of the first added token: the length before.
        """
        return self.extend_all([sequence], [n_tokens])[0]

    def extend_all(self, sequences: Sequence[int], n_tokens: Sequence[int]) -> list[int]:
        """Lengthen several sequences, all or none, taking pages as needed.

        Parameters
        ----------
        sequences
            Different ids from `add_sequence`.
        n_tokens
            Tokens to add to each, 0 or more.

        Returns
        -------
        list[int]
            Position of the first added token of each: its length before.

        Raises
        ------
        OutOfPagesError
            Too few pages are free; nothing is changed.
        ValueError
            No such sequence, or a number of tokens is negative.
        """
        rows = self._rows(sequences)
        starts: list[int] = self._lengths[rows].tolist()
        for n in n_tokens:
            if n < 0:
                raise ValueError(f"n_tokens: got {n}, wanted 0 or more")
        lengths = [start + n for start, n in zip(starts, n_tokens, strict=True)]
        self._reserve(sequences, rows, lengths)
        if self.windows is not None:
            self._move_windows(self.windows, sequences, starts, lengths)
        self._lengths[rows] = lengths
        return starts

    def _move_windows(
        self,
        windows: WindowPages,
        sequences: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Let go of what new tokens do not see, and have memory for them and the ones behind.

        What prompts share is not let go of, nor that of a prompt which may yet be shared.
        """
        size = self.page_size
        new: list[int] = []
        for sequence, start, length in zip(sequences, starts, lengths, strict=True):
            held = self._sequences[sequence]
            pages = self._pages[held.row]
            kept = start if held.marked is None else min(start, held.marked)
            first = windows.first_page(kept, size)
            if first > held.passed and held.prompt is None:
                passed = pages[held.passed : first]
                windows.drop(passed[~np.isin(passed, self.allocator.prefixes.pages())])
                held.passed = first
            end = min(length // size + 1, int(self._n_pages[held.row]))
            new += pages[start // size : end].tolist()
        lacking = windows.without(new)
        if lacking.size:
            windows.take(lacking, self.allocator.held_pages())

    def truncate(self, sequence: int, n_tokens: int) -> None:
        """Forget the last tokens of a sequence; it keeps its pages, but for those it may share.

        Parameters
        ----------
        sequence
            Id from `add_sequence`.
        n_tokens
            Its new length, at most the one that it has. Where it ends within a page that later
            prompts may find, the sequence gets a copy of that page.

        Raises
        ------
        ValueError
            No such sequence, it has fewer tokens, or windows have passed what the next token there
            would see (`mark` keeps it).
        OutOfPagesError
            No page is free for that copy; nothing is changed.
        """
        row, held = self._row(sequence), self._sequences[sequence]
        least = 0
        if self.windows is not None and held.passed:
            least = held.passed * self.page_size + self.windows.window - 1
        if n_tokens and not least <= n_tokens <= self._lengths[row]:
            kinds = f"0 or {least}" if least else "0"
            raise ValueError(f"n_tokens: got {n_tokens}, wanted {kinds} to {self._lengths[row]}")
        self._own(sequence, row, n_tokens)
        held.prompt = None
        if not n_tokens:
            held.passed = 0
        self._lengths[row] = n_tokens

    def mark(self, sequence: int) -> None:
        """Let a sequence be truncated to its length of now, whatever is appended.

        Windows keep what its next token sees.
        """
        self._sequences[sequence].marked = self.length(sequence)

    def _own(self, sequence: int, row: int, n_tokens: int) -> None:
        """Make the pages behind so many tokens the sequence's alone, and so the last of these."""
        full, part = divmod(n_tokens, self.page_size)
        pages: list[int] = self._pages[row, full : self._n_pages[row]].tolist()
        shared = set(self.allocator.prefixes.pages()).intersection(pages)
        if not shared:
            return
        own = [page for page in pages if page not in shared]
        if part and pages[0] in shared:
            own[:0] = self._take([sequence], [1])
            if self._copy is not None:
                self._copy(pages[0], own[0])
            if self.windows is not None:
                self.windows.take(np.array(own[:1]), self.allocator.held_pages())
                self.windows.copy(pages[0], own[0])
        self._pages[row, full:] = NO_PAGE
        self._n_pages[row] = full
        self._attach(row, own)

    def share(self, sequence: int, start: int, tokens: NDArray[np.int64]) -> None:
        """Let later prompts find the full pages of a prompt whose keys and values are written.

        Parameters
        ----------
        sequence
            Id from `add_sequence`.
        start, tokens
            What was appended, and at which position. Nothing happens unless it is all that was
            missing of the prompt that the sequence was added for.
        """
        held = self._sequences.get(sequence)
        if held is None:  # released by another thread
            return
        prompt, held.prompt = held.prompt, None
        if prompt is None or start != held.found or not np.array_equal(tokens, prompt[start:]):
            return
        names = digests(prompt, self.page_size)
        self.allocator.keep(names, self._pages[held.row, : len(names)].tolist())

    def remove(self, sequence: int) -> None:
        """End a sequence and give its pages back; ValueError where there is no such sequence."""
        self._row(sequence)
        del self._sequences[sequence]

    def release(self, owner: object) -> None:
        """End the sequences of an owner, if there are any, and those whose owner is gone.

        Any thread may do so at any time, while another one uses other sequences.
        """
        for sequence, held in self._sequences.copy().items():
            if held.owner is not None and ((alive := held.owner()) is None or alive is owner):
                self._sequences.pop(sequence, None)

    def length(self, sequence: int) -> int:
        """Tokens that the sequence has; ValueError where there is no such sequence."""
        return int(self._lengths[self._row(sequence)])

    def longest(self, sequences: Sequence[int]) -> int:
        """Tokens of the longest of some sequences; ValueError where there is no such sequence."""
        return int(self._lengths[self._rows(sequences)].max())

    def pages(self, sequence: int) -> list[int]:
        """Pages of the sequence in order of position, those only reserved last; or ValueError."""
        row = self._row(sequence)
        held: list[int] = self._pages[row, : self._n_pages[row]].tolist()
        return held

    def as_array(self, sequences: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Copy out the rows of a batch, as the kernels read them.

        Parameters
        ----------
        sequences
            S ids from `add_sequence`, in the order of the batch.

        Returns
        -------
        pages
            (S, M) int32, C order; M is the most pages that one of them holds, reserved ones
            included; shorter rows are filled up with -1.
        lengths
            (S,) int32, tokens.

        Raises
        ------
        ValueError
            One of the sequences does not exist.
        """
        rows = np.array(self._rows(sequences), np.intp)
        width = int(self._n_pages[rows].max(initial=0))
        return self._pages[:, :width].take(rows, axis=0), self._lengths[rows]

    def _row(self, sequence: int) -> int:
        held = self._sequences.get(sequence)
        if held is None:
            exist = len(self._sequences)
            raise ValueError(f"sequence: got id {sequence!r}, wanted one of the {exist} that exist")
        return held.row

    def _rows(self, sequences: Sequence[int]) -> list[int]:
        try:
            return [self._sequences[sequence].row for sequence in sequences]
        except KeyError:
            return [self._row(sequence) for sequence in sequences]  # which says what is wrong

    def _taken(self) -> list[int]:
        return [held.row for held in self._sequences.copy().values()]

    def _take(self, sequences: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Allocate pages; shared ones that no sequence has make room, the least used first."""
        allocator, windows, wanted = self.allocator, self.windows, sum(counts)
        while True:
            try:
                if windows is None:
                    return allocator.allocate(sequences, counts)
                windows.back(self._most_in_windows(windows, sequences, counts))
                pages = allocator.allocate(sequences, counts)
                windows.drop(pages)
                return pages
            except (OutOfPagesError, OutOfMemoryError):  # noqa: PERF203
                idle = allocator.prefixes.idle(set(self._pages[self._taken()].ravel().tolist()))
                missing = max(0, wanted - allocator.n_free)
                if missing > len(idle):
                    free = allocator.n_free + len(idle)
                    raise OutOfPagesError(wanted, free, allocator.n_pages) from None
                if not idle:
                    raise
                # Where memory behind the pages is missing, it is there behind these.
                allocator.prefixes.forget(idle[: missing or wanted])

    def _most_in_windows(
        self, windows: WindowPages, sequences: Sequence[int], counts: Sequence[int]
    ) -> int:
        """Behind how many pages something lies at most, with so many more for some sequences."""
        more = dict(zip(sequences, counts, strict=True))
        total = len(self.allocator.prefixes.pages())
        for sequence, held in self._sequences.copy().items():
            pages = int(self._n_pages[held.row]) + more.get(sequence, 0)
            moves = held.prompt is None and held.marked is None
            total += windows.most(pages, self.page_size) if moves else pages
        return total

    def _pages_of(self, what: str, n_tokens: int) -> int:
        if n_tokens < 0:
            raise ValueError(f"{what}: got {n_tokens}, wanted 0 or more")
        return -(-n_tokens // self.page_size)

    def _attach(self, row: int, pages: list[int]) -> None:
        held = int(self._n_pages[row])
        total = held + len(pages)
        n_rows, n_columns = self._pages.shape
        if total > n_columns:
            wider = np.full((n_rows, max(total, 2 * n_columns)), NO_PAGE, np.int32)
            wider[:, :n_columns] = self._pages
            self._pages = wider
        self._pages[row, held:total] = pages
        self._n_pages[row] = total

    def _add_rows(self) -> None:
        """Twice the rows; those of `_pages` count, so they come last."""
        n_rows, n_columns = self._pages.shape
        self._n_pages = np.concatenate([self._n_pages, np.zeros(n_rows, np.int32)])
        self._lengths = np.concatenate([self._lengths, np.zeros(n_rows, np.int32)])
        new = np.full((n_rows, n_columns), NO_PAGE, np.int32)
        self._pages = np.concatenate([self._pages, new])
