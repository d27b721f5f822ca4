"""The report is one file that loads nothing, shows all numbers, and escapes every name."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_profile import HOSTILE_OP, made_profile

from rocmforge.profiling.html_report import write_html
from rocmforge.profiling.profile import Profile

LOADING = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background"}
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Tags, attributes and texts of a page, and whether its tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside != "style":
            (self.scripts if inside == "script" else self.texts).append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(profile: Profile, folder: Path) -> Page:
    write_html(profile, folder / "profile.html")
    return Page((folder / "profile.html").read_text("utf-8"))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return page_of(made_profile(), tmp_path)


def test_it_loads_nothing_from_elsewhere(page: Page) -> None:
    links = {value for _, attrs in page.tags for name, value in attrs.items() if name in LOADING}
    anchors = {f"#{attrs['id']}" for _, attrs in page.tags if "id" in attrs}
    assert links
    assert links <= anchors
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "form"}


def test_its_policy_allows_its_own_script_alone(page: Page) -> None:
    policy = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") is not None)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_are_texts(page: Page) -> None:
    assert "</script><img src=x onerror=alert(1)>" in page.words
    assert HOSTILE_OP in page.words
    assert "Radeon <b>RX</b> & co" in page.words
    tags = [tag for tag, _ in page.tags]
    assert not {"b", "i"} & {tag for tag, attrs in page.tags if "onclick" in attrs}
    assert tags.count("script") == 1
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_the_verdict_comes_first(page: Page) -> None:
    words = page.words
    assert words.index("Decode is memory-bound") < words.index("Time to the first token From")
    assert "It moves 100 GB/s." in words
    assert "Try rocmforge <b> ." in words  # what stood in backticks is code
    assert ("code", {}) in page.tags
    assert "A remark & <more>." in words


def test_doubts_come_before_the_verdict(tmp_path: Path) -> None:
    doubtful = replace(made_profile(), doubts=("Others used <half> of `cpu`.",))
    words = page_of(doubtful, tmp_path).words
    assert words.index("Others used <half> of cpu") < words.index("Decode is memory-bound")


def test_every_part_op_kernel_and_number_is_there(page: Page) -> None:
    profile, words = made_profile(), page.words
    assert "target of 5 ms missed" in words
    assert "12,500 tokens/s prefill" in words  # 100 tokens in 8 ms without observation
    assert "observing costs 25.0%" in words
    assert "2 inputs to the device - not measured <here>" in words
    assert "3 the rest of the prompt's pass 9 ms 90.0% longest." in words
    for phase in profile.phases:
        for part in phase.parts:
            assert part.label in words
        for op in phase.ops:
            assert f"{op.label} {op.calls}" in words
            assert f"{op.kernels[0].name} kernels/matmul.hip, 128 × 256 threads" in words
    assert "matmul_qkv 32 8 ms 80.0% 76.3 MiB 10 1000 50.0%" in words
    assert "ops overlap -20 µs -0.2%" in words
    assert "one launch 320 3 ms 9.4 µs 9 µs 12 µs 25 µs 30 µs" in words
    assert "Capture a graph : A launch keeps the host ." in words


def test_memory_conditions_and_settings_are_there(page: Page) -> None:
    words = page.words
    assert "… in use 27.5 MiB: 110 tokens of 1 sequence" in words
    assert "the device has 24.00 GiB … free now 10.00 GiB … free before 15.00 GiB" in words
    assert "power W 100 200 300" in words
    assert "Clocks were held down by power <cap>. A look <failed>." in words
    assert "hip:0: clock 1400 … 1500 MHz, 1450 on average" in words
    assert "hip:0: clocks held down by power" in words
    assert "hip <7>" in words
    assert "threads not of a GPU" in words
    assert "int8 200 2000 2.79 GiB" in words
    assert "no place on it: kv_append, idle." in words


def test_every_picture_has_its_words(page: Page) -> None:
    pictures = [attrs for tag, attrs in page.tags if tag == "svg" or attrs.get("role") == "img"]
    assert len(pictures) == 1 + 3 + 5  # roofline, stacked bars, conditions
    assert all(attrs.get("aria-label") for attrs in pictures)
    assert any(
        (attrs["aria-label"] or "").startswith("power from 100 to 300 W, 200 on average")
        for attrs in pictures
    )


def test_a_quantity_that_was_not_shown_breaks_its_line(page: Page) -> None:
    """Power was read at 5 moments, of which the third and fourth say nothing."""
    start = next(
        at
        for at, (_, attrs) in enumerate(page.tags)
        if (attrs.get("aria-label") or "").startswith("power from")
    )
    end = next(at for at, (tag, _) in enumerate(page.tags) if at > start and tag == "svg")
    drawn = [(tag, attrs) for tag, attrs in page.tags[start:end] if tag in ("polyline", "circle")]
    assert [tag for tag, _ in drawn] == ["polyline", "circle"]
    assert len((drawn[0][1]["points"] or "").split()) == 2


def without_optional(profile: Profile) -> Profile:
    """The same, as of a CPU that shows nothing: all that may be missing is."""
    phase = replace(
        profile.phases[0],
        ops=(),
        host_to_device_seconds=None,
        plain_seconds=None,
        launches=None,
        recommendation=None,
        seconds=0.0,
        device_seconds=0.0,
    )
    return replace(
        profile,
        device=replace(profile.device, name="cpu"),
        phases=(phase,),
        ceilings=(),
        spans=(),
        verdicts=(),
        remarks=(),
        memory=None,
        monitor=None,
    )


def test_what_was_not_measured_leaves_its_section_out(tmp_path: Path) -> None:
    page = page_of(without_optional(made_profile()), tmp_path)
    assert "This profile has no verdict." in page.words
    assert "No ceiling was measured." in page.words
    assert "Neither an op nor a ceiling was measured." in page.words
    anchors = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert not anchors & {"memory", "decode"}
    assert not {"None", "nan"} & {*re.findall(r"[\w]+", page.words)}


def test_no_none_and_no_object_is_shown(page: Page) -> None:
    shown = {*re.findall(r"\w+", page.words)}
    assert not shown & {"None", "nan", "NaN", "inf", "True", "False"}
    assert not re.search(r"\w\(\w+=", page.words)  # as the repr of an object has it


def test_an_old_report_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "profile.html").write_text("old")
    page_of(made_profile(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["profile.html"]
