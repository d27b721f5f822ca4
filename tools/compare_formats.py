"""What each format costs and gives: quality and speed of the demo model, as JSON and a figure.

The matrices of a model are quantized anew to each format; quality is scored on the held-out text
against the model's own weights, speed is the median of several short runs, formats taking turns.
It judges nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress, track

from rocmforge.bench.files import write_json, write_whole
from rocmforge.bench.git import provenance
from rocmforge.demo import demo_model, held_out_text
from rocmforge.engine import Engine
from rocmforge.errors import RocmforgeError
from rocmforge.gguf.formats import FORMATS
from rocmforge.info import read_info
from rocmforge.perplexity import divergence
from rocmforge.text.tokenizer import Tokenizer

REPO = Path(__file__).resolve().parent.parent
PROMPT, DECODED = 256, 64  # tokens of a speed run
BROKEN = 2  # exit code


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the JSON and the figure; return the exit code."""
    args = _parser().parse_args(argv)
    try:
        report = measure(args.reference_model, args.window, args.rounds, args.threads, args.tokens)
        write_json(args.json, report)
        if args.figure:
            draw(report, args.figure)
    except (RocmforgeError, ValueError, OSError) as error:
        print(f"compare_formats: error: {error}", file=sys.stderr)
        return BROKEN
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0],
        epilog="KL to F16 needs the F16 file, which is too large to come with the package: "
        "tools/train_demo_model.py leaves it in its work directory.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=Path, required=True, help="write the measurements here")
    parser.add_argument("--figure", type=Path, help="write the figure here (.svg or .png)")
    parser.add_argument(
        "--reference-model",
        type=Path,
        default=demo_model(),
        metavar="FILE",
        help="GGUF file to quantize from and to compare with (default: the demo model, Q8_0)",
    )
    parser.add_argument("--window", type=int, default=512, help="tokens (default 512)")
    parser.add_argument("--tokens", type=int, help="of the held-out text (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="speed runs (default 9)")
    parser.add_argument("--threads", type=int, help="(default: the usable cores)")
    return parser


def measure(
    model: Path, window: int, rounds: int, threads: int | None = None, tokens: int | None = None
) -> dict[str, Any]:
    """Return the report of a model in every format.

    Parameters
    ----------
    model
        GGUF file; its own weights are the reference.
    window, tokens
        Tokens of a window of the held-out text, and of that text in all (None: all).
    rounds
        Speed runs that count, at least 1; one more warms up.
    threads
        CPU threads; None: the usable cores.
    """
    if rounds < 1:
        raise ValueError(f"rounds: got {rounds}, wanted at least 1")
    tokenizer = Tokenizer.from_gguf(model)
    ids = tokenizer.encode(held_out_text().decode(), add_bos=False)
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    reference = Engine.from_gguf(model, threads=threads)
    engines = {
        name: Engine.from_gguf(model, threads=threads, weight_format=name)
        for name in track(FORMATS, "quantizing")
    }
    with Progress() as bar:
        task = bar.add_task("quality")
        found = divergence(
            list(engines.values()),
            reference,
            ids[:tokens],
            bos,
            window,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    speeds = _speeds(engines, ids, rounds)
    return {
        "model": "demo" if model == demo_model() else model.name,
        "reference": "+".join(s.format for s in read_info(model).formats if s.format != "F32"),
        "tokens": found[0].perplexity.tokens,
        "window": window,
        "rounds": rounds,
        "threads": threads or len(os.sched_getaffinity(0)),
        **provenance(REPO),
        "formats": {
            name: {"bits_per_weight": FORMATS[name].bits_per_weight, **one.row(), **speeds[name]}
            for name, one in zip(engines, found, strict=True)
        },
    }


def _speeds(
    engines: Mapping[str, Engine], ids: Sequence[int], rounds: int
) -> dict[str, dict[str, float]]:
    """Median prefill and decode tokens per second of each engine."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for index in track(range(rounds + 1), "speed"):
        for name, engine in engines.items():
            measured = _speed(engine, ids)
            if index:  # the first round warms up
                runs[name].append(measured)
    return {
        name: {
            "prefill_tokens_per_second": statistics.median(prefill for prefill, _ in measured),
            "decode_tokens_per_second": statistics.median(decode for _, decode in measured),
        }
        for name, measured in runs.items()
    }


def _speed(engine: Engine, ids: Sequence[int]) -> tuple[float, float]:
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


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Perplexity over bits per weight; the colour is decode speed, the line the best so far."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = report["formats"]
    bits = [row["bits_per_weight"] for row in rows.values()]
    scores = [row["perplexity"] for row in rows.values()]
    speeds = [row["decode_tokens_per_second"] for row in rows.values()]
    figure, axes = plt.subplots(figsize=(10, 7), layout="constrained")
    best, front = float("inf"), []
    for bit, score in sorted(zip(bits, scores, strict=True)):
        if score < best:
            best = score
            front.append((bit, score))
    axes.plot(*zip(*front, strict=True), color="0.7", zorder=1)
    dots = axes.scatter(bits, scores, c=speeds, cmap="viridis", zorder=2)
    below = False  # labels of neighbours stand by turns above and below
    for bit, score, name in sorted(zip(bits, scores, rows, strict=True)):
        at = (4, -10) if below else (4, 5)
        axes.annotate(name, (bit, score), xytext=at, textcoords="offset points", fontsize=7)
        below = not below
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bits per weight (log scale)")
    axes.set_ylabel("perplexity of held-out text (lower is better)")
    commit = (report["commit"] or "no commit")[:8]
    axes.set_title(f"Demo model, {report['hardware_tag']}, {commit}", fontsize=9)
    figure.colorbar(dots, label="decode tokens/s (higher is better)")
    write_whole(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".")))
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
