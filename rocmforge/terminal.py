"""Printing for the command line: streamed text, tables, JSON, and progress while loading.

Standard output gets results, standard error everything else.
"""

from __future__ import annotations

import json
import math
import sys
import time
import unicodedata
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rocmforge.errors import shorten
from rocmforge.quantities import human_size

if TYPE_CHECKING:
    from rich.progress import Progress

LONGEST = 512  # characters of a text from a file
QUIET_SECONDS = 0.5  # seconds of work before progress shows
LINE_SECONDS = 5.0  # seconds from a line of progress to the next

# Format characters that some scripts need: they join or part letters, or stand before digits. None
# of them moves other text.
_FORMAT_KEPT = frozenset(
    "\u00ad\u180e\u200b\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
)


class _Harmless(dict[int, str]):
    """Character → what is printed for it; filled as characters come.

    A model's text must not move the cursor, send commands, hide, or change lines and their order:
    control and format characters, separators of lines and surrogates become U+FFFD.
    """

    def __missing__(self, code: int) -> str:
        char = chr(code)
        harmful = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        self[code] = "\ufffd" if harmful and char not in _FORMAT_KEPT else char
        return self[code]


_HARMLESS = _Harmless({ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""})


_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


class Output:
    """Text to standard output as it comes; `end` ends an unfinished line."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._unfinished = False
        self._aside = False

    def write(self, text: str) -> None:
        """Show `text` at once."""
        if text:
            self._end_aside()
            print(text.translate(_HARMLESS) if self._terminal else text, end="", flush=True)
            self._unfinished = not text.endswith("\n")

    def aside(self, text: str) -> None:
        """Show what is no result: dimmed at a terminal, else on standard error."""
        if text:
            harmless = text.translate(_HARMLESS)
            if self._terminal:
                print(f"{_DIM}{harmless}{_PLAIN}", end="", flush=True)
            else:
                print(harmless, end="", file=sys.stderr, flush=True)
            self._aside = True

    def _end_aside(self) -> None:
        if self._aside:
            print("\n" if self._terminal else "", file=None if self._terminal else sys.stderr)
        self._aside = False

    def end(self) -> None:
        """Begin a new line unless one has just begun."""
        self._end_aside()
        if self._unfinished:
            print(flush=True)
        self._unfinished = False


class ProgressBar:
    """Progress on standard error, once the work has taken a while.

    At a terminal it is a bar, which goes away at the end; elsewhere it is a line now and then.

    Parameters
    ----------
    title
        The name of the work, e.g. "loading".
    counts_bytes
        Whether bytes are counted.
    """

    def __init__(self, title: str, counts_bytes: bool = True) -> None:
        self._title = title
        self._counts_bytes = counts_bytes
        self._since = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total`; a bar shows at once where this comes before any is done."""
        if not sys.stderr.isatty():
            self._line(done, total)
            return
        if self._progress is None:
            if done and time.monotonic() - self._since < QUIET_SECONDS:
                return
            self._progress = self._start(total)
        self._progress.update(self._progress.task_ids[0], completed=done)
        if done >= total:  # another bar may follow: only one can be shown at a time
            self._progress.stop()

    def _line(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._since >= LINE_SECONDS:
            self._since = now
            shown = [human_size(n) if self._counts_bytes else str(n) for n in (done, total)]
            say(f"{self._title}: {' of '.join(shown)}")

    def _start(self, total: int) -> Progress:
        from rich import progress  # 0.1 s that only a bar is worth
        from rich.console import Console

        bar = progress.Progress(
            progress.TextColumn(self._title),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True)
            if self._counts_bytes
            else progress.MofNCompleteColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(self._title, total=total)
        bar.start()
        return bar


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return text from a file as one short line, control characters as U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in shorten(text, LONGEST))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: bool = False) -> None:
    """Print columns, all but the first right-aligned unless `left`."""
    lines = [titles, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if left or not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_json(document: dict[str, Any]) -> None:
    """Print JSON in ASCII, which every encoding has; NaN, which JSON lacks, as null."""
    print(json.dumps(_without_nan(document), indent=2))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
