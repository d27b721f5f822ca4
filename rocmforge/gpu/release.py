"""Giving back everything that is held, even where giving back some of it fails."""

from __future__ import annotations

from collections.abc import Callable

from rocmforge.errors import DeviceError


def release_all(*releases: Callable[[], object]) -> None:
    """Call all of them in order, whichever fail; the first failure is raised at the end.

    A device that has failed fails every later call too: the first error is the one that tells why.

    Raises
    ------
    DeviceError
        The first that was raised.
    """
    failures = [failure for failure in map(_failure, releases) if failure is not None]
    if failures:
        raise failures[0]


def _failure(release: Callable[[], object]) -> DeviceError | None:
    try:
        release()
    except DeviceError as error:
        return error
    return None
