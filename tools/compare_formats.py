"""What each format costs and gives: quality and speed of the demo model, as JSON and a figure.

The model's matrices are quantized anew to each format; quality is scored on the held-out text
against the file's own weights, speed is the median of several short runs, formats taking turns.
It judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.progress import track

from rocmforge.demo import demo_model, held_out_text
from rocmforge.engine import Engine
from rocmforge.gguf.formats import FORMATS
from rocmforge.hardware import hardware_tag
from rocmforge.perplexity import divergence
from rocmforge.tokenizer import Tokenizer

REPO = Path(__file__).resolve().parent.parent
PROMPT, DECODED = 256, 64  # tokens of a speed run


def main() -> int:
    """Measure, write the JSON and the figure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", type=Path, required=True, help="write the measurements here")
    parser.add_argument("--figure", type=Path, help="write the figure here (.svg or .png)")
    parser.add_argument("--window", type=int, default=512, help="tokens (default 512)")
    parser.add_argument("--rounds", type=int, default=9, help="speed runs (default 9)")
    parser.add_argument("--threads", type=int, help="(default: the usable cores)")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_gguf(demo_model())
    ids = tokenizer.encode(held_out_text().decode(), add_bos=False)
    own = Engine.from_gguf(demo_model(), threads=args.threads)
    engines = {
        name: Engine.from_gguf(demo_model(), threads=args.threads, weight_format=name)
        for name in FORMATS
    }
    rows: dict[str, dict[str, Any]] = {}
    for name, engine in track(engines.items(), "quality", total=len(engines)):
        found = divergence(engine, own, ids, tokenizer.bos_id, args.window)
        rows[name] = {
            "bits_per_weight": FORMATS[name].bits_per_weight,
            "perplexity": found.perplexity.value,
            "standard_error": found.perplexity.value * found.perplexity.standard_error,
            "kl_nats": found.kl,
            "top1_agreement": found.top1_agreement,
        }
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for index in track(range(args.rounds + 1), "speed"):
        for name, engine in engines.items():
            measured = _speed(engine, ids)
            if index:  # the first round warms up
                speeds[name].append(measured)
    for name, measured_rounds in speeds.items():
        prefill, decode = zip(*measured_rounds, strict=True)
        rows[name]["prefill_tokens_per_second"] = statistics.median(prefill)
        rows[name]["decode_tokens_per_second"] = statistics.median(decode)
    report = {
        "model": "demo",
        "tokens": found.perplexity.tokens,
        "window": args.window,
        "rounds": args.rounds,
        "threads": args.threads or len(os.sched_getaffinity(0)),
        "hardware_tag": hardware_tag(),
        "commit": _git("rev-parse", "--verify", "HEAD") or None,
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "formats": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    os.replace(temporary, args.json)
    if args.figure:
        _draw(report, args.figure)
    return 0


def _speed(engine: Engine, ids: list[int]) -> tuple[float, float]:
    """Prefill and decode tokens per second of one short run."""
    sequence = engine.add_sequence(PROMPT + DECODED)
    start = time.perf_counter()
    engine.prefill(sequence, ids[:PROMPT])
    middle = time.perf_counter()
    for token in ids[PROMPT : PROMPT + DECODED]:
        engine.decode([sequence], [token])
    end = time.perf_counter()
    engine.remove_sequence(sequence)
    return PROMPT / (middle - start), DECODED / (end - middle)


def _draw(report: dict[str, Any], path: Path) -> None:
    """Perplexity over bits per weight; the colour is decode speed, the line the best so far."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = report["formats"]
    bits = [row["bits_per_weight"] for row in rows.values()]
    scores = [row["perplexity"] for row in rows.values()]
    speeds = [row["decode_tokens_per_second"] for row in rows.values()]
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    best, front = float("inf"), []
    for bit, score in sorted(zip(bits, scores, strict=True)):
        if score < best:
            best = score
            front.append((bit, score))
    axes.plot(*zip(*front, strict=True), color="0.7", zorder=1)
    dots = axes.scatter(bits, scores, c=speeds, cmap="viridis", zorder=2)
    for name, bit, score in zip(rows, bits, scores, strict=True):
        axes.annotate(name, (bit, score), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bits per weight (log scale)")
    axes.set_ylabel("perplexity of held-out text (lower is better)")
    axes.set_title(f"Demo model, {report['hardware_tag']}, {report['commit'][:8]}", fontsize=9)
    figure.colorbar(dots, label="decode tokens/s (higher is better)")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, format=path.suffix.removeprefix("."))
    os.replace(temporary, path)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=REPO
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
