"""The plan of a fleet: what is wanted, what is missing, what may be submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asv_tree import A, B

from rocmforge.bench.fleet.parts import Part, missing, part_of, ready, wanted_parts
from rocmforge.errors import ResultFileError


def test_a_plan_is_commits_by_kinds_by_copies_and_the_same_every_time() -> None:
    wanted = wanted_parts([A, B, A], ["gfx942", "cpu"], 2, "quick", ["rope"])
    assert len(wanted) == len({part.name for part in wanted}) == 8
    assert wanted == wanted_parts([A, B], ["gfx942", "cpu"], 2, "quick", ["rope"])
    assert missing(wanted, wanted[:3]) == wanted[3:]
    assert missing(wanted, []) == wanted
    assert missing(wanted, wanted) == []


def test_other_work_has_another_name() -> None:
    parts = [
        Part(A, "cpu", "quick"),
        Part(A, "cpu", "full"),
        Part(A, "cpu", "quick", ("x",)),
        Part(A, "cpu", "quick", command="x"),
        Part("a" * 8 + "b" * 32, "cpu", "quick"),
    ]
    assert len({part.name for part in parts}) == len(parts)
    assert not any(one.is_copy_of(parts[0]) for one in parts[1:])


def test_a_copy_waits_for_the_box_of_the_one_before() -> None:
    first, second, third = wanted_parts([A], ["cpu"], 3, "quick")
    other = Part(B, "cpu", "quick")
    assert ready([third, other, second, first], []) == [other, first]
    assert ready([second, third], [first]) == []
    assert ready([third, second], []) == [second]


def test_a_part_there_and_back() -> None:
    part = Part(A, "gfx942", "quick", ("a", "b"), "x", 3)
    assert part_of(Path("x"), {**part.as_json(), "bench": ["a", "b"]}) == part


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "../../x"}, "commit: got ../../x, wanted 40 digits"),
        ({"kind": "../x"}, r"kind: got \.\./x, wanted a name"),
        ({"kind": None}, "kind: got nothing, wanted a string"),
        ({"bench": "x"}, "bench: got x, wanted a list"),
        ({"copy": True}, "copy: got True, wanted 0 to 99"),
        ({"copy": 100}, "copy: got 100"),
    ],
)
def test_a_broken_part_is_named(change: dict[str, Any], message: str) -> None:
    data = {**Part(A, "cpu", "quick").as_json(), "bench": [], **change}
    with pytest.raises(ResultFileError, match=f"^file.json: {message}"):
        part_of(Path("file.json"), data)
