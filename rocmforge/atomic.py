"""Writes files and folders whole or not at all, and removes what killed writers left.

A new one is written beside its place, under a name of ours, and locked as long as its writer lives.
Whoever writes into the same folder next removes those that nobody holds any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".rocmforge-part"
_OURS = re.compile(rf"\.(.+)\.[0-9a-f]{{8}}{re.escape(SUFFIX)}", re.DOTALL)
_NAME_BYTES = 200  # of a place's name, in that of what is written for it: 255 is a name's most
_DAY_S = 86_400
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def whole_file(place: Path, mode: int = 0o666, *, anew: bool = False) -> Iterator[BinaryIO]:
    """Open a new file, which takes its place when the block ends, and not where it raises.

    Parameters
    ----------
    place
        Its folder exists. An older file there is replaced; a link is followed. The new one has
        another name until then: ``name`` of what is yielded.
    mode
        Permissions, less those that the umask takes away.
    anew
        Whatever is there is replaced, a link or a pipe too: nobody else's file is written.

    Raises
    ------
    OSError
        It cannot be written, or a pipe or a device is there; a full disk names `place`.
    """
    if not anew:
        place = Path(os.path.realpath(place))  # Path.resolve raises RuntimeError where links loop
    if not anew and place.exists() and not (place.is_file() or place.is_dir()):
        raise FileExistsError(errno.EEXIST, "A pipe or a device is there", str(place))
    sweep(place)

    def create(path: str, flags: int) -> int:
        return os.open(path, flags, mode)

    with naming_full_disk(place), contextlib.ExitStack() as stack:
        while True:
            path = _beside(place)
            stack.callback(path.unlink, missing_ok=True)  # first: Ctrl-C comes anywhere
            file = stack.enter_context(open(path, "xb", opener=create))
            if _held(path, file.fileno()):
                break
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(path, place)


@contextlib.contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """Make a folder to work in; what its folder ``new`` holds takes the place when the block ends.

    The older folder there is exchanged for the new one at once and then removed: at no instant is
    there none. Only where the file system cannot do that, a kill between two renames leaves none,
    and the next call brings the older one back.

    Parameters
    ----------
    place
        A link is followed.

    Raises
    ------
    OSError
        It cannot be written; a full disk names `place`.
    """
    place = place.resolve()
    with scratch_folder(place) as path:
        yield path
        _put(path / "new", place, path / "old")


@contextlib.contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """Make a folder beside a place, in a parent that is made; it goes when the block ends.

    That of a killed writer goes when the next one beside the same place is made.

    Raises
    ------
    OSError
        It cannot be written; a full disk names `place`.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place)
    with naming_full_disk(place), contextlib.ExitStack() as stack:
        while True:
            path = _beside(place)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            path.mkdir()
            handle = os.open(path, os.O_RDONLY)
            stack.callback(os.close, handle)
            if _held(path, handle):
                break
        yield path


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Let the error of a full disk name the file that was written: the system does not."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = str(path)
        raise


def sweep(place: Path) -> None:
    """Remove what killed writers left beside a place; what is being written stays.

    An older folder that was moved away for a new one, which never came, comes back.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(place.parent):
            if found := _OURS.fullmatch(name):
                _sweep(place.with_name(name), place.with_name(found[1]))


def _sweep(left: Path, place: Path) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, handle)
        if not _is_abandoned(handle):
            return
        if not left.is_dir():
            left.unlink()
            return
        if (left / "old").exists() and not place.exists():
            os.rename(left / "old", place)
        shutil.rmtree(left)


def _is_abandoned(handle: int) -> bool:
    """Whether nobody holds it; without locks, whether it is a day old."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return os.fstat(handle).st_mtime < time.time() - _DAY_S
    return True


def _beside(place: Path) -> Path:
    name = os.fsdecode(os.fsencode(place.name)[:_NAME_BYTES])
    return place.with_name(f".{name}.{os.urandom(4).hex()}{SUFFIX}")


def _held(path: Path, handle: int) -> bool:
    """Lock what was just made; False where a sweep came before the lock and removed it."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    return path.exists()


def _put(new: Path, place: Path, old: Path) -> None:
    try:
        os.rename(new, place)  # nothing is there, or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(new, place):
        return
    os.rename(place, old)
    try:
        os.rename(new, place)
    except BaseException:  # the end of a CI job comes as KeyboardInterrupt
        os.rename(old, place)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library without it
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if renameat2(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
