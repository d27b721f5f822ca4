"""What formats.html loads: bits per weight, Kullback-Leibler divergence and speed of each format.

A format is on the Pareto front where no other is as good in both numbers and better in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, Report, latest
from rocmforge.bench.dashboard.points import rounded
from rocmforge.bench.files import finite_number, kind_of, typed_field
from rocmforge.bench.formatting import NA, iso, plain_params
from rocmforge.errors import ResultFileError

COMMAND = "python tools/compare_formats.py"
BITS = "dequantize.Size.track_bits_per_weight"
DIVERGENCE = "quality.Quality.track_kl_nats"
REFERENCE = "Q8_0"
"""What the suite's divergence is from: the demo model as it is stored."""
_NUMBERS = {
    "bits": "bits_per_weight",
    "kl": "kl_nats",
    "top1": "top1_agreement",
    "perplexity": "perplexity",
    "prefill": "prefill_tokens_per_second",
    "decode": "decode_tokens_per_second",
}


def formats_data(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return the formats of each machine: of its report, else bits and divergence of its runs.

    Returns
    -------
    dict
        ``machines``: each with its ``tag``, ``source``, ``model``, ``reference`` (the format that
        the divergence is from), ``threads``, ``commit`` and ``date``, and ``rows``: ``format``,
        numbers by name (None: not measured), and ``smallest_front`` and ``fastest_front``, whether
        it is on the front of bits, or of decode, against the divergence.

    Raises
    ------
    ResultFileError
        A report lacks something.
    """
    found = [_of_report(m.tag, m.formats) if m.formats else _of_runs(m) for m in machines]
    return {"command": COMMAND, "machines": found}


def _of_report(tag: str, report: Report) -> dict[str, Any]:
    content = report.content
    rows = []
    for name, one in typed_field(report.path, content, "formats", dict, "an object").items():
        if not isinstance(one, dict):
            raise ResultFileError(report.path, name, got=kind_of(one), wanted="an object")
        rows.append(
            {"format": name}
            | {
                key: rounded(finite_number(report.path, f"{stored} of {name}", one[stored]))
                if one.get(stored) is not None
                else None
                for key, stored in _NUMBERS.items()
            }
        )
    threads = content.get("threads")
    return {
        "tag": tag,
        "source": report.path.name,
        "model": str(content.get("model")).removesuffix(".gguf"),
        "reference": str(content.get("reference", NA)),
        "threads": threads if isinstance(threads, int) else None,
        "commit": report.commit[:8] if report.commit else None,
        "date": report.date[:10],
        "rows": with_fronts(rows),
    }


def _of_runs(machine: Machine) -> dict[str, Any]:
    """Bits per weight and divergence as the suites measured them; there is no speed beside them."""
    found: dict[str, dict[str, float]] = {}
    commits, dates = set(), set()
    for result, run in latest(machine).values():
        key = {BITS: "bits", DIVERGENCE: "kl"}.get(result.name)
        if key and result.value is not None and plain_params(result).get("device") != "gpu":
            found.setdefault(plain_params(result).get("format", ""), {})[key] = result.value
            commits.add((result.commit or run.commit)[:8])
            dates.add((iso(run.commit_date) or "")[:10])
    rows: list[dict[str, Any]] = [
        {"format": name} | {key: rounded(one.get(key)) for key in _NUMBERS}
        for name, one in found.items()
        if "kl" in one
    ]
    return {
        "tag": machine.tag,
        "source": "results of asv",
        "model": "demo",
        "reference": REFERENCE,
        "threads": None,
        "commit": ", ".join(sorted(commits)) if rows else None,
        "date": max(dates) if rows else None,
        "rows": with_fronts(rows),
    }


def with_fronts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say of each format whether it is on either front."""
    smallest = pareto((row["format"], row["bits"], row["kl"]) for row in rows)
    speeds = ((row["format"], _negative(row["decode"]), row["kl"]) for row in rows)
    fastest = pareto(speeds)
    fronts = ("smallest_front", smallest), ("fastest_front", fastest)
    return [{**row, **{name: row["format"] in front for name, front in fronts}} for row in rows]


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def pareto(points: Iterable[tuple[str, float | None, float | None]]) -> set[str]:
    """Return the names of the points that no other beats; less is better in both numbers.

    A point beats another where it is no more in either number and less in one. One that lacks a
    number takes no part.
    """
    known = [(name, x, y) for name, x, y in points if x is not None and y is not None]
    return {
        name
        for name, x, y in known
        if not any(a <= x and b <= y and (a < x or b < y) for _, a, b in known)
    }
