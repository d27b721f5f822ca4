"""What the cache of compiled kernels takes: nothing that another user could have written."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from rocmforge.gpu.code_cache import CodeCache

STRANGER = 4711  # a user's id that is neither ours nor root's

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with one entry."""
    folder = tmp_path / "deep" / "er" / "kernels"
    CodeCache(folder).put("name", b"content")
    return folder


def use(cache: CodeCache) -> list[bytes | None]:
    """What it has, and what it has of another entry once that was put."""
    found = cache.get("name")
    cache.put("other", b"content")
    return [found, cache.get("other")]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def open_to(bits: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode(path) | bits)


def behind_a_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def behind_a_strangers_link(path: Path) -> None:
    behind_a_link(path)
    os.chown(path, STRANGER, -1, follow_symlinks=False)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o000])
def test_new_folders_and_entries_are_ours_alone(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        CodeCache(tmp_path / "deep" / "kernels").put("name", b"content")
    finally:
        os.umask(before)
    assert mode(tmp_path / "deep") == mode(tmp_path / "deep" / "kernels") == 0o700
    assert mode(tmp_path / "deep" / "kernels" / "name") == 0o600
    assert CodeCache(tmp_path / "deep" / "kernels").get("name") == b"content"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_to(0o020), "mode 720"),
        (open_to(0o002), "mode 702"),
        (open_to(0o1777), "mode 1777"),
        pytest.param(give_away, f"user {STRANGER}", marks=as_root),
        pytest.param(behind_a_strangers_link, f"user {STRANGER}", marks=as_root),
    ],
)
def test_a_folder_that_others_may_write_is_said_once_and_neither_read_nor_written(
    spoil: Callable[[Path], None], why: str, folder: Path
) -> None:
    spoil(folder)
    with pytest.warns(RuntimeWarning, match=f"{folder} .*{why}.*ROCMFORGE_CACHE") as said:
        assert use(CodeCache(folder)) == [None, None]
    assert len(said) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["name"]
    with pytest.warns(RuntimeWarning, match=why):
        CodeCache(folder).put("other", b"content")
    assert sorted(path.name for path in folder.iterdir()) == ["name"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_to(0o020), "mode 620"),
        (open_to(0o002), "mode 602"),
        (behind_a_link, "is no file"),
        (a_pipe, "is no file"),
        pytest.param(give_away, f"user {STRANGER}", marks=as_root),
    ],
)
def test_an_entry_that_others_may_write_is_said_once_and_made_anew(
    spoil: Callable[[Path], None], why: str, folder: Path
) -> None:
    CodeCache(folder).put("second", b"content")
    spoil(folder / "name")
    open_to(0o022)(folder / "second")
    cache = CodeCache(folder)
    with pytest.warns(RuntimeWarning, match=f"{folder / 'name'} .*{why}") as said:
        assert [cache.get(name) for name in ("name", "second")] == [None, None]
    assert len(said) == 1
    cache.put("name", b"again")
    assert cache.get("name") == b"again"
    assert mode(folder / "name") == 0o600


def test_ours_and_roots_are_taken_and_a_link_to_a_safe_folder_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CodeCache(tmp_path / "link").get("name") == b"content"
        assert CodeCache(tmp_path / "nowhere").get("name") is None
        assert CodeCache(folder).get("missing") is None
        if os.geteuid() == 0:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
            assert CodeCache(folder).get("name") == b"content"


def test_where_it_cannot_be_written_it_is_still_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CodeCache(folder)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("rocmforge.gpu.code_cache.whole_file", refuse)
    with pytest.warns(RuntimeWarning, match=f"cannot be kept in {folder}.*No space"):
        cache.put("other", b"content")
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        cache.put("third", b"content")
    assert cache.get("name") == b"content"


def test_an_entry_is_read_from_the_folder_that_was_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = folder.with_name("swapped")
    CodeCache(swapped).put("name", b"evil")
    look = os.fstat

    def look_and_swap(handle: int) -> os.stat_result:
        if swapped.exists():
            folder.rename(folder.with_name("looked at"))
            swapped.rename(folder)
        return look(handle)

    monkeypatch.setattr(os, "fstat", look_and_swap)
    assert CodeCache(folder).get("name") == b"content"
