"""Which of many cases of a test `make test` runs on the stand-in; `make test-all` runs all."""

from __future__ import annotations

import pytest


def chosen_cases(cases: list[pytest.Item], most: int) -> list[pytest.Item]:
    """Choose so many cases: the last, the first, then those with most values that none yet had.

    Tests list small shapes first and large ones last. A value is one of a parameter.
    """
    kept: list[pytest.Item] = []
    rest, seen = [*cases], set[tuple[str, str]]()
    while rest and len(kept) < most:
        if len(kept) < 2:
            best = rest[-1 if not kept else 0]
        else:
            best = max(rest, key=lambda case: len(_values(case) - seen))
        kept.append(best)
        rest.remove(best)
        seen |= _values(best)
    return kept


def _values(case: pytest.Item) -> set[tuple[str, str]]:
    params = case.callspec.params  # type: ignore[attr-defined]
    return {(name, repr(value)) for name, value in params.items()}
