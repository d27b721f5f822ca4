"""Parameters of which `make test` runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def others_slow(values: Iterable[str], kept: Container[str]) -> list[Any]:
    """Return values as parameters of a test; those that are not kept are `slow`."""
    return slow_where(((each,) for each in values), lambda each: each not in kept)


def slow_where(rows: Iterable[tuple[Any, ...]], leaves: Callable[..., bool]) -> list[Any]:
    """Return rows of values as parameters; those for whose values `leaves` is true are `slow`."""
    return [pytest.param(*row, marks=[pytest.mark.slow] if leaves(*row) else []) for row in rows]
