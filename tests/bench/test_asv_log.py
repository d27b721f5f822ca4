"""Why a benchmark failed or is n/a, from what asv printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.bench.asv_log import absent_lines, failed_lines, reasons
from rocmforge.bench.results import Result, Status

LOG = """\
· Discovering benchmarks
[ 0.00%] ·· Benchmarking existing-py_usr_bin_python3
[10.00%] ··· Running (matmul.time_matmul--).
[20.00%] ··· matmul.time_matmul                                    2/4 failed
[20.00%] ··· ======== =============
              format     tokens
             ======== =============
               Q4_K      failed
             ======== =============

[20.00%] ···· For parameters: 'Q4_K', 8
              Traceback (most recent call last):
                File "benchmarks/checks.py", line 20, in checked
                  raise MeasurementError(
              rocmforge.errors.MeasurementError: matmul: wrong result, not timed
              asv: benchmark failed (exit status 1)

              For parameters: 'Q8_0', 1
              asv: skipped: NotImplementedError("no GPU's library")

              For parameters: 'Q8_0', 8
              a word before it crashed
              asv: benchmark failed (exit status -11)

[30.00%] ··· rope.time_rope                                            failed
[30.00%] ···· asv: benchmark timed out (timeout 60.0s)
[40.00%] ··· rope.time_quiet                                           failed
[50.00%] ··· rope.time_none                                               n/a
[50.00%] ···· asv: skipped: NotImplementedError()
[60.00%] ··· rope.time_odd                                                n/a
[60.00%] ···· asv: skipped: NotImplementedError(Reason(3))
[70.00%] ··· rope.track_ok                                               12.0
[70.00%] ···· a warning that nobody asked for
"""


def result(name: str, status: Status, *params: str) -> Result:
    value = 1.0 if status is Status.OK else None
    names = tuple(f"p{i}" for i in range(len(params)))
    return Result(name, names, params, status, value, None, (), None, None, None, None)


RESULTS = (
    result("matmul.time_matmul", Status.OK, "'Q4_K'", "1"),
    result("matmul.time_matmul", Status.FAILED, "'Q4_K'", "8"),
    result("matmul.time_matmul", Status.SKIPPED, "'Q8_0'", "1"),
    result("matmul.time_matmul", Status.FAILED, "'Q8_0'", "8"),
    result("rope.time_rope", Status.FAILED),
    result("rope.time_quiet", Status.FAILED),
    result("rope.time_none", Status.SKIPPED),
    result("rope.time_odd", Status.SKIPPED),
    result("rope.track_ok", Status.OK),
)
WHY = {
    "matmul.time_matmul('Q4_K', 8)": (
        "rocmforge.errors.MeasurementError: matmul: wrong result, not timed"
    ),
    "matmul.time_matmul('Q8_0', 1)": "no GPU's library",
    "matmul.time_matmul('Q8_0', 8)": "asv: benchmark failed (exit status -11)",
    "rope.time_rope": "asv: benchmark timed out (timeout 60.0s)",
    "rope.time_quiet": "it gave no value",
    "rope.time_none": "it gave no reason",
    "rope.time_odd": "Reason(3)",
}


def test_each_result_without_a_value_has_the_reason_that_its_process_gave(tmp_path: Path) -> None:
    log = tmp_path / "bench.log"
    log.write_text(LOG, encoding="utf-8")
    assert reasons(log, RESULTS) == WHY


def test_a_name_that_asv_cut_to_the_width_of_a_terminal_is_found(tmp_path: Path) -> None:
    log = tmp_path / "bench.log"
    log.write_text(
        LOG.replace("··· matmul.time_matmul  ", "··· ...mul.time_matmul  "), encoding="utf-8"
    )
    assert reasons(log, RESULTS) == WHY


@pytest.mark.parametrize("text", ["", "\x00\xff", LOG[: len(LOG) // 2]])
def test_a_log_that_says_nothing_gives_a_reason_all_the_same(tmp_path: Path, text: str) -> None:
    log = tmp_path / "bench.log"
    log.write_bytes(text.encode("latin-1", "ignore"))
    assert reasons(log, RESULTS).keys() == WHY.keys()


def test_reasons_are_listed_failures_singly_and_others_by_reason() -> None:
    assert failed_lines(RESULTS, WHY)[-1] == "rope.time_quiet: it gave no value"
    assert len(failed_lines(RESULTS, WHY)) == 4
    many = [result("m.time", Status.SKIPPED, str(number)) for number in range(9)]
    why = {one.label: "no GPU was found" for one in many}
    assert absent_lines(many, why) == [
        "no GPU was found: m.time(0), m.time(1), m.time(2) and 6 more"
    ]
