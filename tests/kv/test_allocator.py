"""BlockAllocator: every page is handed out once, comes back once, and errors change nothing."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rocmforge.errors import OutOfPagesError
from rocmforge.kv.allocator import BlockAllocator


def test_pages_come_in_order_and_returned_ones_come_first() -> None:
    allocator = BlockAllocator(8)
    assert allocator.allocate(4) == [0, 1, 2, 3]
    allocator.free([1, 2])
    assert allocator.allocate() == [1]
    assert allocator.allocate(3) == [2, 4, 5]
    assert (allocator.n_free, allocator.n_pages) == (2, 8)


def test_allocating_nothing_takes_nothing() -> None:
    allocator = BlockAllocator(1)
    assert allocator.allocate(0) == []
    allocator.free([])
    assert allocator.n_free == 1


def test_out_of_pages_says_what_and_what_to_do_and_takes_nothing() -> None:
    allocator = BlockAllocator(5)
    allocator.allocate(2)
    with pytest.raises(OutOfPagesError, match=r"wanted 4, 3 of 5 free; raise ctx") as caught:
        allocator.allocate(4)
    assert (caught.value.wanted, caught.value.free, caught.value.total) == (4, 3, 5)
    assert allocator.allocate(3) == [2, 3, 4]


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([0, 3], "got 3, which is free already"),
        ([0, 2], "got 2, which is free already"),
        ([0, 4], "got 4, wanted 0 to 3"),
        ([0, -1], "got -1, wanted 0 to 3"),
        ([0, 1, 0], r"twice in \[0, 1, 0\]"),
    ],
    ids=["never handed out", "given back before", "above", "below", "twice"],
)
def test_wrong_pages_are_refused_and_none_is_freed(pages: list[int], message: str) -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(3)
    allocator.free([2])
    with pytest.raises(ValueError, match=message):
        allocator.free(pages)
    assert allocator.n_free == 2
    allocator.free([0, 1])
    assert sorted(allocator.allocate(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("n", [0, -1])
def test_a_pool_needs_a_page(n: int) -> None:
    with pytest.raises(ValueError, match=f"n_pages: got {n}, wanted at least 1"):
        BlockAllocator(n)


def test_negative_request_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1, wanted 0 or more"):
        BlockAllocator(4).allocate(-1)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data(), n_pages=st.integers(1, 20))
def test_against_a_set(data: st.DataObject, n_pages: int) -> None:
    allocator = BlockAllocator(n_pages)
    free = set(range(n_pages))
    taken: list[int] = []
    for _ in range(data.draw(st.integers(1, 20), label="operations")):
        if data.draw(st.booleans(), label="allocate"):
            n = data.draw(st.integers(0, n_pages + 1), label="n")
            if n > len(free):
                with pytest.raises(OutOfPagesError):
                    allocator.allocate(n)
                continue
            pages = allocator.allocate(n)
            assert len(set(pages)) == n
            assert set(pages) <= free
            free -= set(pages)
            taken += pages
        else:
            taken = data.draw(st.permutations(taken), label="order")
            cut = data.draw(st.integers(0, len(taken)), label="kept")
            allocator.free(taken[cut:])
            free |= set(taken[cut:])
            taken = taken[:cut]
        assert allocator.n_free == len(free)
