"""What a box hands back is checked before anything of it is kept."""

from __future__ import annotations

import json
import random
import re
import stat
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asv_tree import A, B
from fleet_bundles import bundle, provenance

from rocmforge.bench.fleet.bundle import Provenance, extract, pack, read_results
from rocmforge.bench.fleet.parts import Part
from rocmforge.errors import ResultFileError

PART = Part(A, "cpu", "quick")


def test_a_bundle_there_and_back(tmp_path: Path) -> None:
    made = provenance(PART, devices={"ROCR_VISIBLE_DEVICES": "1"})
    path = bundle(tmp_path / "fleet" / "inbox", made)
    (tmp_path / "out").mkdir()
    assert extract(path, tmp_path / "out") == made
    results = read_results(tmp_path / "out")
    assert (results.commit, [r.value for r in results.results]) == (A, [2.0])
    assert results.results[0].process_medians == (2.0,)


def test_one_of_a_failure_needs_no_results(tmp_path: Path) -> None:
    made = provenance(PART, exit_code=2, why="it\nfell\x1b over")
    path = bundle(tmp_path / "fleet" / "inbox", made)
    (tmp_path / "out").mkdir()
    assert extract(path, tmp_path / "out").why == "it fell over"


def test_only_files_of_a_bundle_are_packed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "results" / "box").mkdir(parents=True)
    for name in ("log.txt", "results/box/machine.json", "results/box/x.png", "secret", ".hidden"):
        (folder / name).write_text("")
    pack(tmp_path / "x.zip", folder)
    with zipfile.ZipFile(tmp_path / "x.zip") as packed:
        assert packed.namelist() == ["log.txt", "results/box/machine.json"]


def refused(path: Path, message: str) -> None:
    out = path.parent.parent / "out"
    out.mkdir(exist_ok=True)
    with pytest.raises(ResultFileError) as error:
        extract(path, out)
    assert str(error.value).startswith(f"{path}: ")
    assert re.search(message, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "/etc/x", "results/../../x", "results/box/../x.json", "x", "results"),
        *("results/box/00000000-x/y.json", "results\\x", "results/BOX/machine.json", "log.txt/x"),
        *("provenance.json", "results/box/deeper/machine.json", "results/box/.json"),
    ],
)
def test_a_file_of_another_name_is_refused(name: str, tmp_path: Path) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as packed:
        warnings.simplefilter("ignore")  # one of the names is there
        packed.writestr(name, "x")
    refused(path, "entry: got .*, wanted once provenance.json")
    assert {path.name for path in (tmp_path / "fleet").iterdir()} == {"inbox", "out"}
    assert [*(tmp_path / "fleet" / "out").iterdir()] == []


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "inbox" / provenance(PART).file_name
    path.parent.mkdir(parents=True)
    entry = zipfile.ZipInfo("log.txt")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(entry, "/etc/passwd")
    refused(path, "entry: got 'log.txt'")


def test_one_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    monkeypatch.setattr("rocmforge.bench.fleet.bundle.MOST_BYTES", 100)
    refused(path, "size: got .*, wanted at most 100 bytes")


def test_one_that_claims_less_than_it_holds_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / provenance(PART).file_name
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("log.txt", bytes(1 << 25))
    claimed = (1 << 25).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(claimed, (10).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        refused(path, "file: got Bad CRC-32 .*, wanted a bundle")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 22


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_one_that_is_packed_in_another_way_is_refused(packing: int, tmp_path: Path) -> None:
    path = tmp_path / "fleet" / provenance(PART).file_name
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", packing) as packed:
        packed.writestr("log.txt", "x")
    refused(path, f"packing of log.txt: got {packing}, wanted 0 or 8")


def many(path: Path, files: int) -> bytes:
    """Write a zip of so many empty files."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        for number in range(files):
            packed.writestr(f"results/box/{number:08x}-x.json", "")
    return path.read_bytes()


def test_one_of_many_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / provenance(PART).file_name
    whole = many(path, 9)
    refused(path, "files: got 9 in .* bytes, wanted at most 8")
    path.write_bytes(whole[:-12] + (1).to_bytes(2, "little") + whole[-10:])  # it says one
    refused(path, "files: got 9, wanted at most 8")


@pytest.mark.parametrize("comment", [b"", b"x"])
def test_a_long_list_of_files_is_not_read(
    comment: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet" / provenance(PART).file_name
    many(path, 2_000)
    with zipfile.ZipFile(path, "a") as packed:
        packed.comment = comment
    monkeypatch.setattr("zipfile.ZipFile.__init__", None)
    refused(path, "files: got 2000 in .* bytes" if not comment else "file: got no end of a small")


@pytest.mark.parametrize("keep", [0, 1, 60, 400])
def test_one_that_was_cut_off_is_refused(keep: int, tmp_path: Path) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "file: got .*, wanted a bundle of a fleet")


def test_flipped_bits_change_nothing_or_are_refused(tmp_path: Path) -> None:
    made = provenance(PART)
    path = bundle(tmp_path / "fleet" / "inbox", made)
    whole, chance = path.read_bytes(), random.Random(0)
    refusals = 0
    for number in range(150):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        out = tmp_path / f"out-{number}"
        out.mkdir()
        try:
            found = extract(path, out)
        except ResultFileError as error:
            refusals += error.path == path
        else:
            assert found == made
    assert refusals > 75


@pytest.mark.parametrize(
    ("made", "arguments", "message"),
    [
        (provenance(PART), {"commit": B}, f"commit of results: got {B}, wanted {A}"),
        (
            provenance(Part(A, "gfx942", "quick")),
            {},
            "machine of n0: got cpu, wanted gfx942",
        ),
        (
            provenance(PART),
            {"machine": {"gfx": "gfx1100"}},
            "machine of n0: got gfx1100, wanted cpu",
        ),
        (provenance(PART, exit_code=2), {}, "exit_code: got 2, wanted 0 or 1"),
        (provenance(PART, token="../../x"), {}, "token"),
        (provenance(PART, box="n 0\n"), {}, "box: got"),
    ],
)
def test_results_of_something_else_are_refused(
    made: Provenance, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(made.part), **arguments)
    _replace(path, "provenance.json", lambda _: json.dumps(_document(made, tmp_path)))
    refused(path, message)


def _document(made: Provenance, folder: Path) -> dict[str, Any]:
    made.save(folder / "packed.json")
    document: dict[str, Any] = json.loads((folder / "packed.json").read_text())
    (folder / "packed.json").unlink()
    return document


def _replace(path: Path, name: str, change: Callable[[str], str]) -> None:
    with zipfile.ZipFile(path) as packed:
        files = {entry: packed.read(entry).decode() for entry in packed.namelist()}
    with zipfile.ZipFile(path, "w") as packed:
        for entry, text in files.items():
            packed.writestr(entry, change(text) if entry == name else text)


def test_a_name_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    other = path.with_name("other.00000000.zip")
    path.rename(other)
    refused(other, "name: got other.00000000.zip, wanted aaaaaaaa-cpu-")


def test_broken_results_are_named_by_their_place_in_the_bundle(tmp_path: Path) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    result = "results/box/aaaaaaaa-virtualenv-py3.11.json"
    _replace(path, result, lambda text: text.replace('"version": 2', '"version": 3'))
    refused(path, f"{re.escape(result)}: version: got 3, wanted 2")
    _replace(path, result, lambda _: "{")
    refused(path, f"{re.escape(result)}: content")


def test_results_of_two_machines_are_refused(tmp_path: Path) -> None:
    path = bundle(tmp_path / "fleet" / "inbox", provenance(PART))
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("results/two/machine.json", "{}")
    refused(path, "machines: got box, two, wanted one")
