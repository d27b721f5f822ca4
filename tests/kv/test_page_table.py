"""PageTable: positions, reservations, growth of the table, and what its errors say.

Random operations are in plain_cache.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.errors import OutOfPagesError
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import FIRST_COLUMNS, FIRST_ROWS, NO_PAGE, PageTable


def table(n_pages: int = 8, page_size: int = 16) -> PageTable:
    return PageTable(BlockAllocator(n_pages), page_size)


def test_pages_are_taken_at_the_token_that_needs_them() -> None:
    pages = table()
    sequence = pages.add_sequence()
    counts = []
    for position in range(33):
        assert pages.extend(sequence, 1) == position
        counts.append(len(pages.pages(sequence)))
    assert counts == [1] * 16 + [2] * 16 + [3]
    assert pages.length(sequence) == 33


def test_reserve_is_a_total_and_never_gives_back() -> None:
    pages = table()
    sequence = pages.add_sequence(reserve_tokens=33)
    assert (pages.length(sequence), len(pages.pages(sequence))) == (0, 3)
    pages.reserve(sequence, 16)
    pages.reserve(sequence, 48)
    assert len(pages.pages(sequence)) == 3
    assert pages.extend(sequence, 48) == 0
    assert pages.allocator.n_free == 5
    pages.reserve(sequence, 49)
    assert pages.allocator.n_free == 4


def test_extend_inside_a_reservation_works_while_the_pool_is_empty() -> None:
    pages = table(n_pages=2)
    reserved, other = pages.add_sequence(16), pages.add_sequence(16)
    assert pages.allocator.n_free == 0
    assert pages.extend(reserved, 16) == 0
    pages.extend(other, 16)
    with pytest.raises(OutOfPagesError, match="wanted 1, 0 of 2 free"):
        pages.extend(reserved, 1)
    assert pages.length(reserved) == 16
    pages.remove(other)
    assert pages.extend(reserved, 1) == 16


def test_a_truncated_sequence_keeps_its_pages_and_grows_again() -> None:
    table = PageTable(BlockAllocator(3), 16)
    sequence = table.add_sequence()
    table.extend(sequence, 40)
    pages = table.pages(sequence)
    table.truncate(sequence, 17)
    assert (table.length(sequence), table.pages(sequence)) == (17, pages)
    assert table.extend(sequence, 31) == 17
    for wrong in (49, -1):
        with pytest.raises(ValueError, match=f"n_tokens: got {wrong}, wanted 0 to 48"):
            table.truncate(sequence, wrong)


def test_failed_add_leaves_no_sequence() -> None:
    pages = table(n_pages=2)
    with pytest.raises(OutOfPagesError, match="wanted 3, 2 of 2 free"):
        pages.add_sequence(33)
    assert pages.allocator.holders == {}
    assert len(pages.pages(pages.add_sequence(32))) == 2


def test_ids_are_not_used_again() -> None:
    pages = table()
    first = pages.add_sequence(1)
    pages.remove(first)
    second = pages.add_sequence()
    assert second != first
    assert (pages.pages(second), pages.length(second)) == ([], 0)
    with pytest.raises(ValueError, match="sequence: got id 0, wanted one of the 1 that exist"):
        pages.length(first)


class Owner:
    """Something that can be referred to weakly."""


def test_release_ends_the_sequences_of_one_owner_however_often() -> None:
    pages = table()
    mine, yours = Owner(), Owner()
    kept = [pages.add_sequence(16), pages.add_sequence(20, yours)]
    ended = [pages.add_sequence(20, mine) for _ in range(2)]
    for _ in range(2):
        pages.release(mine)
        assert pages.allocator.n_free == 5
    assert [len(pages.pages(sequence)) for sequence in kept] == [1, 2]
    for sequence in ended:
        with pytest.raises(ValueError, match=f"got id {sequence}, wanted one of the 2 that exist"):
            pages.length(sequence)


def test_sequences_whose_owner_is_gone_make_room() -> None:
    pages = table(n_pages=2)
    owner = Owner()
    pages.add_sequence(32, owner)
    with pytest.raises(OutOfPagesError):
        pages.add_sequence(32)
    del owner
    assert pages.pages(pages.add_sequence(32)) == [0, 1]


def test_an_owner_that_cannot_be_referred_to_weakly_is_refused() -> None:
    pages = table()
    with pytest.raises(TypeError, match="weak reference to 'int' object"):
        pages.add_sequence(16, 7)
    assert pages.allocator.n_free == 8


def test_array_is_padded_ordered_and_a_copy() -> None:
    pages = table()
    long, short = pages.add_sequence(), pages.add_sequence()
    pages.extend(long, 40)
    pages.extend(short, 3)
    array, lengths = pages.as_array([short, long])
    assert array.tolist() == [[3, NO_PAGE, NO_PAGE], [0, 1, 2]]
    assert lengths.tolist() == [3, 40]
    array[:] = 99
    lengths[:] = 99
    assert pages.pages(short) == [3]
    assert pages.length(long) == 40
    assert pages.as_array([short])[0].tolist() == [[3]]


def test_array_of_no_sequence_is_empty() -> None:
    array, lengths = table().as_array([])
    assert array.shape == (0, 0)
    assert lengths.shape == (0,)


def test_table_grows_in_both_directions_and_reuses_rows() -> None:
    n_rows, n_columns = 5 * FIRST_ROWS, 3 * FIRST_COLUMNS
    pages = table(n_pages=n_rows * n_columns)
    rng = np.random.default_rng(0)
    for _ in range(2):
        sequences = [pages.add_sequence() for _ in range(n_rows)]
        tokens = rng.integers(0, 16 * n_columns, n_rows)
        for sequence, n in zip(sequences, tokens.tolist(), strict=True):
            pages.extend(sequence, n)
        array, lengths = pages.as_array(sequences)
        assert lengths.tolist() == tokens.tolist()
        held = [[page for page in row if page != NO_PAGE] for row in array.tolist()]
        assert held == [pages.pages(sequence) for sequence in sequences]
        assert [len(row) for row in held] == [-(-n // 16) for n in tokens.tolist()]
        assert len({page for row in held for page in row}) == sum(map(len, held))
        for sequence in sequences:
            pages.remove(sequence)
        assert pages.allocator.n_free == n_rows * n_columns


def test_a_new_sequence_can_take_every_free_page_wherever_it_lies() -> None:
    pages = table(n_pages=32)
    held = [pages.add_sequence(16 * (1 + i % 3)) for i in range(16)]
    for sequence in held[::2]:
        pages.remove(sequence)
    free = pages.allocator.n_free
    assert 0 < free < 32
    assert len(pages.pages(pages.add_sequence(16 * free))) == free
    assert pages.allocator.n_free == 0


def test_table_does_not_grow_while_sequences_come_and_go() -> None:
    pages = table()
    for _ in range(10 * FIRST_ROWS):
        pages.remove(pages.add_sequence(20))
    assert pages._pages.shape == (FIRST_ROWS, FIRST_COLUMNS)


@pytest.mark.parametrize("page_size", [0, 8, 17, 128])
def test_page_size_is_one_of_three(page_size: int) -> None:
    with pytest.raises(ValueError, match=rf"page_size: got {page_size}, wanted one of \(16, 32"):
        table(page_size=page_size)


def test_positions_fit_int32() -> None:
    with pytest.raises(ValueError, match=r"wanted fewer than 2\*\*31 tokens"):
        table(n_pages=2**25, page_size=64)


def test_negative_counts_are_refused() -> None:
    pages = table()
    sequence = pages.add_sequence()
    for call, name in (
        (lambda: pages.add_sequence(-1), "reserve_tokens"),
        (lambda: pages.reserve(sequence, -1), "n_tokens"),
        (lambda: pages.extend(sequence, -1), "n_tokens"),
    ):
        with pytest.raises(ValueError, match=f"{name}: got -1, wanted 0 or more"):
            call()
    assert pages.allocator.n_free == 8


@pytest.mark.parametrize("method", ["reserve", "extend"])
def test_unknown_sequence_is_refused_before_pages_are_taken(method: str) -> None:
    pages = table()
    with pytest.raises(ValueError, match="sequence: got id 7, wanted one of the 0 that exist"):
        getattr(pages, method)(7, 16)
    assert pages.allocator.n_free == 8
    for call in (pages.remove, pages.length, pages.pages, lambda s: pages.as_array([s])):
        with pytest.raises(ValueError, match="got id 7"):
            call(7)
