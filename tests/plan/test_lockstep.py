"""Works of several devices: in turns, from barrier to barrier, and ended together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rocmforge.plan.lockstep import BARRIER, TURN, Work, alone, lockstep


def work(name: str, ways: Sequence[bool], done: list[str], fails: bool = False) -> Work[str]:
    try:
        for number, way in enumerate(ways):
            done.append(f"{name}{number}")
            yield way
        if fails:
            raise ValueError(name)
    finally:
        done.append(f"{name} ends")
    return name.upper()


def test_all_reach_a_barrier_before_any_goes_on() -> None:
    done: list[str] = []
    works = [work("a", [BARRIER] * 2, done), work("b", [BARRIER] * 3, done), work("c", [], done)]
    assert lockstep(works) == ["A", "B", "C"]
    assert done == ["a0", "b0", "c ends", "a1", "b1", "a ends", "b2", "b ends"]


def test_one_may_have_more_turns_than_another_before_a_barrier() -> None:
    done: list[str] = []
    lockstep([work("a", [BARRIER], done), work("b", [TURN, TURN, BARRIER], done)])
    assert done == ["a0", "b0", "b1", "b2", "a ends", "b ends"]


def test_what_one_raises_ends_all_of_them() -> None:
    done: list[str] = []
    works = [work(name, [BARRIER] * 3, done) for name in "ac"]
    works.insert(1, work("b", [BARRIER], done, fails=True))
    with pytest.raises(ValueError, match="b"):
        lockstep(works)
    assert done[:5] == ["a0", "b0", "c0", "a1", "b ends"]
    assert sorted(done[5:]) == ["a ends", "c ends"]


def test_a_device_alone_waits_for_nobody() -> None:
    done: list[str] = []
    assert alone(work("a", [BARRIER, TURN], done)) == "A"
    assert done == ["a0", "a1", "a ends"]
