"""Gathers bundles: each part once, all results in one tree; doing it again changes nothing.

Below the folder of a fleet, ``inbox`` has bundles as they came, ``parts`` what was gathered, a
folder for each part, ``failures`` the logs of what failed, ``refused`` bundles that are none, and
``written.json`` the names of the result files that it wrote: others are never replaced or removed.
The tree of results is made from the parts alone, so it is the same in whatever order they came.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmforge.atomic import scratch_folder
from rocmforge.bench.asv_results import BENCHMARKS_VERSION
from rocmforge.bench.files import (
    is_strings,
    read_versioned_json,
    typed_field,
    write_bytes,
    write_json,
)
from rocmforge.bench.fleet.bundle import (
    PROVENANCE,
    RESULTS,
    SUFFIX,
    Provenance,
    extract,
    read_provenance,
    read_results,
)
from rocmforge.bench.fleet.parts import Part
from rocmforge.bench.results import ResultSet, Status
from rocmforge.errors import ResultFileError, RocmforgeError

_VERSION = 1  # of written.json
_BUNDLE = re.compile(rf"[^.].*{re.escape(SUFFIX)}")
"""A file that is still written begins with a dot."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A part that was gathered: its folder, where it comes from, its results."""

    folder: Path
    provenance: Provenance
    results: ResultSet

    @property
    def files(self) -> list[str]:
        """Its result file and reports, by their place in a tree of results."""
        result = self.results.source.relative_to(self.folder / RESULTS)
        names = [result, result.with_suffix(".jsonl")]
        return [name.as_posix() for name in names if (self.folder / RESULTS / name).exists()]

    @property
    def order(self) -> tuple[int, Part]:
        """What makes one of two the newer: the date of the commit, then any rule that stays."""
        return self.results.commit_date or 0, self.provenance.part

    @property
    def rank(self) -> tuple[int, int, Part]:
        """What makes one of two the one that counts: the smaller."""
        values = sum(result.status is Status.OK for result in self.results.results)
        return self.provenance.part.copy, -values, self.provenance.part


class Store:
    """What a fleet has gathered, below a folder that is made when something is written.

    Parameters
    ----------
    root
        The folder.
    results
        The tree of results: the fleet's own, or one that has other results too, which stay.
    """

    def __init__(self, root: Path, results: Path) -> None:
        self.root, self.results = root, results
        self.inbox = root / "inbox"
        self._parts, self._failures, self._refused = (
            root / name for name in ("parts", "failures", "refused")
        )
        self._written = root / "written.json"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other command write here during the block; ValueError where one does."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"--out: {self.root} is in use by another bench fleet, wanted one at a time"
                ) from error
            yield

    def collect(self, refused: Callable[[ResultFileError], object]) -> list[Provenance]:
        """Take every bundle of the inbox; return where they come from, failed ones too.

        Parameters
        ----------
        refused
            Called with the error of a bundle that is none, which is moved aside.

        Raises
        ------
        RocmforgeError
            A bundle cannot be written here; it stays in the inbox.
        """
        found = []
        self.inbox.mkdir(parents=True, exist_ok=True)
        for bundle in sorted(self.inbox.iterdir()):
            if not _BUNDLE.fullmatch(bundle.name):
                continue
            try:
                found.append(self._take(bundle))
                bundle.unlink()
            except OSError as error:
                raise RocmforgeError(
                    f"{bundle}: got {error}, wanted to extract it; it stays there"
                ) from error
            except ResultFileError as error:
                self._refused.mkdir(exist_ok=True)
                os.replace(bundle, self._refused / bundle.name)
                refused(error)
        return found

    def _take(self, bundle: Path) -> Provenance:
        """Keep what a bundle holds, unless its part was gathered before."""
        with scratch_folder(self._parts / "new") as work:
            found = extract(bundle, work)
            place = self._parts / found.part.name
            if found.why is not None:
                place = self._failures / bundle.stem
            place.parent.mkdir(exist_ok=True)
            if not place.exists():
                os.rename(work, place)
        return found

    def known(self) -> dict[Part, Provenance]:
        """Return what was gathered, without reading the results.

        Raises
        ------
        ResultFileError
            The provenance of a part is broken: somebody changed it.
        """
        found = {}
        for folder in sorted(self._parts.glob("[!.]*")):
            provenance = read_provenance(folder / PROVENANCE)
            if provenance.part.name != folder.name:
                got = provenance.part.name
                raise ResultFileError(folder / PROVENANCE, "part", got=got, wanted=folder.name)
            found[provenance.part] = provenance
        return found

    def merge(self) -> dict[Part, Gathered]:
        """Write the results of all parts into the tree, and return the parts.

        Where several boxes measured a commit, the first copy counts. Of a machine's description
        and a benchmark's, the one of the newest commit does. Other files of the tree stay, those
        too whose names it would need: `in_the_way` names them.
        """
        parts = {
            part: Gathered(self._parts / part.name, made, read_results(self._parts / part.name))
            for part, made in self.known().items()
        }
        own, chosen = self._own(), chosen_files(parts.values())
        mine = {name for name in chosen if name in own or not (self.results / name).exists()}
        self._set_own(own | mine)
        for name in mine:
            if not _same(self.results / name, source := chosen[name] / RESULTS / name):
                write_bytes(self.results / name, source.read_bytes())
        names = self.results / "benchmarks.json"
        stored = read_versioned_json(names, BENCHMARKS_VERSION) if names.exists() else {}
        merged: dict[str, Any] = {**stored, "version": BENCHMARKS_VERSION}
        for one in sorted(parts.values(), key=lambda one: one.order):
            path = one.folder / RESULTS / names.name
            merged |= read_versioned_json(path, BENCHMARKS_VERSION)
        if parts and merged != stored:
            write_json(names, dict(sorted(merged.items())))
        return parts

    def in_the_way(self, parts: Mapping[Part, Gathered]) -> list[str]:
        """Return the files of the tree that are others' and not what these parts have there."""
        own, chosen = self._own(), chosen_files(parts.values())
        return sorted(
            name
            for name, folder in chosen.items()
            if name not in own and not _same(self.results / name, folder / RESULTS / name)
        )

    def drop(self, parts: Mapping[Part, Gathered], dropped: Collection[Part]) -> list[str]:
        """Remove parts of those that were merged, and the files of the tree that they alone have.

        Files that the store did not write stay, and are returned.

        Parameters
        ----------
        parts
            As `merge` returned them.
        dropped
            Of these.
        """
        chosen = chosen_files(one for part, one in parts.items() if part not in dropped)
        own, others = self._own(), []
        for part in dropped:
            one = parts[part]
            for name in one.files:
                merged = self.results / name
                if name in chosen or not merged.exists():
                    continue
                if name not in own:
                    others.append(name)
                elif _same(merged, one.folder / RESULTS / name):
                    merged.unlink()
                    own.remove(name)
            shutil.rmtree(one.folder)
        self._set_own(own)
        return others

    def _own(self) -> set[str]:
        """Return the names of the files that the store wrote into this tree of results."""
        return {*self._trees().get(self._tree, ())}

    def _set_own(self, names: Collection[str]) -> None:
        """Keep these names, of files that are about to be written too."""
        if names != self._own():
            trees = {**self._trees(), self._tree: sorted(names)}
            write_json(self._written, {"version": _VERSION, "trees": trees})

    @property
    def _tree(self) -> str:
        return os.path.relpath(self.results.resolve(), self.root.resolve())

    def _trees(self) -> dict[str, list[str]]:
        """Return what the store wrote, by the tree's place as seen from the fleet's folder."""
        if not self._written.exists():
            return {}
        data = read_versioned_json(self._written, _VERSION)
        trees: dict[str, list[str]] = typed_field(self._written, data, "trees", dict, "an object")
        for tree, names in trees.items():
            if not is_strings(names):
                raise ResultFileError(self._written, tree, got=names, wanted="names of files")
        return trees


def chosen_files(parts: Iterable[Gathered]) -> dict[str, Path]:
    """Return the files of the tree of results, each with the folder of the part that it is of.

    Of several results of a commit on a kind of machine, that of the first copy counts, and of
    several selections of benchmarks the one with the most values.
    """
    chosen: dict[str, Path] = {}
    results: dict[str, Gathered] = {}
    for one in sorted(parts, key=lambda one: one.order):
        chosen[f"{one.results.machine}/machine.json"] = one.folder
        name = one.files[0]
        results[name] = min(results.get(name, one), one, key=lambda one: one.rank)
    for one in results.values():
        chosen |= dict.fromkeys(one.files, one.folder)
    return chosen


def expired(parts: Mapping[Part, Gathered], keep: int, wanted: Collection[Part]) -> list[Part]:
    """Return the parts of all but the newest commits of each kind of machine.

    Parameters
    ----------
    parts
        What is gathered.
    keep
        How many commits of each kind stay, by their dates.
    wanted
        Parts that stay however old they are.
    """
    dates: dict[str, dict[str, int]] = defaultdict(dict)
    for part, one in parts.items():
        dates[part.kind][part.commit] = one.results.commit_date or 0
    newest = {
        kind: sorted(commits, key=lambda commit: (commits[commit], commit))[-keep:]
        for kind, commits in dates.items()
    }
    return [p for p in parts if p.commit not in newest[p.kind] and p not in wanted]


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.read_bytes() == other.read_bytes()
