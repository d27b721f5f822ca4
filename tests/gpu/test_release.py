"""Releases: all are called, and what is raised is the first failure."""

from __future__ import annotations

import pytest

from rocmforge.errors import DeviceError
from rocmforge.gpu.release import release_all


def test_all_are_called_and_the_first_failure_is_raised() -> None:
    called: list[str] = []

    def fail(name: str) -> None:
        called.append(name)
        raise DeviceError(name)

    with pytest.raises(DeviceError, match="second"):
        release_all(
            lambda: called.append("first"),
            lambda: fail("second"),
            lambda: fail("third"),
            lambda: called.append("fourth"),
        )
    assert called == ["first", "second", "third", "fourth"]


def test_nothing_to_release_is_no_failure() -> None:
    release_all()
