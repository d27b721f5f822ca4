"""Runs a profiler of another maker on a program, reads what it wrote, and joins it with our ops.

Each run has a process group of its own, all of which ends on Ctrl-C and at the time limit. What the
tool wrote takes its place as a whole folder, before it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rocmforge.atomic import naming_full_disk, whole_file, whole_folder
from rocmforge.errors import ProfilerError, one_line
from rocmforge.profiling import counters as card
from rocmforge.profiling import recipes, tools
from rocmforge.profiling.flame_graph import flame_graph
from rocmforge.profiling.join import KernelRow, join, returned
from rocmforge.profiling.readers.perf_script import Stacks, read_perf_script
from rocmforge.profiling.readers.read import read
from rocmforge.profiling.readers.records import Recording

PATIENCE_SECONDS = 10.0
"""For a tool that is told to end, to write what it has."""

LEAST_FREE_BYTES = 1024**2
"""A disk with less is full: tools write in larger pieces."""

_LAST_LINES = 8
_TAIL_BYTES = 16 * 1024
_FULL = "No space left on device"


@dataclass(frozen=True)
class ExternalProfile:
    """What a tool saw of a program.

    Parameters
    ----------
    tool, version
        Which ran.
    recipe, architecture
        What was asked for, and the card; None: the CPU, or no card was found.
    commands
        What ran, in order.
    folder
        What the tool wrote, and what the program printed.
    seconds
        Wall time of all runs together.
    kernels
        Longest first; empty for perf.
    stacks
        Of perf; None for the tools of GPUs.
    recordings
        As they were read, one for each run.
    remarks
        What a user should know.
    """

    tool: str
    version: str | None
    recipe: str
    architecture: str | None
    commands: tuple[tuple[str, ...], ...]
    folder: Path
    seconds: float
    kernels: tuple[KernelRow, ...] = ()
    stacks: Stacks | None = None
    recordings: tuple[Recording, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all but the single runs of kernels, as JSON takes it."""
        return {
            "tool": self.tool,
            "version": self.version,
            "recipe": self.recipe,
            "architecture": self.architecture,
            "commands": [list(argv) for argv in self.commands],
            "folder": str(self.folder),
            "seconds": self.seconds,
            "kernels": [asdict(row) for row in self.kernels],
            "samples": None if self.stacks is None else self.stacks.total,
            "functions": None if self.stacks is None else dict(self.stacks.leaves()),
            "remarks": list(self.remarks),
        }


def profile_with(
    tool: str,
    recipe: str,
    command: Sequence[str],
    folder: Path,
    *,
    architecture: str | None = None,
    counters: Sequence[str] = (),
    limit_seconds: float | None = None,
    root: Path = Path("/"),
) -> ExternalProfile:
    """Run a program under a tool, read the result, and join it with our ops.

    Parameters
    ----------
    tool, recipe
        One of `recipes.TOOLS` and one of `recipes.RECIPES`.
    command
        The program and its arguments. It runs once for each group of counters.
    folder
        New or empty; it has the tool's files afterwards.
    architecture
        The card's; None: the first AMD GPU of the driver's topology.
    counters
        Names, in place of the recipe's own.
    limit_seconds
        Of each run; None: no limit.
    root
        Of the file system that the driver's files are in.

    Raises
    ------
    ValueError
        The tool, the recipe, a counter or the folder is none that can be used; nothing ran.
    ProfilerError
        The tool is missing, failed, took longer than the limit, or wrote nothing.
    ResultFileError
        What it wrote cannot be read; it is in the folder.
    OSError
        The folder cannot be written.
    """
    recipes.check(tool, recipe, command)
    _check_folder(folder)
    program = _program(command)
    found = tools.find_tool(tool)
    architecture = architecture or card.card_architecture(root)

    def runs_in(place: Path, features: set[str]) -> list[recipes.Pass]:
        return recipes.build(
            tool, recipe, architecture, program, place, names=counters, features=features
        )

    runs_in(folder, set())  # refuses what is wrong before anything runs
    if found.path is None:
        raise ProfilerError(f"{tool} is not installed: {_how_to_get(found)}")
    features = _features(found)
    level = card.performance_level(root)
    begin = time.perf_counter()
    with whole_folder(folder) as work:
        (work / "new").mkdir()
        for one in runs_in(work / "new", features):
            _run(one, found.path, work / "new", limit_seconds)
    seconds = time.perf_counter() - begin
    runs = runs_in(folder, features)
    ran = ExternalProfile(
        tool,
        found.version,
        recipe,
        None if tool == "perf" else architecture,
        tuple(one.argv for one in runs),
        folder,
        seconds,
        remarks=(f"{tool}: {found.remark}",) if found.remark else (),
    )
    read_back = _with_stacks(ran, runs) if tool == "perf" else _with_kernels(ran, runs, level)
    _write(folder / "profile.json", json.dumps(read_back.to_json(), indent=2) + "\n")
    return read_back


def _with_stacks(ran: ExternalProfile, runs: Sequence[recipes.Pass]) -> ExternalProfile:
    stacks = read_perf_script(runs[-1].output)
    picture = ran.folder / "flame_graph.svg"
    _write(ran.folder / "stacks.txt", stacks.collapsed())
    program = runs[0].argv[runs[0].argv.index("--") + 3 :]  # behind env and its variable
    _write(picture, flame_graph(stacks.samples, recipes.shown(program)))
    said = (*ran.remarks, *stacks.remarks, f"flame graph: {picture}")
    return replace(ran, stacks=stacks, remarks=said)


def _with_kernels(
    ran: ExternalProfile, runs: Sequence[recipes.Pass], level: str | None
) -> ExternalProfile:
    recordings = tuple(read(one.output) for one in runs)
    # A run whose counters were all dropped is no second trace: its kernels would count twice.
    both = list(zip(runs, recordings, strict=True))
    counted = [one for run, one in both if run.counters or returned([one])]
    traces = [one for run, one in both if not (run.counters or returned([one]))]
    kernels, distrusted = join(traces, counted, ran.architecture, level)
    said = [*ran.remarks, *_counter_remarks(ran, runs, recordings, level), *distrusted]
    said += [remark for one in recordings for remark in one.remarks]
    if not kernels:
        said.append("no kernel ran on a GPU; did the program use one? See its --device")
    return replace(
        ran, kernels=tuple(kernels), recordings=recordings, remarks=tuple(dict.fromkeys(said))
    )


def _check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = "a folder with files in it" if folder.is_dir() else "a file"
        raise ValueError(f"{folder}: got {got}, wanted a new or an empty folder")


def _program(command: Sequence[str]) -> list[str]:
    """Return the command with the path of its program; the tools' own errors of it are obscure."""
    path = shutil.which(command[0])
    if path is None:
        raise ValueError(f"command: got {one_line(command[0], 120)!r}, wanted a program")
    return [path, *command[1:]]


def _how_to_get(tool: tools.Tool) -> str:
    return "; ".join(f"{where}: {how}" for where, how in tool.install.items())


def _features(tool: tools.Tool) -> set[str]:
    """Return what this version can do, by its own help."""
    if tool.name == "rocprofv3":
        return {"rocpd"} if "rocpd" in tools.help_text(tool) else set()
    if tool.name == "rocprof-compute":
        said = tools.help_text(tool, "profile")
        panels = "--list-metrics" in said and "metric id" in said
        return {
            *(["output-directory"] if "--output-directory" in said else []),
            *(["panels"] if panels else []),
            *(["csv"] if "--format-rocprof-output" in said else []),
        }
    return set()


def _run(one: recipes.Pass, path: str, folder: Path, limit_seconds: float | None) -> None:
    for file, text in one.files.items():
        _write(file, text)
    error_file = folder / f"{one.name}.stderr.txt"
    output_file = one.stdout or folder / f"{one.name}.stdout.txt"
    with naming_full_disk(folder), output_file.open("wb") as out, error_file.open("wb") as err:
        code, problem = _execute([path, *one.argv[1:]], out, err, limit_seconds)
    if code == 0 and not problem:
        if not one.output.exists():
            raise ProfilerError(f"{one.argv[0]} ended, but wrote nothing{_last_lines(error_file)}")
        return
    if not problem:
        problem = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
    last, place = _last_lines(error_file), folder.parent.parent
    if shutil.disk_usage(place).free < LEAST_FREE_BYTES:
        problem += f"; the disk of {place} is full"
    elif _FULL in last:
        problem += f"; a disk is full (not that of {place})"
    raise ProfilerError(f"{recipes.shown(one.argv[:1])} ({one.name}): {problem}{last}")


def _execute(
    argv: Sequence[str], out: BinaryIO, err: BinaryIO, limit_seconds: float | None
) -> tuple[int, str]:
    """Run a process group to its end; return its exit code, and what stopped it, if anything."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        return process.wait(limit_seconds), ""
    except subprocess.TimeoutExpired:
        return 1, f"stopped after {limit_seconds:g} s, the limit"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all of the group that is left: asked first, so that the tool can write what it has."""
    try:
        if process.poll() is None:
            _signal(process, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_lines(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(max(0, opened.tell() - _TAIL_BYTES))
        text = opened.read().decode("utf-8", "replace")
    last = [one_line(line, 300) for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    return f"; its last words: {' | '.join(last)}" if last else ""


def _counter_remarks(
    ran: ExternalProfile,
    runs: Sequence[recipes.Pass],
    recordings: Sequence[Recording],
    level: str | None,
) -> list[str]:
    asked = {name for one in runs for name in one.counters}
    if not asked or ran.architecture is None:
        return []
    advice = card.level_advice(ran.architecture, level)
    said = [advice] if advice else []
    lost = sorted(asked - returned(recordings))
    if lost:
        said.append(f"{ran.tool} was asked for {', '.join(lost)}, and returned no value of it")
    return said


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


def table(profile: ExternalProfile) -> list[list[str]]:
    """Return what a terminal shows, titles first: kernels, or of perf the innermost functions."""
    if profile.stacks is not None:
        total = profile.stacks.total
        return [
            ["function", "samples", "share"],
            *([name, str(n), _percent(n / total)] for name, n in profile.stacks.leaves()),
        ]
    names = list(dict.fromkeys(name for row in profile.kernels for name in row.counters))
    if profile.tool == "rocprof-compute":  # returns hundreds; to_json has them all
        known = card.available(profile.architecture) if profile.architecture else {}
        names = [name for name in names if name in known]
    titles = ["op", "kernel", "calls", "total ms", "mean µs", "share", "VGPRs", "SGPRs", "LDS B"]
    return [[*titles, *names], *(_cells(row, names) for row in profile.kernels)]


def _cells(row: KernelRow, names: Sequence[str]) -> list[str]:
    values = ((name in row.counters, row.counters.get(name)) for name in names)
    return [
        row.op or "",
        row.kernel,
        str(row.calls),
        "" if row.total_ns is None else f"{row.total_ns / 1e6:.3f}",
        "" if row.mean_ns is None else f"{row.mean_ns / 1e3:.2f}",
        "" if row.share is None else _percent(row.share),
        *(_or_empty(value) for value in (row.vgprs, row.sgprs, row.lds_bytes)),
        *("invalid" if there and value is None else _number(value) for there, value in values),
    ]


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
