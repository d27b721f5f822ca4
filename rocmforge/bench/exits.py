"""Exit codes of everything that measures and judges, and one place where errors become one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

from rocmforge.atomic import naming_full_disk
from rocmforge.errors import MeasurementError, RocmforgeError

FAILED, BROKEN, NOTHING_MEASURED = 1, 2, 3
INTERRUPTED, BROKEN_PIPE = 130, 141  # as shells count signals
TABLE = """
exit codes:
  0    done, and nothing is surely worse
  1    a regression, or a benchmark that failed
  2    wrong usage, or broken input: a file, git, a build or asv; the message names it
  3    nothing measured: no value, no baseline, benchmarks that are missing, or too much other work
  4    the results are of other hardware
  130  interrupted, by Ctrl-C or SIGTERM
  141  the reader of the output has gone
"""


def run(prog: str, work: Callable[[], int], interrupted: str = "") -> int:
    """Do the work of a command; return its exit code, or that of the error that it raised.

    SIGTERM, by which CI systems end a job, is taken for Ctrl-C. An error is one line on standard
    error, never a traceback.

    Parameters
    ----------
    prog
        Name of the command.
    work
        Returns the exit code where nothing is raised.
    interrupted
        What is said behind "interrupted" on Ctrl-C.

    Returns
    -------
    int
        NOTHING_MEASURED for MeasurementError, BROKEN for a file, an argument or a missing package,
        INTERRUPTED for Ctrl-C, BROKEN_PIPE where nobody reads the output any more.
    """
    if sys.stdout is None:
        print(f"{prog}: error: standard output is closed: text would be lost", file=sys.stderr)
        return BROKEN
    try:
        with _terminating_as_interrupt(), naming_full_disk(Path("standard output")):
            code = work()
            print(end="", flush=True)
            return code
    except MeasurementError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return NOTHING_MEASURED
    except ImportError as error:
        ours = (error.name or "").startswith("rocmforge")
        mend = "" if ours else ": in the checkout, pip install -e '.[bench]'"
        print(f"{prog}: error: {error}{mend}", file=sys.stderr)
        return BROKEN
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except (RocmforgeError, ValueError, OSError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return BROKEN
    except SystemExit as stopped:
        if stopped.code != 1:
            raise
        discard(sys.stdout)
        return BROKEN_PIPE  # rich ends a program by 1 where its reader has gone
    except KeyboardInterrupt:
        print(f"{prog}: interrupted{interrupted and f'; {interrupted}'}", file=sys.stderr)
        return INTERRUPTED


def discard(*streams: TextIO) -> None:
    """Drop what is buffered: Python would fail to write it at exit, and say so."""
    with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError):  # a stream without a file
        for stream in streams:
            os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
