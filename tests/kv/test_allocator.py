"""BlockAllocator: a page is handed out once and comes back with its holder; errors take none."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rocmforge.errors import OutOfPagesError
from rocmforge.kv.allocator import BlockAllocator


def allocator_for(n_pages: int, holders: int = 3) -> BlockAllocator:
    allocator = BlockAllocator(n_pages)
    allocator.holders.update(dict.fromkeys(range(holders)))
    return allocator


def test_the_lowest_free_pages_come_first() -> None:
    allocator = allocator_for(8)
    assert allocator.allocate([0, 1, 2], [1, 2, 1]) == [0, 1, 2, 3]
    del allocator.holders[1]
    assert allocator.n_free == 6
    assert allocator.allocate([0], [1]) == [1]
    assert allocator.allocate([2], [3]) == [2, 4, 5]
    assert (allocator.n_free, allocator.n_pages) == (2, 8)


def test_allocating_nothing_takes_nothing() -> None:
    allocator = allocator_for(1)
    assert allocator.allocate([0, 1], [0, 0]) == []
    assert allocator.n_free == 1


def test_out_of_pages_says_what_and_what_to_do_and_takes_nothing() -> None:
    allocator = allocator_for(5)
    allocator.allocate([0], [2])
    with pytest.raises(OutOfPagesError, match=r"wanted 4, 3 of 5 free; raise ctx") as caught:
        allocator.allocate([1, 0], [3, 1])
    assert (caught.value.wanted, caught.value.free, caught.value.total) == (4, 3, 5)
    assert allocator.allocate([1], [3]) == [2, 3, 4]


@pytest.mark.parametrize("n", [0, -1])
def test_a_pool_needs_a_page(n: int) -> None:
    with pytest.raises(ValueError, match=f"n_pages: got {n}, wanted at least 1"):
        BlockAllocator(n)


@settings(max_examples=60, derandomize=True, database=None)
@given(data=st.data(), n_pages=st.integers(1, 20))
def test_against_a_dict(data: st.DataObject, n_pages: int) -> None:
    allocator = BlockAllocator(n_pages)
    held: dict[int, list[int]] = {}
    for name in range(data.draw(st.integers(1, 20), label="operations")):
        free = set(range(n_pages)).difference(*held.values())
        if not held or data.draw(st.booleans(), label="allocate"):
            held[name] = []
            allocator.holders[name] = None
            holders = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True))
            counts = [data.draw(st.integers(0, n_pages // 2 + 1)) for _ in holders]
            if sum(counts) > len(free):
                with pytest.raises(OutOfPagesError):
                    allocator.allocate(holders, counts)
            else:
                pages = allocator.allocate(holders, counts)
                assert pages == sorted(free)[: sum(counts)]
                for holder, count in zip(holders, counts, strict=True):
                    held[holder] += pages[:count]
                    pages = pages[count:]
        else:
            gone = data.draw(st.sampled_from(sorted(held)), label="gone")
            del held[gone], allocator.holders[gone]
        assert allocator.n_free == n_pages - sum(map(len, held.values()))
