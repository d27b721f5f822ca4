"""What `rocmforge tune` does: tune a GPU's kernels, or forget what was found.

Like commands.py: results go to standard output, progress to standard error, cli.py handles errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rocmforge import env
from rocmforge.devices import default_device
from rocmforge.errors import DeviceError
from rocmforge.gpu.tuning import Constants, tuning_file
from rocmforge.speed.tune import tune as tune_device
from rocmforge.speed.tune_steps import Found
from rocmforge.terminal import ProgressBar, print_json, print_table, say


def tune(args: argparse.Namespace) -> int:
    """Tune a GPU and say what was found, or delete its table."""
    if args.reset:
        if args.model is not None or args.only:
            other = "--only" if args.only else "MODEL"
            raise ValueError(f"--reset deletes the whole table: got {other}, wanted it alone")
        return _reset(args.device)
    with ProgressBar("tuning", counts_bytes=False) as progress:
        parts = args.only or args.parts
        path, found = tune_device(args.device, parts, args.model and Path(args.model), progress)
    if args.json:
        rows = [{**asdict(one), "changed": one.changed} for one in found]
        print_json({"table": str(path), "found": rows})
        return 0
    _print(found)
    say(f"written: {path}")
    return 0


def _reset(device: str | None) -> int:
    choice = default_device(device)
    if choice.device is None:
        raise DeviceError(
            f"no GPU here whose table could be deleted; tables lie in {env.cache_dir() / 'tuning'}"
        )
    path = tuning_file(choice.device)
    if path.exists():
        path.unlink()
        say(f"deleted: {path}")
    else:
        say(f"there is no table of this GPU: {path}")
    return 0


def _print(found: Sequence[Found]) -> None:
    changed = [one for one in found if one.changed]
    rows = [
        (
            one.shown,
            one.steps,
            f"{1e6 * one.own_seconds:.1f}",
            f"{1e6 * one.best_seconds:.1f}",
            f"{one.best_seconds / one.own_seconds:.3f}",
            _written(one.best),
        )
        for one in changed
    ]
    if rows:
        heads = ("kernel", "step", "before, µs", "now, µs", "now / before", "constants")
        print_table(heads, rows, left=True)
        print()
    if not found:  # tiles have speeds, and no constants
        return
    refused = sum(one.refused for one in found)
    others = "the others were the fastest, or a step gains less than 0.5 %"
    print(f"{len(changed)} of {len(found)} changed; {others}.")
    if refused:
        tried = sum(one.tried for one in found)
        print(f"{refused} of {tried} sets of constants do not compile here, or give other logits.")


def _written(constants: Constants) -> str:
    return " ".join(f"{name}={value}" for name, value in constants.items())
