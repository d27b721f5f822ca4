"""Chat templates: Jinja source from a model file, rendered in a process with limits.

A template is code from outside. If it leaves the sandbox, or exceeds the limits of memory and time
below, that is a TokenizerError. `template_process.py` is the process, with Jinja and the sandbox;
this file starts it and sends it the messages.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rocmforge.errors import TokenizerError, shorten

MAX_SOURCE = 1 << 16  # characters of a template; real ones have up to 30 thousand
MAX_TEXT = 1 << 22  # characters of the result: a million tokens
MEMORY = 1 << 27  # bytes, beside the 20 MiB that an interpreter with Jinja takes
SECONDS = 0.8  # of processor time, to compile a template and for each rendering

# The standard library and the packages are found where this process finds them; `site`, which
# takes longer than all the rest, is left out.
_START = (
    "import sys; program, *sys.path[:] = sys.argv[1], *sys.argv[5:]; "
    "import runpy; runpy.run_path(program, run_name='__main__')"
)


class ChatTemplate:
    """One template, compiled once in a process of its own that ends with this object.

    Parameters
    ----------
    source
        Jinja source. As in Hugging Face, the line and indentation of a block are removed with it.
    name
        What error messages call it: the file's path.

    Raises
    ------
    TokenizerError
        The source is too long or no Jinja.
    """

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        if len(source) > MAX_SOURCE:
            self._fail(f"got {len(source)} characters, wanted at most {MAX_SOURCE}")
        self._source = source
        self._lock = threading.Lock()  # one question at a time
        self._start()

    def render(self, **variables: object) -> str:
        """Return the text that the template makes of `variables`, which JSON must be able to hold.

        Raises
        ------
        TokenizerError
            The template fails, calls `raise_exception`, or exceeds a limit.
        """
        try:
            question = json.dumps(variables, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(f"its variables: {error}")
        with self._lock:
            if self._process.poll() is not None:  # a template killed it, or a fork made us another
                self._end()
                self._start()
            return self._ask(question)

    def _start(self) -> None:
        python = sys.executable or "python3"
        program = Path(__file__).with_name("template_process.py")
        limits = map(str, (MEMORY, SECONDS, MAX_TEXT))
        try:
            self._process = subprocess.Popen(
                [python, "-S", "-c", _START, program, *limits, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            self._fail(f"cannot start {python}: {error}")
        self._end = weakref.finalize(self, _end, self._process)
        self._ask(json.dumps(self._source))

    def _ask(self, question: str) -> str:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(question.encode() + b"\n")
                process.stdin.flush()
            word, _, size = process.stdout.readline().partition(b" ")
            answer = process.stdout.read(int(size or 0))
        except BaseException:  # the answer would be taken for that to the next question
            self._end()
            raise
        if not word or len(answer) < int(size):
            self._end()
            killed = process.returncode == -signal.SIGPROF
            code = f"its process ended with code {process.returncode}"
            self._fail(f"takes more than {SECONDS} s" if killed else code)
        text = answer.decode("utf-8", "surrogatepass")
        if word != b"ok":
            self._fail(text)
        return text

    def _fail(self, what: str) -> NoReturn:
        raise TokenizerError(f"{self._name}: tokenizer.chat_template: {shorten(what)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and close its pipes; one that another process started is left running."""
    process.kill()
    with suppress(BrokenPipeError), process:  # a question it did not read
        pass


def _plain(value: object) -> object:
    """Return what JSON holds in place of a mapping or sequence of another type."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"got a {type(value).__name__}, wanted what JSON can hold")
