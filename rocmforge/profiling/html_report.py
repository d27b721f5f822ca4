"""A profile as one HTML file: the verdicts first, then where the time went, and in what conditions.

It loads nothing from elsewhere, and its policy forbids that. The template in page/ escapes all
texts: anybody may have written the names in a model's file.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rocmforge.atomic import whole_file
from rocmforge.profiling.condition_charts import Series, chart, series_of
from rocmforge.profiling.gpu_environment import GpuEnvironment, Spread
from rocmforge.profiling.memory import MemoryProfile
from rocmforge.profiling.profile import Part, Phase, Profile
from rocmforge.profiling.roofline_picture import points_of, roofline_svg
from rocmforge.quantities import human_size, rate_text, time_text

PAGE = Path(__file__).resolve().parent / "page"

Row = tuple[str, str]


def write_html(profile: Profile, path: Path) -> None:
    """Write the report of a profile.

    Parameters
    ----------
    profile
        Measured.
    path
        Its folder exists. The file takes its place whole or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    text = _templates().get_template("profile.html").render(_view(profile))
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


@functools.cache
def _templates() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {
        "time": time_text,
        "rate": rate_text,
        "size": human_size,
        "percent": _percent,
        "style": Markup((PAGE / "profile.css").read_text("utf-8")),
    }
    pages.filters["code"] = _code
    return pages


def _code(sentence: str) -> Markup:
    """Escape a sentence; what stands in backticks becomes code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))


def _view(profile: Profile) -> dict[str, Any]:
    script = (PAGE / "profile.js").read_text("utf-8")
    series = series_of(profile)
    memory = None if profile.memory is None else _memory(profile.memory)
    first = profile.first_token
    return {
        "profile": profile,
        "name": Path(profile.model.path).name,
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "on_cpu": profile.device.name == "cpu",
        "contents": _contents(profile, memory is not None),
        "figures": _figures(profile),
        "first": first,
        "first_parts": _parts(
            [part for part in first.parts if part.name != "load"], first.seconds, first.dominant
        ),
        "phases": [_phase(phase, profile.device.name == "cpu") for phase in profile.phases],
        "roofline": Markup(roofline_svg(profile)),
        "without_place": _without_place(profile),
        "memory": memory,
        "monitor_said": _monitor_said(profile),
        "series": [_series(one, profile) for one in series],
        "conditions": list(_conditions(profile)),
        "settings": _settings(profile),
        "versions": list(profile.environment.versions.items()),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _contents(profile: Profile, memory: bool) -> list[Row]:
    return [
        ("verdicts", "Verdicts"),
        ("first-token", "First token"),
        *((phase.name, phase.name.capitalize()) for phase in profile.phases),
        ("roofline", "Roofline"),
        *([("memory", "Memory")] if memory else []),
        ("conditions", "Conditions"),
        ("settings", "Settings"),
        ("reading", "How to read it"),
    ]


def _figures(profile: Profile) -> list[dict[str, str]]:
    first = profile.first_token
    verb = "met" if first.met else "missed"
    figures = [
        {
            "value": time_text(first.seconds),
            "name": "time to the first token",
            "note": f"target of {time_text(first.target_seconds)} {verb}",
            "mood": "good" if first.met else "bad",
        }
    ]
    for phase in profile.phases:
        bounds = [verdict.bound for verdict in profile.verdicts if verdict.subject == phase.name]
        figures.append(
            {
                "value": f"{_number(phase.tokens_per_second)} tokens/s",
                "name": phase.name,
                "note": f"limited by: {bounds[0]}" if bounds else "",
                "mood": "faint",
            }
        )
    loading = time_text(first.load_seconds)
    return [*figures, {"value": loading, "name": "loading, once", "note": "", "mood": ""}]


def _parts(parts: Sequence[Part], whole: float, longest: str = "") -> list[dict[str, Any]]:
    shares = [(part.seconds or 0.0) / whole if whole > 0 else 0.0 for part in parts]
    return [
        {
            "number": number,
            "label": part.label,
            "time": time_text(part.seconds),
            "share": "" if part.seconds is None else _percent(share),
            "percent": min(max(100 * share, 0.0), 100.0),
            "remark": f"{'longest. ' * (part.name == longest)}{part.reason}".strip(),
        }
        for number, (part, share) in enumerate(zip(parts, shares, strict=True), 1)
    ]


def _phase(phase: Phase, on_cpu: bool) -> dict[str, Any]:
    cost = phase.observer_cost
    launches = (("one launch", phase.launches), ("one graph", phase.graphs))
    return {
        "phase": phase,
        "rate": _number(phase.tokens_per_second),
        "cost": "" if cost is None else f"observing costs {cost:.1%}",
        "parts": _parts(phase.parts, phase.seconds),
        "ops": [
            {
                "op": op,
                "roofline": "" if op.roofline_fraction is None else _percent(op.roofline_fraction),
            }
            for op in phase.ops
        ],
        "others": list(_other_rows(phase, on_cpu)),
        "launches": [(name, times) for name, times in launches if times is not None],
    }


def _other_rows(phase: Phase, on_cpu: bool) -> Iterator[tuple[str, str, str]]:
    """What is no op: copies, and what nothing accounts for."""
    whole = max(phase.device_seconds, sum(op.seconds for op in phase.ops))
    for name, seconds in phase.besides_ops(on_cpu):
        yield name, time_text(seconds), _percent(seconds / whole) if whole > 0 else ""


def _without_place(profile: Profile) -> list[str]:
    placed = {point.op.label for point in points_of(profile)}
    labels = dict.fromkeys(op.label for phase in profile.phases for op in phase.ops)
    return [label for label in labels if label not in placed]


def _memory(memory: MemoryProfile) -> list[Row]:
    kv, use, executor, size = memory.kv, memory.kv.use, memory.executor, human_size
    rows = [
        ("weights", size(memory.weight_bytes)),
        ("keys and values, pages so far", size(kv.pool_bytes)),
        ("… all pages", f"{size(kv.full_bytes)} for {kv.capacity_tokens} tokens"),
        ("… of one token", f"{size(kv.bytes_per_token)}; {size(kv.bytes_per_token_layer)} a layer"),
        (
            "… in use",
            f"{size(kv.bytes_in_use)}: {use.tokens} tokens of {_sequences(use.sequences)}",
        ),
        ("… pages", f"{use.taken} of {use.pages} taken, of {use.page_size} tokens each"),
        ("… unused places in pages", f"{size(kv.unused_bytes)}, {use.unused_slots} tokens"),
        ("… scatter of free pages", f"{_percent(use.scatter)}: any free page serves any sequence"),
        ("page table", f"{size(kv.table_bytes)}, {100 * kv.table_overhead:.2g}% of the pages"),
        ("activations", size(executor.activations)),
        ("constants", size(executor.constants)),
        ("inputs of a batch", size(executor.inputs)),
        ("page-locked memory of the host", size(executor.pinned)),
    ]
    if memory.device is not None:
        rows.append(("the device has", size(memory.device.total)))
        rows.append(("… free now", size(memory.device.free)))
    if memory.device_before is not None:
        rows.append(("… free before", size(memory.device_before.free)))
    if memory.unaccounted_bytes is not None:
        rows.append(("… taken by none of the above", size(memory.unaccounted_bytes)))
    if memory.host_bytes is not None:
        rows.append(("this process, now", size(memory.host_bytes)))
    return [*rows, ("this process, at most", size(memory.host_peak_bytes))]


def _sequences(number: int) -> str:
    return "1 sequence" if number == 1 else f"{number} sequences"


def _monitor_said(profile: Profile) -> str:
    monitor = profile.monitor
    if monitor is None:
        return ""
    told = "It does not say what holds clocks down."
    if monitor.throttle is not None:
        told = f"Clocks were held down by {_joined(monitor.throttle) or 'nothing'}."
    samples = f"{len(monitor.samples)} samples, at least {time_text(monitor.period_seconds)} apart"
    seen = f"{monitor.device}: {samples}, from {monitor.source}."
    return " ".join([seen, told, *monitor.remarks])


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words)


def _series(series: Series, profile: Profile) -> dict[str, Any]:
    values = series.values
    return {
        "name": series.name,
        "unit": series.unit,
        "title": f"{series.name}, {series.unit}",
        "svg": Markup(chart(series, profile.spans)),
        "spread": [f"{v:.4g}" for v in (min(values), sum(values) / len(values), max(values))],
    }


def _conditions(profile: Profile) -> Iterator[Row]:
    found = profile.environment
    yield "wall time", time_text(found.wall_seconds)
    yield "CPU time of this process", time_text(found.own_cpu_seconds)
    yield "CPUs", str(found.cpus)
    yield "CPU time of everything else", _percent(found.others_share)
    yield "held back by a CPU quota", _percent(found.quota_throttled_share)
    yield "clock of the CPUs", _spread(found.cpu_mhz, "MHz")
    yield "load average", "not shown" if found.load_average is None else f"{found.load_average:g}"
    yield "governor", found.governor or "not shown"
    for gpu in found.gpus:
        yield from _gpu_conditions(gpu)


def _gpu_conditions(gpu: GpuEnvironment) -> Iterator[Row]:
    name = gpu.device
    yield f"{name}: clock", _spread(gpu.clock_mhz, "MHz")
    yield f"{name}: memory clock", _spread(gpu.memory_clock_mhz, "MHz")
    yield f"{name}: power", _spread(gpu.power_watts, "W")
    yield f"{name}: temperature", _spread(gpu.temperature_celsius, "°C")
    told = "not shown" if gpu.throttle is None else _joined(gpu.throttle) or "nothing"
    yield f"{name}: clocks held down by", told
    yield f"{name}: used before, by others", _percent(gpu.utilization_before)


def _settings(profile: Profile) -> list[Row]:
    asked, model = profile.settings, profile.model
    return [
        ("model", model.path),
        ("layers", str(model.layers)),
        ("weights as packed", human_size(model.weight_bytes)),
        ("tokens of the prompt", str(asked.prompt_tokens)),
        ("generated tokens", str(asked.tokens)),
        ("target", time_text(asked.target_seconds)),
        ("context", str(asked.ctx)),
        ("tokens of the prompt in one pass", f"at most {asked.prefill_chunk}"),
        ("keys and values", f"{asked.kv_dtype}, pages of {asked.page_size} tokens"),
        ("threads", "not of a GPU" if asked.threads is None else str(asked.threads)),
    ]


def _spread(spread: Spread | None, unit: str) -> str:
    if spread is None:
        return "not shown"
    if spread.min == spread.max:
        return f"{spread.mean:.4g} {unit}"
    return f"{spread.min:.4g} … {spread.max:.4g} {unit}, {spread.mean:.4g} on average"


def _percent(share: float | None) -> str:
    return "not shown" if share is None else f"{share:.1%}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "no"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
