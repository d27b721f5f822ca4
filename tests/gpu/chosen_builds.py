"""Some builds of each kernel file, for compilers that take seconds; all: `make test-all`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from slow_parameters import others_slow

from rocmforge.gpu.compiler import Build
from rocmforge.gpu.cross_compile import all_builds

RDNA_AND_CDNA = ("gfx1100", "gfx942")


@functools.cache
def builds_of(architecture: str) -> dict[str, list[Build]]:
    """Return every build for an architecture, by the kernel file."""
    found: dict[str, list[Build]] = {}
    for build in all_builds(architecture):
        found.setdefault(build.file, []).append(build)
    return found


def rdna_and_cdna(architectures: Iterable[str]) -> list[Any]:
    """Return architectures as parameters of a test; `make test` takes one RDNA and one CDNA."""
    return others_slow(architectures, RDNA_AND_CDNA)


def targets(*architectures: str) -> list[tuple[str, str]]:
    """Return each architecture with each kernel file that is built for it."""
    return [
        (architecture, file)
        for architecture in architectures
        for file in sorted(builds_of(architecture))
    ]


def each_file_once(*architectures: str) -> list[tuple[str, str]]:
    """Return every kernel file with the first of these architectures that it is built for."""
    found: dict[str, str] = {}
    for architecture, file in targets(*architectures):
        found.setdefault(file, architecture)
    return [(architecture, file) for file, architecture in found.items()]


def chosen_builds(file: str, architecture: str, alone: bool = False) -> list[Build]:
    """The first, the middle and the last build of a file, or the middle one alone."""
    builds = builds_of(architecture)[file]
    middle = len(builds) // 2
    places = [middle] if alone else sorted({0, middle, len(builds) - 1})
    return [builds[place] for place in places]
