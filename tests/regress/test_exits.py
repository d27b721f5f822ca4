"""Exit codes of the tools: what each error becomes, and that it is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocmforge.errors import DeviceError, MeasurementError, ResultFileError
from rocmforge.regress import exits


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MeasurementError("nothing measured"), 3, "tool: nothing measured"),
        (ImportError("No module named 'asv'"), 2, "No module named 'asv': pip install 'rocmforge["),
        (DeviceError("no GPU"), 2, "tool: error: no GPU"),
        (ResultFileError(Path("x"), "content", got=1, wanted=2), 2, "tool: error: x"),
        (ValueError("threshold: got -1"), 2, "tool: error: threshold: got -1"),
        (OSError("disk full"), 2, "tool: error: disk full"),
        (KeyboardInterrupt(), 130, "tool: interrupted; all is kept"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits.run("tool", raising(error), "all is kept") == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tool: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_the_works_own_code_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.run("tool", lambda: 1) == 1
    assert exits.run("tool", raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "tool: interrupted\n"


def test_what_nobody_expects_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        exits.run("tool", raising(ZeroDivisionError()))
