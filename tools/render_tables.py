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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
PEER = "*/llama.cpp/*.json"  # below baselines/: what compare_llama_cpp.py wrote
FORMATS = "*/formats.json"  # what compare_formats.py wrote
README_ROWS = ("1.1B-Q4_0", "1.1B-Q4_K_M", "1.1B-Q6_K", "1.1B-Q8_0", "1.1B-F16")


def main() -> int:
    """Render every table; 0, or 1 with --check where one is stale."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a stale table")
    args = parser.parse_args()
    paths = sorted((REPO / "baselines").glob(PEER))
    reports = [json.loads(path.read_text("utf-8")) for path in paths]
    formats = [
        json.loads(path.read_text("utf-8")) for path in sorted((REPO / "baselines").glob(FORMATS))
    ]
    stale = False
    for path, name, text in (
        (REPO / "docs" / "PERFORMANCE.md", "peer", _peer_table(reports)),
        (REPO / "docs" / "PERFORMANCE.md", "formats", _formats_table(formats)),
        (REPO / "README.md", "speed", _readme_table(reports)),
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
    lines = [_row(columns), _row(["---"] * len(columns))]
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
            *("format", "bits/weight", "perplexity", "±", "KL, nats", "same top-1"),
            *("prefill tokens/s", "decode tokens/s"),
        )
        source = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}, {report['date'][:10]}"
        text = f"{report['tokens']} tokens in windows of {report['window']}"
        lines += [f"{source}; {text}:", "", _row(columns), _row(["---"] * len(columns))]
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
        _row(columns),
        _row(["---"] * len(columns)),
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
