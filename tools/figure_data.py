"""What the figures of docs/FIGURES.md show, from the committed results and baselines.

A figure is panels of plain numbers, a sentence that says what it shows, and where the numbers are
from. tools/figures.py draws them. Where nothing was measured there is no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measured_commits import commits_in_words

from rocmforge.bench.asv_results import BenchmarkInfo, read_benchmarks
from rocmforge.bench.dashboard.formats_data import formats_data
from rocmforge.bench.dashboard.machines import Machine, load_run, read_machines
from rocmforge.bench.dashboard.points import point
from rocmforge.bench.dashboard.roofline_data import roofline_data
from rocmforge.bench.dashboard.scaling_data import scaling_data
from rocmforge.bench.dashboard.ttft_data import PARTS, ttft_data
from rocmforge.bench.files import read_json
from rocmforge.bench.results import ResultSet

Panel = dict[str, Any]
MODEL = "0.5B-Q4_K_M"  # the one that every machine has measured
HISTORY = {
    f"inference.Decode.track_decode_ms_per_token('{MODEL}', 1, 'cpu')": "decode, 0.5B",
    f"inference.Prompt.track_ttft_ms('{MODEL}', 512, 'cpu')": "first token after 512, 0.5B",
    "matmul.Quantized.time_matmul('Q4_K', 1, 'cpu')": "product in Q4_K, 1 token",
    "matmul.Quantized.time_matmul('Q4_K', 128, 'cpu')": "product in Q4_K, 128 tokens",
    "attention.Decode.time_attention(4096, 'cpu')": "attention of 1 token over 4096",
}
MILLISECONDS: dict[str, Callable[[float], float]] = {
    "ms": lambda value: value,
    "seconds": lambda value: 1e3 * value,
}
SECTIONS = ("ratios", "roofline", "formats", "ttft", "scaling", "history")
"""Of docs/FIGURES.md, each with its figures."""
TIMES: Panel = {
    "kind": "dots",
    "x": "times as fast as llama.cpp (log scale)\nline: least … most of the rounds",
    "line": 1,
    "log": 2,
}
LEAST_COMMITS = 5  # of a history
LEAST_SHARES = 5  # of a roofline
PART_NAMES = {
    "tokenize": "text to tokens",
    "embedding": "embedding rows",
    "host_to_device": "to the device",
    "rest of prefill": "rest of the prompt's pass",
    "device_to_host": "to the host",
    "first_token": "choice of the token",
}


@dataclass(frozen=True)
class Figure:
    """A figure: its file's name, its section, panels, its finding, and where it is from."""

    name: str
    section: str
    panels: Sequence[Panel]
    alt: str
    source: str


def figures(results: Path, baselines: Path) -> list[Figure]:
    """Return every figure for which there are numbers, in the order of the page."""
    known = read_benchmarks(results / "benchmarks.json")
    machines = read_machines(results, baselines, {}, known)
    found: list[Figure] = []
    for make in (_ratios, _gpu_ratios, _rooflines, _formats, _ttft, _starts, _scaling):
        found += make(machines, baselines)
    return [*found, *_histories(machines, known)]


def _source(tag: str, points: Iterable[Mapping[str, Any]]) -> str:
    commits = list(dict.fromkeys(p["commit"] for p in sorted(points, key=_date)))
    return f"`{tag}`, {commits_in_words(commits)}"


def _date(point: Mapping[str, Any]) -> str:
    return point["date"] or ""


def _row(label: str, one: Mapping[str, Any], scale: float = 1.0) -> dict[str, Any]:
    """A value with its interval, if it has one, and whether it was marked."""
    low, high = (None if one[end] is None else one[end] * scale for end in ("low", "high"))
    value, marked = one["value"] * scale, bool(one["marked"])
    return {"label": label, "value": value, "low": low, "high": high, "marked": marked}


def is_usual(report: Mapping[str, Any]) -> bool:
    """Whether a report of compare_llama_cpp.py is of one sequence behind a prompt of 128 tokens,
    with several threads and no setting of its own.
    """
    alone = report["prompt_tokens"] == 128 and report.get("sequences", 1) == 1
    return alone and report["threads"] > 1 and not report.get("variables")


def model_name(report: Mapping[str, Any]) -> str:
    """The model that such a report is of."""
    return str(report["model"]).removesuffix(".gguf")


def _ratios(machines: Sequence[Machine], _: Path) -> Iterator[Figure]:
    """Beside llama.cpp on a CPU, with the usual settings."""
    panels, sources, ratios = [], [], []
    for machine in machines:
        kept = [report.content for report in machine.peers if is_usual(report.content)]
        series: dict[str, list[dict[str, Any]]] = {"decode": [], "prefill": []}
        for report in kept:
            for phase, row in report["phases"].items():
                ends = {"low": row["ratio_min"], "high": row["ratio_max"], "marked": None}
                name = model_name(report)
                series[phase].append(_row(name, {"value": row["ratio"], **ends}))
                ratios.append((row["ratio"], phase, name, machine.tag))
        if kept:
            commits = sorted({report["commit"][:8] for report in kept})
            sources.append(f"`{machine.tag}`, commits {', '.join(commits)}")
            panels.append({"title": machine.tag, **TIMES, "rows": series})
    if panels:
        faster = sum(ratio > 1 for ratio, *_ in ratios)
        least, most = min(ratios), max(ratios)
        alt = (
            f"Speed over llama.cpp's: {faster} of {len(ratios)} medians are above 1. The least is "
            f"{least[0]:.2f} ({least[1]} of {least[2]} on {least[3]}), the most {most[0]:.2f} "
            f"({most[1]} of {most[2]} on {most[3]})."
        )
        yield Figure("llama-cpp-cpu", "ratios", panels, alt, "; ".join(sources))


def _gpu_ratios(_: Sequence[Machine], baselines: Path) -> Iterator[Figure]:
    for path in sorted(baselines.glob("*/compare_table.json")):
        report = read_json(path)
        rows = [row for row in report["rows"] if "ratio" in row]
        series: dict[str, list[dict[str, Any]]] = {"decode": [], "prefill": []}
        for row in rows:
            phase = "decode" if row["decode"] else "prefill"
            many = f", {row['sequences']} sequences" if row["sequences"] > 1 else ""
            name = f"{row['model']}{many}" if row["decode"] else f"{row['model']}, {row['prompt']}"
            ends = {"low": row["ratio_min"], "high": row["ratio_max"], "marked": None}
            series[phase].append(_row(name, {"value": row["ratio"], **ends}))
        ratios = [row["ratio"] for row in rows]
        panel = {"title": report["gpu"], **TIMES, "rows": series}
        panel["x"] += "\ndecode: 128 tokens after 128\nprefill: a prompt of so many tokens"
        alt = (
            f"Speed over llama.cpp's on one {report['gpu']}: {min(ratios):.2f} to "
            f"{max(ratios):.2f} in all {len(ratios)} cases."
        )
        source = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}"
        name = f"llama-cpp-{report['hardware_tag']}"
        yield Figure(name, "ratios", [panel], alt, source)


def _rooflines(machines: Sequence[Machine], _: Path) -> Iterator[Figure]:
    for data in roofline_data(machines)["machines"]:
        shares = data["shares"]
        if len(shares) < LEAST_SHARES:
            continue
        panels = []
        works = list(dict.fromkeys(one["work"] for one in shares))
        products = [work for work in works if work.startswith("matmul")]
        for title, kept in (
            ("products by format", products),
            *((work, [work]) for work in works if work not in products),
        ):
            series = {
                work.removeprefix("matmul, "): [
                    _row(one["what"], one, 100) for one in shares if one["work"] == work
                ]
                for work in kept
            }
            x = "share of the roofline, %\nline: 99 % interval"
            panels.append({"kind": "dots", "title": title, "x": x, "line": 100, "rows": series})
        middles = [
            f"{work.replace(', ', ' of ')} {100 * median(values):.0f} %"
            for work in works
            if (values := [one["value"] for one in shares if one["work"] == work])
        ]
        alt = f"Median shares of the roofline on {data['tag']}: {', '.join(middles)}."
        name = f"roofline-{data['tag']}"
        yield Figure(name, "roofline", panels, alt, _source(data["tag"], shares))


def _formats(machines: Sequence[Machine], _: Path) -> Iterator[Figure]:
    for data in formats_data(machines)["machines"]:
        rows = [row for row in data["rows"] if row["kl"] and row["decode"]]
        if len(rows) < LEAST_SHARES or data["source"] != "formats.json":
            continue
        rows.sort(key=lambda row: (row["bits"], row["kl"]))
        panels = []
        for title, x, key, front in (
            ("quality", f"divergence from {data['reference']}, nats (log scale)", "kl", "smaller"),
            ("speed", "decode, tokens/s", "decode", "faster"),
        ):
            kept = f"{'smallest' if front == 'smaller' else 'fastest'}_front"
            shown = [
                _row(f"{row['format']}, {row['bits']:.4g} bits", _alone(row[key], not row[kept]))
                for row in rows
            ]
            x += f"\nfilled: no format is {front} and better"
            panel = {"kind": "dots", "title": title, "x": x, "rows": {"": shown}}
            panels.append(panel | ({"log": 10} if key == "kl" else {}))
        small = sorted((row for row in rows if row["smallest_front"]), key=lambda row: row["bits"])
        fast = sorted((row for row in rows if row["fastest_front"]), key=lambda row: row["kl"])
        alt = (
            f"Divergence and speed by format on {data['tag']}: of those measured, none is smaller "
            f"and better than {_listed(small)}, and none is faster and better than {_listed(fast)}."
        )
        source = f"`{data['tag']}`, commit {data['commit']}, model {data['model']}"
        yield Figure(f"formats-{data['tag']}", "formats", panels, alt, source)


def _listed(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [str(row["format"]) for row in rows]
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _ttft(machines: Sequence[Machine], _: Path) -> Iterator[Figure]:
    panels: list[Panel] = []
    sources, said = [], []
    series: dict[str, list[dict[str, Any]]] = {}
    for machine, data in zip(machines, ttft_data(machines)["machines"], strict=True):
        tag = machine.tag
        for split in data["splits"]:
            marked = _parts_marked(machine, split["commit"])
            parts = {PART_NAMES[name]: ms for name, ms in split["parts"] if ms is not None}
            rows = [_row(name, _alone(ms, marked)) for name, ms in parts.items()]
            x = "ms, after 512 tokens (log scale)" + "\nhollow: other work disturbed it" * marked
            panel = {"kind": "dots", "title": f"parts, {tag}", "x": x, "log": 10}
            panels.append({**panel, "rows": {"": rows}})
            longest = max(parts, key=lambda name: parts[name])
            share = 100 * parts[longest] / sum(parts.values())
            said.append(f"; on {tag} the {longest} takes {share:.1f} % of the parts")
            sources.append(f"parts `{tag}`, commit {split['commit']}")
        whole = [one for one in data["prompts"] if one["model"] == MODEL]
        if len(whole) > 1:
            series[tag] = [_xy(one["tokens"], one) for one in whole]
            sources.append(_source(tag, whole))
    if not series:
        return
    panel = {"kind": "lines", "title": f"whole, {MODEL}", "xlog": True, "ylog": True}
    panel |= {"x": "tokens of the prompt (log scale)", "y": "time to first token, ms"}
    panels.append({**panel, "series": series})
    whole = [f"{p['y']:.0f} ms on {tag}" for tag in series for p in series[tag] if p["x"] == 512]
    alt = f"Time to the first token of {MODEL}: after 512 tokens {', '.join(whole)}"
    yield Figure("ttft", "ttft", panels, f"{alt}{''.join(said)}.", "; ".join(sources))


def _parts_marked(machine: Machine, commit: str) -> bool:
    """Whether other work disturbed what that commit's parts were measured by."""
    runs = [run for run in (machine.newest, *machine.earlier, machine.baseline) if run]
    return any(
        result.marked is not None
        for run in runs
        for result in run.results
        if result.name == PARTS and (result.commit or run.commit)[:8] == commit
    )


def _alone(value: float, marked: bool) -> dict[str, Any]:
    """A value without an interval."""
    return {"value": value, "low": None, "high": None, "marked": marked}


def _xy(x: float, one: Mapping[str, Any]) -> dict[str, Any]:
    low, high, marked = one["low"], one["high"], bool(one["marked"])
    return {"x": x, "y": one["value"], "low": low, "high": high, "marked": marked}


def _starts(_: Sequence[Machine], baselines: Path) -> Iterator[Figure]:
    """A cold start on a GPU, from opening the device to the first token."""
    for path in sorted(baselines.glob("*/gpu_speed.json")):
        report = read_json(path)
        bars = {}
        for model in report["models"]:
            parts = dict(model["seconds_with_empty_compile_cache"])
            del parts["the same prompt again"]
            bars[model["model"]] = parts
        longest = [max(parts, key=lambda part: parts[part]) for parts in bars.values()]
        usual = max(set(longest), key=longest.count)
        alt = (
            f"A first start on one {report['gpu']}, kernels not compiled yet: '{usual}' takes "
            f"longest in {longest.count(usual)} of {len(bars)} models."
        )
        panel = {
            "kind": "stack",
            "title": f"first start on {report['gpu']}",
            "x": "s, from opening the device to the first token",
            "bars": bars,
        }
        source = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}"
        yield Figure(f"start-{report['hardware_tag']}", "ttft", [panel], alt, source)


def _scaling(machines: Sequence[Machine], _: Path) -> Iterator[Figure]:
    for data in scaling_data(machines)["machines"]:
        panels, said, shown = [], [], []
        for key, title, x in (
            ("batches", "several sequences", "sequences (log scale)"),
            ("depths", "one sequence, by its context", "tokens in the context (log scale)"),
        ):
            series: dict[str, list[dict[str, Any]]] = {}
            for one in data[key]:
                if not one["model"].startswith("demo"):
                    name = one["model"] + (f", {one['kv']}" if one["kv"] else "")
                    series.setdefault(name, []).append(_xy(one["at"], one))
            series = {name: points for name, points in series.items() if len(points) > 2}
            if not series:
                continue
            shown += [one for one in data[key] if any(one["model"] in name for name in series)]
            panels.append(
                {
                    "kind": "lines",
                    "title": title,
                    "x": x,
                    "y": "decoded tokens/s, all together",
                    "xlog": True,
                    "ylog": True,
                    "series": series,
                }
            )
            name, points = next(iter(series.items()))
            first, last = points[0], points[-1]
            at = "in batches of {}" if key == "batches" else "behind {} tokens"
            said.append(
                f"{name}: {first['y']:.0f} tokens/s {at.format(first['x'])}, "
                f"{last['y']:.0f} {at.format(last['x'])}"
            )
        if panels:
            alt = f"Decoding on {data['tag']}: {'; '.join(said)}."
            yield Figure(
                f"scaling-{data['tag']}", "scaling", panels, alt, _source(data["tag"], shown)
            )


def _histories(machines: Sequence[Machine], known: Mapping[str, BenchmarkInfo]) -> Iterator[Figure]:
    for machine in machines:
        if len(machine.runs) < LEAST_COMMITS:
            continue
        runs = [load_run(run, known) for run in machine.runs]
        panels, said = [], []
        for label, title in HISTORY.items():
            last = _of_one_version(runs, label)
            if len(last) >= LEAST_COMMITS:
                panels.append(
                    {
                        "kind": "lines",
                        "title": title,
                        "x": "commits, oldest first; hollow: other work disturbed it",
                        "y": "ms",
                        "series": {"": last},
                        "ticks": [run.commit[:8] for run in runs],
                    }
                )
                quiet = [one["y"] for one in last if not one["marked"]] or [p["y"] for p in last]
                said.append(f"{title}: {min(quiet):.3g} to {max(quiet):.3g} ms")
        if panels:
            first, final = runs[0].commit[:8], runs[-1].commit[:8]
            alt = f"Times over {len(runs)} commits on {machine.tag}: {'; '.join(said)}."
            source = f"`{machine.tag}`, {len(runs)} commits from {first} to {final}"
            yield Figure(f"history-{machine.tag}", "history", panels, alt, source)


def _of_one_version(runs: Sequence[ResultSet], label: str) -> list[dict[str, Any]]:
    """A benchmark over the runs, in ms, as long as its own code is that of its last value."""
    found = [
        (at, run, result)
        for at, run in enumerate(runs)
        for result in run.results
        if result.label == label and result.value is not None
    ]
    return [
        _xy(at, point(result, run, MILLISECONDS[result.unit or ""]))
        for at, run, result in found
        if result.version == found[-1][2].version
    ]
