"""The command line as a process: Ctrl-C, readers that leave, a terminal, memory of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import TIMINGS, expected

from rocmforge.profiling.process_memory import peak_memory_bytes
from rocmforge.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

SLOW = """
import time
from rocmforge.engine import Engine
def slowed(plain):
    def slow(*arguments):
        print("decoding", file=sys.stderr, flush=True)
        time.sleep(0.02)
        return plain(*arguments)
    return slow
Engine.decode, Engine.decode_tokens = slowed(Engine.decode), slowed(Engine.decode_tokens)
"""
LOADING = """
import time
import rocmforge.loading
def load_weights(*arguments):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(60)
rocmforge.loading.load_weights = load_weights
"""
IMPORTING = """
import time
class Slow:
    def find_spec(self, name, *rest):
        if name == "rocmforge.commands":
            print("importing", file=sys.stderr, flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
"""


def spawn(
    *arguments: str,
    prelude: str = "",
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start the command line after `prelude`, with Ctrl-C as a terminal's shell leaves it."""
    begin = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    end = "from rocmforge.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", begin + prelude + end, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def wait_for(process: subprocess.Popen[bytes], marker: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if marker in line.decode():
            return
    pytest.fail(f"{marker!r} never came")


@pytest.fixture
def slow(model: str) -> Iterator[Any]:
    """Function that starts a slow generation, waits until it decodes, and interrupts it."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*options: str) -> tuple[int, str, str]:
        process = spawn(
            "generate", model, "Hello", "-n", "2000", "--ignore-eos", *options, prelude=SLOW
        )
        started.append(process)
        for _ in range(4):
            wait_for(process, "decoding")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        return process.returncode, out.decode(), err.decode()

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_ctrl_c_keeps_what_was_generated(model: str, slow: Any) -> None:
    code, out, err = slow()
    assert code == 130
    whole = expected(model, "Hello", SamplingParams(max_tokens=200, ignore_eos=True))
    assert out.endswith("\n")
    assert len(out) > 3
    assert whole.startswith(out[:-1])
    assert TIMINGS.fullmatch(err.splitlines()[-1])
    assert "Traceback" not in err


def test_ctrl_c_leaves_valid_json(slow: Any) -> None:
    code, out, err = slow("--json")
    document = json.loads(out)
    assert code == 130
    assert document["finish_reason"] == "interrupted"
    assert len(document["ids"]) == document["stats"]["generated_tokens"] >= 3
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("prelude", "marker"), [(LOADING, "loading"), (IMPORTING, "importing")], ids=str.split
)
def test_ctrl_c_before_anything_was_generated(model: str, prelude: str, marker: str) -> None:
    process = spawn("generate", model, "Hello", prelude=prelude)
    try:
        wait_for(process, marker)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_leaves_ends_it_quietly(model: str) -> None:
    process = spawn("generate", model, "Hello", "-n", "2000", "--ignore-eos", prelude=SLOW)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert set(process.stderr.read().splitlines()) <= {b"decoding"}
    assert process.wait(30) == 141


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        ("<&- 2>&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
        (">&-", 1, "standard output is closed: text would be lost"),
        (">/dev/full", 1, "standard output: No space left on device: text is lost"),
        ("1</dev/null", 1, "standard output: Bad file descriptor: text is lost"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_text_that_is_lost_is_an_error(
    model: str, streams: str, code: int, said: str, unbuffered: str
) -> None:
    command = f"exec {sys.executable} -m rocmforge info {model} {streams}"
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert done.returncode == code
    assert done.stderr == (f"rocmforge: error: {said}\n" if said else "")


ENTERING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow:
    def find_spec(self, name, *rest):
        if name == "rocmforge.cli":
            print("importing", sorted(sys.modules), file=sys.stderr, flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from rocmforge.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_before_the_command_line_is_loaded(repo: Path) -> None:
    """The installed program imports nothing of ours but what catches Ctrl-C."""
    assert 'rocmforge = "rocmforge.__main__:main"' in (repo / "pyproject.toml").read_text("utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", ENTERING, "devices"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        loaded = re.findall(r"'((?:rocmforge|argparse|numpy)[^']*)'", process.stderr.readline())
        assert loaded == ["rocmforge", "rocmforge.__main__"]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    finally:
        process.kill()
    assert process.returncode == 130


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "rocmforge", "--version"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert re.fullmatch(r"rocmforge \d+\.\d+\S*\n", done.stdout)


def test_chat_at_a_terminal(model: str) -> None:
    """Ctrl-C ends a reply and keeps the conversation; at the prompt it leaves."""
    controller, inside = pty.openpty()
    process = spawn("chat", model, "-n", "2000", prelude=SLOW, stdin=inside, stdout=inside)
    os.close(inside)
    seen = b""

    def read_until(marker: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 30
        while marker not in seen and time.monotonic() < deadline:
            seen += os.read(controller, 4096)
        assert marker in seen
        seen = seen.partition(marker)[2]

    try:
        read_until(b"> ")
        os.write(controller, b"Hello\n")
        assert process.stderr is not None
        wait_for(process, "decoding")
        process.send_signal(signal.SIGINT)
        wait_for(process, "| stopped")
        read_until(b"> ")
        for _ in range(100):  # one that comes before the prompt waits for a key is held up
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                break
        # One that comes once Python has ended its own work ends the process by the signal.
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in process.stderr.read().decode()
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_peak_memory_is_this_process_own() -> None:
    ballast = b"x" * 80_000_000
    code = "from rocmforge.profiling.process_memory import peak_memory_bytes as p; print(p())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert len(ballast) < peak_memory_bytes()
    assert 10e6 < int(child.stdout) < peak_memory_bytes() - 20e6
