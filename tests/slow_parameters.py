"""Parameters of which `make test` runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def others_slow(values: Iterable[str], kept: Container[str]) -> list[Any]:
    """Return values as parameters of a test; those that are not kept are `slow`."""
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in values]
