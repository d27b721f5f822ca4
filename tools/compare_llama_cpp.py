"""Measure ROCmForge beside llama.cpp on the same file, threads and lengths, in turns.

Each engine runs in a process of its own with its model loaded; rounds go A B C A B C …, so that
all see the same moments of a noisy machine. llama.cpp runs with its repacked weights on and off,
and the better of the two by median counts. It knows llama.cpp only through llama-cpp-python
(extra `peer`), which may live in another interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

ENGINES = ("rocmforge", "llama.cpp", "llama.cpp without repacking")
Round = tuple[float, float]  # prefill and decode tokens per second


def main() -> int:
    """Parse, measure, print; 0 unless a worker failed."""
    args = _parser().parse_args()
    if args.worker:
        return _serve(args)
    if not args.model.is_file():
        print(f"compare_llama_cpp: {args.model}: no such file", file=sys.stderr)
        return 2
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    rounds: dict[str, list[Round]] = {name: [] for name in ENGINES}
    workers = {name: _start(name, args) for name in ENGINES}
    try:
        for index in range(args.rounds + 1):
            for name, worker in workers.items():
                measured = _ask(name, worker)
                if index:  # the first round warms up
                    rounds[name].append(measured)
            print(f"round {index} of {args.rounds}", file=sys.stderr)
    except RuntimeError as error:
        print(f"compare_llama_cpp: {error}", file=sys.stderr)
        return 1
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()
    report = _report(args, rounds)
    _print(report)
    if args.json:
        temporary = args.json.with_suffix(".tmp")
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        os.replace(temporary, args.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure ROCmForge and llama.cpp in turns on one GGUF file.",
        epilog="Example: compare_llama_cpp.py --model m.gguf --peer-python ~/peer/bin/python",
    )
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--decode", type=int, default=32, help="decoded tokens (default 32)")
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (default 7)")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has llama_cpp"
    )
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    return parser


def _start(name: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    python = sys.executable if name == "rocmforge" else args.peer_python
    command = [python, __file__, "--worker", name, "--model", str(args.model)]
    command += ["--threads", str(args.threads), "--prompt", str(args.prompt)]
    command += ["--decode", str(args.decode)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if name == "rocmforge" else subprocess.DEVNULL,  # llama.cpp logs there
        text=True,
    )


def _ask(name: str, worker: subprocess.Popen[str]) -> Round:
    if worker.stdin is None or worker.stdout is None:
        raise RuntimeError(f"{name}: no pipe to its process")
    try:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    except BrokenPipeError:
        raise RuntimeError(_ended(name, worker)) from None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(_ended(name, worker))
    prefill, decode = json.loads(line)
    return prefill, decode


def _ended(name: str, worker: subprocess.Popen[str]) -> str:
    hint = "" if name == "rocmforge" else "; is llama-cpp-python there (extra peer)?"
    return f"{name}: its process ended with exit code {worker.wait()}{hint}"


def _serve(args: argparse.Namespace) -> int:
    """Load the model, then answer each line of input with one measured round."""
    ids = [7 + (index * 37) % 241 for index in range(args.prompt)]
    if args.worker == "rocmforge":
        measure = _rocmforge(args, ids)
    else:
        measure = _llama_cpp(args, ids, repack=args.worker == "llama.cpp")
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
    return 0


def _rocmforge(args: argparse.Namespace, ids: list[int]) -> Callable[[], Round]:
    from rocmforge.engine import Engine

    engine = Engine.from_gguf(args.model, threads=args.threads, ctx=args.prompt + args.decode)

    def measure() -> Round:
        sequence = engine.add_sequence(args.prompt + args.decode)
        start = time.perf_counter()
        engine.prefill(sequence, ids)
        middle = time.perf_counter()
        for index in range(args.decode):
            engine.decode([sequence], [ids[index % len(ids)]])
        end = time.perf_counter()
        engine.remove_sequence(sequence)
        return args.prompt / (middle - start), args.decode / (end - middle)

    return measure


def _llama_cpp(args: argparse.Namespace, ids: list[int], repack: bool) -> Callable[[], Round]:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.use_extra_bufts = repack
    model = llama_cpp.llama_model_load_from_file(str(args.model).encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = args.prompt + args.decode + 32
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = args.threads
    context = llama_cpp.llama_init_from_model(model, params) if model else None
    if not context:
        raise SystemExit(f"llama.cpp does not load {args.model}")

    def run(tokens: list[int]) -> None:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    def measure() -> Round:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        start = time.perf_counter()
        run(ids)
        middle = time.perf_counter()
        for index in range(args.decode):
            run([ids[index % len(ids)]])
        end = time.perf_counter()
        return args.prompt / (middle - start), args.decode / (end - middle)

    return measure


def _report(args: argparse.Namespace, rounds: dict[str, list[Round]]) -> dict[str, object]:
    from rocmforge.hardware import hardware_tag

    phases: dict[str, object] = {}
    for phase, index in (("prefill", 0), ("decode", 1)):
        series = {name: [one[index] for one in rounds[name]] for name in ENGINES}
        medians = {name: statistics.median(values) for name, values in series.items()}
        peer = max(ENGINES[1:], key=lambda name: medians[name])
        ratios = [a / b for a, b in zip(series["rocmforge"], series[peer], strict=True)]
        phases[phase] = {
            "unit": "tokens/s",
            "rocmforge": round(medians["rocmforge"], 2),
            "llama.cpp": round(medians[peer], 2),
            "llama.cpp setting": peer,
            "ratio": round(statistics.median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "samples": {name: [round(x, 2) for x in values] for name, values in series.items()},
        }
    return {
        "model": args.model.name,
        "threads": args.threads,
        "prompt_tokens": args.prompt,
        "decode_tokens": args.decode,
        "rounds": args.rounds,
        "hardware_tag": hardware_tag(),
        "commit": _git("rev-parse", "--verify", "HEAD") or None,
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "phases": phases,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip()


def _print(report: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report['model']}, {report['threads']} threads, tokens/s (medians)")
    for column in ("phase", "rocmforge", "llama.cpp", "ratio", "min … max"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    phases = report["phases"]
    if isinstance(phases, dict):
        for name, p in phases.items():
            spread = f"{p['ratio_min']:.2f} … {p['ratio_max']:.2f}"
            values = (f"{p['rocmforge']:.1f}", f"{p['llama.cpp']:.1f}", f"{p['ratio']:.2f}")
            table.add_row(name, *values, spread)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
