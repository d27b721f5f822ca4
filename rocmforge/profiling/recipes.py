"""Command lines of profilers, for what one wants to know: a pure function of tool and recipe.

Source of the options: rocprofv3's, rocprof's and rocprof-compute's own help and documentation
(ROCm 6.2 to 10), perf-record(1), perf-script(1).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmforge.errors import one_line
from rocmforge.profiling import counters, tools

TOOLS = ("rocprofv3", "rocprof", "rocprof-compute", "perf")
RECIPES = ("kernel", "memory", "stall", "matmul-memory", "compute-unit")

FEATURES = ("rocpd", "output-directory", "panels", "csv")
"""What newer versions of the tools can do: rocprofv3 writes databases; rocprof-compute has
``--output-directory``, takes numbers of panels as ``--block``, and can be told to write CSV."""

SAMPLES_PER_SECOND = 499
"""Of perf; not a multiple of anything that a program or the kernel does periodically."""

_CATEGORIES = {
    "kernel": (),
    "memory": ("cache", "memory"),
    "stall": ("waves", "stalls"),
    "matmul-memory": ("cache", "memory", "LDS"),
    "compute-unit": ("instructions", "waves", "compute unit"),
}
"""In the order in which runs are filled: what is divided by each other is counted in one run."""

_MATMULS = ("matmul", "gate_up_swiglu", "expert_gate_up")  # parts of their variants' names

# Panels of rocprof-compute: 2 summary, 7 waves, 10 instructions, 11 compute units, 12 LDS,
# 15 address units, 16 vector L1, 17 L2.
_PANELS = {
    "kernel": ("2",),
    "memory": ("2", "15", "16", "17"),
    "stall": ("2", "7", "11", "15", "16"),
    "matmul-memory": ("2", "12", "15", "16", "17"),
    "compute-unit": ("2", "7", "10", "11"),
}
_PANELS_ON = ("908", "90a", "942", "950")

# rocprof's own table of counters has those of these generations; without some formulas.
_V1_ON = ("906", "90a", "942", "10", "11")
_NOT_V1 = ("MemUnitBusy", "GPU_UTIL", "ALUStalledByLDS", "OccupancyPercent", "LDSBankConflict")


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a tool.

    Parameters
    ----------
    name
        Of its folder: ``"trace"``, ``"counters-1"`` …
    argv
        The command line.
    output
        What it writes: a folder or a file, to be read.
    counters
        That were asked for.
    files
        What it needs before it runs: text by path.
    stdout
        File for its standard output, which is the result; None: it is the program's.
    measured
        Whether it runs the program.
    """

    name: str
    argv: tuple[str, ...]
    output: Path
    counters: tuple[str, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)
    stdout: Path | None = None
    measured: bool = True


def build(
    tool: str,
    recipe: str,
    architecture: str | None,
    command: Sequence[str],
    folder: Path,
    *,
    names: Sequence[str] = (),
    features: Collection[str] = FEATURES,
) -> list[Pass]:
    """Return the runs of a tool that a recipe needs, in order.

    Parameters
    ----------
    tool, recipe
        One of TOOLS and one of RECIPES.
    architecture
        The card's, as ``"gfx1100"``; None where the tool or recipe does not need it.
    command
        The program and its arguments.
    folder
        Where each run has a folder or file of its own.
    names
        Counters in place of the recipe's own.
    features
        Those of FEATURES that this version has.

    Raises
    ------
    ValueError
        A name is unknown, the tool does not have the recipe, or a counter does not exist on the
        card.
    """
    check(tool, recipe, command)
    if tool == "perf":
        return _perf(recipe, command, folder, names)
    if tool == "rocprof-compute":
        return [_rocprof_compute(recipe, architecture, command, folder, names, features)]
    asked = _counters(tool, recipe, architecture, names)
    if tool == "rocprof":
        return [_rocprof(recipe, architecture, command, folder, asked)]
    return _rocprofv3(recipe, architecture, command, folder, asked, features)


def check(tool: str, recipe: str, command: Sequence[str]) -> None:
    """Raise ValueError for a tool or recipe that does not exist, or where there is no command."""
    if tool not in TOOLS:
        said = tools.answer(tool)
        wanted = f"wanted one of {', '.join(TOOLS)}"
        raise ValueError(f"tool: got {one_line(tool, 60)!r}{f': {said}' if said else ''}; {wanted}")
    if recipe not in RECIPES:
        raise ValueError(
            f"recipe: got {one_line(recipe, 60)!r}, wanted one of {', '.join(RECIPES)}"
        )
    if not command:
        raise ValueError("command: got none, wanted a program and its arguments")


def _rocprofv3(
    recipe: str,
    architecture: str | None,
    command: Sequence[str],
    folder: Path,
    asked: Sequence[str],
    features: Collection[str],
) -> list[Pass]:
    form = "rocpd" if "rocpd" in features else "csv"

    def run(name: str, options: Sequence[str], names: Sequence[str] = ()) -> Pass:
        output = folder / name
        words = ["rocprofv3", *options, "--output-format", form]
        words += ["--output-directory", str(output), "--output-file", "run_%pid%", "--", *command]
        return Pass(name, tuple(words), output, tuple(names))

    runs = [run("trace", ["--kernel-trace", "--memory-copy-trace", "--stats"])]
    only = ["--kernel-include-regex", "|".join(_MATMULS)] if recipe == "matmul-memory" else []
    groups = counters.passes(asked, architecture) if architecture and asked else []
    for number, group in enumerate(groups, 1):
        runs.append(run(f"counters-{number}", ["--pmc", *group, *only], group))
    return runs


def _rocprof(
    recipe: str,
    architecture: str | None,
    command: Sequence[str],
    folder: Path,
    asked: Sequence[str],
) -> Pass:
    """rocprof itself runs the program again for each line of counters."""
    output = folder / "results.csv"
    if not asked or architecture is None:
        words = ("rocprof", "--stats", "--timestamp", "on", "-o", str(output), *command)
        return Pass("trace", words, output)
    lines = [f"pmc: {' '.join(group)}" for group in counters.passes(asked, architecture)]
    if recipe == "matmul-memory":
        lines.append(f"kernel: {' '.join(_MATMULS)}")
    given = folder / "counters.txt"
    words = ("rocprof", "-i", str(given), "--timestamp", "on", "-o", str(output), *command)
    return Pass("counters-1", words, output, tuple(asked), {given: "\n".join(lines) + "\n"})


def _rocprof_compute(
    recipe: str,
    architecture: str | None,
    command: Sequence[str],
    folder: Path,
    names: Sequence[str],
    features: Collection[str],
) -> Pass:
    if names:
        raise ValueError("counters: rocprof-compute takes none by name; wanted rocprofv3")
    generation = counters.generation(architecture) if architecture else None
    if generation is not None and generation not in (*_PANELS_ON, "115x"):
        raise ValueError(
            f"rocprof-compute: got {architecture}, wanted gfx908, gfx90a, gfx940 to gfx942, "
            "gfx950 or gfx115x; rocprofv3 knows this card"
        )
    output = folder / "workload"
    where = "--output-directory" if "output-directory" in features else "--path"
    words = ["rocprof-compute", "profile", "--name", "rocmforge", where, str(output), "--no-roof"]
    if recipe == "matmul-memory":
        words += ["--kernel", *_MATMULS]
    if "csv" in features:
        words += ["--format-rocprof-output", "csv"]
    if "panels" in features and generation in _PANELS_ON:
        words += ["--block", *_PANELS[recipe]]
    return Pass("workload", (*words, "--", *command), output)


def _perf(recipe: str, command: Sequence[str], folder: Path, names: Sequence[str]) -> list[Pass]:
    if recipe != "kernel" or names:
        raise ValueError(
            "perf samples where a program's time on the CPU goes: it has the recipe kernel only, "
            "without counters"
        )
    data, text = folder / "perf.data", folder / "perf.txt"
    # cpu-clock also works where a virtual machine hides the CPU's counters. Python 3.12 and newer
    # name their functions where the variable is set.
    record = ["perf", "record", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "-g"]
    program = ["--", "env", "PYTHONPERFSUPPORT=1", *command]
    shown = ("perf", "script", "--force", "-i", str(data))
    return [
        Pass("record", (*record, "-o", str(data), *program), data),
        Pass("script", shown, text, stdout=text, measured=False),
    ]


def _counters(
    tool: str, recipe: str, architecture: str | None, names: Sequence[str]
) -> tuple[str, ...]:
    if not names and not _CATEGORIES[recipe]:
        return ()
    if architecture is None:
        raise ValueError(
            f"recipe {recipe}: got no AMD GPU, wanted one, or its architecture, as gfx1100: "
            "which counters there are depends on it"
        )
    generation = counters.generation(architecture)
    if names:
        counters.check(names, architecture)
    if tool != "rocprof":
        return tuple(names) or counters.of_categories(architecture, _CATEGORIES[recipe])
    if generation not in _V1_ON:
        raise ValueError(
            f"rocprof: got {architecture}, which it has no counters for; wanted rocprofv3"
        )
    missing = {*_NOT_V1} if generation not in ("10", "11") else {*_NOT_V1, "WRITE_SIZE"}
    unknown = [name for name in names if name in missing]
    if unknown:
        raise ValueError(f"counter: got {unknown[0]!r}, which rocprof lacks; wanted rocprofv3")
    chosen = tuple(names) or counters.of_categories(architecture, _CATEGORIES[recipe])
    return tuple(name for name in chosen if name not in missing)


def shown(argv: Sequence[str]) -> str:
    """Return a command line as one would type it."""
    return shlex.join(argv)
