"""What `make` shows while it sets up: each step with its time, and the log of one that fails.

Python, pip and the compiler are stand-ins here: nothing is installed.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

PIP = """\
#!/bin/sh
case "$*" in
*install_gpu_packages.py*--list) {gpu} ;;
*install_gpu_packages.py*) exec {install} ;;
*--no-build-isolation*)
    echo '  [12/50] Building CXX object CMakeFiles/ops_avx2.dir/rocmforge/cpu/rope.cpp.o'
    exec {build} ;;
*) echo "pip $*" >>.venv/said ;;
esac
"""


class Done(NamedTuple):
    """How the script ended, and what it printed."""

    code: int
    out: str
    err: str


Setup = Callable[..., Done]


@pytest.fixture
def setup(repo: Path, tmp_path: Path) -> Setup:
    """Run the script in an empty folder whose .venv has a stand-in of Python."""

    def run(
        *words: str,
        build: str = "true",
        gpu: str = "true",
        install: str = "true",
        terminal: int | None = None,
    ) -> Done:
        python = tmp_path / ".venv/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(PIP.format(build=build, gpu=gpu, install=install))
        python.chmod(0o755)
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("w") as shown, err.open("w") as said:  # pipes would wait for a last `sleep 1`
            code = subprocess.run(
                [repo / "tools/setup_env.sh", *words],
                cwd=tmp_path,
                stdout=shown if terminal is None else terminal,
                stderr=said,
                check=False,
            ).returncode
        return Done(code, out.read_text(), err.read_text())

    return run


def test_each_step_is_shown_with_its_time_and_how_far_the_compiler_is(
    setup: Setup, tmp_path: Path
) -> None:
    """On a terminal, where the line changes every second."""
    reader, terminal = pty.openpty()
    done = setup("python3", build="sleep 2.5", terminal=terminal)
    os.close(terminal)
    assert done.code == 0, done.err
    first, *steps = os.read(reader, 10000).decode().strip().split("\r\n")
    os.close(reader)
    assert first.startswith("rocmforge: building")
    assert re.search(r"  tools that build: \d+ s$", steps[0])
    shown = "\r".join(steps)
    assert re.search(
        r"\r\033\[K  CPU kernels and the package, \d s: 12 of 50: rope.cpp, avx2", shown
    )
    assert re.search(r"  CPU kernels and the package: \d+ s$", steps[-1])
    assert (tmp_path / ".venv/ready").exists()


def test_the_log_of_a_step_that_fails_is_shown(setup: Setup, tmp_path: Path) -> None:
    done = setup("python3", build="sh -c 'echo no such header; exit 3'")
    assert done.code == 1
    assert "no such header\n" in done.err
    assert "rocmforge: CPU kernels and the package: failed after" in done.err
    assert ".venv/setup.log" in done.err
    assert not (tmp_path / ".venv/ready").exists()


def test_packages_of_a_gpu_are_installed_where_there_is_one(setup: Setup, tmp_path: Path) -> None:
    assert "GPU" not in setup("python3").out
    done = setup("python3", gpu="echo 'hip-python==6.4.*'", install="touch installed")
    assert "packages for this machine's GPU: " in done.out
    assert (tmp_path / "installed").exists()


def test_without_the_package_of_its_gpu_a_machine_is_set_up_all_the_same(
    setup: Setup, tmp_path: Path
) -> None:
    fails = "sh -c 'echo no matching distribution; exit 3'"
    done = setup("python3", gpu="echo hip-python", install=fails)
    assert done.code == 0
    assert "no matching distribution" in done.err
    assert "going on without the GPU" in done.err
    assert (tmp_path / ".venv/ready").exists()


def test_a_wrong_list_of_gpu_packages_ends_it(setup: Setup, tmp_path: Path) -> None:
    assert setup("python3", gpu="echo 'got -r' >&2; exit 2").err.endswith("got -r\n")
    assert not (tmp_path / ".venv/ready").exists()


def test_an_extra_installs_only_what_it_needs(setup: Setup, tmp_path: Path) -> None:
    done = setup("python3", "bench")
    assert done.out.startswith("rocmforge: installing what 'make bench' needs\n")
    (said,) = (tmp_path / ".venv/said").read_text().splitlines()
    assert said.endswith(" rocmforge[bench]")
    assert (tmp_path / ".venv/ready-bench").exists()
    assert not (tmp_path / ".venv/ready").exists()


def test_a_missing_python_is_named(setup: Setup) -> None:
    done = setup("python-none")
    assert done.code == 1
    assert "no 'python-none' on this machine" in done.err
