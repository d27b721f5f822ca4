"""perf's text read as stacks, mutations of it, and the flame graph that is drawn of them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from xml.dom import minidom

import pytest
from mutations import FEW, MANY, MOST_SECONDS, mutated

from rocmforge.errors import ResultFileError
from rocmforge.profiling.flame_graph import LEAST_WIDTH, WIDTH, flame_graph
from rocmforge.profiling.readers.perf_script import Stacks, read_perf_script

TEXT = (Path(__file__).parent / "data/perf_script.txt").read_text("utf-8")
OUTER = ("python", "<module> (main.py)", "generate (engine.py)")
MATMUL = "matmul_rows<float, 4>(int, char const*)"


def read_text(folder: Path, text: str) -> Stacks:
    path = folder / "perf.txt"
    path.write_text(text, encoding="utf-8")
    return read_perf_script(path)


def test_samples_with_the_same_stack_are_one(tmp_path: Path) -> None:
    stacks = read_text(tmp_path, TEXT)
    assert stacks.samples == {
        (*OUTER, MATMUL, "clear_page_erms [kernel]"): 1,
        (*OUTER, MATMUL): 2,
        ("worker thread", "[unknown]", "[libgomp.so.1.0.0]"): 1,
    }
    assert (stacks.event, stacks.total, stacks.partial) == ("cpu-clock", 4, False)
    assert stacks.leaves()[0] == (MATMUL, 2)
    lines = stacks.collapsed().splitlines()
    assert f"{';'.join((*OUTER, MATMUL))} 2" in lines
    # As many samples as awk would count: lines that begin a sample.
    begins = [line for line in TEXT.splitlines() if re.match(r"[^\s#]", line)]
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == len(begins)


def test_a_semicolon_in_a_name_does_not_make_a_frame(tmp_path: Path) -> None:
    stacks = read_text(tmp_path, TEXT.replace("clear_page_erms", "a;b"))
    (line,) = (line for line in stacks.collapsed().splitlines() if "[kernel]" in line)
    assert line.endswith(";a,b [kernel] 1")


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (
            "void (anonymous namespace)::f<4>(int)+0x8 (/lib/a.so)",
            "void (anonymous namespace)::f<4>(int)",
        ),
        ("g+0x1 (/my (old)/a.so (deleted))", "g"),
        ("operator() const (inlined)", "operator() const"),
        ("[unknown] (/lib/a.so (deleted))", "[a.so]"),
    ],
)
def test_parentheses_in_functions_and_files(tmp_path: Path, frame: str, name: str) -> None:
    text = f"python 1/2 [001] 3.5:  9 cpu-clock: \n    e2bc {frame}\n\n"
    assert read_text(tmp_path, text).samples == {("python", name): 1}


@pytest.mark.parametrize("line", ["  e2 a" + " (a)" * 60_000 + "x", "a" + " " * 200_000 + "b"])
def test_a_long_line_is_read_in_time(tmp_path: Path, line: str) -> None:
    start = time.monotonic()
    assert read_text(tmp_path, f"{TEXT}{line}\n").total == 4
    assert time.monotonic() - start < MOST_SECONDS


def test_what_is_not_understood_is_counted(tmp_path: Path) -> None:
    stacks = read_text(tmp_path, TEXT.replace("[001] 28239.602: 2004008", "broken"))
    assert stacks.partial
    assert stacks.total == 3
    assert stacks.remarks == ("4 lines of perf's output were not understood",)


@pytest.mark.parametrize("text", ["\n", "# only a remark\n", "not perf at all\n" * 3])
def test_a_file_without_samples_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ResultFileError, match=r"perf.txt: content: got no sample"):
        read_text(tmp_path, text)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match="got none, wanted the output of `perf script`"):
        read_perf_script(tmp_path / "perf.txt")


def break_all(path: Path, count: int) -> int:
    recorded = 0
    for seed in range(count):
        path.write_bytes(mutated(TEXT.encode(), seed))
        start = time.monotonic()
        stacks, message = None, path.name
        try:
            stacks = read_perf_script(path)
        except ResultFileError as error:
            message = str(error)
        assert path.name in message, f"seed {seed}"
        if stacks is not None:
            recorded += 1
            assert stacks.total <= 8
            assert not stacks.partial or stacks.remarks
            minidom.parseString(flame_graph(stacks.samples, "broken").encode("utf-8", "replace"))
        assert time.monotonic() - start < 5, f"seed {seed}"
    return recorded


def test_broken_text_is_read_in_part_or_refused(tmp_path: Path) -> None:
    assert break_all(tmp_path / "perf.txt", FEW) > FEW / 2


@pytest.mark.slow
def test_broken_text_many_times(tmp_path: Path) -> None:
    assert break_all(tmp_path / "perf.txt", MANY) > MANY / 2


def test_a_frame_is_as_wide_as_its_share() -> None:
    samples = {("app", "slow", "inner"): 60, ("app", "slow"): 15, ("app", "fast"): 25}
    svg = flame_graph(samples, "demo")
    found = minidom.parseString(svg)
    boxes = {}
    for group in found.getElementsByTagName("g"):
        title = group.getElementsByTagName("title")[0].firstChild
        rect = group.getElementsByTagName("rect")[0]
        assert title is not None
        name = title.nodeValue.partition(":")[0]
        boxes[name] = {key: float(rect.getAttribute(key)) for key in ("x", "y", "width")}
    whole = boxes["all"]["width"]
    shares = {name: box["width"] / whole for name, box in boxes.items()}
    assert shares == pytest.approx(
        {"all": 1.0, "app": 1.0, "slow": 0.75, "fast": 0.25, "inner": 0.6}, abs=1e-3
    )
    assert boxes["inner"]["y"] < boxes["slow"]["y"] < boxes["app"]["y"] < boxes["all"]["y"]
    assert boxes["slow"]["x"] == pytest.approx(boxes["fast"]["x"] + boxes["fast"]["width"], abs=0.1)
    assert "slow: 75 samples, 75.0 %" in svg


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    svg = flame_graph({("<script>alert(1)</script>", 'a"&\x00\x1b]\ud800'): 3}, "<b> & \x07")
    assert "<script>" not in svg
    minidom.parseString(svg.encode("utf-8", "replace"))
    assert re.findall(r"https?://[^\s\"]+", svg) == ["http://www.w3.org/2000/svg"]


def test_what_nobody_could_see_is_not_drawn() -> None:
    samples = {("app", f"f{i}"): 1 for i in range(WIDTH * 10)}
    svg = flame_graph(samples, "many")
    assert svg.count("<rect") < 10
    assert LEAST_WIDTH < 1
    with pytest.raises(ValueError, match="got no sample"):
        flame_graph({}, "none")


def test_a_deep_stack_ends() -> None:
    svg = flame_graph({tuple(f"f{i}" for i in range(5000)): 1}, "deep")
    assert svg.count("<rect") < 400
