"""Compares two runs: pairs their results, and has each pair judged.

`decision` has the rule for one pair, `comparison` what it all adds up to. This module has the
reasons why a pair cannot be compared.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rocmforge.bench.comparison import (
    CODE_CHANGED,
    NOT_SELECTED,
    THRESHOLD,
    Comparison,
    Difference,
    Row,
)
from rocmforge.bench.decision import (
    Evidence,
    Verdict,
    decide,
    evidence,
    of_ratio,
    quiet,
    slowdown,
)
from rocmforge.bench.machine_speed import differing_conditions
from rocmforge.bench.noise import Noise, process_floors
from rocmforge.bench.ranks import holm
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.hardware import Hardware

_NA = "n/a or not selected"  # asv stores both alike
CHANGES = (Verdict.REGRESSION, Verdict.IMPROVED)


def compare(
    before: ResultSet,
    after: ResultSet,
    threshold: float = THRESHOLD,
    select: Callable[[str], object] | None = None,
    noise: Mapping[str, Noise] | None = None,
    thresholds: Mapping[str, float] | None = None,
    upgraded: Collection[str] = (),
    may_miss: bool = False,
) -> Comparison:
    """Compare two runs benchmark by benchmark, each by the rule of `decision.decide`.

    A benchmark that was measured before and fails now weighs like a regression. On different
    hardware nothing is compared.

    Parameters
    ----------
    before, after
        The two runs.
    threshold
        Above 0; 0.10 for 10 %.
    select
        Whether a benchmark counts, by its ``name(parameters)``; default: all do.
    noise
        What runs of one commit on this hardware differ by, by ``name(parameters)``; default:
        nothing is known of it. That of a benchmark whose code has changed since does not count.
    thresholds
        Expressions that match the beginning of ``name(parameters)``, and the threshold of these
        benchmarks where it is another; the last one that matches counts.
    upgraded
        Fields of the hardware that may differ, such as ``rocm_version`` where an upgrade is judged.
    may_miss
        Whether what was measured before, and is not now or not comparably, leaves a pass a pass.

    Raises
    ------
    ValueError
        A threshold that is not a number above 0.
    """
    own = {re.compile(name): value for name, value in (thresholds or {}).items()}
    for value in (threshold, *own.values()):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"threshold: got {value}, wanted a fraction above 0, e.g. 0.10")
    mismatches = tuple(
        difference
        for difference in differences(before.hardware, after.hardware)
        if difference.field not in upgraded
    )
    old, new = (
        {r.label: r for r in (run.only(select) if select else run).results}
        for run in (before, after)
    )
    pairs = {label: (old.get(label), new.get(label)) for label in {**old, **new}}
    unselected = after.suite - {result.name for result in after.results}
    floors = process_floors([before, after])
    found = {
        label: evidence(was, now)
        for label, (was, now) in pairs.items()
        if was and now and not _incomparable(was, now)
    }
    tested = {label: one.p_value for label, one in found.items() if one.p_value is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    rows = []
    for label, (was, now) in pairs.items():
        limit = threshold_of(label, threshold, own)
        known = _usable((noise or {}).get(label), now) if now else None
        floor = known.floor if known else floors.get(label)
        if label in found and was and now:
            marked = now.marked or was.marked
            evidenced = found[label], adjusted.get(label), limit, floor or 0.0, marked, len(tested)
            compared = "runs of one commit" if known else "processes of one run"
            verdict, note = decide(*evidenced, compared)
            if verdict in CHANGES and (machine := differing_conditions(was, now)):
                verdict, note = Verdict.CANNOT_TELL, machine
        else:
            left_out = was is not None and was.name in unselected
            verdict, note = (Verdict.SKIPPED, NOT_SELECTED) if left_out else _verdict(was, now)
        row = _row(was, now, verdict, note, found.get(label), limit, floor)
        rows.append(_unjudged(row) if mismatches else row)
    return Comparison(
        before=_describe(before),
        after=_describe(after),
        threshold=threshold,
        rows=_hinted(rows),
        mismatches=mismatches,
        may_miss=may_miss,
        commits=(before.commit, after.commit),
        notes=(
            *_notes(before, after, mismatches),
            *_unknown_noise(pairs, tested, noise or {}, floors),
        ),
    )


def threshold_of(label: str, default: float, own: Mapping[re.Pattern[str], float]) -> float:
    """Return the threshold of a benchmark: that of the last expression that matches its beginning.

    Parameters
    ----------
    label
        ``name(parameters)``.
    default
        Where none matches.
    own
        Thresholds by expression.
    """
    return [default, *(value for name, value in own.items() if name.match(label))][-1]


def _row(
    before: Result | None,
    after: Result | None,
    verdict: Verdict,
    note: str,
    found: Evidence | None,
    threshold: float,
    floor: float | None,
) -> Row:
    known = before or after
    if known is None:
        raise ValueError("row: got no result on either side, wanted one")
    old = before.value if before else None
    new = after.value if after else None
    ratio = new / old if old and new is not None else math.inf
    low, high = _ratio_interval(found, known.direction)
    return Row(
        name=known.name,
        params=dict(zip(known.param_names, known.params, strict=True)),
        before=old,
        after=new,
        ratio=ratio if math.isfinite(ratio) else None,
        low=low,
        high=high,
        unit=known.unit,
        direction=known.direction,
        verdict=verdict,
        note=note,
        threshold=threshold,
        quiet_slowdown=_quiet(before, after),
        floor=floor,
        marked=any(one.marked is not None for one in (before, after) if one),
    )


def _quiet(before: Result | None, after: Result | None) -> float | None:
    """Slowdown of the better quartiles of two results' samples."""
    if not (before and after and before.samples and after.samples) or after.direction is None:
        return None
    old, new = (quiet(result.samples, after.direction) for result in (before, after))
    return slowdown(old, new, after.direction) if min(old, new) > 0 else None


def _ratio_interval(
    found: Evidence | None, direction: Direction | None
) -> tuple[float | None, float | None]:
    """Interval of after / before, from that of the slowdown; None where there is none."""
    if found is None or found.low <= 0 or not math.isfinite(found.high):
        return None, None
    return of_ratio(found.low, found.high, direction)


def _usable(noise: Noise | None, after: Result) -> Noise | None:
    """Noise, if it was measured with the same code and in the same unit."""
    if noise is None or noise.unit != after.unit:
        return None
    same = not (noise.version and after.version) or noise.version == after.version
    return noise if same else None


def _verdict(before: Result | None, after: Result | None) -> tuple[Verdict, str]:
    """Verdict where no two values can be compared."""
    was = before.status if before else None
    now = after.status if after else None
    if now is Status.FAILED:
        before_it = {Status.OK: "ok", Status.FAILED: "failed too", Status.SKIPPED: _NA}
        return Verdict.FAILED, f"before: {before_it[was] if was else 'not measured'}"
    if before and after and was is Status.OK and now is Status.OK:
        return Verdict.NOT_COMPARABLE, _incomparable(before, after)
    if now is Status.OK:
        then = {Status.FAILED: "failed before", Status.SKIPPED: f"{_NA} before"}
        return Verdict.NEW, then.get(was, "") if was else ""
    if was is Status.OK:
        return Verdict.MISSING, f"{_NA} now" if now is Status.SKIPPED else ""
    if was is Status.FAILED:
        return Verdict.MISSING, "failed before, not measured now"
    return Verdict.SKIPPED, ""


def _hinted(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Say of what is missing whether something new looks like it: renamed, other parameters."""
    new = [row for row in rows if row.verdict is Verdict.NEW]
    bare = [row for row in rows if row.verdict is Verdict.MISSING and not row.note]
    hints = {row.label: _hint(row, new) for row in bare}
    return tuple(replace(row, note=hints.get(row.label, row.note)) for row in rows)


def _hint(row: Row, new: Sequence[Row]) -> str:
    values = [*row.params.values()]
    alike = [other.name for other in new if [*other.params.values()] == values]
    found = difflib.get_close_matches(row.name, alike, n=1)
    if found:
        return f"renamed to {found[0]}?"
    now = next((o.params for o in new if o.name == row.name and [*o.params] != [*row.params]), None)
    return "" if now is None else f"its parameters are now {', '.join(now) or 'none'}"


def _incomparable(before: Result, after: Result) -> str:
    """Why two results cannot be compared; empty: they can."""
    old, new = before.value, after.value
    if before.status is not Status.OK or after.status is not Status.OK:
        return "not measured on both sides"
    if before.version and after.version and before.version != after.version:
        return CODE_CHANGED
    if before.unit is None or after.unit is None or after.direction is None:
        return "not in benchmarks.json: unit and direction unknown"
    if (before.unit, before.direction) != (after.unit, after.direction):
        return "unit or direction changed"
    if old is None or new is None or old < 0 or new < 0:
        return "a negative value has no ratio"
    return ""


def _unjudged(row: Row) -> Row:
    return replace(row, ratio=None, low=None, high=None, verdict=Verdict.HARDWARE_MISMATCH, note="")


def differences(before: Hardware, after: Hardware) -> tuple[Difference, ...]:
    """Fields that forbid comparing measurements of two machines."""
    old, new = before.identity(), after.identity()
    return tuple(Difference(key, old[key], new[key]) for key in old if old[key] != new[key])


def _notes(
    before: ResultSet, after: ResultSet, mismatches: tuple[Difference, ...]
) -> tuple[str, ...]:
    named = {difference.field for difference in mismatches}
    notes = []
    for field in ("rocm_version", "hip_version", "driver_version", "os", "python_version"):
        old, new = getattr(before.hardware, field), getattr(after.hardware, field)
        if field == "python_version" and (not old or not new or _same_release(old, new)):
            continue  # asv knows it of environments that it made, and without the last number
        if old != new and field not in named:
            notes.append(f"differs, compared all the same: {Difference(field, old, new)}")
    overrides = {run.hardware.gfx_override for run in (before, after)} - {None}
    if overrides and "gfx_override" not in named:
        notes.append(f"both measured under HSA_OVERRIDE_GFX_VERSION={overrides.pop()}")
    if not before.hardware.is_known() and not after.hardware.is_known():
        notes.append("hardware unknown: run rocmforge bench machine before asv run")
    if before.commit == after.commit:
        notes.append(f"before and after are runs of the same commit, {after.commit[:8]}")
    return tuple(notes)


def _same_release(one: str, other: str) -> bool:
    """Whether two versions agree as far as both go: 3.11 and 3.11.7."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


def _unknown_noise(
    pairs: Mapping[str, tuple[Result | None, Result | None]],
    tested: Iterable[str],
    noise: Mapping[str, Noise],
    floors: Collection[str],
) -> tuple[str, ...]:
    """Say for how many benchmarks no noise floor is known."""
    labels = list(tested)
    unknown = 0
    for label in labels:
        after = pairs[label][1]
        bare = after is not None and _usable(noise.get(label), after) is None
        unknown += bare and label not in floors
    what = f"noise unknown for {unknown} of {len(labels)} benchmarks"
    return (f"{what}: rocmforge bench noise --save measures it",) if unknown else ()


def _describe(results: ResultSet) -> str:
    return f"{results.source} ({results.commit[:8]} on {results.machine})"
