"""Tables of Markdown, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """Header and rows."""
    return [table_row(columns), table_row(["---"] * len(columns)), *map(table_row, rows)]


def table_row(cells: Iterable[object]) -> str:
    """One line."""
    return f"| {' | '.join(map(str, cells))} |"
