"""Works of several devices: part by part in their order, and ended together."""

from __future__ import annotations

import pytest

from rocmforge.plan.lockstep import Work, alone, lockstep


def work(name: str, parts: int, done: list[str], fails: bool = False) -> Work[str]:
    try:
        for part in range(parts):
            done.append(f"{name}{part}")
            yield
        if fails:
            raise ValueError(name)
    finally:
        done.append(f"{name} ends")
    return name.upper()


def test_all_do_a_part_before_any_does_the_next_one() -> None:
    done: list[str] = []
    assert lockstep([work("a", 2, done), work("b", 3, done), work("c", 0, done)]) == ["A", "B", "C"]
    assert done == ["a0", "b0", "c ends", "a1", "b1", "a ends", "b2", "b ends"]


def test_what_one_raises_ends_all_of_them() -> None:
    done: list[str] = []
    with pytest.raises(ValueError, match="b"):
        lockstep([work("a", 3, done), work("b", 1, done, fails=True), work("c", 3, done)])
    assert done[:5] == ["a0", "b0", "c0", "a1", "b ends"]
    assert sorted(done[5:]) == ["a ends", "c ends"]


def test_a_device_alone_does_all_parts() -> None:
    done: list[str] = []
    assert alone(work("a", 2, done)) == "A"
    assert done == ["a0", "a1", "a ends"]
