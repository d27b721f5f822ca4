"""The table of one run: values, spread, change, and what is shown where there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from rocmforge.bench.compare import compare
from rocmforge.bench.listing import headline, noise_line, results_table
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
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
