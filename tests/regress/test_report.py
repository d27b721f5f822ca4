"""Reports: every row with name, parameters, values, ratio, unit, direction and verdict."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from asv_tree import A, AsvTree, B
from rich.console import Console

from rocmforge.hardware import Hardware
from rocmforge.regress.compare import Comparison, Outcome, Row, compare
from rocmforge.regress.decision import Verdict
from rocmforge.regress.records import Direction, ResultSet
from rocmforge.regress.report import print_table, summary_line, to_json, to_junit, to_markdown
from rocmforge.regress.results import ResultsDirectory


@pytest.fixture
def comparison(two_commits: AsvTree) -> Comparison:
    return compare(*ResultsDirectory(two_commits.results).load_pair(A, B))


def test_summary_line(comparison: Comparison) -> None:
    assert summary_line(comparison) == (
        "FAIL: regression (exit 1): 2 regression, 1 failed, 3 ok, 1 skipped; threshold 10 %"
    )


def test_table_is_whole_where_output_is_no_terminal(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(comparison)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ("verdict benchmark parameters before after ratio 99 % interval unit better")
    assert (
        lines[1] == "regression matmul.track_ms format='Q4_0', tokens=8 2 2.3 1.150 "
        "1.145 … 1.155 ms/token lower"
    )
    assert lines[2] == ("regression matmul.track_tokens 100 85 0.850 0.847 … 0.853 tokens/s higher")
    assert any(line.startswith("ok rope.time_rope 2.04 2.04 1.000 0.9") for line in lines)
    assert lines[-1] == summary_line(comparison)


def test_table_on_a_terminal_is_coloured_and_reads_no_markup() -> None:
    out = io.StringIO()
    row = Row("m.[dim]x", {}, 1.0, 2.0, 2.0, 1.9, 2.1, "ms", Direction.LOWER, Verdict.REGRESSION)
    comparison = Comparison("a [red]", "b", 0.1, (row,), (), ())
    print_table(comparison, Console(file=out, force_terminal=True, width=120))
    assert "\x1b[1;31m" in out.getvalue()
    assert "m.[dim]x" in out.getvalue()
    assert "before: a [red]" in out.getvalue()


def test_markdown(comparison: Comparison) -> None:
    lines = to_markdown(comparison).splitlines()
    assert lines[0] == f"**{summary_line(comparison)}**"
    cells = "matmul.track_tokens |  | 100 | 85 | 0.850 | 0.847 … 0.853 | tokens/s | higher"
    assert f"| regression | {cells} |" in lines
    table = [line for line in lines if line.startswith("|")]
    skipped = comparison.with_verdict(Verdict.SKIPPED)
    assert skipped
    assert len(table) == 2 + len(comparison.rows) - len(skipped)
    assert f"{len(skipped)} skipped" in lines[0]
    assert {line.count("|") for line in table} == {10}


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
        Path("x"), "box", B, None, "env", Hardware(cpu_name="AMD EPYC", cpu_count=8), new.records
    )
    comparison = compare(old, moved)
    assert comparison.outcome is Outcome.HARDWARE_MISMATCH
    assert "- hardware differs: cpu_count: 2 → 8" in to_markdown(comparison)
    fields = [d["field"] for d in json.loads(to_json(comparison))["hardware_mismatches"]]
    assert fields == ["cpu_microarchitecture", "cpu_arch", "cpu_isa", "cpu_count", "os"]


def test_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Comparison("a", "b", 0.1, (), (), ())
    print_table(nothing)
    out = capsys.readouterr().out
    words = "nothing measured on both sides that can be judged (exit 3)"
    assert out.splitlines()[-1] == f"FAIL: {words}: no benchmark; threshold 10 %"


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
    moved = ResultSet(Path("x"), "box", B, None, "env", Hardware(cpu_name="x"), new.records)
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
