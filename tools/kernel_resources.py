"""What every kernel takes of an AMD GPU: registers, LDS, scratch, spills, occupancy, code size.

Compiles every kernel in every form that the ops ask for, with clang 19, for GPUs that need not be
here, and counts instructions that matter. It measures no time. Exits with 1 where a hot kernel
spills or uses scratch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from rocmforge.bench.formatting import NA
from rocmforge.errors import RocmforgeError
from rocmforge.gpu.compiler import Build
from rocmforge.gpu.cross_compile import (
    ARCHITECTURES,
    CompiledKernel,
    all_builds,
    bytes_per_load,
    compile_builds,
)

BROKEN = 2
HEAD = (
    *("file", "kernel", "constants", "gfx", "VGPR", "SGPR", "spill", "scratch", "LDS", "waves"),
    *("code", "matrix", "dot4", "ld128", "lds128", "B/load"),
)
LEFT = 4  # columns of text
SECONDS_A_LINE = 2.0  # of progress
T = TypeVar("T")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        epilog="waves: that a SIMD unit holds at once; spill: registers; scratch: bytes a lane; "
        "LDS: bytes a block; matrix, dot4, ld128 and lds128 (16-byte loads): instructions in the "
        "code; B/load: bytes that a lane gets with one load from memory, on average",
        allow_abbrev=False,
    )
    parser.add_argument("--arch", action="append", help=f"(default: {' '.join(ARCHITECTURES)})")
    parser.add_argument("--file", action="append", help="kernel file (default: all)")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    args = parser.parse_args(argv)
    try:
        rows = _compile(args.arch or ARCHITECTURES, args.file)
    except (RocmforgeError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return BROKEN
    if args.json:
        print(json.dumps([_record(*row) for row in rows], indent=2))
    else:
        _print_table([_cells(*row) for row in rows])
    bad = [row for row in rows if row[0].hot and _overflows(row[1])]
    for build, kernel in bad:
        where = f"{build.file} {kernel.resources.name} {_constants(build)} {kernel.architecture}"
        print(f"{parser.prog}: hot kernel spills or uses scratch: {where}", file=sys.stderr)
    return 1 if bad else 0


def _compile(
    architectures: Sequence[str], files: list[str] | None
) -> list[tuple[Build, CompiledKernel]]:
    builds = [(build, name) for name in architectures for build in all_builds(name)]
    known = sorted({build.file for build, _ in builds})
    for file in files or ():
        if file not in known:
            raise ValueError(f"--file: got {file}, wanted one of {', '.join(known)}")
    targets = [target for target in builds if files is None or target[0].file in files]
    progress = _shown(compile_builds(targets), len(targets))
    rows = [(build, kernel) for build, kernels in progress for kernel in kernels]
    return sorted(rows, key=lambda row: (row[0].file, row[1].resources.name, _constants(row[0])))


def _shown(items: Iterable[T], count: int) -> Iterator[T]:
    """Pass items on, with a bar on standard error; where that is no terminal, a line now and then.

    The first line comes at once, so that a log shows that minutes may follow.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, "compiling", count, console=console)
        return
    said = float("-inf")
    for done, item in enumerate(items, 1):
        if done == count or time.monotonic() - said >= SECONDS_A_LINE:
            print(f"compiled {done} of {count}", file=sys.stderr, flush=True)
            said = time.monotonic()
        yield item


def _overflows(kernel: CompiledKernel) -> bool:
    found = kernel.resources
    return bool(found.vgpr_spills or found.sgpr_spills or found.scratch_bytes)


def _constants(build: Build) -> str:
    return " ".join(f"{name}={value}" for name, value in (build.defines or {}).items())


def _record(build: Build, kernel: CompiledKernel) -> dict[str, object]:
    found = dataclasses.asdict(kernel)
    resources = found.pop("resources")
    return {"file": build.file, "defines": build.defines, "hot": build.hot, **resources, **found}


def _cells(build: Build, kernel: CompiledKernel) -> list[str]:
    found = kernel.resources
    texts = [build.file, found.name, _constants(build), kernel.architecture]
    spills = found.vgpr_spills + found.sgpr_spills
    numbers = [found.vgprs, found.sgprs, spills, found.scratch_bytes, found.lds_bytes]
    numbers += [kernel.occupancy, found.code_bytes, kernel.matrix, kernel.dot4]
    numbers += [kernel.loads_128, kernel.lds_loads_128]
    width = bytes_per_load([kernel])
    return [*texts, *map(str, numbers), NA if width is None else f"{width:.1f}"]


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for row in [list(HEAD), *rows]:
        cells = [
            cell.ljust(width) if i < LEFT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    sys.exit(main())
