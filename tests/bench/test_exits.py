"""Exit codes: what each error becomes, and that it is one line."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rocmforge.bench import exits
from rocmforge.errors import DeviceError, MeasurementError, ResultFileError


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MeasurementError("nothing measured"), 3, "tool: nothing measured"),
        (ImportError("No module named 'asv'"), 2, "No module named 'asv': in the checkout, pip"),
        (ImportError("no such name", name="rocmforge.hardware"), 2, "tool: error: no such name\n"),
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


def test_sigterm_is_ctrl_c_while_the_tool_works(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert exits.run("tool", work, "all is kept") == 130
    assert capsys.readouterr().err == "tool: interrupted; all is kept\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_behind_the_standard_output_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert exits.run("tool", lambda: 0) == exits.BROKEN
    said = "tool: error: [Errno 28] No space left on device: 'standard output'\n"
    assert capsys.readouterr().err == said


def test_a_thread_may_work_too() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(exits.run("tool", lambda: 1)))
    thread.start()
    thread.join()
    assert codes == [1]


def test_an_error_of_a_hostile_file_is_one_short_line_without_escapes() -> None:
    what = "a\n\x1b[31mb"
    error = ResultFileError(Path("x"), what, got=["y" * 10_000], wanted="z\tw")
    text = str(error)
    assert text.startswith("x: a [31mb: got ['yyy")
    assert text.endswith("…, wanted z w")
    assert len(text) < 1000


def test_what_nobody_expects_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        exits.run("tool", raising(ZeroDivisionError()))


def test_a_reader_that_goes_away_is_no_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a closed pipe rich makes an exit with 1; what argparse says stays as it is."""
    dropped: list[object] = []
    monkeypatch.setattr(exits, "discard", dropped.append)
    assert exits.run("tool", raising(SystemExit(1))) == exits.BROKEN_PIPE
    assert exits.run("tool", raising(BrokenPipeError())) == exits.BROKEN_PIPE
    assert dropped == [sys.stdout] * 2
    with pytest.raises(SystemExit) as stopped:
        exits.run("tool", raising(SystemExit(2)))
    assert stopped.value.code == 2


def test_a_closed_standard_output_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert exits.run("tool", raising(AssertionError("never called"))) == exits.BROKEN
    assert "standard output is closed: text would be lost" in capsys.readouterr().err
