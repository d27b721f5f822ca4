"""Which of many cases of a test `make test` runs on the stand-in; `make test-all` runs all."""

from __future__ import annotations

import pytest


def chosen_cases(cases: list[pytest.Item], most: int) -> list[pytest.Item]:
    """Choose so many cases: the last, the first, then those with most values that none yet had.

    Tests list small shapes first and large ones last. A value is one of a parameter.
    """
    values = {case: _values(case) for case in cases}
    kept = [*dict.fromkeys((cases[-1], cases[0]))][:most]
    while len(kept) < min(most, len(cases)):
        seen = set[tuple[str, str]]().union(*(values[case] for case in kept))
        rest = (case for case in cases if case not in kept)
        kept.append(max(rest, key=lambda case: len(values[case] - seen)))
    return kept


def _values(case: pytest.Item) -> set[tuple[str, str]]:
    params = case.callspec.params  # type: ignore[attr-defined]
    return {(name, repr(value)) for name, value in params.items()}
