"""How pages are used, against counts made by hand."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rocmforge.errors import OutOfPagesError
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.page_use import PageUse, page_use


def table(n_pages: int) -> PageTable:
    return PageTable(BlockAllocator(n_pages), 16)


def test_an_empty_pool_is_one_run() -> None:
    use = page_use(table(8))
    assert use == PageUse(16, 8, 0, 0, 0, 0, 0, 1, 8)
    assert (use.free, use.unused_fraction, use.scatter) == (8, 0.0, 0.0)


def test_a_full_pool_has_no_run() -> None:
    pages = table(3)
    pages.extend(pages.add_sequence(), 48)
    use = page_use(pages)
    assert use == PageUse(16, 3, 3, 1, 48, 0, 0, 0, 0)
    assert (use.free, use.unused_fraction, use.scatter) == (0, 0.0, 0.0)


def test_partly_filled_reserved_and_scattered_pages() -> None:
    pages = table(16)
    first, second, third, fourth = (pages.add_sequence() for _ in range(4))
    pages.extend(first, 20)  # pages 0, 1: 12 slots unused
    pages.extend(second, 16)  # page 2
    pages.extend(third, 1)  # page 3: 15 slots unused
    pages.reserve(third, 40)  # pages 4, 5: no token
    pages.extend(fourth, 33)  # pages 6, 7, 8: 15 slots unused
    pages.remove(second)
    use = page_use(pages)
    assert use == PageUse(
        page_size=16,
        pages=16,
        taken=8,
        sequences=3,
        tokens=54,
        reserved=2,
        unused_slots=42,
        free_runs=2,
        longest_free_run=7,
    )
    assert use.free == 8
    assert use.unused_fraction == pytest.approx((42 + 2 * 16) / (8 * 16))
    assert use.scatter == pytest.approx(1 / 8)
    pages.remove(first)
    assert (page_use(pages).free_runs, page_use(pages).longest_free_run) == (2, 7)


def test_a_truncated_sequence_keeps_its_pages() -> None:
    pages = table(8)
    sequence = pages.add_sequence()
    pages.extend(sequence, 64)
    pages.truncate(sequence, 17)
    use = page_use(pages)
    assert (use.taken, use.tokens, use.reserved, use.unused_slots) == (4, 17, 2, 15)


def test_places_are_tokens_unused_and_reserved() -> None:
    random = np.random.default_rng(0)
    pages = table(400)
    held = []
    for _ in range(60):
        held.append(pages.add_sequence(int(random.integers(100))))
        pages.extend(held[-1], int(random.integers(200)))
        if random.random() < 0.4:
            pages.remove(held.pop(int(random.integers(len(held)))))
        use = page_use(pages)
        assert use.taken * 16 == use.tokens + use.unused_slots + use.reserved * 16
        assert use.taken == sum(len(pages.pages(sequence)) for sequence in held)
        assert use.free == pages.allocator.n_free
        owned = "".join("x" if page in pages.allocator.free_pages() else " " for page in range(400))
        runs = [len(run) for run in owned.split()]
        assert (use.free_runs, use.longest_free_run) == (len(runs), max(runs))


def test_the_tables_bytes_grow_with_it() -> None:
    pages = table(1000)
    before = pages.nbytes
    assert before >= 1000 * 8  # a name for each page
    pages.extend(pages.add_sequence(), 16 * 100)
    assert pages.nbytes >= before + 4 * (100 - 16)


def traffic(seed: int, page_size: int, n_pages: int, steps: int) -> Iterator[PageTable]:
    """A pool that is kept nearly full by sequences of mixed lengths that come, grow and end."""
    random = np.random.default_rng(seed)
    pages = PageTable(BlockAllocator(n_pages), page_size)
    held: list[int] = []
    for _ in range(steps):
        length = int(np.exp(random.normal(5.5, 1.0))) + 1
        while held and pages.allocator.n_free * page_size < length + page_size:
            pages.remove(held.pop(int(random.integers(len(held)))))
        held.append(pages.add_sequence())
        pages.extend(held[-1], min(length, (n_pages - 1) * page_size))
        for sequence in random.permutation(held)[:4]:
            if pages.allocator.n_free:
                pages.extend(int(sequence), int(random.integers(1, page_size + 1)))
        yield pages


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from(PAGE_SIZES),
    n_pages=st.integers(8, 200),
)
def test_scattered_pages_serve_as_well_as_a_run(seed: int, page_size: int, n_pages: int) -> None:
    """All that is free is taken by one sequence, whatever the pages' order; not a page more."""
    for pages in traffic(seed, page_size, n_pages, 40):
        free = pages.allocator.n_free
        with pytest.raises(OutOfPagesError):
            pages.add_sequence((free + 1) * page_size)
        sequence = pages.add_sequence(free * page_size)
        assert len(pages.pages(sequence)) == free
        assert pages.allocator.n_free == 0
        pages.remove(sequence)
        assert pages.allocator.n_free == free
        use = page_use(pages)
        # what is lost is less than a page of each sequence
        assert use.unused_slots <= use.sequences * (page_size - 1)
