"""Arena offsets: what lives at the same time is disjoint, what does not may share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocmforge.plan.arena import ALIGNMENT, Lifetime, assign

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda s: (s[0], s[0] + s[1]))


@st.composite
def lifetime(draw: st.DrawFn) -> Lifetime:
    spans = sorted(draw(st.lists(SPAN, min_size=1, max_size=4)))
    apart = [spans[0]]
    for span in spans[1:]:
        if span[0] > apart[-1][1]:
            apart.append(span)
    return Lifetime(draw(st.integers(1, 5000)), apart)


def steps(life: Lifetime) -> set[int]:
    return {step for first, last in life.spans for step in range(first, last + 1)}


@given(st.dictionaries(st.integers(), lifetime(), max_size=12))
def test_buffers_that_live_at_the_same_time_do_not_overlap(lives: dict[int, Lifetime]) -> None:
    offsets, total = assign(dict(lives))
    assert offsets.keys() == lives.keys()
    for key, life in lives.items():
        assert offsets[key] % ALIGNMENT == 0
        assert offsets[key] + life.nbytes <= total
        for other, second in lives.items():
            if key != other and steps(life) & steps(second):
                apart = offsets[key] + life.nbytes <= offsets[other]
                assert apart or offsets[other] + second.nbytes <= offsets[key]
    assert total <= sum(-(-life.nbytes // ALIGNMENT) * ALIGNMENT for life in lives.values())


def test_buffers_of_other_times_share_memory() -> None:
    _, total = assign({"a": Lifetime(1000, [(0, 1), (4, 5)]), "b": Lifetime(900, [(2, 3)])})
    assert total == 1024


def test_a_buffer_that_is_read_while_another_is_written_keeps_its_place() -> None:
    a, b = Lifetime(256), Lifetime(256)
    a.write(0)
    b.write(1)
    a.read(1)
    offsets, total = assign({"a": a, "b": b})
    assert (sorted(offsets.values()), total) == ([0, 256], 512)
