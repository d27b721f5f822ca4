"""Pages that prompts share: random operations against plain lists of tokens, and single rules.

A slot of the pool below holds a digest of its token and of all before it, as keys and values do.
Where there are windows, slots behind the pages hold the same.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rocmforge.errors import OutOfMemoryError, OutOfPagesError
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.batch import Batch, extend
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.page_use import page_use
from rocmforge.kv.windows import WindowPages

P = 16
PIECE = 19  # tokens that are appended at once
TEXTS = [[text] * 5 + [7, 8, 9] * 40 for text in range(3)]  # alike from position 5 on


class Pool:
    """A page table, and memory in which each slot holds what follows from a whole prefix."""

    def __init__(self, n_pages: int, window: int | None = None) -> None:
        self.slots = np.zeros((n_pages, P), np.int64)
        self.behind = np.zeros((n_pages, P), np.int64)
        self.windows, self.backed = None, 0
        if window is not None:
            self.windows = WindowPages(window, n_pages, self.back, self.copy_behind)
        self.table = PageTable(BlockAllocator(n_pages), P, self.copy, self.windows)
        self.texts: dict[int, list[int]] = {}
        self.least: dict[int, int] = {}  # length to which a sequence can be truncated
        self.marked: dict[int, int] = {}

    def back(self, n: int) -> None:
        assert n <= len(self.behind)
        self.backed = max(n, self.backed)

    def copy_behind(self, source: int, target: int) -> None:
        self.behind[target] = self.behind[source]

    def copy(self, source: int, target: int) -> None:
        self.check_writable(target)
        self.slots[target] = self.slots[source]

    def check_writable(self, page: int) -> None:
        """Nobody else may find a page that is written, or have it."""
        assert page not in self.table.allocator.prefixes.pages()
        assert sum(page in self.table.pages(sequence) for sequence in self.texts) <= 1

    def run(self, sequence: int, tokens: list[int]) -> None:
        """Append tokens as an engine does, in pieces, and let prompts be found."""
        text = self.texts[sequence]
        start = len(text)
        self.table.reserve(sequence, start + len(tokens))
        for at in range(0, len(tokens), PIECE):
            self.append(sequence, tokens[at : at + PIECE])
        self.table.share(sequence, start, np.array(tokens, np.int64))

    def append(self, sequence: int, tokens: list[int]) -> None:
        text = self.texts[sequence]
        start = len(text)
        batch = extend(self.table, [sequence], [len(tokens)])
        assert batch.positions.tolist() == list(range(start, start + len(tokens)))
        self.least[sequence] = min(start, self.marked.get(sequence, start))
        text += tokens
        self.write_behind(batch, text)
        pages = self.table.pages(sequence)
        for position in range(start, len(text)):
            page, slot = divmod(position, P)
            self.check_writable(pages[page])
            self.slots[pages[page], slot] = hash(tuple(text[: position + 1]))

    def write_behind(self, batch: Batch, text: list[int]) -> None:
        """Write new tokens behind the pages, where what the first of them sees still lies."""
        if self.windows is None:
            assert batch.in_windows is None
            return
        there, start = batch.of(windowed=True), int(batch.positions[0])
        for position in range(max(0, start - self.windows.window + 1), start):
            page, slot = divmod(position, P)
            found = self.behind[there.page_table[0, page], slot]
            assert found == hash(tuple(text[: position + 1]))
        assert (there.pages >= 0).all()
        assert (there.page_table[0, : len(text) // P] >= 0).all()
        for position, page in zip(batch.positions.tolist(), there.pages.tolist(), strict=True):
            self.behind[page, position % P] = hash(tuple(text[: position + 1]))

    def check_behind(self, windows: WindowPages) -> None:
        """What next tokens see is there, and nothing lies behind two pages."""
        held = self.table.allocator.held_pages()
        used = np.setdiff1d(held, windows.without(held))
        numbers = windows.behind(used[None].astype(np.int32), np.zeros(1, np.int32), P)[0]
        assert len(set(numbers.tolist())) == used.size
        assert (numbers < self.backed).all()
        for sequence, text in self.texts.items():
            if text:
                table, lengths = self.table.as_array([sequence])
                row = windows.behind(table, lengths - 1, P)[0]
                seen = range(max(0, len(text) - windows.window + 1), len(text))
                found = [self.behind[row[at // P], at % P] for at in seen]
                assert found == [hash(tuple(text[: at + 1])) for at in seen]

    def add(self, prompt: list[int], reserve: int = 0) -> tuple[int, int]:
        ids = np.array(prompt, np.int64)
        sequence = self.table.add_sequence(reserve, prompt=ids)
        held = self.table.length(sequence)
        self.texts[sequence] = prompt[:held]
        self.least[sequence] = held
        return sequence, held

    def prompt(self, prompt: list[int]) -> tuple[int, int]:
        """Add a sequence for a prompt and run what is missing of it."""
        sequence, held = self.add(prompt)
        self.run(sequence, prompt[held:])
        return sequence, held

    def remove(self, sequence: int) -> None:
        self.table.remove(sequence)
        del self.texts[sequence]

    def check(self) -> None:
        table, allocator = self.table, self.table.allocator
        kept = allocator.prefixes.pages()
        assert len(set(kept)) == len(kept)
        rows = [page for sequence in self.texts for page in table.pages(sequence)]
        own = [page for page in rows if page not in kept]
        assert len(set(own)) == len(own)  # what is shared can be found
        free = allocator.free_pages().tolist()
        assert sorted({*free, *rows, *kept}) == list(range(allocator.n_pages))
        assert len(free) + len(own) + len(kept) == allocator.n_pages
        for sequence, text in self.texts.items():
            assert table.length(sequence) == len(text)
            slots = self.slots[table.pages(sequence)].ravel()[: len(text)]
            assert slots.tolist() == [hash(tuple(text[: n + 1])) for n in range(len(text))]
        if self.windows is not None:
            self.check_behind(self.windows)
        use = page_use(table)
        assert use.taken * P == use.tokens + use.unused_slots + use.reserved * P
        assert (use.taken, use.kept) == (len(set(rows)), len(set(kept) - set(rows)))
        assert use.free == len(free)


class PrefixMachine(RuleBasedStateMachine):
    """Prompts of few texts come, go on, are cut and end, in a pool that is soon full."""

    @initialize(n_pages=st.integers(1, 14), window=st.sampled_from([None, 1, 5, 16, 40]))
    def start(self, n_pages: int, window: int | None) -> None:
        self.pool = Pool(n_pages, window)

    def room(self) -> int:
        """Pages that no sequence has."""
        held = {page for s in self.pool.texts for page in self.pool.table.pages(s)}
        return self.pool.table.allocator.n_pages - len(held)

    def live(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.pool.texts)), label="sequence")

    @rule(
        text=st.sampled_from(TEXTS),
        n=st.integers(1, 100),
        end=st.lists(st.integers(0, 2), max_size=20),
    )
    def prompt(self, text: list[int], n: int, end: list[int]) -> None:
        prompt = text[:n] + end
        pages = -(-len(prompt) // P)
        try:
            sequence, held = self.pool.add(prompt, len(prompt))
        except OutOfPagesError:
            assert pages > self.room()  # for it alone: some of it may be there already
            return
        assert held % P == 0
        assert held < len(prompt)
        self.pool.run(sequence, prompt[held:])

    @precondition(lambda self: self.pool.texts)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 9), min_size=1, max_size=30))
    def go_on(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = self.live(data)
        pages = len(self.pool.table.pages(sequence))
        missing = -(-(len(self.pool.texts[sequence]) + len(tokens)) // P) - pages
        if missing > self.room():
            with pytest.raises(OutOfPagesError) as caught:
                self.pool.table.extend(sequence, len(tokens))
            assert (caught.value.wanted, caught.value.free) == (missing, self.room())
        else:
            self.pool.run(sequence, tokens)

    @precondition(lambda self: self.pool.texts)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        sequence = self.live(data)
        n = data.draw(st.integers(0, len(self.pool.texts[sequence])), label="length")
        try:
            self.pool.table.truncate(sequence, n)
        except OutOfPagesError:
            assert n % P
            assert self.room() == 0
        except ValueError:
            assert self.pool.windows is not None
            assert 0 < n < self.pool.least[sequence]
        else:
            del self.pool.texts[sequence][n:]

    @precondition(lambda self: self.pool.texts)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        """From now on it can be truncated to its length."""
        sequence = self.live(data)
        self.pool.table.mark(sequence)
        self.pool.marked[sequence] = len(self.pool.texts[sequence])

    @precondition(lambda self: self.pool.texts)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.pool.remove(self.live(data))

    @invariant()
    def adds_up(self) -> None:
        self.pool.check()


def test_random_operations_agree_with_plain_lists() -> None:
    run_state_machine_as_test(
        PrefixMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=25,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


TEXT = TEXTS[0]


@pytest.mark.parametrize("window", [1, 16, 40])
def test_windows_pass_pages_and_come_back_to_marks(window: int) -> None:
    pool = Pool(60, window)
    windows = pool.windows
    assert windows is not None
    sequence, _ = pool.add([])
    other, _ = pool.add([])

    def behind() -> int:
        pages = np.array(pool.table.pages(sequence))
        return pages.size - windows.without(pages).size

    most = -(-(window + PIECE) // P) + 2  # the next token's included
    for _ in range(30):
        pool.run(sequence, [1] * 10)
        pool.run(other, [2] * 10)
        assert behind() <= most
    pool.table.mark(sequence)
    pool.marked[sequence] = marked = len(pool.texts[sequence])
    pool.run(sequence, [3] * 100)
    pool.table.truncate(sequence, marked)
    del pool.texts[sequence][marked:]
    pool.check()
    pool.run(other, [2] * 100)
    with pytest.raises(ValueError, match=r"n_tokens: got 300, wanted 0 or 3\d\d to 400"):
        pool.table.truncate(other, 300)  # in pieces of 19, windows have passed it
    pool.table.truncate(other, 0)
    del pool.texts[other][:]
    pool.run(other, [4] * 50)
    pool.table.truncate(other, 45)  # within the last piece
    del pool.texts[other][45:]
    pool.check()


def test_full_pages_of_a_prompt_are_shared_and_outlive_it() -> None:
    pool = Pool(8)
    first, held = pool.prompt(TEXT[:40])
    assert held == 0
    second, held = pool.prompt([*TEXT[:35], 1, 2, 3])
    assert held == 32
    pages = pool.table.pages(second)
    assert pages[:2] == pool.table.pages(first)[:2]
    assert pages[2] != pool.table.pages(first)[2]
    pool.remove(first)
    pool.remove(second)
    assert pool.table.allocator.n_free == 6
    assert pool.prompt(TEXT[:40])[1] == 32
    pool.check()


@pytest.mark.parametrize(("n", "held"), [(16, 0), (17, 16), (32, 16), (33, 32), (48, 32)])
def test_a_token_is_left_to_run(n: int, held: int) -> None:
    pool = Pool(8)
    pool.prompt(TEXT[:48])
    assert pool.prompt(TEXT[:n])[1] == held


def test_the_same_tokens_behind_others_are_not_the_same_page() -> None:
    pool = Pool(8)
    pool.prompt(TEXTS[0][:48])
    assert pool.prompt(TEXTS[1][:48])[1] == 0


def test_only_prompts_that_ran_as_announced_are_found() -> None:
    for other in ([*TEXT[:39], 3], TEXT[:38], TEXT[:44]):
        pool = Pool(16)
        sequence, _ = pool.add(TEXT[:40])
        pool.run(sequence, other)
        assert pool.prompt(TEXT[:40])[1] == 0
    pool = Pool(16)
    sequence, _ = pool.add(TEXT[:40])
    pool.table.extend(sequence, 1)  # by a step of decode
    pool.texts[sequence].append(1)
    pool.run(sequence, TEXT[1:40])
    assert pool.prompt(TEXT[:40])[1] == 0
    sequence, held = pool.add(TEXT[:50])
    pool.table.truncate(sequence, 0)
    pool.table.extend(sequence, held)  # by other tokens
    pool.texts[sequence] = [1] * held
    pool.run(sequence, TEXT[held:50])
    assert pool.prompt(TEXT[:50])[1] == held == 32


def test_a_sequence_that_was_not_added_for_a_prompt_shares_nothing() -> None:
    pool = Pool(16)
    for _ in range(2):
        sequence = pool.table.add_sequence()
        pool.texts[sequence] = []
        pool.run(sequence, TEXT[:48])
        assert pool.prompt(TEXT[:48])[1] == (0 if sequence == 0 else 32)
    assert pool.table.length(2) == 48  # and it ran all of it again


def test_what_was_used_longest_ago_makes_room_first_and_its_end_before_its_beginning() -> None:
    pool = Pool(6)
    for text in TEXTS[:2]:
        pool.remove(pool.prompt(text[:48])[0])
    pool.remove(pool.prompt(TEXTS[0][:48])[0])  # used again
    pool.remove(pool.prompt([5] * 16)[0])
    assert [pool.add(text[:48])[1] for text in TEXTS[:2]] == [32, 32]
    pool.check()


def test_a_shared_page_is_not_taken_from_those_who_have_it() -> None:
    pool = Pool(4)
    first, _ = pool.prompt(TEXT[:33])
    pool.prompt([*TEXT[:32], 1])
    with pytest.raises(OutOfPagesError, match="wanted 1, 0 of 4 free"):
        pool.add([5], 1)
    pool.remove(first)
    pool.add([5], 1)
    with pytest.raises(OutOfPagesError, match="wanted 2, 0 of 4 free"):
        pool.add([5], 17)
    pool.check()


def test_what_would_not_make_enough_room_stays() -> None:
    pool = Pool(4)
    pool.remove(pool.prompt(TEXT[:48])[0])
    with pytest.raises(OutOfPagesError, match="wanted 5, 4 of 4 free"):
        pool.add([5], 70)
    assert pool.prompt(TEXT[:48])[1] == 32


def test_memory_that_is_not_there_is_made_room_for_too() -> None:
    """Pages 0 to 3 have memory behind them."""

    def back(pages: int) -> None:
        if pages > 4:
            raise OutOfMemoryError("no memory")

    table = PageTable(BlockAllocator(8, back), P)
    ids = np.array(TEXT[:48], np.int64)
    sequence = table.add_sequence(48, prompt=ids)
    table.extend(sequence, 48)
    table.share(sequence, 0, ids)
    table.remove(sequence)
    assert table.pages(table.add_sequence(2 * P)) == [1, 2]  # the prompt's end is given up
    assert table.pages(table.add_sequence(2 * P, prompt=ids)) == [0, 3]
    with pytest.raises(OutOfMemoryError):
        table.add_sequence(1)


def test_a_cut_within_a_shared_page_copies_it() -> None:
    pool = Pool(16)
    first, _ = pool.prompt(TEXT[:48])
    second, _ = pool.prompt(TEXT[:48])
    pages = pool.table.pages(first)
    for sequence in (first, second):
        pool.table.truncate(sequence, 20)
        del pool.texts[sequence][20:]
        pool.run(sequence, [sequence] * 30)
        pool.check()
    assert pool.table.pages(first)[0] == pool.table.pages(second)[0] == pages[0]
    assert pool.prompt(TEXT[:48])[1] == 32  # found as it was
