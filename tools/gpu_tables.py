"""The measured tables of GPUs: what gpu_speed.py wrote, and the ops of a baseline beside it."""

from __future__ import annotations

import re
from typing import Any

from markdown_table import table

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.matrix import stream_bytes

GEMV = "matmul.Quantized.time_matmul('{}', 1, 'gpu')"
GEMV_SHAPE = 4096  # rows and columns of that suite
ROOFLINE = "roofline.Matmul.track_inverse_roofline_fraction('{}', 1, 'gpu')"
STEP = re.compile(r"steps\.OnGpu\.track_us\('([^']*)', '([^']*)', 'gpu'\)")
WHOLE = "steps.Pass.track_parts_over_whole('{}', 'gpu')"


def speed_tables(report: dict[str, Any]) -> str:
    """Models, time to the first token, and GEMV per format, of one GPU."""
    models, gemv = report["models"], report["gemv"]
    prompts, depths = (
        list(models[0][f"{phase}_tokens_per_second"]) for phase in ("prefill", "decode")
    )
    speeds = [
        [
            model["model"],
            *(_rate(model["prefill_tokens_per_second"], n) for n in prompts),
            *(_rate(model["decode_tokens_per_second"], n) for n in depths),
        ]
        for model in models
    ]
    loads = {model["model"]: model["seconds_with_empty_compile_cache"] for model in models}
    parts = list(loads[models[0]["model"]])
    times = [
        [name, *(f"{1e3 * seconds[part]:,.0f}" for part in parts)]
        for name, seconds in loads.items()
    ]
    shapes = list(dict.fromkeys((row["rows"], row["columns"]) for row in gemv))
    measured = {(r["format"], r["rows"], r["columns"]): r["gb_per_second"] for r in gemv}
    names = dict.fromkeys(row["format"] for row in gemv)
    reads = [[name, *(f"{measured[name, n, k]:,.0f}" for n, k in shapes)] for name in names]
    heads = [f"prefill of {n}" for n in prompts] + [f"decode at {n}" for n in depths]
    lines = [
        f"{report['gpu']} (`{report['hardware_tag']}`), commit {report['commit'][:8]}",
        *("", f"{report['date'][:10]}; copies at {report['copy_gb_per_second']:,.0f} GB/s."),
        *("", "Tokens/s:"),
        *("", *table(["model", *heads], speeds)),
        *("", "Milliseconds on the way to the first token:", ""),
        *table(["model", *parts], times),
        *("", "GEMV over weights that no cache holds, GB/s:", ""),
        *table(["format", *(f"{n} × {k}" for n, k in shapes)], reads),
        *_feed_forward_lines(report.get("feed_forward", [])),
    ]
    return "\n".join(lines) + "\n"


def _feed_forward_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The ways of a feed-forward part; nothing where a report has none."""
    if not rows:
        return []
    models, ways = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "way"))
    times = {(row["model"], row["way"]): row["microseconds"] for row in rows}
    cells = [[way, *(f"{times[model, way]:,.1f}" for model in models)] for way in ways]
    return [
        *("", "Feed-forward part of one token in Q4_K over weights that no cache holds, µs:", ""),
        *table(["kernels", *models], cells),
    ]


def _rate(speeds: dict[str, float], key: str) -> str:
    return f"{speeds[key]:,.0f}" if key in speeds else "n/a"


def readme_models(report: dict[str, Any]) -> str:
    """Decode and prefill of one GPU's models."""
    intro = f"On one {report['gpu']}, median tokens/s ([more](docs/PERFORMANCE.md#on-gpus)):"
    prompt, depth = "512", "128"
    rows = [
        (
            model["model"],
            _rate(model["decode_tokens_per_second"], depth),
            _rate(model["prefill_tokens_per_second"], prompt),
        )
        for model in report["models"]
    ]
    columns = ("model (random weights)", "decode", f"prefill of {prompt}")
    return "\n".join([intro, "", *table(columns, rows)]) + "\n"


def stored_median(entry: dict[str, Any]) -> float:
    """Median of a baseline's entry, in the unit of its name: a baseline keeps all times in ms."""
    return next(float(value) for name, value in entry["metrics"].items() if name[:4] == "p50_")


def op_tables(baseline: dict[str, Any], speeds: dict[str, Any] | None) -> str:
    """Products by asv, by gpu_speed.py and beside the roofline, and the steps of passes."""
    meta, entries = baseline["metadata"], baseline["baselines"]
    if not meta["hardware"]["gpu_architecture"]:
        return ""
    products = _product_rows(entries, speeds)
    steps = _step_rows(entries)
    if not products or not steps:
        return ""
    heads = ("format", "asv, µs", "gpu_speed, µs", "asv / gpu_speed", "times ideal")
    other = f", gpu_speed {speeds['commit'][:8]}" if speeds else ""
    shape = f"{GEMV_SHAPE} × {GEMV_SHAPE} weights times one token"
    lines = [
        f"`{meta['hardware_tag']}`, asv {meta['commit'][:8]}{other}. {shape}:",
        *("", *table(heads, products)),
        *("", "Steps of the passes of 1.1B-Q4_K_M, device time of one call, µs:"),
        *("", *table(("step", *_passes(entries)), steps)),
    ]
    return "\n".join(lines) + "\n"


def _product_rows(entries: dict[str, Any], speeds: dict[str, Any] | None) -> list[list[str]]:
    rates = {
        row["format"]: row["gb_per_second"]
        for row in (speeds or {}).get("gemv", ())
        if row["rows"] == row["columns"] == GEMV_SHAPE
    }
    rows = []
    for name in FORMATS:
        entry, ideal = entries.get(GEMV.format(name)), entries.get(ROOFLINE.format(name))
        if entry is None:
            continue
        own, other = 1e3 * stored_median(entry), "n/a"
        ratio, times = "n/a", f"{stored_median(ideal):.2f}" if ideal else "n/a"
        if name in rates:
            alone = stream_bytes(name, GEMV_SHAPE, GEMV_SHAPE)
            seconds = sum(alone) / rates[name] / 1e9
            other, ratio = f"{1e6 * seconds:.2f}", f"{own / 1e6 / seconds:.2f}"
        rows.append([name, f"{own:.2f}", other, ratio, times])
    return rows


def _passes(entries: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(hit[2] for label in entries if (hit := STEP.fullmatch(label))))


def _step_rows(entries: dict[str, Any]) -> list[list[str]]:
    """A row for each step, and what all steps of a pass take over the pass itself."""
    found = {hit.groups(): entries[x] for x in entries if (hit := STEP.fullmatch(x))}
    passes = _passes(entries)
    rows = [
        [f"`{step}`", *(_microseconds(found.get((step, one))) for one in passes)]
        for step in dict.fromkeys(step for step, _ in found)
    ]
    wholes = [entries.get(WHOLE.format(one)) for one in passes]
    shares = [f"{stored_median(whole):.2f}" if whole else "n/a" for whole in wholes]
    return [*rows, ["all steps over the whole pass", *shares]] if rows else []


def _microseconds(entry: dict[str, Any] | None) -> str:
    return f"{1e3 * stored_median(entry):.2f}" if entry else "n/a"
