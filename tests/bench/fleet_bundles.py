"""Bundles for the tests of a fleet, as a worker packs them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asv_tree import MACHINE, AsvTree, report

from rocmforge.bench.fleet.bundle import LOG, PROVENANCE, Provenance, pack
from rocmforge.bench.fleet.parts import Part


def provenance(part: Part, token: str = "0000000a", box: str = "n0", **more: Any) -> Provenance:
    made = Provenance(
        part=part,
        token=token,
        box=box,
        host="here",
        hardware_tag="box",
        began="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        exit_code=0,
        why=None,
        versions={"python": "3.11"},
        devices={},
    )
    return dataclasses.replace(made, **more)


def bundle(
    inbox: Path,
    made: Provenance,
    *,
    values: Mapping[str, Any] | None = None,
    machine: Mapping[str, str] | None = None,
    rates: Mapping[str, list[float]] | None = None,
    date: int = 1_700_000_000_000,
    commit: str | None = None,
    unit: str = "ms",
) -> Path:
    """Write a bundle into an inbox; without a reason in `made`, with results."""
    folder = inbox.parent.parent / f"packed-{made.file_name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    inbox.mkdir(parents=True, exist_ok=True)
    made.save(folder / PROVENANCE)
    (folder / LOG).write_text("said\n")
    if made.why is None:
        tree = AsvTree(folder / "results")
        values = values or {"matmul.track_ms": 2.0}
        for name in values:
            tree.benchmark(name, unit)
        fields = {**MACHINE, **(machine or {})}
        written = tree.run(commit or made.part.commit, dict(values), machine=fields, date=date)
        for name, value in values.items():
            conditions = {"others_share": 0.0}
            report(written, name, None, None, conditions, median=value, reference=rates or {})
    pack(inbox / made.file_name, folder)
    return inbox / made.file_name
