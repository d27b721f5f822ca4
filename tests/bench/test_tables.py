"""What a terminal shows of one run and of a comparison: values, spread, change, verdicts."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace
from pathlib import Path

import pytest
from asv_tree import A, AsvTree, B
from rich.console import Console

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Comparison, Row, suite_slowdowns
from rocmforge.bench.decision import Verdict
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.bench.tables import (
    comparison_cells,
    headline,
    noise_line,
    print_comparison,
    results_table,
    suite_lines,
    summary_line,
)
from rocmforge.hardware import Hardware


def result(name: str, value: float | None, unit: str, spread: float = 0.0) -> Result:
    samples = () if value is None else tuple(value * (1 + spread * (i - 8) / 8) for i in range(17))
    return Result(
        name=name,
        param_names=("format", "device"),
        params=("'Q4_K'", "'cpu'"),
        status=Status.FAILED if value is None else Status.OK,
        value=value,
        summary=summarize(samples) if samples else None,
        samples=samples,
        unit=unit,
        direction=Direction.HIGHER if unit.endswith("/s") else Direction.LOWER,
        version="1",
        started_at=None,
    )


def run(*results: Result) -> ResultSet:
    return ResultSet(Path("x.json"), "box", "a" * 40, None, "env", Hardware(cpu_name="x"), results)


def shown(now: ResultSet, before: ResultSet | None = None) -> list[list[str]]:
    comparison = compare(before, now) if before else None
    console = Console(width=200)
    with console.capture() as capture:
        console.print(results_table(now.results, comparison))
    _, suite, *lines = capture.get().splitlines()
    assert suite.strip() == "suite"
    return [line.split() for line in lines]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, "seconds", ["1.23", "ms"]),
        (4.5e-8, "seconds", ["45", "ns"]),
        (2.0, "seconds", ["2", "s"]),
        (3 * 2**20, "bytes", ["3", "MiB"]),
        (0.0, "bytes", ["0", "B"]),
        (1234.5, "tokens/s", ["1234", "tokens/s"]),
        (0.0012345, "seconds", ["1.234", "ms"]),  # four digits, as in reports
    ],
)
def test_a_value_stands_with_a_unit_that_reads_well(
    value: float, unit: str, text: list[str]
) -> None:
    (row,) = shown(run(result("suite.op", value, unit)))
    assert row == ["op", "Q4_K", "cpu", *text, "17"]


def test_the_interval_is_in_the_unit_of_the_median() -> None:
    (row,) = shown(run(result("suite.op", 0.008, "seconds", spread=0.5)))
    assert row[3:] == ["8", "ms", "5", "…", "11", "17"]  # 3rd smallest, 3rd largest


def test_a_failure_and_a_change_are_named() -> None:
    before = run(
        result("suite.slower", 0.010, "seconds"),
        result("suite.faster", 50.0, "tokens/s"),
        result("suite.same", 0.010, "seconds"),
        result("suite.broken", 0.010, "seconds"),
    )
    now = run(
        result("suite.slower", 0.0115, "seconds"),
        result("suite.faster", 60.0, "tokens/s"),
        result("suite.same", 0.0102, "seconds"),
        result("suite.broken", None, "seconds"),
        result("suite.new", 0.010, "seconds"),
    )
    rows = {row[0]: row for row in shown(now, before)}
    assert rows["slower"][-5:] == ["10", "ms", "+15.0", "%", "regression"]
    assert rows["faster"][-5:] == ["50", "tokens/s", "+20.0", "%", "improved"]
    assert rows["same"][-2:] == ["+2.0", "%"]
    assert rows["broken"][3:] == ["failed"]
    assert rows["new"][-1] == "17"


def model_record(name: str, value: float, unit: str, **params: str) -> Result:
    made = result(name, value, unit, spread=0.1)
    values = tuple(f"'{value}'" for value in params.values())
    return dataclasses.replace(made, param_names=tuple(params), params=values)


PREFILL = "inference.Prompt.track_prefill_tokens_per_second"


def models() -> tuple[Result, ...]:
    on = {"model": "0.5B-Q4_K_M", "device": "cpu"}
    return (
        model_record(PREFILL, 1475.6, "tokens/s", tokens="512", **on),
        model_record(PREFILL, 99.0, "tokens/s", tokens="32", **on),
        model_record("inference.Prompt.track_ttft_ms", 363.8, "ms", tokens="512", **on),
        model_record("roofline.Decode.track_inverse_roofline_fraction", 1.6, "times ideal", **on),
        model_record(
            "inference.Decode.track_decode_tokens_per_second",
            9.0,
            "tokens/s",
            batch="1",
            device="gpu",
        ),
    )


def test_the_headline_has_a_row_for_each_model_and_device() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(headline(models()))
    head, on_cpu, on_gpu = (line.split() for line in capture.get().splitlines())
    assert head[:2] == ["model", "device"]
    assert on_cpu == [*("0.5B-Q4_K_M", "cpu", "1476", "tokens/s", "363.8", "ms", "n/a", "62", "%")]
    assert on_gpu == ["gpu", "n/a", "n/a", "9", "tokens/s", "n/a"]


def test_without_a_whole_model_there_is_no_headline() -> None:
    assert headline((result("suite.op", 1.0, "ms"),)) is None
    assert headline((dataclasses.replace(models()[0], value=None, summary=None),)) is None


def test_the_noise_of_a_run_is_the_usual_spread_and_the_worst() -> None:
    calm, noisy = (result(f"suite.{s}", 1.0, "ms", s) for s in (0.01, 0.4))
    lone = dataclasses.replace(calm, name="suite.lone", summary=summarize([1.0]))
    line = noise_line((calm, noisy, noisy, lone))
    assert line is not None
    # of 17 samples from 1 − s to 1 + s the interval's ends are the 3rd and the 15th
    assert line == "±15.4 % (median of 2 benchmarks); at most ±30 %: suite.0.4('Q4_K', 'cpu')"
    assert noise_line((lone,)) is None


def test_a_narrow_table_fits_into_80_columns() -> None:
    before, now = (run(result(PREFILL, value, "tokens/s", 0.1)) for value in (1234.5, 1000.25))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results_table(now.results, compare(before, now), narrow=True))
    head, suite, first, second = (line.split() for line in capture.get().splitlines())
    assert head == ["benchmark", "median", "±", "change"]
    assert suite == ["inference"]
    assert first == [PREFILL.partition(".")[2], "1000", "tokens/s", "7.5", "%", "-19.0", "%"]
    assert second == ["Q4_K", "cpu", "regression"]


def test_brackets_in_names_are_no_markup() -> None:
    (row,) = shown(run(result("suite.op[bold]", 1.0, "seconds")))
    assert row[0] == "op[bold]"


@pytest.fixture
def comparison(two_commits: AsvTree) -> Comparison:
    return compare(*ResultsDirectory(two_commits.results).load_pair(A, B))


def test_summary_line(comparison: Comparison) -> None:
    assert summary_line(comparison) == (
        "FAIL: regression (exit 1): 2 regression, 1 failed, 3 ok, 1 n/a or not selected; "
        "threshold 10 %"
    )


def test_table_is_whole_where_output_is_no_terminal(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(comparison)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ("verdict benchmark parameters before after ratio 99 % interval unit better")
    assert (
        lines[1] == "regression matmul.track_ms format='Q4_0', tokens=8 2 2.3 1.150 "
        "1.145 … 1.155 ms/token lower"
    )
    assert lines[2] == ("regression matmul.track_tokens 100 85 0.850 0.847 … 0.853 tokens/s higher")
    assert not any(line.startswith(("ok", "n/a or")) for line in lines)
    assert lines[-1] == summary_line(comparison)
    print_comparison(comparison, everything=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("ok rope.time_rope 2.04 2.04 1.000 0.9") for line in lines)
    assert any(line.startswith("n/a or not selected gpu.time_gpu") for line in lines)


def test_suites_count_no_zero_and_no_unknown_direction() -> None:
    rows = [
        Row("a.x", {}, 0.0, 1.0, None, None, None, "ms", Direction.LOWER, Verdict.REGRESSION),
        Row("a.x", {}, 1.0, 0.0, 0.0, None, None, "ms", Direction.LOWER, Verdict.IMPROVED),
        Row("a.x", {}, 1.0, 2.0, 2.0, None, None, None, None, Verdict.NOT_COMPARABLE),
    ]
    assert suite_slowdowns(Comparison("a", "b", 0.1, tuple(rows), (), ())) == {}


def test_what_other_work_disturbed_is_in_no_sum() -> None:
    row = Row("a.x", {}, 1.0, 0.739, 0.739, None, None, "us", Direction.LOWER, Verdict.IMPROVED)
    spoilt = replace(row, after=3.0, ratio=3.0, marked=True, verdict=Verdict.CANNOT_TELL)
    found = Comparison("a", "b", 0.1, (row, spoilt), (), ())
    assert suite_slowdowns(found) == {"a": (1, pytest.approx(0.739))}
    better, disturbed = suite_lines(found)
    assert better.startswith("suite a: 26.1 % better (geometric mean of 1 slowdowns 0.739")
    assert disturbed == "suites without 1 benchmark that other work or throttling disturbed"
    assert comparison_cells(row, 0.1)[7] == "µs"


def test_table_on_a_terminal_is_coloured_and_reads_no_markup() -> None:
    out = io.StringIO()
    row = Row("m.[dim]x", {}, 1.0, 2.0, 2.0, 1.9, 2.1, "ms", Direction.LOWER, Verdict.REGRESSION)
    comparison = Comparison("a [red]", "b", 0.1, (row,), (), ())
    print_comparison(comparison, Console(file=out, force_terminal=True, width=120))
    assert "\x1b[1;31m" in out.getvalue()
    assert "m.[dim]x" in out.getvalue()
    assert "before: a [red]" in out.getvalue()


def test_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Comparison("a", "b", 0.1, (), (), ())
    print_comparison(nothing)
    out = capsys.readouterr().out
    words = "nothing measured on both sides that can be judged (exit 3)"
    assert out.splitlines()[-1] == f"FAIL: {words}: no benchmark; threshold 10 %"


def test_many_missing_benchmarks_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for count, rows in ((10, 10), (11, 0)):
        before = run(*(result(f"suite.op{i}", 1.0, "ms") for i in range(count)))
        print_comparison(compare(before, run(result("zz.new", 1.0, "ms"))))
        said = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("missing  ") for line in said) == rows
        assert sum(f"{count} benchmarks had a value before" in line for line in said) == 1
