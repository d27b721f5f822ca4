"""What a box hands back of a part: a zip of result files, log and provenance.

A bundle comes from another machine. It is checked before anything of it is kept: the names of its
files, their sizes, that it is of the part that it names, of that kind of machine, and that the
results are whole.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.files import is_strings, read_versioned_json, typed_field, write_json
from rocmforge.bench.fleet.parts import KNOWN_KIND, Part, part_of
from rocmforge.bench.results import ResultSet
from rocmforge.bench.run_environment import with_stored_environments
from rocmforge.errors import MeasurementError, ResultFileError, one_line
from rocmforge.hardware import Hardware

VERSION = 1
PROVENANCE, LOG, RESULTS = "provenance.json", "log.txt", "results"
SUFFIX = ".zip"
MOST_BYTES = 1 << 28  # unpacked
_MOST_FILES = 8  # a bundle has six
_PIECE_BYTES = 1 << 16
LOG_BYTES = 1 << 22
"""Of a log the end is kept."""
_TAG = r"[a-z0-9][a-z0-9-]{0,199}"
_ALLOWED = re.compile(
    rf"{re.escape(PROVENANCE)}|{re.escape(LOG)}|{RESULTS}/benchmarks\.json"
    rf"|{RESULTS}/{_TAG}/(machine\.json|[0-9a-f]{{8}}-[\w.+-]{{1,150}}\.jsonl?)"
)
_END = struct.Struct("<4s6xHI4xH")
"""A zip's last record: signature, number of files, bytes of their list, bytes of a comment."""
_WIDE_BYTES = 20  # before it, where the zip is one of more than 4 GiB
_BOX = re.compile(r"[\w.:-]{1,200}")
_TOKEN = re.compile(r"[0-9a-f]{8}")
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(OSError, EOFError, ValueError, NotImplementedError, RuntimeError),
)
"""What zipfile raises of a file that is none, or is broken or encrypted."""
MEASURED = (0, 1)
"""Exit codes of ``bench run`` with results: 1 where a benchmark failed, which they say."""


def name_of(part: Part, token: str) -> str:
    """Return the name of the bundle of one attempt at a part."""
    return f"{part.name}.{token}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the results of a part come from.

    Parameters
    ----------
    part
        What was to be measured.
    token
        Tells one attempt from another.
    box, host
        The engine's name of the machine, and its own.
    hardware_tag
        Of the machine.
    began, ended
        UTC, as ISO 8601 has it, to the second.
    exit_code
        Of the command that measured; None: it was not reached, or took too long.
    why
        Why there are no results; None where there are.
    versions
        Of Python and of what measured, by name.
    devices
        Variables that choose among the GPUs of the box, as they were set.
    """

    part: Part
    token: str
    box: str
    host: str
    hardware_tag: str
    began: str
    ended: str
    exit_code: int | None
    why: str | None
    versions: Mapping[str, str]
    devices: Mapping[str, str]

    @property
    def file_name(self) -> str:
        """The bundle's name in the inbox."""
        return name_of(self.part, self.token)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all; `read_provenance` reads it."""
        write_json(path, {"version": VERSION, **asdict(self)})


def read_provenance(path: Path) -> Provenance:
    """Read what `Provenance.save` wrote; ResultFileError names the file and what is wrong."""
    data = read_versioned_json(path, VERSION)
    texts = {
        key: typed_field(path, data, key, str, "a string")
        for key in ("token", "box", "host", "hardware_tag", "began", "ended")
    }
    for key, pattern in (("token", _TOKEN), ("box", _BOX)):
        if not pattern.fullmatch(texts[key]):
            raise ResultFileError(path, key, got=texts[key], wanted=f"one as {pattern.pattern}")
    code, why = data.get("exit_code"), data.get("why")
    if isinstance(code, bool) or not isinstance(code, int | None):
        raise ResultFileError(path, "exit_code", got=code, wanted="a number or null")
    if not isinstance(why, str | None):
        raise ResultFileError(path, "why", got=why, wanted="a string or null")
    if why is None and code not in MEASURED:
        raise ResultFileError(path, "exit_code", got=code, wanted="0 or 1, or a reason in why")
    return Provenance(
        part=part_of(path, typed_field(path, data, "part", dict, "an object")),
        exit_code=code,
        why=None if why is None else one_line(why),
        versions=_texts(path, data, "versions"),
        devices=_texts(path, data, "devices"),
        **texts,
    )


def _texts(path: Path, data: Mapping[str, Any], key: str) -> dict[str, str]:
    found: dict[str, str] = typed_field(path, data, key, dict, "an object")
    if not is_strings([*found.values()]):
        raise ResultFileError(path, key, got=found, wanted="strings")
    return found


def pack(target: Path, folder: Path) -> None:
    """Zip a folder that has a bundle's files, but for what is not one of them."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in names:
            if _ALLOWED.fullmatch(name):
                bundle.write(folder / name, name)


def extract(source: Path, folder: Path) -> Provenance:
    """Write the files of a bundle into an empty folder, check them, and say where they come from.

    Raises
    ------
    ResultFileError
        It is no bundle, or one with wrong files, or its results are not what it says; the message
        names the bundle.
    OSError
        The folder cannot be written.
    """
    for name, pieces in itertools.groupby(_pieces(source), key=operator.itemgetter(0)):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            file.writelines(piece for _, piece in pieces)
    with _naming(source, folder):
        found = read_provenance(folder / PROVENANCE)
        if source.name != found.file_name:
            raise ResultFileError(source, "name", got=source.name, wanted=found.file_name)
        if found.why is None:
            _refuse_foreign(source, found, read_results(folder))
    return found


def _pieces(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a bundle in small pieces, each with the file's name.

    Sizes that the zip claims are not believed: what comes out of it is counted.
    """
    size = 0
    try:
        _refuse_large_directory(source)
        with zipfile.ZipFile(source) as bundle:
            for entry in _checked(source, bundle.infolist()):
                with bundle.open(entry) as file:
                    piece = None
                    while piece != b"":
                        piece = file.read(_PIECE_BYTES)
                        if (size := size + len(piece)) > MOST_BYTES:
                            most = f"at most {MOST_BYTES} bytes"
                            raise ResultFileError(source, "size", got="more", wanted=most)
                        yield entry.filename, piece
    except _BROKEN as error:
        raise ResultFileError(source, "file", got=error, wanted="a bundle of a fleet") from error


def _refuse_large_directory(source: Path) -> None:
    """Raise ResultFileError where the zip's list of files is long: zipfile reads all of it."""
    with source.open("rb") as file:
        file.seek(-min(_END.size + _WIDE_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
        end = file.read()
    signature, files, size, comment = _END.unpack(end[-_END.size :])
    if (signature, comment) != (b"PK\5\6", 0) or end.startswith(b"PK\6\7"):
        raise zipfile.BadZipFile("no end of a small zip file")
    if files > _MOST_FILES or size > _PIECE_BYTES:
        wanted = f"at most {_MOST_FILES}, listed in {_PIECE_BYTES} bytes"
        raise ResultFileError(source, "files", got=f"{files} in {size} bytes", wanted=wanted)


def _checked(source: Path, entries: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return the entries; ResultFileError where one may not be in a bundle."""
    if len(entries) > _MOST_FILES:
        wanted = f"at most {_MOST_FILES}"
        raise ResultFileError(source, "files", got=len(entries), wanted=wanted)
    names = [entry.filename for entry in entries]
    for entry in entries:
        link = stat.S_ISLNK(entry.external_attr >> 16)
        if link or not _ALLOWED.fullmatch(entry.filename) or names.count(entry.filename) > 1:
            wanted = f"once {PROVENANCE}, {LOG} and files of {RESULTS}/"
            raise ResultFileError(source, "entry", got=repr(entry.filename), wanted=wanted)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            what = f"packing of {entry.filename}"
            raise ResultFileError(source, what, got=entry.compress_type, wanted="0 or 8")
    return entries


@contextlib.contextmanager
def _naming(source: Path, folder: Path) -> Iterator[None]:
    """Let an error of an unpacked file name the bundle: the folder is gone by then."""
    try:
        yield
    except ResultFileError as error:
        if error.path == source:
            raise
        inside = str(error.path).removeprefix(f"{folder}/")
        what = f"{inside}: {error.what}"
        raise ResultFileError(source, what, got=error.got, wanted=error.wanted) from error
    except (ValueError, MeasurementError) as error:
        said = str(error).replace(f"{folder}/", "")
        raise ResultFileError(source, RESULTS, got=said, wanted="one result file") from error


def read_results(folder: Path) -> ResultSet:
    """Read the one result file of an unpacked bundle, with the environments of its processes.

    Raises
    ------
    ResultFileError, ValueError, MeasurementError
        There is none, or several, or it is broken.
    """
    tags = [path.name for path in sorted((folder / RESULTS).glob("*")) if path.is_dir()]
    if len(tags) != 1:
        got = ", ".join(tags) or "none"
        raise ResultFileError(folder / RESULTS, "machines", got=got, wanted="one")
    results = ResultsDirectory(folder / RESULTS, tags[0])
    files = results.files()
    if len(files) != 1:
        raise ResultFileError(folder / RESULTS, "files", got=len(files), wanted="one result file")
    return with_stored_environments(results.load(files[0].name[:8]))


def _refuse_foreign(source: Path, found: Provenance, results: ResultSet) -> None:
    """Raise ResultFileError where results are of another commit or kind of machine."""
    if results.commit != found.part.commit:
        wanted = found.part.commit
        raise ResultFileError(source, "commit of results", got=results.commit, wanted=wanted)
    kind = found.part.kind
    if KNOWN_KIND.fullmatch(kind) and kind != (here := kind_of_hardware(results.hardware)):
        raise ResultFileError(source, f"machine of {found.box}", got=here, wanted=kind)


def kind_of_hardware(hardware: Hardware) -> str:
    """Return the kind of a machine: its GPU's architecture, or ``cpu``."""
    return hardware.gpu_architecture or "cpu"
