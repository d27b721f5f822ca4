"""The measured tables of GPUs: what gpu_speed.py wrote, and the ops of a baseline beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from markdown_table import table

from rocmforge.bench.asv_results import BenchmarkInfo, read_result_file
from rocmforge.bench.dashboard.machines import read_runs
from rocmforge.bench.formatting import NA
from rocmforge.errors import one_line
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


def two_gpus_tables(report: dict[str, Any]) -> str:
    """Sums over two GPUs, and models on one and on both, of what two_gpus.py wrote."""
    sums = {(row["bytes"], row["way"]): row["us"] for row in report["sums"]}
    sizes, ways = (list(dict.fromkeys(key[at] for key in sums)) for at in (0, 1))
    times = [[f"{n:,}", *(f"{sums[n, way]:,.1f}" for way in ways)] for n in sizes]
    rows: dict[tuple[str, str], dict[str | None, float | None]] = {}
    for row in report["models"]:
        together = f", {row['batch']} sequences" if row["batch"] > 1 else ""
        cells = rows.setdefault((row["model"], f"{row['test']}{together}"), {})
        cells[row["split_mode"]] = row["tokens_per_second"]
    modes = ("layer", "tensor")
    speeds = [[*names, *_over_one(cells, modes)] for names, cells in rows.items()]
    measured = f"commit {report['commit'][:8]}, {report['date'][:10]}"
    lines = [
        f"`{report['hardware_tag']}`, two of them, {measured}.",
        *("", "A sum of float32 that each GPU has, in a captured graph, µs:"),
        *("", *table(["bytes", *ways], times)),
        *("", "Tokens/s, and in how many times those of one GPU (PRESET:MIX:LAYERS):", ""),
        *table(["model", "test", "1 GPU", *(f"2 GPUs, {mode}" for mode in modes)], speeds),
    ]
    return "\n".join(lines) + "\n"


def _over_one(cells: Mapping[str | None, float | None], modes: Sequence[str]) -> list[str]:
    """The rate of one GPU, and the rates of both with their ratio to it."""
    one = cells.get(None)
    found = [NA if one is None else f"{one:,.0f}"]
    for mode in modes:
        rate = cells.get(mode)
        if rate is None or one is None:
            found.append(NA)
        else:
            found.append(f"{rate:,.0f} ({rate / one:.2f})")
    return found


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


def readme_peer(reports: list[dict[str, Any]]) -> str:
    """The newest of the comparisons by compare_table.py: those cases that README shows."""
    report = max(reports, key=lambda each: str(each["date"]))
    shown = [
        row
        for row in report["rows"]
        if row["depth"] <= 128 and row["sequences"] in {1, 64} and row["prompt"] in {0, 2048}
    ]
    intro = (
        f"One {report['gpu']}, {_compared(report)}; median tokens/s, "
        "models have random weights ([all cases](docs/PERFORMANCE.md#on-gpus)):"
    )
    return "\n".join([intro, "", *_cases(shown)]) + "\n"


def peer_table(report: dict[str, Any]) -> str:
    """What compare_table.py wrote: each case beside llama.cpp; one that failed has its reason."""
    intro = (
        f"{report['gpu']} (`{report['hardware_tag']}`), {_compared(report)}, "
        f"median of {report['rounds']} rounds:"
    )
    return "\n".join([intro, "", *_cases(report["rows"])]) + "\n"


def _compared(report: dict[str, Any]) -> str:
    build = report["versions"]["llama.cpp"].get("build_commit", "unknown")
    measured = f"commit {report['commit'][:8]}, {report['date'][:10]}"
    return f"{measured}, beside llama.cpp {build} in turns"


def _cases(shown: list[dict[str, Any]]) -> list[str]:
    rows = [
        (row["case"], "n/a", "n/a", "n/a", one_line(row["error"]).replace("|", "/"))
        if "error" in row
        else (
            row["case"],
            f"{row['rocmforge']:,.0f}",
            f"{row['llama.cpp']:,.0f}",
            f"**{row['ratio']:.2f}**",
            f"{row['ratio_min']:.2f} … {row['ratio_max']:.2f}",
        )
        for row in shown
    ]
    columns = ("case", "ROCmForge tokens/s", "llama.cpp tokens/s", "ratio", "min … max")
    return table(columns, rows)


def stored_median(entry: dict[str, Any]) -> float:
    """Median of a baseline's entry, in the unit of its name: a baseline keeps all times in ms."""
    return next(float(value) for name, value in entry["metrics"].items() if name[:4] == "p50_")


def stored_commit(baseline: dict[str, Any], label: str) -> str:
    """Where a benchmark of a baseline was measured, in short: `refresh` keeps what is older."""
    own = baseline["baselines"][label].get("metadata", {}).get("commit")
    return str(own or baseline["metadata"]["commit"])[:8]


def stored_commits(baseline: dict[str, Any], labels: Iterable[str]) -> list[str]:
    """Where some of its benchmarks were measured; those that it has not do not count."""
    held = [label for label in labels if label in baseline["baselines"]]
    return sorted({stored_commit(baseline, label) for label in held})


@dataclass(frozen=True)
class Measured:
    """Medians by label, and the commit or commits that were measured, in short.

    Milliseconds of what is a time, else as its name says.
    """

    commit: str
    medians: Mapping[str, float]


def newest_products(
    folder: Path, benchmarks: Mapping[str, BenchmarkInfo], since: str
) -> Measured | None:
    """Return the newest run among a machine's results that has the products; None without one.

    Runs of commits that are older than `since` do not count: ISO 8601, when a baseline's products
    were measured.
    """
    name, first = GEMV.split("(", 1)[0], datetime.fromisoformat(since).timestamp()
    for run in reversed(read_runs(folder)):
        if run.date < 1000 * first:
            break
        results = read_result_file(run.path, benchmarks).results if name in run.benchmarks else ()
        medians = {
            r.label: r.value * (1e3 if r.unit == "seconds" else 1)
            for r in results
            if r.value is not None
        }
        if GEMV.format("Q4_K") in medians:
            return Measured(run.commit[:8], medians)
    return None


def op_tables(
    baseline: dict[str, Any], speeds: dict[str, Any] | None, products: Measured | None = None
) -> str:
    """Products by asv, by gpu_speed.py and beside the roofline, and the steps of passes.

    Parameters
    ----------
    baseline
        Of a GPU; of other machines there is no table.
    speeds
        What gpu_speed.py wrote, if anything.
    products
        The newest run that has them, if its commit is newer than what the baseline has of them.
    """
    meta, entries = baseline["metadata"], baseline["baselines"]
    if not meta["hardware"]["gpu_architecture"]:
        return ""
    own = {label: stored_median(entry) for label, entry in entries.items()}
    if products is None:
        labels = [*_labels_of_products(baseline)]
        at = ", ".join(stored_commits(baseline, labels))
        products = Measured(at, {label: own[label] for label in labels})
    shown = {label: own[label] for label in _labels_of_passes(baseline)}
    rows, steps = _product_rows(products.medians, speeds), _step_rows(shown)
    if not rows or not steps:
        return ""
    at = ", ".join(stored_commits(baseline, shown))
    heads = ("format", "asv, µs", "gpu_speed, µs", "asv / gpu_speed", "time / ideal")
    other = f", gpu_speed {speeds['commit'][:8]}" if speeds else ""
    shape = f"{GEMV_SHAPE} × {GEMV_SHAPE} weights times one token"
    lines = [
        f"`{meta['hardware_tag']}`, asv {products.commit}{other}. {shape}:",
        *("", *table(heads, rows)),
        "",
        f"Steps of the passes of 1.1B-Q4_K_M at {at}, device time of one call, µs:",
        *("", *table(("step", *_passes(shown)), steps)),
    ]
    return "\n".join(lines) + "\n"


def _labels_of_products(baseline: dict[str, Any]) -> Iterator[str]:
    """Products, each with its distance from the roofline where one commit has both."""
    for name in FORMATS:
        held = [x.format(name) for x in (GEMV, ROOFLINE) if x.format(name) in baseline["baselines"]]
        yield from held[: 2 if len(stored_commits(baseline, held)) == 1 else 1]


def _labels_of_passes(baseline: dict[str, Any]) -> list[str]:
    """The steps of each pass, and what they take over it, at the commit of its newest step.

    Older steps may be gone since.
    """
    entries = baseline["baselines"]
    by_pass: dict[str, list[str]] = {}
    for label in entries:
        if hit := STEP.fullmatch(label):
            by_pass.setdefault(hit[2], []).append(label)
    found = []
    for one, steps in by_pass.items():
        newest = max(steps, key=lambda label: str(entries[label].get("timestamp", "")))
        at = stored_commit(baseline, newest)
        own = [label for label in (*steps, WHOLE.format(one)) if label in entries]
        found += [label for label in own if stored_commit(baseline, label) == at]
    return found


def _product_rows(medians: Mapping[str, float], speeds: dict[str, Any] | None) -> list[list[str]]:
    rates = {
        row["format"]: row["gb_per_second"]
        for row in (speeds or {}).get("gemv", ())
        if row["rows"] == row["columns"] == GEMV_SHAPE
    }
    rows = []
    for name in FORMATS:
        own, ideal = medians.get(GEMV.format(name)), medians.get(ROOFLINE.format(name))
        if own is None:
            continue
        if ideal is None and speeds:  # the run has no roofline: as many bytes as a copy moves
            bytes_per_ms = 1e6 * speeds["copy_gb_per_second"]
            ideal = own * bytes_per_ms / FORMATS[name].nbytes((GEMV_SHAPE, GEMV_SHAPE))
        other, ratio, times = "n/a", "n/a", "n/a" if ideal is None else f"{ideal:.2f}"
        if name in rates:
            alone = 1e6 * sum(stream_bytes(name, GEMV_SHAPE, GEMV_SHAPE)) / rates[name] / 1e9
            other, ratio = f"{alone:.2f}", f"{1e3 * own / alone:.2f}"
        rows.append([name, f"{1e3 * own:.2f}", other, ratio, times])
    return rows


def _passes(labels: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(hit[2] for label in labels if (hit := STEP.fullmatch(label))))


def _step_rows(medians: Mapping[str, float]) -> list[list[str]]:
    """A row for each step, and what all steps of a pass take over the pass itself."""
    found = {hit.groups(): medians[x] for x in medians if (hit := STEP.fullmatch(x))}
    passes = _passes(medians)
    rows = [
        [f"`{step}`", *(_microseconds(found.get((step, one))) for one in passes)]
        for step in dict.fromkeys(step for step, _ in found)
    ]
    wholes = [medians.get(WHOLE.format(one)) for one in passes]
    shares = ["n/a" if whole is None else f"{whole:.2f}" for whole in wholes]
    return [*rows, ["all steps over the whole pass", *shares]] if rows else []


def _microseconds(median: float | None) -> str:
    return "n/a" if median is None else f"{1e3 * median:.2f}"
