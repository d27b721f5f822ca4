"""What kernels.html loads: what the compiler made of each kernel file, commit by commit.

Registers, waves and loads are the compiler's, not a machine's: a commit that several machines
compiled is one point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rocmforge.bench.dashboard.points import rounded
from rocmforge.bench.formatting import iso, plain_params
from rocmforge.bench.results import ResultSet

METRICS = {
    "kernel_resources.KernelResources.track_vgprs": "VGPRs",
    "kernel_resources.KernelResources.track_lds_bytes": "LDS",
    "kernel_resources.KernelResources.track_occupancy": "waves",
    "kernel_resources.KernelResources.track_spilled_registers": "spilled registers",
    "kernel_resources.Loads.track_bytes_per_load": "bytes per load",
    "kernel_resources.KernelResources.track_code_bytes": "code size",
}
COMMAND = "rocmforge bench run --bench kernel_resources"


def kernels_data(runs: Iterable[ResultSet]) -> dict[str, Any]:
    """Return every metric of every kernel file and architecture over the commits.

    Parameters
    ----------
    runs
        Of any machine; of a commit that several measured, the first one that has a value counts.

    Returns
    -------
    dict
        ``commits``: hash and day, oldest first; ``metrics``: name, ``unit`` and ``better``;
        ``series``: ``metric``, ``file``, ``architecture`` and ``values``, one for each commit,
        None where it was not compiled; ``changes``: values that differ from the last known one
        before of the same version of the benchmark's code, the newest first, with ``commit``,
        ``before``, ``after`` and ``verdict``, None where no direction is known.
    """
    ordered = sorted(runs, key=lambda run: (run.commit_date or 0, run.commit))
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    versions: dict[tuple[str, str, str], dict[str, str | None]] = {}
    metrics: dict[str, dict[str, str | None]] = {}
    commits: dict[str, str | None] = {}
    for run in ordered:
        for result in run.results:
            params = plain_params(result)
            if result.name not in METRICS or result.value is None or "file" not in params:
                continue
            name = METRICS[result.name]
            better = result.direction.value if result.direction else None
            metrics[name] = {"unit": result.unit, "better": better}
            commits.setdefault(run.commit[:8], (iso(run.commit_date) or "")[:10] or None)
            key = name, params["file"], params.get("architecture", "")
            found.setdefault(key, {}).setdefault(run.commit[:8], result.value)
            versions.setdefault(key, {}).setdefault(run.commit[:8], result.version)
    listed: list[dict[str, Any]] = [
        {
            "metric": metric,
            "file": file,
            "architecture": architecture,
            "values": [rounded(values.get(commit)) for commit in commits],
        }
        for (metric, file, architecture), values in sorted(found.items())
    ]
    return {
        "command": COMMAND,
        "commits": [{"commit": commit, "date": date} for commit, date in commits.items()],
        "metrics": {name: metrics[name] for name in METRICS.values() if name in metrics},
        "series": listed,
        "changes": [
            change
            for at, commit in reversed([*enumerate(commits)])
            for one, key in zip(listed, sorted(found), strict=True)
            if (
                change := _change(
                    one,
                    [versions[key].get(held) for held in commits],
                    at,
                    commit,
                    metrics[one["metric"]]["better"],
                )
            )
        ],
    }


def _change(
    series: Mapping[str, Any],
    versions: Sequence[str | None],
    at: int,
    commit: str,
    better: str | None,
) -> dict[str, Any] | None:
    """What a commit changed of a series; None: nothing, or there is no value before or at it."""
    known = [
        value
        for value, version in zip(series["values"][:at], versions[:at], strict=True)
        if value is not None and version == versions[at]
    ]
    after = series["values"][at]
    if not known or after is None or after == known[-1]:
        return None
    improved = (after > known[-1]) == (better == "higher")
    verdict = None if better is None else "better" if improved else "worse"
    named = {key: series[key] for key in ("metric", "file", "architecture")}
    return {**named, "commit": commit, "before": known[-1], "after": after, "verdict": verdict}
