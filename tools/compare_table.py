"""Measure ROCmForge beside llama.cpp on a GPU: models, depths, batches and prompts, in one go.

Each case is measured in turns, as compare_llama_cpp.py does it, with llama-bench, or with
llama-batched-bench where it decodes several sequences. What was measured is written after every
case; the same command then goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_llama_cpp import BROKEN, SHOWN_BY, device_problem, measure_rounds, phase_rows
from engine_rounds import (
    GPU_REPETITIONS,
    OURS,
    BatchedBench,
    Engine,
    LlamaBench,
    Worker,
    Workload,
)

PEER = "llama.cpp"
DEEP = 32768
FEW_REPETITIONS = 2  # behind so many tokens, which llama-bench reads anew each time
CONTEXT = DEEP + 1024  # that the models are said to be trained for: both engines look at it
MIXTURES = ("30B-A3B:Q4_K_M", "gpt-oss-20B:MXFP4")
REPO = Path(__file__).resolve().parent.parent
EPILOG = """\
examples:
  compare_table.py --llama-cpp ~/llama.cpp/build --json table.json
  compare_table.py --llama-cpp ~/llama.cpp/build --json table.json --only 1.1B --only 'prefill 32 '
  compare_table.py --list

Models have random weights and are written to --models where they are missing (60 GB for all).
Of the repetitions of a round the first one is cold and does not count, for either engine.
exit codes: 0 all measured, 1 a case failed or took too long, 2 usage or something is missing
"""


@dataclass(frozen=True)
class Case:
    """One row: decode or a prompt of a model.

    Parameters
    ----------
    model
        PRESET:MIX.
    prompt, decode
        Tokens that are timed; one of them is 0.
    depth
        Tokens of each sequence in front of them.
    sequences
        Decoded side by side.
    """

    model: str
    prompt: int = 0
    decode: int = 0
    depth: int = 0
    sequences: int = 1

    @property
    def name(self) -> str:
        """What it is called, as `decode 128 of 7B:Q4_K_M at 4096`."""
        what = f"prefill {self.prompt}" if self.prompt else f"decode {self.decode}"
        side_by_side = f", {self.sequences} sequences" if self.sequences > 1 else ""
        return f"{what} of {self.model} at {self.depth}{side_by_side}"


def _decode(model: str, depth: int = 128, sequences: int = 1) -> Case:
    return Case(model, decode=128, depth=depth, sequences=sequences)


CASES = (
    *(_decode(f"7B:{mix}") for mix in ("Q4_K_M", "Q4_0", "Q8_0", "Q6_K")),
    _decode("8B:Q4_K_M"),
    *(_decode(f"1.1B:{mix}") for mix in ("Q4_K_M", "Q4_0", "Q8_0")),
    *(_decode("7B:Q4_K_M", sequences=count) for count in (4, 8, 16, 32, 64)),
    *(Case("7B:Q4_K_M", prompt=length) for length in (32, 128, 256, 512, 2048)),
    Case("1.1B:Q4_K_M", prompt=2048),
    Case("7B:Q8_0", prompt=2048),
    *(_decode(model, depth) for depth in (4096, DEEP) for model in ("7B:Q4_K_M", "8B:Q4_K_M")),
    Case("8B:Q4_K_M", prompt=512, depth=DEEP),
    *(_decode(model) for model in MIXTURES),
    *(Case(model, prompt=length) for model in MIXTURES for length in (32, 512)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing; 0 where all cases have been measured."""
    args = _parser().parse_args(argv)
    cases = [case for case in CASES if not args.only or any(o in case.name for o in args.only)]
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    try:
        report = _begun(args, cases)
    except ValueError as problem:
        print(f"compare_table: {problem}", file=sys.stderr)
        return BROKEN
    done = {row["case"] for row in report["rows"] if "error" not in row}
    for index, case in enumerate(cases, 1):
        if case.name in done:
            continue
        print(f"{index} of {len(cases)}: {case.name}", file=sys.stderr, flush=True)
        row = _row(args, case, report["versions"][PEER])
        report["rows"] = [r for r in report["rows"] if r["case"] != case.name] + [row]
        _write(args.json, report)
        print(_line(row), flush=True)
    failed = sum("error" in row for row in report["rows"])
    print(f"{len(report['rows']) - failed} cases measured, {failed} failed: {args.json}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure ROCmForge and llama.cpp in turns on one GPU, case by case.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--llama-cpp", type=Path, metavar="BUILD", help="its build directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, also partial ones")
    parser.add_argument("--device", default="cuda", help="hip or cuda (default), for both")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases with it in the name")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--rounds", type=int, default=3, help="of each case (default 3)")
    parser.add_argument(
        "--case-seconds", type=float, default=120.0, help="most for one case (default 120)"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--models", type=Path, help="folder of the models (default: in the cache)")
    parser.add_argument("--commit", help="what the tree is, where git is not there to ask")
    return parser


def _begun(args: argparse.Namespace, cases: Sequence[Case]) -> dict[str, Any]:
    """Return the report as far as it has got; ValueError names what stands in the way."""
    if not cases:
        raise ValueError(f"--only: got {', '.join(args.only)}, wanted a part of a case: see --list")
    for name in ("llama_cpp", "json"):
        if getattr(args, name) is None:
            raise ValueError(f"--{name.replace('_', '-')} is missing; --help shows examples")
    for name in ("rounds", "threads", "case_seconds"):
        if not getattr(args, name) > 0:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: got {getattr(args, name)}, wanted more than 0")
    if args.device not in (*SHOWN_BY, "cpu"):
        raise ValueError(f"--device: got {args.device!r}, wanted {' or '.join(SHOWN_BY)}")
    problem = device_problem(args.device)
    if problem:
        raise ValueError(problem)
    for name in dict.fromkeys(_program(case) for case in cases):
        if not os.access(args.llama_cpp / "bin" / name, os.X_OK):
            raise ValueError(f"--llama-cpp {args.llama_cpp}: no bin/{name} there")
    fresh = _empty(args)
    return _continued(args.json, fresh) if args.json.exists() else fresh


def _empty(args: argparse.Namespace) -> dict[str, Any]:
    from importlib.metadata import version

    from rocmforge.bench.git import provenance
    from rocmforge.devices import default_device

    gpu = default_device(args.device).device
    found = provenance(REPO)
    if args.commit is not None:
        found.update(commit=args.commit, uncommitted_changes=False)
    return {
        "device": args.device,
        "gpu": None if gpu is None else gpu.name,
        "rounds": args.rounds,
        "threads": args.threads,
        **found,
        "versions": {"rocmforge": version("rocmforge"), PEER: {}},
        "rows": [],
    }


def _continued(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return what is in a file of the same commit, device and settings."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
        differs = [
            f"{key} {report[key]!r} instead of {fresh[key]!r}"
            for key in ("commit", "uncommitted_changes", "hardware_tag", "rounds", "threads")
            if report[key] != fresh[key]
        ]
        known = isinstance(report["versions"][PEER], dict)
        known = known and all(isinstance(row["case"], str) for row in report["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--json {path}: it holds no results of this program ({error!r})"
        ) from error
    if differs or not known:
        why = "; ".join(differs) or "no results of this program"
        raise ValueError(f"--json {path}: it holds {why}; name another file")
    return report


def _program(case: Case) -> str:
    return "llama-batched-bench" if case.sequences > 1 else "llama-bench"


def _row(args: argparse.Namespace, case: Case, build: dict[str, Any]) -> dict[str, Any]:
    """Measure a case; what went wrong stands in the row."""
    shape = {"case": case.name, "model": case.model, "prompt": case.prompt, "decode": case.decode}
    shape |= {"depth": case.depth, "sequences": case.sequences}
    repetitions = FEW_REPETITIONS if case.depth == DEEP else GPU_REPETITIONS
    try:
        work = Workload(
            _model(args, case.model),
            args.device,
            args.threads,
            case.prompt,
            case.decode,
            case.sequences,
            case.depth,
            repetitions,
        )
        with ExitStack() as stack:
            ours = Worker(OURS, work, sys.executable)
            stack.callback(ours.close)
            peer = _peer(args.llama_cpp / "bin" / _program(case), work)
            engines: dict[str, Engine] = {OURS: ours, PEER: peer}
            rounds = measure_rounds(engines, args.rounds, warm_up=0, seconds=args.case_seconds)
        if isinstance(peer, LlamaBench):
            build.update(peer.build)
    except (RuntimeError, ValueError, OSError) as error:
        return {**shape, "error": str(error)}
    return {**shape, "repetitions": repetitions, **next(iter(phase_rows(rounds).values()))}


def _peer(program: Path, work: Workload) -> LlamaBench | BatchedBench:
    if work.sequences > 1:
        return BatchedBench(program, work)
    return LlamaBench(program, work, ("-fa", "1"))


def _model(args: argparse.Namespace, name: str) -> Path:
    """Path of a model whose trained context is `CONTEXT`, made where it is missing."""
    from rocmforge import env
    from rocmforge.model.synthetic import make_model

    folder: Path = args.models or env.cache_folder("models")
    preset, _, mix = name.partition(":")
    path = folder / f"{preset}-{mix}-{CONTEXT}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = make_model(path.with_suffix(".part.gguf"), preset, mix)
        _set_context(made)
        made.replace(path)
    return path


def _set_context(path: Path) -> None:
    """Write another trained context into a model; nothing else of it depends on that."""
    import gguf

    fields = gguf.GGUFReader(path, "r+").fields
    found = [field for name, field in fields.items() if name.endswith(".context_length")]
    if len(found) != 1:
        raise ValueError(f"{path}: it has {len(found)} numbers named context_length, wanted one")
    found[0].parts[found[0].data[0]][0] = CONTEXT


def _write(path: Path, report: Mapping[str, Any]) -> None:
    from rocmforge.bench.files import write_json

    write_json(path, report)


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{row['case']:<52}  {row['error']}"
    low, high = row["ratio_min"], row["ratio_max"]
    speeds = f"{row['rocmforge']:>10,.1f} {row['llama.cpp']:>10,.1f} tokens/s"
    return f"{row['case']:<52}{speeds}  ratio {row['ratio']:.2f} ({low:.2f} … {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
