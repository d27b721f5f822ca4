"""The one door to files of profilers: `read` picks the reader by what a file or folder holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.api_traces import matches as is_api_trace
from rocmforge.profiling.readers.api_traces import read_api_traces
from rocmforge.profiling.readers.input_files import MOST_FILES, head, named, not_read
from rocmforge.profiling.readers.records import Recording
from rocmforge.profiling.readers.rocpd import matches as is_rocpd
from rocmforge.profiling.readers.rocpd import read_rocpd
from rocmforge.profiling.readers.rocprof_compute import matches as is_rocprof_compute
from rocmforge.profiling.readers.rocprof_compute import read_rocprof_compute
from rocmforge.profiling.readers.rocprof_v1 import matches as is_rocprof_v1
from rocmforge.profiling.readers.rocprof_v1 import read_rocprof_v1
from rocmforge.profiling.readers.rocprofv3_csv import matches as is_rocprofv3_csv
from rocmforge.profiling.readers.rocprofv3_csv import read_rocprofv3_csv
from rocmforge.profiling.readers.rocprofv3_json import matches as is_rocprofv3_json
from rocmforge.profiling.readers.rocprofv3_json import read_rocprofv3_json
from rocmforge.profiling.readers.rocprofv3_rows import runs_added, totals_without_singles
from rocmforge.profiling.readers.smi import matches as is_smi
from rocmforge.profiling.readers.smi import read_smi


@dataclass(frozen=True)
class _Reader:
    """One kind of files: what to call them, how to tell them, how to read one."""

    what: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Recording]


_READERS = (
    _Reader("a workload folder of rocprof-compute", is_rocprof_compute, read_rocprof_compute),
    _Reader("a rocpd database of rocprofv3", is_rocpd, read_rocpd),
    _Reader("rocprofv3's JSON", is_rocprofv3_json, read_rocprofv3_json),
    _Reader("rocprofv3's CSV", is_rocprofv3_csv, read_rocprofv3_csv),
    _Reader("a table, trace or database of rocprof v1", is_rocprof_v1, read_rocprof_v1),
    _Reader("rocm-smi's or amd-smi's output", is_smi, read_smi),
    _Reader("a text trace of roctracer", is_api_trace, read_api_traces),
)
"""In this order: of a folder with files of several, those of the first are read."""

_COMPLETE = (".db", ".json", "")
"""Of the same run in several forms, the one that holds most is read; "" is any other form."""

_FOREIGN = (
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"PERFILE2", "perf's own file; `perf script` makes text of it"),
    (b"\x7fELF", "a program or library"),
    (b"SQLite format 3\0", "an SQLite database with none of the profilers' tables"),
)


def read(path: str | os.PathLike[str]) -> Recording:
    """Read what a profiler or a card's tool wrote, whichever of them it was.

    A folder is read as one run: a workload folder of rocprof-compute, or the files of one tool in
    it and in two levels of folders below it: rocprofv3 makes one for each pass and host.

    Parameters
    ----------
    path
        A file or a folder, or what the names of rocprofv3's tables of one run begin with.

    Raises
    ------
    ResultFileError
        It is not there, no reader knows it, or it is broken. The error says what was seen.
    """
    path = Path(path)
    wanted = "one of: " + "; ".join(reader.what for reader in _READERS)
    try:
        path.stat()
    except FileNotFoundError as error:
        if is_rocprofv3_csv(path):
            return read_rocprofv3_csv(path)
        raise ResultFileError(path, "file", got="none", wanted=wanted) from error
    except (OSError, ValueError) as error:
        raise ResultFileError(path, "file", got=error, wanted=wanted) from error
    for reader in _READERS:
        if reader.matches(path):
            return reader.read(path)
    if path.is_dir():
        return _read_folder(path)
    raise ResultFileError(path, "content", got=_seen(path), wanted=wanted)


def _seen(path: Path) -> str:
    start = head(path)
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            return what
    if not start:
        return "an empty file, or one that cannot be read"
    if b"\0" in start:
        return f"binary data, which begins with {start[:8].hex(' ')}"
    line = start.decode("utf-8", "replace").lstrip().partition("\n")[0]
    return f"text, which begins with {line[:80]!r}"


def _read_folder(folder: Path) -> Recording:
    """Read the files of the first reader that knows any; the run's other files are named."""
    workloads = [one for one in _inside(folder) if one.is_dir() and is_rocprof_compute(one)]
    if len(workloads) == 1:
        return read_rocprof_compute(workloads[0])
    if workloads:
        got = f"workloads {named(workloads)}"
        raise ResultFileError(folder, "folder", got=got, wanted="one of them")
    files = list(_files(folder))
    for reader in _READERS:
        mine = [file for file in files if reader.matches(file)]
        if mine:
            mine = _most_complete(mine)
            return _as_one(folder, [reader.read(file) for file in mine], mine, files)
    wanted = "files of one of: " + "; ".join(reader.what for reader in _READERS)
    raise ResultFileError(folder, "folder", got=named(files), wanted=wanted)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:MOST_FILES]
    except OSError as error:
        raise ResultFileError(folder, "folder", got=error, wanted="a readable one") from error


def _files(folder: Path) -> Iterator[Path]:
    """Files of a folder, then those of folders in it, then those of folders in these."""
    inside = _inside(folder)
    below = _below(inside)
    found = chain(inside, below, _below(below))
    return islice((file for file in found if file.is_file()), MOST_FILES)


def _below(found: list[Path]) -> list[Path]:
    inside = chain.from_iterable(_inside(one) for one in found if one.is_dir())
    return list(islice(inside, MOST_FILES))


def _most_complete(files: list[Path]) -> list[Path]:
    for suffix in _COMPLETE:
        chosen = [file for file in files if file.suffix.lower() == suffix]
        if chosen:
            return chosen
    return files


def _as_one(
    folder: Path, recordings: list[Recording], files: list[Path], present: list[Path]
) -> Recording:
    """Join the recordings of one run. Sums are left out where the single runs are there."""
    first = recordings[0]
    dispatches = tuple(chain.from_iterable(one.dispatches for one in recordings))
    copies = tuple(chain.from_iterable(one.copies for one in recordings))
    calls = tuple(chain.from_iterable(one.calls for one in recordings))
    totals = chain.from_iterable(one.totals for one in recordings)
    remarks = [f"read of {folder.name}: {', '.join(file.name for file in files)}"]
    remarks += not_read([file.name for file in present if file not in files])
    remarks += runs_added(sum(bool(one.dispatches) for one in recordings))
    said = dict.fromkeys(chain.from_iterable(one.remarks for one in recordings))
    return replace(
        first,
        dispatches=dispatches,
        totals=totals_without_singles(totals, bool(dispatches), bool(copies), calls),
        copies=copies,
        calls=calls,
        agents=tuple(chain.from_iterable(one.agents for one in recordings)),
        readings=tuple(chain.from_iterable(one.readings for one in recordings)),
        remarks=(*remarks, *said),
        partial=any(one.partial for one in recordings),
    )
