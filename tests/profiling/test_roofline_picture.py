"""The picture of a roofline: every op with operations stands where its numbers say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_profile import HOSTILE_OP, NAN, made_profile, op

from rocmforge.profiling.roofline_picture import roofline_svg, write_roofline

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def picture() -> ElementTree.Element:
    return ElementTree.fromstring(roofline_svg(made_profile()))


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


def axis(picture: ElementTree.Element, place: str) -> Callable[[float], float]:
    """The pixel of a value, from where the labels of the ticks stand."""
    anchor = {"x": "middle", "y": "end"}[place]
    ticks = {
        float(element.text or ""): number(element, place)
        for element in picture.iter(f"{SVG}text")
        if element.get("class") == "rl-f" and element.get("text-anchor") == anchor
    }
    (first, at), (last, end) = min(ticks.items()), max(ticks.items())
    step = (end - at) / math.log10(last / first)
    return lambda value: at + step * math.log10(value / first)


def marks(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    found = {}
    for group in picture.iter(f"{SVG}g"):
        title, shape = group
        found[(title.text or "").partition(":")[0]] = shape
    return found


def test_an_op_without_operations_or_time_has_no_mark(picture: ElementTree.Element) -> None:
    assert set(marks(picture)) == {
        "matmul_qkv in prefill",
        "attention in prefill",
        f"{HOSTILE_OP} in decode",
    }


def test_marks_stand_where_their_numbers_are(picture: ElementTree.Element) -> None:
    across, up = axis(picture, "x"), axis(picture, "y")
    shown = marks(picture)
    decode = shown[f"{HOSTILE_OP} in decode"]
    assert decode.tag == f"{SVG}circle"
    assert number(decode, "cx") == pytest.approx(across(1), abs=0.1)  # operation per byte
    assert number(decode, "cy") == pytest.approx(up(100) - 4, abs=0.1)  # GFLOP/s; a label's base
    prefill = shown["matmul_qkv in prefill"]
    assert prefill.tag == f"{SVG}rect"
    middle = number(prefill, "x") + number(prefill, "width") / 2
    assert middle == pytest.approx(across(100), abs=0.2)
    middle = number(prefill, "y") + number(prefill, "height") / 2
    assert middle == pytest.approx(up(1000) - 4, abs=0.2)


def test_areas_are_shares(picture: ElementTree.Element) -> None:
    shown = marks(picture)
    large = number(shown["matmul_qkv in prefill"], "width") ** 2  # 80 %
    small = number(shown["attention in prefill"], "width") ** 2  # 10 %
    circle = math.pi * number(shown[f"{HOSTILE_OP} in decode"], "r") ** 2  # 20 %
    assert large / small == pytest.approx(8, rel=0.05)
    assert large / circle == pytest.approx(4, rel=0.05)


def test_ceilings_are_lines_with_their_numbers(picture: ElementTree.Element) -> None:
    across, up = axis(picture, "x"), axis(picture, "y")
    lines = [element.attrib for element in picture.iter(f"{SVG}polyline")]
    assert len({line["stroke-dasharray"] for line in lines}) == len(lines) == 2
    corners = [line["points"].split()[1] for line in lines]
    for corner, (ridge, top) in zip(corners, [(10, 2000), (5, 1000)], strict=True):
        x, y = map(float, corner.split(","))
        assert (x, y) == pytest.approx((across(ridge), up(top) - 4), abs=0.2)
    assert {"int8: 2000 GFLOP/s", "<half>: 1000 GFLOP/s", "reads: 200 GB/s"} <= {*texts(picture)}


def test_phases_are_told_without_color(picture: ElementTree.Element) -> None:
    assert {"prefill (square)", "decode (circle)"} <= {*texts(picture)}


def test_names_do_not_cover_each_other() -> None:
    ops = tuple(op(f"op_number_{n}", 0.01, 0.1, 10**8, 10**9 + n, 0.01) for n in range(9))
    profile = made_profile()
    crowded = replace(profile, phases=(replace(profile.phases[0], ops=ops),))
    picture = ElementTree.fromstring(roofline_svg(crowded))
    names = [element for element in picture.iter(f"{SVG}text") if element.get("class") == "rl-n"]
    assert len(names) == 9
    places = [(number(name, "x"), number(name, "y")) for name in names]
    for at, (x, y) in enumerate(places):
        for other_x, other_y in places[at + 1 :]:
            assert abs(x - other_x) > 60 or abs(y - other_y) > 11.5


def test_equal_ceilings_have_names_apart() -> None:
    profile = made_profile()
    first = profile.ceilings[0]
    names = ("int8", "half", "exact")
    equal = tuple(replace(first, precision=name) for name in names)
    picture = ElementTree.fromstring(roofline_svg(replace(profile, ceilings=equal)))
    heights = sorted(
        number(element, "y")
        for element in picture.iter(f"{SVG}text")
        if (element.text or "").startswith(names)
    )
    assert len(heights) == 3
    assert min(high - low for low, high in pairwise(heights)) >= 12


def test_it_loads_nothing(picture: ElementTree.Element) -> None:
    text = roofline_svg(made_profile())
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in text
    assert "href" not in text


def test_without_ops_the_ceilings_are_drawn_and_without_both_a_sentence() -> None:
    profile = replace(made_profile(), phases=())
    assert "int8: 2000 GFLOP/s" in texts(ElementTree.fromstring(roofline_svg(profile)))
    broken = replace(profile.ceilings[0], operations_per_second=NAN)
    for ceilings in ((), (broken,)):
        empty = ElementTree.fromstring(roofline_svg(replace(profile, ceilings=ceilings)))
        assert texts(empty) == ["Neither an op nor a ceiling was measured."]


def test_without_ceilings_the_ops_are_drawn() -> None:
    picture = ElementTree.fromstring(roofline_svg(replace(made_profile(), ceilings=())))
    assert len(marks(picture)) == 3
    assert not list(picture.iter(f"{SVG}polyline"))


def test_the_file_is_the_picture(tmp_path: Path) -> None:
    profile = made_profile()
    write_roofline(profile, tmp_path / "roofline.svg")
    assert (tmp_path / "roofline.svg").read_text("utf-8") == roofline_svg(profile)
    assert len(list(tmp_path.iterdir())) == 1
