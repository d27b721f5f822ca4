"""Measure ROCmForge beside llama.cpp on the same file, device, threads and lengths, in turns.

Rounds go A B C A B C …, so that all see the same moments of a noisy machine. llama.cpp is the
user's own llama-bench, or else llama-cpp-python (extra `peer`, which may live in another
interpreter), with its repacked weights on and off: the better of the two by median counts.
How an engine runs a round is engine_rounds.py's.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine_rounds import (
    GPU_REPETITIONS,
    OURS,
    PLAIN,
    REPACKED,
    Engine,
    LlamaBench,
    Round,
    Worker,
    Workload,
)

LLAMA_BENCH = "llama-bench"
VARIABLES = ("ROCMFORGE_CPU_BF16", "ROCMFORGE_CPU_EXACT", "ROCMFORGE_CPU_ISA")
BROKEN = 2  # exit code: usage, or something is missing
# Where both engines look which GPUs they may use.
SHOWN_BY = {"hip": "HIP_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
EPILOG = """\
examples:
  compare_llama_cpp.py --model m.gguf --peer-python ~/peer/bin/python
  compare_llama_cpp.py --model m.gguf --device hip --llama-bench ~/llama.cpp/build/bin/llama-bench

The ratio is ours over llama.cpp's, round by round; its interval holds the median of such ratios
with 99 % probability. On a GPU a round is the median of three repetitions behind a cold one.
compare_table.py measures many models, lengths and batches on a GPU in one go.
exit codes: 0 measured, 1 an engine failed, 2 usage or something is missing
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, measure, print; 0 unless an engine failed or something is missing."""
    args = _parser().parse_args(argv)
    problem = _problem(args)
    if problem:
        print(f"compare_llama_cpp: {problem}", file=sys.stderr)
        return BROKEN
    try:
        with ExitStack() as stack:
            engines = _engines(args, stack)
            rounds = measure_rounds(engines, args.rounds)
            peer = _peer_build(args, engines)
    except RuntimeError as error:
        print(f"compare_llama_cpp: {error}", file=sys.stderr)
        return 1
    report = _report(args, rounds, peer)
    _print(report)
    if args.json:
        from rocmforge.bench.files import write_json

        write_json(args.json, report)
    if args.figure:
        draw(report, args.figure)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure ROCmForge and llama.cpp in turns on one GGUF file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument(
        "--device",
        default="cpu",
        help="cpu (default), hip or cuda, for both; of several GPUs, "
        "HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES=N shows both engines one",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--decode", type=int, default=32, help="decoded tokens (default 32)")
    parser.add_argument("--sequences", type=int, default=1, help="decoded side by side (default 1)")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds (default 9)")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--figure", type=Path, help="draw every round (.svg, .png or .pdf)")
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has llama_cpp"
    )
    peer.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's llama-bench")
    parser.add_argument(
        "--llama-bench-options",
        default="",
        metavar="TEXT",
        help="further options for it, as --llama-bench-options='-fa 1'",
    )
    return parser


def _problem(args: argparse.Namespace) -> str | None:
    """Return what stands in the way of measuring, and what helps."""
    if not args.model.is_file():
        return f"{args.model}: no such file"
    for name in ("threads", "prompt", "decode", "sequences", "rounds"):
        if getattr(args, name) < 1:
            return f"--{name}: got {getattr(args, name)}, wanted at least 1"
    problem = device_problem(args.device)
    if problem:
        return problem
    if args.figure and args.figure.suffix not in (".svg", ".png", ".pdf"):
        return f"--figure: got {args.figure}, wanted a name that ends in .svg, .png or .pdf"
    if args.llama_bench:
        if args.sequences > 1:
            return f"--sequences: got {args.sequences}, but llama-bench decodes one alone"
        if os.access(args.llama_bench, os.X_OK) and args.llama_bench.is_file():
            return None
        return f"--llama-bench {args.llama_bench}: no program there; llama.cpp's build makes it"
    try:
        peer = subprocess.run(
            [args.peer_python, "-c", "import llama_cpp"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"--peer-python {args.peer_python}: {error.strerror}"
    if peer.returncode == 0:
        return None
    reason = (peer.stderr.strip().splitlines() or ["no reason given"])[-1]
    return (
        f"{args.peer_python} has no llama.cpp to compare with ({reason}). It builds in some "
        f"minutes:\n  {args.peer_python} -m pip install {_peer_requirement()}\n"
        "or name an interpreter that has it with --peer-python, or your llama-bench with "
        "--llama-bench"
    )


def device_problem(device: str) -> str | None:
    """Refuse a device that the two engines would not understand alike."""
    if device == "cpu":
        return None
    from rocmforge.gpu import cuda, hip

    kind, colon, index = device.partition(":")
    if kind not in SHOWN_BY or (colon and not (index.isascii() and index.isdigit())):
        return f"--device: got {device!r}, wanted cpu, hip or cuda"
    shown = {"hip": hip.count, "cuda": cuda.count}[kind]()
    if int(index or 0) == 0 and shown <= 1:
        return None
    return (
        f"--device: got {device!r} (GPUs shown: {shown}); ours would run on one, llama.cpp on "
        f"all. Show both the same one: {SHOWN_BY[kind]}={index or 0} … --device {kind}"
    )


def _peer_requirement() -> str:
    from importlib.metadata import requires

    found = (r.partition(";")[0].strip() for r in requires("rocmforge") or ())
    return next((r for r in found if r.startswith("llama")), "llama-cpp-python")


def _engines(args: argparse.Namespace, stack: ExitStack) -> dict[str, Engine]:
    """Start the engines, ours first; the stack closes those that started, whatever fails."""

    def started(engine: Engine) -> Engine:
        stack.callback(engine.close)
        return engine

    counts = args.threads, args.prompt, args.decode, args.sequences
    repetitions = 1 if args.device == "cpu" else GPU_REPETITIONS
    work = Workload(args.model, args.device, *counts, repetitions=repetitions)
    engines: dict[str, Engine] = {OURS: started(Worker(OURS, work, sys.executable))}
    if args.llama_bench:
        options = shlex.split(args.llama_bench_options)
        engines[LLAMA_BENCH] = started(LlamaBench(args.llama_bench, work, options))
    else:
        for name in (REPACKED, PLAIN):
            engines[name] = started(Worker(name, work, args.peer_python))
    return engines


def measure_rounds(
    engines: Mapping[str, Engine], rounds: int, warm_up: int = 1, seconds: float | None = None
) -> dict[str, list[Round]]:
    """Let the engines take turns.

    Parameters
    ----------
    engines
        By name.
    rounds, warm_up
        Rounds that count, and rounds before them.
    seconds
        For all of it together; RuntimeError where it takes longer.

    Returns
    -------
    The rounds that count, by the engine's name.
    """
    measured: dict[str, list[Round]] = {name: [] for name in engines}
    end = None if seconds is None else time.monotonic() + seconds
    for index in range(1 - warm_up, rounds + 1):
        for name, engine in engines.items():
            left = None if end is None else max(0.0, end - time.monotonic())
            result = engine.measure(left)
            if index > 0:
                measured[name].append(result)
        print(f"round {index} of {rounds}" if index > 0 else "warmed up", file=sys.stderr)
    return measured


def phase_rows(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Return medians, ratios and samples of each phase that was measured."""
    from rocmforge.bench.statistics import median_interval

    phases: dict[str, Any] = {}
    for phase in rounds[OURS][0]:
        series = {name: [one[phase] for one in measured] for name, measured in rounds.items()}
        medians = {name: statistics.median(values) for name, values in series.items()}
        peer = max((name for name in series if name != OURS), key=lambda name: medians[name])
        ratios = sorted(a / b for a, b in zip(series[OURS], series[peer], strict=True))
        interval = median_interval(ratios)
        phases[phase] = {
            "unit": "tokens/s",
            "rocmforge": round(medians[OURS], 2),
            "llama.cpp": round(medians[peer], 2),
            "llama.cpp setting": peer,
            "ratio": round(statistics.median(ratios), 3),
            "ratio_min": round(ratios[0], 3),
            "ratio_max": round(ratios[-1], 3),
            "ratio_interval_99": [round(x, 3) if math.isfinite(x) else None for x in interval],
            "samples": {name: [round(x, 2) for x in values] for name, values in series.items()},
        }
    return phases


def _peer_build(args: argparse.Namespace, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Which llama.cpp it was, in its own words."""
    bench = engines.get(LLAMA_BENCH)
    if isinstance(bench, LlamaBench):
        return bench.build
    code = "import llama_cpp; print(llama_cpp.__version__)"
    said = subprocess.run(
        [args.peer_python, "-c", code], capture_output=True, text=True, check=False
    )
    return {"llama-cpp-python": said.stdout.strip().splitlines()[-1] if said.stdout else None}


def _report(
    args: argparse.Namespace, rounds: Mapping[str, Sequence[Round]], peer: Mapping[str, Any]
) -> dict[str, Any]:
    from importlib.metadata import version

    from rocmforge.bench.git import provenance

    return {
        "model": args.model.name,
        "device": args.device,
        "threads": args.threads,
        "prompt_tokens": args.prompt,
        "decode_tokens": args.decode,
        "sequences": args.sequences,
        "variables": _variables() if args.device == "cpu" else {},
        "rounds": args.rounds,
        "repetitions": 1 if args.device == "cpu" else GPU_REPETITIONS,
        "versions": {"rocmforge": version("rocmforge"), "llama.cpp": dict(peer)},
        **provenance(Path(__file__).parent),
        "phases": phase_rows(rounds),
    }


def _variables() -> dict[str, str]:
    """Which variables change what our engine does on a CPU."""
    said = {name: os.environ.get(name, "") for name in VARIABLES}
    return {name: value for name, value in said.items() if value not in ("", "0")}


def _print(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    where = f"{report['threads']} threads" if report["device"] == "cpu" else report["device"]
    where += "".join(f", {name}={value}" for name, value in report["variables"].items())
    if report["sequences"] > 1:
        where += f", {report['sequences']} sequences"
    table = Table(title=f"{report['model']}, {where}, tokens/s (medians)")
    for column in ("phase", "rocmforge", "llama.cpp", "ratio", "99 % interval", "min … max"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for name, p in report["phases"].items():
        low, high = p["ratio_interval_99"]
        interval = "wants 8 rounds" if low is None else f"{low:.2f} … {high:.2f}"
        spread = f"{p['ratio_min']:.2f} … {p['ratio_max']:.2f}"
        values = (f"{p['rocmforge']:.1f}", f"{p['llama.cpp']:.1f}", f"{p['ratio']:.2f}")
        table.add_row(name, *values, interval, spread)
    Console().print(table)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Every round of every engine as a dot, its median as a line; one panel a phase."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from rocmforge.bench.files import write_whole

    figure, panels = plt.subplots(1, len(report["phases"]), figsize=(10, 4), layout="constrained")
    for axes, (phase, row) in zip(panels, report["phases"].items(), strict=True):
        for at, samples in enumerate(row["samples"].values()):
            spread = [at + 0.3 * (i / max(len(samples) - 1, 1) - 0.5) for i in range(len(samples))]
            axes.scatter(spread, samples, s=14)
            axes.hlines(statistics.median(samples), at - 0.3, at + 0.3, color="0.3")
        axes.set_xticks(
            range(len(row["samples"])), [n.replace(" ", "\n", 1) for n in row["samples"]]
        )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("tokens/s (higher is better)")
        axes.set_title(f"{phase}: ratio {row['ratio']:.2f}", fontsize=10)
    commit = (report["commit"] or "no commit")[:8]
    figure.suptitle(f"{report['model']}, {report['hardware_tag']}, {commit}", fontsize=10)
    write_whole(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".")))
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
