"""Runs asv 0.6.6 as a program: its configuration, its command lines, builds of commits.

asv measures in an environment of its own; here that is an interpreter with a commit's build.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rocmforge.atomic import naming_full_disk
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.files import (
    finite_number,
    is_strings,
    kind_of,
    read_json,
    read_text,
    refuse_empty,
    typed_field,
    write_bytes,
    write_json,
)
from rocmforge.bench.reports import compact, reports_path
from rocmforge.bench.results import ResultSet, Status
from rocmforge.errors import MeasurementError, ResultFileError, brief

_CONFIG_VERSION = 1
_CONFIG_MOST_BYTES = 2**16  # its parser takes a second for so many, and minutes for some megabytes
_PATIENCE_S = 3.0
FORKED = ("--launch-method", "forkserver")  # imports once a run: half of the time
_SETTINGS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(
        (
            *("project", "project_url", "show_commit_url", "repo"),
            *("benchmark_dir", "env_dir", "results_dir", "html_dir"),
        ),
        (str, "a string"),
    ),
    **dict.fromkeys(("branches", "plugins"), (list, "a list of strings")),
    **dict.fromkeys(("regressions_thresholds", "regressions_first_commits"), (dict, "an object")),
    "hash_length": (int, "a number of digits"),
}
"""What is used of asv's configuration, which asv itself takes as it is."""
_DISCOVER = """
import sys
from asv_runner._aux import update_sys_path
from asv_runner.discovery import disc_benchmarks
update_sys_path(sys.argv[1])
list(disc_benchmarks(sys.argv[1]))
"""
FAILURES = 2  # asv's exit code where some benchmark failed and the rest was recorded


def write_config(root: Path, work: Path) -> Path:
    """Write a project's asv configuration with everything that asv writes below `work`.

    Parameters
    ----------
    root
        Holds asv.conf.json, the benchmarks and the repository.
    work
        Made where it is not there; gets ``asv.conf.json``, ``results``, ``env`` and ``html``.
    """
    config = read_config(root / "asv.conf.json")
    up = os.path.relpath(root, work)
    config |= {
        "version": 1,
        "repo": up,
        "benchmark_dir": f"{up}/{_benchmark_dir(config)}",
        "env_dir": "env",
        "results_dir": "results",
        "html_dir": "html",
    }
    path = work / "asv.conf.json"
    (work / "results").mkdir(parents=True, exist_ok=True)
    write_json(path, config)
    return path


def read_thresholds(config: Path) -> dict[str, float]:
    """Return ``regressions_thresholds`` of asv's configuration: expressions and fractions.

    Raises
    ------
    ResultFileError
        The file is broken, or a threshold is no number above 0 or its expression is none.
    """
    return thresholds_of(read_config(config), config)


def thresholds_of(settings: Mapping[str, Any], config: Path) -> dict[str, float]:
    """Return `read_thresholds` of what `read_config` returned of that file; errors as there."""
    found = settings.get("regressions_thresholds", {})
    for name, value in found.items():
        what = f"regressions_thresholds of {name!r}"
        if finite_number(config, what, value) <= 0:
            raise ResultFileError(config, what, got=value, wanted="a number above 0")
        refuse_no_expression(config, what, name)
    return {name: float(value) for name, value in found.items()}


def refuse_no_expression(config: Path, what: str, text: str) -> None:
    """Raise ResultFileError where a key of the configuration is no expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ResultFileError(config, what, got=error, wanted="an expression") from error


def known_thresholds(config: Path) -> dict[str, float]:
    """Return `read_thresholds`, or nothing where there is no such file."""
    return read_thresholds(config) if os.path.lexists(config) else {}


def read_config(config: Path) -> dict[str, Any]:
    """Read asv's configuration: JSON with comments.

    Raises
    ------
    ResultFileError
        The file is missing, too large or broken, a value in it is of another type, or asv is
        missing.
    """
    try:
        import json5
    except ImportError as error:
        raise ResultFileError(
            config, "asv", got=error, wanted="in the checkout, pip install -e '.[bench]'"
        ) from error
    text = read_text(config, "asv's settings", _CONFIG_MOST_BYTES)
    refuse_empty(config, text, "asv's settings")
    try:
        stored = json5.loads(text, allow_duplicate_keys=False)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(config, "content", got=error, wanted="asv's settings") from error
    if not isinstance(stored, dict):
        raise ResultFileError(config, "content", got=kind_of(stored), wanted="asv's settings")
    version = stored.get("version")
    if version != _CONFIG_VERSION or isinstance(version, bool):
        raise ResultFileError(config, "version", got=version, wanted=_CONFIG_VERSION)
    for key, (kind, wanted) in _SETTINGS.items():
        if key in stored and not _fits(stored[key], kind):
            raise ResultFileError(config, key, got=brief(stored[key]), wanted=wanted)
    return stored


def _fits(value: object, kind: type) -> bool:
    if kind is list:
        return is_strings(value)
    return isinstance(value, kind) and not isinstance(value, bool) and "\0" not in str(value)


def benchmarks_folder(config: Path) -> Path:
    """Return where asv's configuration says that the benchmarks are; ResultFileError as there."""
    return (config.parent / _benchmark_dir(read_config(config))).resolve()


def _benchmark_dir(config: Mapping[str, Any]) -> str:
    return str(config.get("benchmark_dir", "benchmarks"))


def command(work: Path, *arguments: str) -> list[str]:
    """Return the command line of asv with the configuration in `work`."""
    return [sys.executable, "-m", "asv", "--config", str(work / "asv.conf.json"), *arguments]


def run_command(work: Path, python: str, commit: str, machine: str, *more: str) -> list[str]:
    """Return the command that measures an interpreter's installed package and says it is `commit`.

    Samples are recorded. `more` are further options, such as ``--bench``.
    """
    fixed = ("-E", f"existing:{python}", "--set-commit-hash", commit, "--machine", machine)
    return command(work, "run", *fixed, "--record-samples", "--show-stderr", *more)


def run(
    words: Sequence[str],
    log: Path,
    on_line: Callable[[str], None],
) -> int:
    """Run asv to its end; return its exit code.

    Parameters
    ----------
    words
        Of `run_command`.
    log
        Gets all that it prints, behind what is there.
    on_line
        Called with each line.

    Raises
    ------
    MeasurementError
        asv cannot make its locks here.
    """
    _check_locks()
    with (
        log.open("ab", buffering=0) as file,
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                with naming_full_disk(log):
                    file.write(line.encode())
                on_line(line)
        except BaseException:
            _stop(process)
            raise
    return process.returncode


def _check_locks() -> None:
    """Say why asv cannot be imported where it cannot make a lock; it names no file itself."""
    try:
        multiprocessing.Lock()
    except OSError as error:
        wanted = "a folder that can be written: asv keeps its locks there"
        raise MeasurementError(f"/dev/shm: got {error.strerror}, wanted {wanted}") from error


def _captured(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run asv, and where that is interrupted, let it end its benchmark first."""
    _check_locks()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace"
    ) as process:
        try:
            said = process.communicate()
        except BaseException:
            _stop(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, *said)


def _stop(process: subprocess.Popen[str]) -> None:
    """Let asv end its benchmark and itself, as on Ctrl-C, which it may have got as well."""
    for number in (None, signal.SIGINT, signal.SIGKILL):
        if number is not None:
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
            return


def asv_environment_name(python: str) -> str:
    """Return asv's name of an interpreter that is there already, as result files have it."""
    from asv.environment import get_env_name

    name: str = get_env_name("existing", python.replace(os.path.sep, "_"), {}, {})
    return name


def result_file(machine: str, commit: str, asv_environment: str) -> Path:
    """Return where asv keeps a result, below its ``results_dir``; long names become a hash."""
    from asv.results import get_filename

    return Path(get_filename(machine, commit, asv_environment))


def failures(results: Path, machine: str, commit: str, python: str) -> set[tuple[str, int]]:
    """Return what a run recorded as failed: benchmarks, each with the index of its parameters.

    Raises
    ------
    ResultFileError
        There is no such result, or it is broken.
    """
    seen: Counter[str] = Counter()
    found = set()
    for result in (
        ResultsDirectory(results, machine).load(commit, asv_environment_name(python)).results
    ):
        if result.status is Status.FAILED:
            found.add((result.name, seen[result.name]))
        seen[result.name] += 1
    return found


def keep_results(
    source: Path,
    target: Path,
    machine: str,
    commit: str,
    python: str,
    failed: Iterable[tuple[str, int]] = (),
) -> Path:
    """Copy what an interpreter measured for a commit into another results directory.

    The interpreter's path, which asv takes for its name and version, becomes Python's version: a
    committed file tells nothing of where the machine keeps its environments.

    Parameters
    ----------
    source, target
        asv's ``results_dir``; the second gets benchmarks.json, machine.json and what the processes
        reported too.
    machine
        asv's name of the machine.
    commit
        Full hash.
    python
        The interpreter.
    failed
        As of `failures`: what has failed though this result has a value of it. asv, appending to
        samples, keeps the last run's word alone.

    Returns
    -------
    Path
        The new result file; one of the same commit and version is replaced.

    Raises
    ------
    ResultFileError
        There is no such result, or it is broken.
    """
    measured = read_json(source / result_file(machine, commit, asv_environment_name(python)))
    version = ".".join(platform.python_version_tuple()[:2])
    name = f"existing-py{version}"
    params = {**typed_field(source, measured, "params", dict, "an object"), "python": version}
    measured |= {"env_name": name, "python": version, "params": params}
    column = measured["result_columns"].index("result")
    for benchmark, index in failed:
        values = measured["results"][benchmark][column]
        if values is not None:  # None: all of it failed
            values[index] = None
    path = target / result_file(machine, commit, name)
    write_bytes(path, json.dumps(measured).encode())
    reports = reports_path(source / result_file(machine, commit, asv_environment_name(python)))
    if reports.exists():
        write_bytes(reports_path(path), compact(reports))
    else:  # those of an earlier run say nothing of this one
        reports_path(path).unlink(missing_ok=True)
    for rest in ("benchmarks.json", f"{machine}/machine.json"):
        write_bytes(target / rest, (source / rest).read_bytes())
    return path


class Builds:
    """The package of some commits, each built once and measured in an interpreter of its own.

    An interpreter has the commit's package and, behind it, all that is installed here. What another
    Python or another compiler built is not taken for it.

    Parameters
    ----------
    root
        The repository, with asv.conf.json.
    work
        Where builds, configuration and results go.
    machine
        asv's name of this machine.
    """

    def __init__(self, root: Path, work: Path, machine: str) -> None:
        self._root, self._work, self._machine = root, work.resolve(), machine
        write_config(root, self._work)

    def prepare(self, commit: str) -> Path:
        """Return the interpreter of a commit, building its package where that was not done yet.

        Raises
        ------
        ResultFileError
            git or pip failed; the message has the end of what it said.
        """
        folder = self._work / "builds" / f"{commit}-{toolchain()}"
        python = folder / "bin" / "python"
        if (folder / "built").exists():
            return python
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], folder)
        purelib = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        own = Path(purelib) / "of_the_caller.pth"
        write_bytes(own, f"{sysconfig.get_path('purelib')}\n".encode())
        with TemporaryDirectory() as tree:
            _run(["git", "clone", "--quiet", "--shared", str(self._root), tree], folder)
            _run(["git", "-C", tree, "checkout", "--quiet", "--detach", commit], folder)
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            _run([*install, "--no-build-isolation", "--target", purelib, tree], folder)
        (folder / "built").touch()
        return python

    def benchmarks(self, commit: str) -> Path:
        """Return the folder of the benchmarks that can measure a commit's build.

        It is the working tree's folder where that build has all that its benchmarks import. For an
        older commit it is the commit's own folder, exported beside the build.

        Raises
        ------
        ResultFileError
            As of `prepare`; or the commit has no such folder.
        """
        python = self.prepare(commit)
        folder = benchmarks_folder(self._root / "asv.conf.json")
        if _said([str(python), "-I", "-c", _DISCOVER, str(folder)]).returncode == 0:
            return folder
        own = python.parent.parent / "own" / folder.name
        if not own.exists():
            inside = os.path.relpath(folder, self._root.resolve())
            with TemporaryDirectory() as made:
                file = f"{made}/benchmarks.tar"
                archive = ["git", "-C", str(self._root), "archive", "-o", file, commit]
                _run([*archive, "--", inside], own)
                shutil.unpack_archive(file, made)
                shutil.copytree(Path(made, inside), own)
        return own

    def run(self, commit: str, *more: str) -> ResultSet:
        """Run asv once on a commit, and read what it recorded.

        Parameters
        ----------
        commit
            Full hash.
        more
            Options of ``asv run``, such as ``--bench``.

        Raises
        ------
        ResultFileError
            asv could not be run.
        """
        python = str(self.prepare(commit))
        name = result_file(self._machine, commit, asv_environment_name(python))
        written = self._work / "results" / name
        for stale in (written, reports_path(written)):
            stale.unlink(missing_ok=True)  # asv would merge into it
        words = run_command(self._work, python, commit, self._machine, *FORKED, *more)
        done = _captured(words)
        if done.returncode not in (0, FAILURES) or not written.exists():
            raise ResultFileError(
                self._work, "asv run", got=_end(done), wanted="results of its benchmarks"
            )
        found = ResultsDirectory(self._work / "results", self._machine)
        return found.load(commit, asv_environment_name(python))


@functools.cache
def toolchain() -> str:
    """Return what tells builds apart that other versions of Python or the compiler made: a hash."""
    try:
        words = ["c++", "--version"]
        said = _said(words).stdout
    except FileNotFoundError:
        said = ""
    versions = "\n".join([platform.python_version(), *said.splitlines()[:1]])
    return hashlib.sha256(versions.encode()).hexdigest()[:8]


def _run(words: Sequence[str], folder: Path) -> None:
    done = _said(words)
    if done.returncode:
        raise ResultFileError(folder, " ".join(words[:5]), got=_end(done), wanted="exit 0")


def _said(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever bytes it prints."""
    return subprocess.run(
        words, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-600:]}"
