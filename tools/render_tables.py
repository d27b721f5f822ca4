"""Write the measured tables of README.md and docs/PERFORMANCE.md from the files under baselines/.

Each table stands between `<!-- name:begin -->` and `<!-- name:end -->`. With --check nothing is
written and the exit code is 1 where a table is not what the files say. It measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
PEER = "*/llama.cpp/*.json"  # below baselines/: what compare_llama_cpp.py wrote
FORMATS = "*/formats.json"  # what compare_formats.py wrote
GPUS = "*/gpu_speed.json"  # what gpu_speed.py wrote
README_ROWS = ("1.1B-Q4_0", "1.1B-Q4_K_M", "1.1B-Q6_K", "1.1B-Q8_0", "1.1B-F16")


def main(argv: Sequence[str] | None = None) -> int:
    """Render every table; 0, or 1 with --check where one is stale."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a stale table")
    args = parser.parse_args(argv)
    reports, formats, gpus = (_read(pattern) for pattern in (PEER, FORMATS, GPUS))
    stale = False
    for path, name, text in (
        (REPO / "docs" / "PERFORMANCE.md", "peer", _peer_table(reports)),
        (REPO / "docs" / "PERFORMANCE.md", "formats", _formats_table(formats)),
        (REPO / "docs" / "PERFORMANCE.md", "gpu", "".join(map(_gpu_tables, gpus))),
        (REPO / "README.md", "speed", _readme_table(reports)),
        (REPO / "README.md", "gpu", "".join(map(_readme_gpu_table, gpus))),
    ):
        before = path.read_text("utf-8")
        after = _replace(before, name, text)
        if after != before:
            stale = True
            print(f"{path.relative_to(REPO)}: {'stale' if args.check else 'written'}")
            if not args.check:
                temporary = path.with_suffix(".tmp")
                temporary.write_text(after, "utf-8")
                os.replace(temporary, path)
    return 1 if stale and args.check else 0


def _read(pattern: str) -> list[dict[str, Any]]:
    paths = sorted((REPO / "baselines").glob(pattern))
    return [json.loads(path.read_text("utf-8")) for path in paths]


def _replace(document: str, name: str, text: str) -> str:
    pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
    if not re.search(pattern, document, re.S):
        raise SystemExit(f"render_tables: no place for the table {name!r}")
    return re.sub(pattern, lambda m: m[1] + text + m[2], document, count=1, flags=re.S)


def _peer_table(reports: list[dict[str, Any]]) -> str:
    columns = (
        *("model", "threads", "prompt", "phase", "ROCmForge tokens/s", "llama.cpp tokens/s"),
        *("ratio", "min … max", "hardware", "commit", "date"),
    )
    lines = _table(columns, ())
    for report in reports:
        for phase, row in report["phases"].items():
            cells = (
                *(_stem(report), report["threads"], report["prompt_tokens"], phase),
                *(f"{row['rocmforge']:.1f}", f"{row['llama.cpp']:.1f}", f"**{row['ratio']:.2f}**"),
                f"{row['ratio_min']:.2f} … {row['ratio_max']:.2f}",
                *(report["hardware_tag"], report["commit"][:8], report["date"][:10]),
            )
            lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _formats_table(reports: list[dict[str, Any]]) -> str:
    lines = []
    for report in reports:
        columns = (
            *("format", "bits/weight", "perplexity", "±", f"KL to {report['reference']}, nats"),
            *("same top-1", "prefill tokens/s", "decode tokens/s"),
        )
        source = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}, {report['date'][:10]}"
        text = f"{report['tokens']} tokens in windows of {report['window']}"
        lines += [f"{source}; {text}:", "", *_table(columns, ())]
        for name, row in report["formats"].items():
            cells = (
                *(name, f"{row['bits_per_weight']:.2f}", f"{row['perplexity']:.2f}"),
                *(f"{row['standard_error']:.2f}", f"{row['kl_nats']:.4f}"),
                f"{100 * row['top1_agreement']:.1f} %",
                f"{row['prefill_tokens_per_second']:.0f}",
                f"{row['decode_tokens_per_second']:.0f}",
            )
            lines.append(_row(cells))
    return "\n".join(lines) + "\n" if lines else ""


def _gpu_tables(report: dict[str, Any]) -> str:
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
    parts = list(models[0]["seconds"])
    times = [[m["model"], *(f"{1e3 * m['seconds'][part]:,.0f}" for part in parts)] for m in models]
    shapes = list(dict.fromkeys((row["rows"], row["columns"]) for row in gemv))
    measured = {(r["format"], r["rows"], r["columns"]): r["gb_per_second"] for r in gemv}
    names = dict.fromkeys(row["format"] for row in gemv)
    reads = [[name, *(f"{measured[name, n, k]:,.0f}" for n, k in shapes)] for name in names]
    heads = [f"prefill of {n}" for n in prompts] + [f"decode at {n}" for n in depths]
    lines = [
        f"{report['gpu']} (`{report['hardware_tag']}`), commit {report['commit'][:8]}",
        *("", f"{report['date'][:10]}; copies at {report['copy_gb_per_second']:,.0f} GB/s."),
        *("", "Tokens/s:"),
        *("", *_table(["model", *heads], speeds)),
        *("", "Milliseconds on the way to the first token:", ""),
        *_table(["model", *parts], times),
        *("", "GEMV over weights that no cache holds, GB/s:", ""),
        *_table(["format", *(f"{n} × {k}" for n, k in shapes)], reads),
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
        *_table(["kernels", *models], cells),
    ]


def _rate(speeds: dict[str, float], key: str) -> str:
    return f"{speeds[key]:,.0f}" if key in speeds else "n/a"


def _readme_gpu_table(report: dict[str, Any]) -> str:
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
    columns = ("model (random weights)", "decode", f"prompt of {prompt}")
    return "\n".join([intro, "", *_table(columns, rows)]) + "\n"


def _table(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> list[str]:
    return [_row(columns), _row(["---"] * len(columns)), *map(_row, rows)]


def _readme_table(reports: list[dict[str, Any]]) -> str:
    chosen = [
        r
        for r in reports
        if _stem(r) in README_ROWS and r["threads"] > 1 and r["prompt_tokens"] == 128
    ]
    if not chosen:
        return ""
    tags = ", ".join(sorted({report["hardware_tag"] for report in chosen}))
    intro = f"Measured beside llama.cpp in turns on `{tags}`, median tokens/s"
    columns = ("model (random weights)", "decode", "llama.cpp", "ratio")
    columns += ("prompt of 128", "llama.cpp", "ratio")
    lines = [
        f"{intro} ([more](docs/PERFORMANCE.md)):",
        "",
        *_table(columns, ()),
    ]
    for report in chosen:
        cells = [_stem(report)]
        for row in (report["phases"]["decode"], report["phases"]["prefill"]):
            cells += [
                f"{row['rocmforge']:.0f}",
                f"{row['llama.cpp']:.0f}",
                f"**{row['ratio']:.2f}**",
            ]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _stem(report: dict[str, Any]) -> str:
    return str(report["model"]).removesuffix(".gguf")


if __name__ == "__main__":
    sys.exit(main())
