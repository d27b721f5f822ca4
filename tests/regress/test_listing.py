"""The table of one run: values, spread, change, and what is shown where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from rocmforge.hardware import Hardware
from rocmforge.regress.compare import compare
from rocmforge.regress.listing import results_table
from rocmforge.regress.records import Direction, Record, ResultSet, Status
from rocmforge.regress.statistics import summarize


def record(name: str, value: float | None, unit: str, spread: float = 0.0) -> Record:
    samples = () if value is None else tuple(value * (1 + spread * (i - 8) / 8) for i in range(17))
    return Record(
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


def run(*records: Record) -> ResultSet:
    return ResultSet(Path("x.json"), "box", "a" * 40, None, "env", Hardware(cpu_name="x"), records)


def shown(now: ResultSet, before: ResultSet | None = None) -> list[list[str]]:
    comparison = compare(before, now) if before else None
    console = Console(width=200)
    with console.capture() as capture:
        console.print(results_table(now.records, comparison))
    return [line.split() for line in capture.get().splitlines()[1:]]


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
    (row,) = shown(run(record("suite.op", value, unit)))
    assert row == ["suite.op", "Q4_K", "cpu", *text, "17"]


def test_the_interval_is_in_the_unit_of_the_median() -> None:
    (row,) = shown(run(record("suite.op", 0.008, "seconds", spread=0.5)))
    assert row[3:] == ["8", "ms", "5", "…", "11", "17"]  # 3rd smallest, 3rd largest


def test_a_failure_and_a_change_are_named() -> None:
    before = run(
        record("suite.slower", 0.010, "seconds"),
        record("suite.faster", 50.0, "tokens/s"),
        record("suite.same", 0.010, "seconds"),
        record("suite.broken", 0.010, "seconds"),
    )
    now = run(
        record("suite.slower", 0.0115, "seconds"),
        record("suite.faster", 60.0, "tokens/s"),
        record("suite.same", 0.0102, "seconds"),
        record("suite.broken", None, "seconds"),
        record("suite.new", 0.010, "seconds"),
    )
    rows = {row[0]: row for row in shown(now, before)}
    assert rows["suite.slower"][-5:] == ["10", "ms", "+15.0", "%", "regression"]
    assert rows["suite.faster"][-5:] == ["50", "tokens/s", "+20.0", "%", "improved"]
    assert rows["suite.same"][-2:] == ["+2.0", "%"]
    assert rows["suite.broken"][3:] == ["failed"]
    assert rows["suite.new"][-1] == "17"


def test_a_narrow_table_fits_into_80_columns() -> None:
    name = "inference.Prompt.track_prefill_tokens_per_second"
    before, now = (run(record(name, value, "tokens/s", 0.1)) for value in (1234.5, 1000.25))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results_table(now.records, compare(before, now), narrow=True))
    head, first, second = (line.split() for line in capture.get().splitlines())
    assert head == ["benchmark", "median", "change"]
    assert first == [name, "1000", "tokens/s", "-19.0", "%"]
    assert second == ["Q4_K", "cpu", "regression"]


def test_brackets_in_names_are_no_markup() -> None:
    (row,) = shown(run(record("suite.op[bold]", 1.0, "seconds")))
    assert row[0] == "suite.op[bold]"
