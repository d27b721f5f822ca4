"""Logits are compared with the reference before anything is timed: what is let through.

In a mixture of experts a rounding may choose another expert of random weights. So a few of its
logits may be far off, and most of them may not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import MeasurementError

PROMPTS = range(4)
STEPS = range(4, 16)
SECOND_PAGE = (0, 1, 4, 5, 8, 9, 12, 13)  # of the two longest sequences


@pytest.fixture
def checks(repo: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import checks

    monkeypatch.setattr(checks, "wanted_logits", lambda path: np.ones((67, 64)))
    return checks


class NearlyRight:
    """An engine whose logits are off by the given relative RMS, in turn."""

    def __init__(self, errors: Iterator[float], experts: object) -> None:
        self.config, self.errors = SimpleNamespace(experts=experts), errors

    def add_sequence(self) -> object:
        return object()

    def remove_sequence(self, sequence: object) -> None:
        pass

    def logits(self) -> Any:
        return 1 + next(self.errors) * np.where(np.arange(64) % 2, 1.0, -1.0)

    def prefill(self, sequence: object, ids: object) -> Any:
        return self.logits()

    def decode(self, sequences: list[object], ids: object) -> list[Any]:
        return [self.logits() for _ in sequences]


def engine(off: dict[int, float], experts: object) -> NearlyRight:
    return NearlyRight((off.get(at, 0.01) for at in itertools.count()), experts)


@pytest.mark.parametrize(
    ("experts", "off"),
    [
        (None, {}),
        (None, dict.fromkeys(range(16), 0.079)),
        ("some", {1: 0.4, 5: 0.6, 9: 0.3, 11: 0.89}),
    ],
)
def test_what_a_rounding_does_is_timed(
    checks: ModuleType, experts: object, off: dict[int, float]
) -> None:
    checks.check_engine(engine(off, experts), Path("some.gguf"))


@pytest.mark.parametrize(
    ("experts", "off", "message"),
    [
        (None, {5: 0.1}, "decode at 37.*got relative RMS 0.1 .*at most 0.08"),
        ("some", {5: 1.0}, "decode at 37.*got relative RMS 1 .*at most 0.9"),  # zeros
        ("some", dict.fromkeys(PROMPTS, 0.3), ", prompts: .*median relative RMS of 0.3 .*0.25"),
        ("some", dict.fromkeys(STEPS, 0.3), "prompts and steps: .*median relative RMS of 0.3"),
        ("some", dict.fromkeys(SECOND_PAGE, 0.3), "median relative RMS of 0.3"),
    ],
)
def test_what_is_wrong_is_not_timed(
    checks: ModuleType, experts: object, off: dict[int, float], message: str
) -> None:
    with pytest.raises(MeasurementError, match=f"some.gguf.*{message}"):
        checks.check_engine(engine(off, experts), Path("some.gguf"))
