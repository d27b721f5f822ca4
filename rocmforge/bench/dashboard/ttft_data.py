"""What ttft.html loads: the time to the first token by its parts, and over the prompt's length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, latest
from rocmforge.bench.dashboard.points import DEVICE, point, rounded
from rocmforge.bench.formatting import iso, plain_params
from rocmforge.bench.results import ResultSet

PARTS = "first_token.FirstToken.track_ms"
WHOLE = "inference.Prompt.track_ttft_ms"
COMMAND = "rocmforge bench run --bench first_token.FirstToken"
INSIDE = ("embedding", "host_to_device", "device_to_host")
ORDER = (
    "tokenize",
    "embedding",
    "host_to_device",
    "rest of prefill",
    "device_to_host",
    "first_token",
)
"""Of a bar, in the order in which they come; `load` is once a start and no part of it."""


def ttft_data(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return the parts of each machine's newest run that has the prompt's own part, and all TTFTs.

    Returns
    -------
    dict
        ``machines``: each with its ``tag``; ``splits``: ``model``, ``device``, ``commit``,
        ``date``, ``load`` (ms or None), ``prefill`` (ms), ``parts`` as pairs of name and ms in the
        order of `ORDER`, None: not measured; ``prompts``: points with ``model``, ``tokens`` and
        ``device``, in ms.
    """
    found = [{"tag": m.tag, "splits": [*_splits(m)], "prompts": [*_prompts(m)]} for m in machines]
    return {"command": COMMAND, "machines": found}


def _splits(machine: Machine) -> Iterator[dict[str, Any]]:
    stored = [machine.baseline] if machine.baseline else []
    older = sorted([*stored, *machine.earlier], key=lambda run: run.commit_date or 0, reverse=True)
    seen = set()
    for run in [machine.newest, *older] if machine.newest else older:
        for (model, device, commit), measured in _parts(run).items():
            if "prefill" in measured and (model, device) not in seen:
                seen.add((model, device))
                date = run.commit_date if commit == run.commit else None
                yield {
                    "model": model,
                    DEVICE: device,
                    "commit": commit[:8],
                    "date": (iso(date) or "")[:10] or None,
                    "load": rounded(measured.get("load")),
                    "prefill": rounded(measured["prefill"]),
                    "parts": split(measured),
                }


def _parts(run: ResultSet) -> dict[tuple[str, str, str], dict[str, float]]:
    """Milliseconds by part, of each model, device and commit: a baseline has several commits."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for result in run.results:
        params = plain_params(result)
        if result.name == PARTS and result.value is not None and {"model", "part"} <= params.keys():
            key = params["model"], params.get(DEVICE, ""), result.commit or run.commit
            of_model = found.setdefault(key, {})
            of_model[params["part"]] = result.value
    return found


def split(measured: Mapping[str, float]) -> list[tuple[str, float | None]]:
    """Split the time to the first token into parts that add up.

    The prompt's own part, ``prefill``, has the embedding and both copies in it: what is left of it
    is ``rest of prefill``, at least 0 where noise makes the parts more than the whole.

    Parameters
    ----------
    measured
        Milliseconds by part; ``prefill`` among them.
    """
    rest = measured["prefill"] - sum(measured.get(name, 0.0) for name in INSIDE)
    known = {**measured, "rest of prefill": max(rest, 0.0)}
    return [(name, rounded(known.get(name))) for name in ORDER]


def _prompts(machine: Machine) -> Iterator[dict[str, Any]]:
    for result, run in latest(machine).values():
        params = plain_params(result)
        if result.name == WHOLE and result.value is not None and params.get("tokens", "").isdigit():
            named = {"model": params.get("model", ""), DEVICE: params.get(DEVICE, "")}
            yield {**named, "tokens": int(params["tokens"]), **point(result, run)}
