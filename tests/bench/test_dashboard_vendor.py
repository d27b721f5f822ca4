"""The vendored files are those that their README names, with their licences."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from rocmforge.bench.dashboard.vendored import OWN, VENDOR, VENDORED

ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([0-9a-f]{64})` \|")
ROWS = {row[0]: row for row in ROW.findall((VENDOR / "README.md").read_text("utf-8"))}
MOST_BYTES = 950_000
GRANTED = (
    "MIT license",
    "Permission is hereby granted, free of charge",
    "Permission to use, copy, modify, and/or distribute this software",  # ISC
)


def test_each_file_is_in_the_readme_with_its_hash() -> None:
    files = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert files == {*ROWS} == {*VENDORED.values(), *OWN}
    for name, (*_, wanted) in ROWS.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == wanted, name


def test_each_has_its_licence() -> None:
    for name, _, licence, _, _ in ROWS.values():
        text = (VENDOR / (name if "head" in licence else licence)).read_text("utf-8")
        assert any(words in text for words in GRANTED), name
    licences = {path.name for path in VENDOR.glob("*.LICENSE")}
    assert licences == {row[2] for row in ROWS.values() if row[2].endswith(".LICENSE")}


def test_what_is_said_to_be_the_same_has_the_hash_that_asvs_page_states() -> None:
    asv = pytest.importorskip("asv")
    page = (Path(asv.__file__).parent / "www" / "index.html").read_text("utf-8")
    stated = dict(re.findall(r"(https://[^\"]+)\" integrity=\"([^\"]+)\"", page))
    for address, name in VENDORED.items():
        kind, _, digest = stated[address].partition("-")
        own = base64.b64encode(hashlib.new(kind, (VENDOR / name).read_bytes()).digest()).decode()
        assert (own == digest) == (ROWS[name][3] == "the same"), name


def test_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in VENDOR.iterdir()) < MOST_BYTES
