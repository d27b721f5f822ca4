"""What `rocmforge profile` does: profile a model here, under another profiler, or list profilers.

Like commands.py: results go to standard output, progress to standard error, cli.py handles errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rocmforge.profile_report import print_profile
from rocmforge.profiling.profile import Profile
from rocmforge.profiling.run import Options, profile_model
from rocmforge.terminal import ProgressBar, print_json, say

Write = Callable[[Profile, Path], None]


def profile(args: argparse.Namespace) -> int:
    """Profile a model on a device; write what was asked for besides."""
    files = _files(args)
    found = _measured(args)
    if args.json:
        print_json(found.to_json())
    else:
        print_profile(found, args.all)
    for path, write in files:
        write(found, path)
        say(f"written: {path}")
    return 0


def _measured(args: argparse.Namespace) -> Profile:
    options = Options(
        path=args.model,
        device=args.device,
        threads=args.threads,
        ctx=args.ctx,
        kv_dtype=args.kv_dtype,
        page_size=args.page_size,
        prompt_tokens=args.prompt_tokens,
        tokens=args.tokens,
        target_seconds=args.target_ms / 1e3,
    )
    compiling = ProgressBar("compiling", counts_bytes=False)
    measuring = ProgressBar("measuring", counts_bytes=False)
    with ProgressBar("loading") as loading, compiling, measuring:
        return profile_model(options, loading, compiling, measuring)


def _files(args: argparse.Namespace) -> list[tuple[Path, Write]]:
    """The files that were asked for; a folder that is missing is told before the model loads."""
    wanted: list[tuple[str | None, Write]] = []
    found = [(Path(name), write) for name, write in wanted if name is not None]
    for path, _ in found:
        if not path.parent.is_dir():
            raise ValueError(f"{path}: got no folder {path.parent}, wanted one to write to")
    return found
