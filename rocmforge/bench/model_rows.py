"""How `bench model` writes its rows: a Markdown table, JSON, JSON lines or CSV.

A row is one test where the model lies, with the provenance of the measurement.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rocmforge.bench.formatting import NA, digits, value_and_unit

FORMS = ("md", "json", "csv", "jsonl")
Row = Mapping[str, Any]
_TITLES = ("model", "size", "device", "threads", "batch", "test")
_MEASURED = ("tokens/s", "min … max", "ms/token", "time / ideal")


def markdown(rows: Sequence[Row]) -> str:
    """Return a table, a line for each row; what was not measured is n/a with its reason."""
    lines = [(*_TITLES, *_MEASURED), *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = len(_TITLES)
    padded = [
        [
            c.ljust(w) if i < left else c.rjust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (padded[0], rule, *padded[1:]))


def _cells(row: Row) -> tuple[str, ...]:
    device = row["device_name"] or row["device"]
    if row["gpu_layers"] is not None:
        device += f" ({row['gpu_layers']} layers)"
    device += {"tensor": " (split by tensors)", "stream": " (others in host memory)"}.get(
        row["split_mode"], ""
    )
    named = (row["model"], value_and_unit(row["model_bytes"], "bytes"), device)
    shown = (*named, str(row["threads"] or ""), str(row["batch"]), row["test"])
    if row["tokens_per_second"] is None:
        return (*map(_cell, shown), f"{NA}: {_cell(row['reason'])}", "", "", "")
    ends = [digits(row[f"tokens_per_second_{end}"]) for end in ("min", "max")]
    over_ideal = row["time_over_ideal"]
    return (
        *map(_cell, shown),
        digits(row["tokens_per_second"]),
        " … ".join(ends),
        digits(row["ms_per_token"]),
        NA if over_ideal is None else f"{over_ideal:.2f}",
    )


def _cell(text: str) -> str:
    """A text from a file or a driver as one cell: it may hold anything."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text).replace("|", "\\|")


def whole(form: str, rows: Sequence[Row]) -> str:
    """Return all rows as "md" or "json"; empty for a form that is written row by row."""
    if form == "md":
        return markdown(rows)
    return json.dumps(rows, indent=2, allow_nan=False) + "\n" if form == "json" else ""


def line(form: str, row: Row, first: bool) -> str:
    """Return a row as "jsonl" or "csv", before the first one of CSV a header; else empty.

    In CSV a list's numbers have spaces between them, and None is an empty field.
    """
    if form == "jsonl":
        return json.dumps(row, allow_nan=False) + "\n"
    if form != "csv":
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if first:
        writer.writerow(row)
    values = row.values()
    writer.writerow(" ".join(map(str, v)) if isinstance(v, list) else v for v in values)
    return out.getvalue()
