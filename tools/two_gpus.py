"""How fast two GPUs are together: sums over both, and models on one and on both, as JSON.

A sum is that of float32 that each GPU has, inside a captured graph, in device time. Models have
random weights; their times are those of `rocmforge bench model`. It judges nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocmforge.bench.files import write_json
from rocmforge.bench.git import provenance
from rocmforge.devices import chosen_devices, open_kernels
from rocmforge.env import SplitMode
from rocmforge.errors import RocmforgeError
from rocmforge.gpu.exchange_time import SIZES, all_reduce_seconds
from rocmforge.gpu.peers import Group
from rocmforge.model.synthetic import make_model
from rocmforge.speed.measure import measure, speed_tests

REPO = Path(__file__).resolve().parent.parent
BROKEN = 2  # exit code
ROUNDS = 5
SPLITS: tuple[SplitMode, ...] = ("layer", "tensor")
MODELS = ("7B:Q4_K_M:32", "70B:Q4_K_M:20")
TESTS = speed_tests([512, 2048], [128], [0], [1, 8])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 0, or 2 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--device", required=True, help="two GPUs, as hip:0,hip:1")
    parser.add_argument(
        "--models",
        nargs="+",
        default=MODELS,
        metavar="PRESET:MIX:LAYERS",
        help=f"models to make and measure (default: {' '.join(MODELS)})",
    )
    parser.add_argument("--folder", type=Path, help="where models are kept (default: nowhere)")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--commit", help="the commit of this tree, where there is no git")
    args = parser.parse_args(argv)
    try:
        report = {**provenance(REPO), "sums": [], "models": []}
        if args.commit is not None:
            report.update(commit=args.commit, uncommitted_changes=False)
        names = [choice.name for choice in chosen_devices(args.device)]
        if len(names) != 2:
            raise RocmforgeError(f"--device: got {', '.join(names)}, wanted two GPUs")
        for found in _sums(names):
            report["sums"].append(found)
            write_json(args.json, report)
        with tempfile.TemporaryDirectory() as folder:
            for model in args.models:
                for row in _speeds(model, names, args.folder or Path(folder)):
                    report["models"].append(row)
                    write_json(args.json, report)
    except (RocmforgeError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return BROKEN
    return 0


def _sums(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each size by each way."""
    with ExitStack() as stack:
        kernels = open_kernels(names, stack)
        for through_host in (False, True):
            group = Group([own.runtime for own in kernels], through_host)
            stack.callback(group.close)
            for nbytes in SIZES:
                times = [all_reduce_seconds(kernels, group, nbytes // 4) for _ in range(ROUNDS)]
                us = 1e6 * statistics.median(times)
                print(f"{nbytes:>10,} bytes, {group.way}: {us:8.2f} us", flush=True)
                yield {"bytes": nbytes, "way": group.way, "us": us}


def _speeds(model: str, names: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """One GPU, then both in each split mode."""
    preset, mix, layers = model.split(":")
    path = folder / f"{preset}-{mix}-{layers}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_model(path, preset, mix, layers=int(layers))
    for device, mode in ((names[0], SPLITS[0]), *((",".join(names), mode) for mode in SPLITS)):
        for speed in measure(path, device, None, TESTS, ROUNDS, _quiet, _quiet, None, mode):
            row = {"model": model, **speed.row()}
            rate = speed.tokens_per_second
            said = speed.reason if rate is None else f"{rate:10,.1f} tokens/s"
            print(f"{model} {device} {row['split_mode']} {row['test']}: {said}", flush=True)
            yield row


def _quiet(done: int, total: int) -> None:
    """Show nothing: each row is printed as it comes."""


if __name__ == "__main__":
    sys.exit(main())
