#!/usr/bin/env python3
"""Writes a synthetic GGUF model from the command line: a preset's shape, a mix, a seed.

Parses, calls `rocmforge.model.synthetic`, shows progress when it takes over two seconds. Knows
nothing of shapes, formats or files itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from rocmforge.errors import RocmforgeError
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.mixes import mix_names
from rocmforge.model.presets import PRESETS
from rocmforge.model.synthetic import cached_model, make_model, plan_model

_QUIET_SECONDS = 2.0


class _Bar:
    """A progress bar on stderr that appears when the work takes over two seconds."""

    def __init__(self, stack: ExitStack) -> None:
        self._started = time.monotonic()
        self._stack = stack
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None:
            if time.monotonic() - self._started < _QUIET_SECONDS:
                return
            self._progress = self._stack.enter_context(
                Progress(
                    BarColumn(),
                    DownloadColumn(),
                    TimeRemainingColumn(),
                    console=Console(stderr=True),
                )
            )
            self._progress.add_task("writing", total=total)
        self._progress.update(self._progress.task_ids[0], completed=done)


def _scaling_item(text: str) -> tuple[str, int | float | str]:
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted KEY=VALUE, e.g. type=yarn")
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        return key, float(number) if key in ("factor", "attn_factor") else number
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a GGUF model of seeded random weights, with a tokenizer.",
        epilog="Example: make_model.py tiny.gguf --preset tiny --mix Q4_K_M",
        allow_abbrev=False,
    )
    parser.add_argument("output", nargs="?", type=Path, help="file to write")
    parser.add_argument("--preset", default="tiny", help=f"shape: {', '.join(PRESETS)}")
    parser.add_argument("--mix", default="Q4_K_M", help="formats (see --list)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="keep only the first N blocks")
    parser.add_argument(
        "--architecture", help=f"instead of the preset's: {', '.join(ARCHITECTURES)}"
    )
    parser.add_argument(
        "--rope-scaling",
        type=_scaling_item,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="write <architecture>.rope.scaling.KEY, e.g. type=yarn, factor=4 (repeatable)",
    )
    parser.add_argument("--rope-factor", type=float, help="add Llama 3's rope_freqs.weight")
    parser.add_argument(
        "--cached", action="store_true", help="write into the cache unless it is there"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--list", action="store_true", help="print presets and mixes")
    return parser


def _print_list() -> None:
    table = Table(title="presets")
    for name in ("preset", "shape of", "layers", "width", "weights", "Q4_K_M"):
        table.add_column(name, justify="left" if name in ("preset", "shape of") else "right")
    for name, preset in PRESETS.items():
        plan = plan_model(name, "Q4_K_M")
        config = preset.config
        table.add_row(
            name,
            preset.describes,
            str(config.n_layers),
            str(config.d_model),
            f"{plan.weights / 1e9:.3f} G",
            f"{plan.nbytes / 1e9:.3f} GB",
        )
    console = Console()
    console.print(table)
    console.print(f"mixes: {', '.join(mix_names())}", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0 done, 2 usage, no room or a file in the way."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        _print_list()
        return 0
    if args.cached == (args.output is not None):
        parser.error("give an output file or --cached, one of the two")
    if args.cached and (args.architecture or args.rope_scaling or args.rope_factor is not None):
        parser.error("--cached takes --preset, --mix, --seed and --layers only")
    if not args.cached and not args.force and os.path.lexists(args.output):
        problem = f"{args.output}: is there already; --force replaces it"
        print(f"make_model: {problem}", file=sys.stderr)
        return 2
    try:
        with ExitStack() as stack:
            bar = _Bar(stack)
            if args.cached:
                path = cached_model(
                    args.preset, args.mix, args.seed, layers=args.layers, progress=bar
                )
            else:
                path = make_model(
                    args.output,
                    args.preset,
                    args.mix,
                    seed=args.seed,
                    layers=args.layers,
                    architecture=args.architecture,
                    rope_scaling=dict(args.rope_scaling),
                    rope_factor=args.rope_factor,
                    progress=bar,
                )
    except (ValueError, OSError, RocmforgeError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
