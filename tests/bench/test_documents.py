"""Markdown, JSON, JUnit: every row with name, parameters, values, ratio, unit, direction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from asv_tree import A, AsvTree, B

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Comparison, Difference, Outcome, Row
from rocmforge.bench.decision import Verdict
from rocmforge.bench.documents import to_json, to_junit, to_markdown
from rocmforge.bench.results import Direction, ResultSet
from rocmforge.bench.tables import missing_line, print_comparison, summary_line
from rocmforge.hardware import Hardware


@pytest.fixture
def comparison(two_commits: AsvTree) -> Comparison:
    return compare(*ResultsDirectory(two_commits.results).load_pair(A, B))


def test_each_suite_moved_by_the_geometric_mean_of_its_slowdowns(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(comparison, suites=True)
    out = capsys.readouterr().out
    mean = (1.0 * 1.15 * 1.0 * 100 / 85) ** 0.25
    wanted = (
        f"suite matmul: 7.8 % worse (geometric mean of 4 slowdowns {mean:.3f}, above 1 is worse)"
    )
    assert wanted in out
    assert "suite rope: unchanged (geometric mean of 1 slowdowns 1.000" in out
    assert f"- {wanted}" in to_markdown(comparison)
    matmul = json.loads(to_json(comparison))["suites"]["matmul"]
    assert matmul == {"benchmarks": 4, "geometric_mean_slowdown": pytest.approx(mean)}


def test_markdown(comparison: Comparison) -> None:
    lines = to_markdown(comparison).splitlines()
    assert lines[0] == f"**{summary_line(comparison)}**"
    cells = "matmul.track_tokens |  | 100 | 85 | 0.850 | 0.847 … 0.853 | tokens/s | higher"
    assert f"| regression | {cells} |" in lines
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 2 + len(comparison.rows)
    assert {line.count("|") for line in table} == {10}
    fold = lines.index("<details>")
    assert lines[fold + 1] == "<summary>4 ok, new, n/a or not compared</summary>"
    assert all(line.startswith(("| ok", "| n/a or")) for line in table[-4:])
    assert not any(line.startswith(("| ok", "| n/a or")) for line in lines[:fold])
    assert lines.index("</details>") > lines.index(table[-1])


def test_markdown_fits_into_a_comment_and_says_what_it_leaves_out() -> None:
    row = Row("m.x", {"n": "1" * 90}, 1.0, 1.0, 1.0, 1.0, 1.0, "ms", Direction.LOWER, Verdict.OK)
    bad = replace(row, verdict=Verdict.CANNOT_TELL)
    text = to_markdown(Comparison("a", "b", 0.1, (bad,) * 100 + (row,) * 900, (), ()))
    assert len(text) < 65_536
    shown = [
        sum(line.startswith(word) for line in text.splitlines()) for word in ("| cann", "| ok")
    ]
    assert shown[0] == 100
    assert f"… and {900 - shown[1]} more; --format json has all" in text
    text = to_markdown(Comparison("a", "b", 0.1, (bad,) * 900 + (row,) * 900, (), ()))
    assert len(text) < 65_536
    assert "… and 900 more" in text
    assert "900 ok, new, n/a or not compared" in text


def test_what_is_missing_is_named_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    fine = Row("m.ok", {}, 1.0, 1.0, 1.0, 1.0, 1.0, "ms", Direction.LOWER, Verdict.OK)
    gone = replace(fine, after=None, ratio=None, low=None, high=None, verdict=Verdict.MISSING)
    rows = tuple(replace(gone, name=f"m.gone{i:02}") for i in range(12))
    comparison = Comparison("a", "b", 0.1, (fine, *rows), (), ())
    assert comparison.outcome is Outcome.MISSING
    assert comparison.outcome.exit_code == 3
    line = missing_line(comparison)
    assert line is not None
    assert line.startswith(
        "missing: 12 benchmarks had a value before, none to compare it with now: m.gone00, m.gone01"
    )
    assert line.endswith("m.gone09 and 2 more")
    print_comparison(comparison)
    out = capsys.readouterr().out
    assert line in out
    assert "before are missing or not comparable (exit 3): 12 missing, 1 ok" in out
    assert f"- {line}" in to_markdown(comparison)
    assert len(json.loads(to_json(comparison))["missing"]) == 12
    suite = ElementTree.fromstring(to_junit(comparison))
    assert (suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "12")
    error = suite.find("testcase/error")
    assert error is not None
    assert line in error.attrib["message"]
    allowed = replace(comparison, may_miss=True)
    assert allowed.outcome is Outcome.PASS
    assert missing_line(Comparison("a", "b", 0.1, (fine,), (), ())) is None


HOSTILE = {
    "\x1b[31m\u202eevil": r"\[31m evil",
    "a\n\n# head\n| b |": r"a # head \| b \|",
    "cut \\| here": r"cut \\\| here",
    "![x](http://e.org/p)": r"!\[x\](http:&#8203;//e.org/p)",
    "@org/team #12 www.e.org": "@&#8203;org/team #&#8203;12 www&#8203;.e.org",
    "<img src=x>&lt;": "&lt;img src=x&gt;&amp;lt;",
    "`a` **b** ~~c~~ _d_ e_f": r"\`a\` \*\*b\*\* \~\~c\~\~ \_d\_ e_f",
    "\ud800\ufffe\x00z": "z",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_files_say_is_text_in_every_report(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a terminal nor Markdown nor XML takes a name, parameter, unit or note for more."""
    row = Row(f"m{text}", {"p": text}, 1.0, 2.0, 2.0, None, None, text, None, Verdict.MISSING, text)
    plain = Comparison("a", "b", 0.1, (replace(row, name="m"),), (), ())
    hostile = Comparison(text, text, 0.1, (row,), (Difference("cpu_name", text, "x"),), (text,))
    print_comparison(hostile)
    assert not {"\x1b", "\u202e", "\x00"} & set(capsys.readouterr().out)
    lines = to_markdown(hostile).splitlines()
    assert f"- {HOSTILE[text]}" in lines
    (table,) = (line for line in lines if line.startswith("| missing"))
    assert table.count("|") - table.count("\\|") == 10
    assert f"{HOSTILE[text]}) | m" in table
    assert len(lines) == len(to_markdown(plain).splitlines()) + 3  # hardware, what to do, the note
    case = ElementTree.fromstring(to_junit(hostile)).find("testcase")
    assert case is not None
    assert case.attrib["classname"].startswith("m")


def test_json_is_strict_and_complete(comparison: Comparison) -> None:
    document = json.loads(to_json(comparison), parse_constant=pytest.fail)
    assert (document["outcome"], document["exit_code"]) == ("regression", 1)
    assert document["counts"]["regression"] == 2
    assert document["rows"][0] == {
        "name": "matmul.track_ms",
        "params": {"format": "'Q4_0'", "tokens": "8"},
        "before": 2.0,
        "after": 2.3,
        "ratio": pytest.approx(1.15),
        "low": pytest.approx(1.1454, abs=1e-3),
        "high": pytest.approx(1.1546, abs=1e-3),
        "unit": "ms/token",
        "direction": "lower",
        "verdict": "regression",
        "note": "",
        "threshold": 0.1,
        "quiet_slowdown": pytest.approx(1.15),
        "floor": None,
        "marked": False,
        "label": "matmul.track_ms('Q4_0', 8)",
    }
    assert len(document["rows"]) == len(comparison.rows)


def one(before: float | None, after: float | None, unit: str | None = "ms") -> Comparison:
    direction = None if unit is None else Direction.LOWER
    row = Row("m.x", {"s": "'a|b'"}, before, after, None, None, None, unit, direction, Verdict.OK)
    return Comparison("before", "after", 0.025, (row,), (), ("a note",))


@pytest.mark.parametrize(
    ("before", "after", "unit", "cells"),
    [
        (2e-9, 1.5e-9, "seconds", "2 | 1.5 | n/a |  | ns"),
        (0.0005, 0.002, "seconds", "0.5 | 2 | n/a |  | ms"),
        (3.0, None, "seconds", "3 | n/a | n/a |  | s"),
        (0.0, 0.0, "seconds", "0 | 0 | n/a |  | ns"),
        (2.0**31, 2.0**30, "bytes", "2 | 1 | n/a |  | GiB"),
        (12345.6, 99999.4, "ms", "12346 | 99999 | n/a |  | ms"),
        (1.0, 2.0, None, "1 | 2 | n/a |  | unknown"),
    ],
)
def test_values_read_well_in_one_unit(
    before: float, after: float | None, unit: str | None, cells: str
) -> None:
    text = to_markdown(one(before, after, unit))
    assert f"| {cells} |" in text
    assert "s='a\\|b'" in text
    assert "- a note" in text
    assert "threshold 2.5 %" in text


def test_mismatch_names_the_fields(two_commits: AsvTree) -> None:
    old, new = ResultsDirectory(two_commits.results).load_pair(A, B)
    moved = ResultSet(
        Path("x"), "box", B, None, "env", Hardware(cpu_name="AMD EPYC", cpu_count=8), new.results
    )
    comparison = compare(old, moved)
    assert comparison.outcome is Outcome.HARDWARE_MISMATCH
    text = to_markdown(comparison)
    assert "- hardware differs: cpu_count: 2 → 8" in text
    head, _, folded = text.partition("<details>")
    assert "| hardware mismatch" not in head
    assert folded.count("| hardware mismatch") == len(comparison.rows) > 0
    fields = [d["field"] for d in json.loads(to_json(comparison))["hardware_mismatches"]]
    assert fields == ["cpu_microarchitecture", "cpu_arch", "cpu_isa", "cpu_count", "os"]


def test_junit_counts_and_names(comparison: Comparison) -> None:
    suite = ElementTree.fromstring(to_junit(comparison))
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 7, "failures": 2, "errors": 0, "skipped": 2}
    assert len(suite.findall("testcase")) == 7
    worst = suite.find("testcase")
    assert worst is not None
    assert worst.attrib == {"classname": "matmul.track_ms", "name": "format='Q4_0', tokens=8"}
    failure = worst.find("failure")
    assert failure is not None
    wanted = "regression: before 2, after 2.3, ratio 1.150, 99 % interval 1.145 … 1.155"
    assert failure.attrib["message"] == f"{wanted}, unit ms/token, better lower"


def test_junit_is_red_where_nothing_can_be_compared(two_commits: AsvTree) -> None:
    nothing = Comparison("a", "b", 0.1, (), (), ())
    suite = ElementTree.fromstring(to_junit(nothing))
    assert (suite.attrib["tests"], suite.attrib["errors"]) == ("1", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "nothing measured" in error.attrib["message"]
    old, new = ResultsDirectory(two_commits.results).load_pair(A, B)
    moved = ResultSet(Path("x"), "box", B, None, "env", Hardware(cpu_name="x"), new.results)
    suite = ElementTree.fromstring(to_junit(compare(old, moved)))
    assert int(suite.attrib["errors"]) == 1
    assert "hardware differs: cpu_name" in to_junit(compare(old, moved))


def test_junit_survives_any_name() -> None:
    name = "m.<x>&\"'"
    row = Row(name, {}, 1.0, 2.0, 2.0, 1.9, 2.1, "ms", Direction.LOWER, Verdict.REGRESSION)
    suite = ElementTree.fromstring(to_junit(Comparison("a", "b", 0.1, (row,), (), ())))
    case = suite.find("testcase")
    assert case is not None
    assert case.attrib["classname"] == name
