"""Counters of AMD GPUs: which of them a card has, how many fit in one run, which values to trust.

`counters.csv` is the table of those that the recipes use. A counter has a name, and takes hardware
counters: itself, or those of its formula. A block of the hardware counts a few of them at once.
"""

from __future__ import annotations

import csv
import difflib
import functools
import importlib.resources
import re
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmforge.errors import one_line
from rocmforge.profiling.amdgpu import amdgpu_folder

CATEGORIES = ("instructions", "waves", "memory", "cache", "compute unit", "LDS", "stalls")

LEVEL_FILE = "power_dpm_force_performance_level"
LEVEL_COMMAND = "sudo amd-smi set --perf-level STABLE_STD"
BACK_COMMAND = "sudo amd-smi set --perf-level AUTO"

_GENERATIONS = (
    ("906", r"gfx906"),
    ("908", r"gfx908"),
    ("90a", r"gfx90a"),
    ("942", r"gfx94[0-2]"),
    ("950", r"gfx950"),
    ("10", r"gfx10[0-9a-f]{2}"),
    ("115x", r"gfx115[0-9a-f]"),
    ("11", r"gfx11[0-9a-f]{2}"),
    ("12", r"gfx120[0-9a-f]"),
)
_RDNA = ("10", "11", "115x", "12")

_SLOTS = {"SQ": 8, "TCC": 4, "TCP": 4, "GL2C": 4, "GL1C": 4, "TA": 2, "GRBM": 2, "GCEA": 2}
_SLOTS_115X = {**_SLOTS, "TCP": 1}
"""Counters of a block at once: what AMD's profiling library sets up. Source: rocprof-compute's
perfmon_config; one of TCP on gfx115x: rocm-systems pull request 10041."""

_NEVER_ZERO = ("SQ_WAVES", "SQ_BUSY_CYCLES", "GRBM_COUNT", "GRBM_GUI_ACTIVE")
_WRONG = {
    ("12", "SQ_WAVE_CYCLES"): "gfx12 always counts 0",
    (
        "12",
        "WAVE_DEP_WAIT",
    ): "its formula divides by SQ_WAVE_CYCLES, which gfx12 always counts as 0",
    ("12", "WAVE_ISSUE_WAIT"): (
        "its formula divides by SQ_WAVE_CYCLES, which gfx12 always counts as 0"
    ),
    ("115x", "FETCH_SIZE"): "gfx115x counts only some of the channels of its L2",
    ("115x", "WRITE_SIZE"): "gfx115x counts only some of the channels of its L2",
}


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter on some architectures.

    Parameters
    ----------
    name
        As the tools write it.
    category
        One of CATEGORIES.
    generations
        Where it exists: ``"906"``, ``"90a"``, ``"11"`` …
    takes
        Hardware counters that it occupies.
    meaning
        What it counts.
    """

    name: str
    category: str
    generations: tuple[str, ...]
    takes: tuple[str, ...]
    meaning: str


def generation(architecture: str) -> str:
    """Return the generation of counters of an architecture: ``"gfx1100"`` has ``"11"``.

    Raises
    ------
    ValueError
        No counters are known for it.
    """
    for name, pattern in _GENERATIONS:
        if re.fullmatch(pattern, architecture):
            return name
    raise ValueError(
        f"counters: got architecture {one_line(architecture, 40)!r}, wanted one of "
        "gfx906, gfx908, gfx90a, gfx940 to gfx942, gfx950, gfx10xx, gfx11xx, gfx115x, gfx120x"
    )


def available(architecture: str) -> dict[str, Counter]:
    """Return the counters of the table that an architecture has, by name.

    Raises
    ------
    ValueError
        As `generation`.
    """
    wanted = generation(architecture)
    return {one.name: one for one in _table() if wanted in one.generations}


def of_categories(architecture: str, categories: Iterable[str]) -> tuple[str, ...]:
    """Return the counters of some categories, in their order; none that this card counts wrong."""
    wanted, known = generation(architecture), available(architecture)
    return tuple(
        name
        for category in categories
        for name, one in known.items()
        if one.category == category and (wanted, name) not in _WRONG
    )


def check(names: Sequence[str], architecture: str) -> None:
    """Raise ValueError where a counter does not exist on an architecture; it names the nearest."""
    known = available(architecture)
    for name in names:
        if name in known:
            continue
        near = _nearest(name, list(known))
        on = [f"gfx{one}" for row in _table() if row.name == name for one in row.generations]
        where = f" (it is on {', '.join(on)})" if on else ""
        wanted = ", ".join(near) if near else f"one of {len(known)}: {', '.join(known)}"
        raise ValueError(
            f"counter: got {one_line(name, 60)!r}, which {architecture} does not have{where}; "
            f"wanted {wanted}"
        )


def passes(names: Sequence[str], architecture: str) -> list[list[str]]:
    """Split counters into groups, each of which the hardware can count in one run.

    Parameters
    ----------
    names
        Checked by `check`; a name that is there twice counts once.
    """
    known = available(architecture)
    slots = _SLOTS_115X if generation(architecture) == "115x" else _SLOTS
    groups: list[tuple[list[str], set[str]]] = []
    for name in dict.fromkeys(names):
        takes = set(known[name].takes)
        for group, taken in groups:
            if _fits(taken | takes, slots):
                group.append(name)
                taken |= takes
                break
        else:
            groups.append(([name], takes))
    return [group for group, _ in groups]


def _fits(taken: set[str], slots: dict[str, int]) -> bool:
    blocks = Tally(_block(name) for name in taken)
    return all(count <= slots[block] for block, count in blocks.items())


def _block(name: str) -> str:
    block = name.partition("_")[0]
    return "SQ" if block == "SQC" else block


def invalid(name: str, value: float, architecture: str, level: str | None) -> str | None:
    """Say why a value is none that the hardware has counted; None where nothing speaks against it.

    Parameters
    ----------
    name, value
        Of one dispatch.
    level
        The card's performance level (`performance_level`); None: not known.
    """
    wanted = generation(architecture)
    if (wanted, name) in _WRONG:
        return _WRONG[wanted, name]
    if value != value or value < 0 or value == float("inf"):
        return "no number of events"
    if value:
        return None
    base = re.sub(r"_(sum|max|avr)$", "", name)
    if wanted in _RDNA and not counts(level):
        known = f"is {level!r}" if level else "is not known"
        return (
            f"a zero cannot be told from a counter that did not run: the card's performance level "
            f"{known}. Set it by `{LEVEL_COMMAND}`, and back by `{BACK_COMMAND}`"
        )
    return "a kernel that ran has more than 0 of it" if base in _NEVER_ZERO else None


def counts(level: str | None) -> bool:
    """Whether an RDNA card counts at a performance level: at those that profilers ask for."""
    return level is not None and level.startswith("profile_")


def level_advice(architecture: str, level: str | None) -> str | None:
    """Say what to do before counters are collected on a card of RDNA; None: nothing."""
    if generation(architecture) not in _RDNA or counts(level) or level is None:
        return None
    return (
        f"the card's performance level is {level!r}, at which counters of {architecture} read 0; "
        f"set it by `{LEVEL_COMMAND}`, and back afterwards by `{BACK_COMMAND}`"
    )


def performance_level(root: Path = Path("/"), number: int = 0) -> str | None:
    """Return the performance level of an AMD GPU, as the driver's file has it: ``"auto"``."""
    found = amdgpu_folder(root, number)
    if found is None:
        return None
    try:
        return (found[0] / LEVEL_FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def card_architecture(root: Path = Path("/"), number: int = 0) -> str | None:
    """Return an AMD GPU's architecture from the driver's topology: ``"gfx1100"``.

    Source: the kernel's kfd topology; ``gfx_target_version`` is major * 10000 + minor * 100 + step.
    """
    found = amdgpu_folder(root, number)
    if found is None:
        return None
    try:
        text = (found[1] / "properties").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    version = re.search(r"^gfx_target_version (\d+)$", text, re.M)
    if version is None:
        return None
    major, minor, step = (int(version[1]) // unit % 100 for unit in (10000, 100, 1))
    return f"gfx{major}{minor:x}{step:x}"


@functools.cache
def _table() -> tuple[Counter, ...]:
    file = importlib.resources.files("rocmforge.profiling") / "counters.csv"
    return tuple(
        Counter(
            row["name"],
            row["category"],
            tuple(row["architectures"].split()),
            tuple(row["takes"].split()) or (re.sub(r"_(sum|max|avr)$", "", row["name"]),),
            row["meaning"],
        )
        for row in csv.DictReader(file.read_text("utf-8").splitlines())
    )


def _nearest(name: str, known: list[str]) -> list[str]:
    by_case = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), by_case, n=3, cutoff=0.5)
    return [by_case[one] for one in near]
