"""Whole or not at all: files, folders, writers that are killed, and what they leave behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from rocmforge import atomic
from rocmforge.atomic import SUFFIX, naming_full_disk, sweep, whole_file, whole_folder

STOPS = """
import os, signal, sys
from pathlib import Path
from rocmforge import atomic

def stop(*_):
    print("here", flush=True)
    signal.pause()

place = Path(sys.argv[1])
"""
WRITES = (
    "with atomic.whole_file(place) as file:\n    file.write(b'half')\n    file.flush()\n    stop()"
)
MAKES = "with atomic.whole_folder(place) as work:\n    (work / 'new').mkdir()\n    stop()"
EXCHANGES = "exchange = atomic._exchange\n{}\n" + MAKES.replace("stop()", "pass")
AFTER = "def after(*paths):\n    exchange(*paths)\n    stop()\natomic._exchange = after"
BETWEEN = """
atomic._exchange = lambda *_: False
rename = os.rename
def between(source, target):
    rename(source, target)
    if source == place:
        stop()
os.rename = between
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        kill(process)
        if process.stdout is not None:
            process.stdout.close()


def start(started: list[subprocess.Popen[str]], code: str, place: Path) -> subprocess.Popen[str]:
    """Start a process that stops in the middle of writing; return when it stands there."""
    words = [sys.executable, "-c", STOPS + code, str(place)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def write_on_a_full_disk(file: BinaryIO) -> None:
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), file.fileno())
    file.write(b"x")


def older(place: Path) -> None:
    place.mkdir()
    (place / "page").write_text("older")


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_bytes(b"older")
    with whole_file(place) as file:
        file.write(b"newer")
        assert place.read_bytes() == b"older"
    assert place.read_bytes() == b"newer"
    assert names(tmp_path) == ["a.json"]


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode in (("open", 0o666), ("own", 0o600)):
            with whole_file(tmp_path / name, mode):
                pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("open", "own")] == [0o640, 0o600]


def test_a_file_that_raises_leaves_the_older_one(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_bytes(b"older")
    with pytest.raises(TypeError), whole_file(place) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert place.read_bytes() == b"older"
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 120, os.fsdecode(b"\xff.json"), "a\nb"])
def test_any_name_that_the_file_system_takes(tmp_path: Path, name: str) -> None:
    with whole_file(tmp_path / name) as file:
        file.write(b"whole")
    with whole_folder(tmp_path / "folders" / name) as work:
        (work / "new").mkdir()
    assert names(tmp_path) == sorted(["folders", name])
    assert names(tmp_path / "folders") == [name]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    with (
        pytest.raises(OSError, match=f"No space left on device: '{place}'"),
        whole_file(place) as file,
    ):
        write_on_a_full_disk(file)
    assert names(tmp_path) == []


def test_an_error_of_something_else_keeps_its_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'elsewhere'"), naming_full_disk(tmp_path):
        os.stat("elsewhere")
    with pytest.raises(OSError, match=r"^the source$"), naming_full_disk(tmp_path):
        raise OSError("the source")


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_takes_the_place_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    place = tmp_path / "html"
    for text in ("first", "second", "third"):
        with whole_folder(place) as work:
            (work / "new").mkdir()
            (work / "new" / "page").write_text(text)
        assert (place / "page").read_text() == text
        assert names(tmp_path) == ["html"]


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    for content in (b"first", b"second"):  # there is nothing at first
        with whole_file(tmp_path / "link") as file:
            file.write(content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with (
            pytest.raises(FileExistsError, match=r"A pipe or a device is there.*pipe"),
            whole_file(tmp_path / name),
        ):
            pass
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    older(tmp_path / "real")
    (tmp_path / "html").symlink_to("real")
    with whole_folder(tmp_path / "html") as work:
        (work / "new").mkdir()
    assert (tmp_path / "html").is_symlink()
    assert names(tmp_path / "real") == []


def test_a_folder_that_was_not_made_leaves_the_older_one(tmp_path: Path) -> None:
    place = tmp_path / "html"
    older(place)
    with pytest.raises(FileNotFoundError), whole_folder(place):
        pass
    assert names(place) == ["page"]
    assert names(tmp_path) == ["html"]


def test_so_does_one_that_is_ended_between_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "html"
    older(place)
    rename, seen = os.rename, 0

    def ended(source: Path, target: Path) -> None:
        nonlocal seen
        seen += target == place
        if target == place and seen == 2:  # the first finds the older one there
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", ended)
    with pytest.raises(KeyboardInterrupt), whole_folder(place) as work:
        (work / "new").mkdir()
    assert names(place) == ["page"]
    assert names(tmp_path) == ["html"]


@pytest.mark.parametrize("code", [WRITES, MAKES])
def test_what_a_living_writer_writes_stays_and_what_a_killed_one_left_goes(
    tmp_path: Path, started: list[subprocess.Popen[str]], code: str
) -> None:
    process = start(started, code, tmp_path / "place")
    (left,) = names(tmp_path)
    assert left.startswith(".place.")
    assert left.endswith(SUFFIX)
    with whole_file(tmp_path / "other"):
        assert left in names(tmp_path)
    kill(process)
    assert names(tmp_path) == [left, "other"]
    with whole_file(tmp_path / "other"):
        pass
    assert names(tmp_path) == ["other"]


def test_a_kill_at_the_exchange_leaves_a_dashboard(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    place = tmp_path / "html"
    older(place)
    kill(start(started, EXCHANGES.format(AFTER), place))
    assert names(place) == []  # the new one
    sweep(place)
    assert names(tmp_path) == ["html"]


def test_where_it_cannot_exchange_a_kill_loses_nothing(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    place = tmp_path / "html"
    older(place)
    kill(start(started, EXCHANGES.format(BETWEEN), place))
    assert not place.exists()
    sweep(tmp_path / "other")  # whoever comes next
    assert names(place) == ["page"]
    assert names(tmp_path) == ["html"]


def test_only_names_of_ours_are_swept(tmp_path: Path) -> None:
    kept = [
        ".html.previous",
        ".model.gguf.original",
        f"dataset.{'0123456789abcdef' * 2}.part",
        ".html.swp",
        ".html.abcdefghi",
        ".other.abcdefgh",
        "html.abcdefgh.part",
        "model.gguf.part",
        f"html.01234567{SUFFIX}",
        f".html.0123{SUFFIX}",
    ]
    for name in [*kept, f".html.0123abcd{SUFFIX}"]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / f".link.0123abcd{SUFFIX}").symlink_to(tmp_path / kept[0])
    kept.append(f".link.0123abcd{SUFFIX}")
    sweep(tmp_path / "html")
    assert names(tmp_path) == sorted(kept)


def test_without_locks_only_what_is_old_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = tmp_path / f".html.0123abcd{SUFFIX}"
    left.mkdir()
    with whole_file(tmp_path / "other"):
        pass
    assert names(tmp_path) == [left.name, "other"]
    os.utime(left, (0, 0))
    sweep(tmp_path / "other")
    assert names(tmp_path) == ["other"]


def test_a_sweep_before_the_lock_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def swept_first(handle: int, how: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not removed:
            removed.append(path)
            path.rmdir() if path.is_dir() else path.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    with whole_file(tmp_path / "file") as file:
        file.write(b"whole")
    removed.clear()
    with whole_folder(tmp_path / "folder") as work:
        (work / "new").mkdir()
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert names(tmp_path) == ["file", "folder"]
