"""What asv 0.6.6 says of a process that it starts: which run it belongs to, where its result goes.

asv hands the processes of environments that it built the commit and the environment's name. The
rest stands in the command line of asv itself, their parent, whose current folder is that of its
configuration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MEASURING = ("run", "continuous", "find")
"""asv's commands that store what they measure."""
_LONGEST_NAME = 128  # asv takes a hash in place of longer names of environments
_RESULTS_DIR = re.compile(r'^(?!\s*//).*?"results_dir"\s*:\s*"([^"]*)"', re.M)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class AsvRun:
    """The run of asv that a process belongs to.

    Parameters
    ----------
    reports
        Where its processes report: beside the result file that asv will write, with the suffix
        ``.jsonl``, which asv does not take for a result.
    name
        Tells this run of asv from every other one on this machine.
    appends
        Whether its samples are added to those that are stored, as with ``--append-samples``.
    """

    reports: Path
    name: str
    appends: bool


def asv_run(
    environment: Mapping[str, str] = os.environ, root: Path = Path("/"), home: Path | None = None
) -> AsvRun | None:
    """Return the run of asv that started this process; None where asv stores nothing of it.

    Parameters
    ----------
    environment
        Environment variables of this process.
    root
        Directory under which ``proc`` is looked up.
    home
        Where asv keeps ``.asv-machine.json``; default: the user's.
    """
    parent = root / "proc" / str(os.getppid())
    try:
        words = _words(parent)
        started = (parent / "stat").read_text().rpartition(")")[2].split()[19]
        folder = (parent / "cwd").readlink()
        name = environment.get("ASV_ENV_NAME") or _existing(_words(root / "proc/self")[0])
    except (OSError, IndexError):
        return None
    program = next((at for at, word in enumerate(words) if Path(word).name == "asv"), len(words))
    if not set(words[program:]) & set(MEASURING):
        return None
    said = _options(words[program + 1 :])
    commit = _full(said.set_commit_hash, folder) or environment.get("ASV_COMMIT")
    if not commit or said.dry_run or said.skip_save:
        return None
    results = _results_dir(folder / Path(said.config).name)
    if results is None:
        return None
    machine = said.machine or _machine(home or Path.home())
    return AsvRun(
        reports=results / machine / f"{commit[:8]}-{_short(name)}.jsonl",
        name=f"{os.getppid()}-{started}",
        appends=said.append_samples,
    )


def _words(process: Path) -> list[str]:
    """Command line of a process."""
    return (process / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")


def _existing(python: str) -> str:
    """asv's name of an environment that it did not build: that of the interpreter."""
    return re.sub(r'[<>:"/\\^|?*]', "_", f"existing-py{python}")


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Read those of asv's options that count here; as asv does, take what begins like one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", default="asv.conf.json")
    parser.add_argument("--machine", "-m")
    parser.add_argument("--set-commit-hash")
    parser.add_argument("--bench", "-b", action="append")  # its value may look like an option
    for flag in ("--append-samples", "--skip-save"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--dry-run", "-n", action="store_true")
    return parser.parse_known_args(words)[0]


def _full(name: str | None, folder: Path) -> str | None:
    """Full hash of a commit that an option names; None: there is none."""
    if name is None or _COMMIT.fullmatch(name):
        return name
    words = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or None


def _results_dir(config: Path) -> Path | None:
    """asv's ``results_dir``, from its configuration; None: it cannot be read."""
    try:
        found = _RESULTS_DIR.search(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.parent / (found[1] if found else "results")


def _machine(home: Path) -> str:
    """Name that asv gives this machine where no option names one."""
    here = platform.node()
    try:
        known = json.loads((home / ".asv-machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return here
    names = [name for name in known if name != "version"]
    return here if here in names or len(names) != 1 else str(names[0])


def _short(environment: str) -> str:
    """Name of an environment as asv has it in names of files."""
    if len(environment) < _LONGEST_NAME:
        return environment
    return f"env-{hashlib.md5(environment.encode()).hexdigest()}"
