"""Pages that prompts share: random operations against plain lists of tokens, and single rules.

A slot of the pool below holds a digest of its token and of all before it, as keys and values do.
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
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.page_use import page_use

P = 16
TEXTS = [[text] * 5 + [7, 8, 9] * 40 for text in range(3)]  # alike from position 5 on


class Pool:
    """A page table, and memory in which each slot holds what follows from a whole prefix."""

    def __init__(self, n_pages: int) -> None:
        self.slots = np.zeros((n_pages, P), np.int64)
        self.table = PageTable(BlockAllocator(n_pages), P, self.copy)
        self.texts: dict[int, list[int]] = {}

    def copy(self, source: int, target: int) -> None:
        self.check_writable(target)
        self.slots[target] = self.slots[source]

    def check_writable(self, page: int) -> None:
        """Nobody else may find a page that is written, or have it."""
        assert page not in self.table.allocator.prefixes.pages()
        assert sum(page in self.table.pages(sequence) for sequence in self.texts) <= 1

    def run(self, sequence: int, tokens: list[int]) -> None:
        """Append tokens as an engine does, and let prompts be found."""
        start = self.table.extend(sequence, len(tokens))
        text = self.texts[sequence]
        assert start == len(text)
        text += tokens
        pages = self.table.pages(sequence)
        for position in range(start, len(text)):
            page, slot = divmod(position, P)
            self.check_writable(pages[page])
            self.slots[pages[page], slot] = hash(tuple(text[: position + 1]))
        self.table.share(sequence, start, np.array(tokens, np.int64))

    def add(self, prompt: list[int], reserve: int = 0) -> tuple[int, int]:
        ids = np.array(prompt, np.int64)
        sequence = self.table.add_sequence(reserve, prompt=ids)
        held = self.table.length(sequence)
        self.texts[sequence] = prompt[:held]
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
        use = page_use(table)
        assert use.taken * P == use.tokens + use.unused_slots + use.reserved * P
        assert (use.taken, use.kept) == (len(set(rows)), len(set(kept) - set(rows)))
        assert use.free == len(free)


class PrefixMachine(RuleBasedStateMachine):
    """Prompts of few texts come, go on, are cut and end, in a pool that is soon full."""

    @initialize(n_pages=st.integers(1, 14))
    def start(self, n_pages: int) -> None:
        self.pool = Pool(n_pages)

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
        else:
            del self.pool.texts[sequence][n:]

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
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


TEXT = TEXTS[0]


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
