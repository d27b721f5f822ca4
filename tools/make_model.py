#!/usr/bin/env python3
"""Writes a GGUF model of random weights: a preset's shape, a mix of formats, a seed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rocmforge.bench import exits
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.mixes import mix_names
from rocmforge.model.presets import PRESETS
from rocmforge.model.synthetic import cached_model, make_model, plan_model
from rocmforge.terminal import ProgressBar


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
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same bytes")
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
    if not args.list and args.cached == (args.output is not None):
        parser.error("give an output file or --cached, one of the two")
    if args.cached and (args.architecture or args.rope_scaling or args.rope_factor is not None):
        parser.error("--cached takes --preset, --mix, --seed and --layers only")
    return exits.run("make_model", lambda: _run(args), "nothing is left behind")


def _run(args: argparse.Namespace) -> int:
    if args.list:
        _print_list()
        return 0
    if not args.cached and not args.force and os.path.lexists(args.output):
        raise ValueError(f"{args.output}: is there already; --force replaces it")
    plan = plan_model(args.preset, args.mix, layers=args.layers, architecture=args.architecture)
    if counts := plan.fallbacks:
        told = ", ".join(f"{count} in {name}" for name, count in counts.items())
        why = f"their columns do not fit the blocks that {args.mix} means"
        print(f"make_model: tensors in another format: {told}; {why}", file=sys.stderr)
    with ProgressBar("writing") as bar:
        if args.cached:
            path = cached_model(args.preset, args.mix, args.seed, layers=args.layers, progress=bar)
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
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
