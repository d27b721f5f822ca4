"""One part of the work of a fleet, a commit on a kind of machine, and the plan of what is to run.

What is wanted and what is gathered decide alone what is missing: that is how the same command goes
on where an earlier one ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.files import is_strings, typed_field
from rocmforge.errors import ResultFileError

KIND = r"[a-z0-9][a-z0-9_-]{0,39}"
"""A kind of machine: ``gfx942``, ``sm_90``, ``cpu``, or a name of one's own. Part of file names."""
COMMIT = r"[0-9a-f]{40}"
KNOWN_KIND = re.compile(r"gfx[0-9a-f]+|sm_[0-9]+|cpu")
"""A kind that engines find by themselves, and whose hardware is checked."""
MOST_COPIES = 99


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What one box measures in one go.

    Parameters
    ----------
    commit
        Full hash.
    kind
        Of the machine, as `KIND`.
    profile, bench
        As of ``bench run``: the profile, or the expressions that choose benchmarks.
    command
        For a shell, in place of ``bench run``; empty: that.
    copy
        0 for the one in the results; 1, 2, … are measured on other boxes, to compare these.
    """

    commit: str
    kind: str
    profile: str
    bench: tuple[str, ...] = ()
    command: str = ""
    copy: int = 0

    @property
    def name(self) -> str:
        """A file's name, the same for the same work: ``1a2b3c4d-gfx942-5e6f7a8b-0``."""
        work = json.dumps([self.commit, self.profile, self.bench, self.command])
        digest = hashlib.sha256(work.encode()).hexdigest()[:8]
        return f"{self.commit[:8]}-{self.kind}-{digest}-{self.copy}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields; `part_of` reads them."""
        return asdict(self)

    def is_copy_of(self, other: Part) -> bool:
        """Whether both are the same work for different boxes, or the same part."""
        return self.name.rpartition("-")[0] == other.name.rpartition("-")[0]


def part_of(path: Path, data: Mapping[str, Any]) -> Part:
    """Read what `Part.as_json` returned; ResultFileError names the file and what is wrong."""
    commit, kind, profile, command = (
        typed_field(path, data, key, str, "a string")
        for key in ("commit", "kind", "profile", "command")
    )
    bench, copy = data.get("bench"), data.get("copy")
    if not re.fullmatch(COMMIT, commit):
        raise ResultFileError(path, "commit", got=commit, wanted="40 digits, 0-9 and a-f")
    if not re.fullmatch(KIND, kind):
        raise ResultFileError(path, "kind", got=kind, wanted="a name such as gfx942")
    if not is_strings(bench):
        raise ResultFileError(path, "bench", got=bench, wanted="a list of expressions")
    if isinstance(copy, bool) or not isinstance(copy, int) or not 0 <= copy <= MOST_COPIES:
        raise ResultFileError(path, "copy", got=copy, wanted=f"0 to {MOST_COPIES}")
    return Part(commit, kind, profile, tuple(bench), command, copy)


def wanted_parts(
    commits: Iterable[str],
    kinds: Sequence[str],
    boxes: int,
    profile: str,
    bench: Sequence[str] = (),
    command: str = "",
) -> list[Part]:
    """Return every part, commit by commit: `boxes` copies on each kind of machine."""
    return [
        Part(commit, kind, profile, tuple(bench), command, copy)
        for commit, kind, copy in itertools.product(dict.fromkeys(commits), kinds, range(boxes))
    ]


def missing(wanted: Iterable[Part], gathered: Collection[Part]) -> list[Part]:
    """Return what is to be measured: what is wanted and not gathered, in the order wanted."""
    return [part for part in wanted if part not in gathered]


def ready(waiting: Iterable[Part], busy: Collection[Part]) -> list[Part]:
    """Return what may be submitted: a copy once those before it are settled, so their boxes known.

    Parameters
    ----------
    waiting
        What is not submitted.
    busy
        What is submitted and not settled.
    """
    found: list[Part] = []
    for part in sorted(waiting, key=lambda part: part.copy):
        if not any(part.is_copy_of(other) for other in (*busy, *found)):
            found.append(part)
    return found
