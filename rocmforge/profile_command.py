"""What `rocmforge profile` does: profile a model here, under another profiler, or list profilers.

Like commands.py: results go to standard output, progress to standard error, cli.py handles errors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rocmforge.env import SPLIT_MODES
from rocmforge.profile_report import print_profile, print_verdict, print_wrapped
from rocmforge.profiling.counter_rules import counted, kernel_verdict, run_verdict
from rocmforge.profiling.external import ExternalProfile, profile_with, table
from rocmforge.profiling.html_report import write_html
from rocmforge.profiling.profile import Profile, Verdict
from rocmforge.profiling.roofline_picture import write_roofline
from rocmforge.profiling.run import Options, profile_model
from rocmforge.profiling.tools import answer, find_tools
from rocmforge.profiling.trace import write_trace
from rocmforge.terminal import ProgressBar, print_json, print_table, say

LONGEST_CELL = 60
RENAMED = ("rocperf", "omniperf")  # asked for by these names
MOST_ROWS = 20  # of another profiler's table, unless all are wanted
JUDGED = 5  # kernels of another profiler's run that get a verdict
PROMPT = "Once upon a time"

Write = Callable[[Profile, Path], None]


def profile(args: argparse.Namespace) -> int:
    """Profile a model, here or under another profiler, or list the profilers."""
    if args.tools:
        return _list_tools(args)
    if args.tool is not None:
        return _with_tool(args)
    files = _files(args)
    found = _measured(args)
    for path, write in files:  # before the report, whose reader may go away
        write(found, path)
        say(f"written: {path}")
    if args.json:
        print_json(found.to_json())
    else:
        print_profile(found, args.all)
    return 0


def _measured(args: argparse.Namespace) -> Profile:
    options = Options(
        path=args.model,
        device=args.device,
        gpu_layers=args.gpu_layers,
        split_mode=args.split_mode,
        threads=args.threads,
        ctx=args.ctx,
        kv_dtype=args.kv_dtype,
        page_size=args.page_size,
        prefill_chunk=args.prefill_chunk,
        prompt_tokens=args.prompt_tokens,
        tokens=args.tokens,
        target_seconds=args.target_ms / 1e3,
    )
    compiling = ProgressBar("compiling", counts_bytes=False)
    measuring = ProgressBar("measuring", counts_bytes=False)
    with ProgressBar("loading") as loading, compiling, measuring:
        return profile_model(options, loading, compiling, measuring)


def _files(args: argparse.Namespace) -> list[tuple[Path, Write]]:
    """The files that were asked for; one that cannot be is told before the model loads."""
    wanted: tuple[tuple[str | None, Write], ...] = (
        (args.trace, write_trace),
        (args.roofline, write_roofline),
        (args.html, write_html),
    )
    found = [(Path(name), write) for name, write in wanted if name is not None]
    taken = {os.path.realpath(args.model): "the model's file"}
    for path, _ in found:
        place = os.path.realpath(path)
        if place in taken:
            raise ValueError(f"{path}: got {taken[place]}, wanted a file of its own")
        taken[place] = "one file for two outputs"
        if not path.parent.is_dir():
            raise ValueError(f"{path}: got no folder {path.parent}, wanted one to write to")
        if path.exists() and not path.is_file():  # it would be replaced, /dev/null too
            raise ValueError(f"{path}: got what is no file, wanted the name of one to write")
    return found


def _list_tools(args: argparse.Namespace) -> int:
    tools = find_tools()
    answers = [told for name in RENAMED if (told := answer(name))]
    if args.json:
        print_json({"tools": [tool.to_json() for tool in tools], "renamed": answers})
        return 0
    rows = [(t.name, t.version or ("yes" if t.path else "missing"), t.purpose) for t in tools]
    print_table(("tool", "version", "for"), rows, left=True)
    for tool in tools:
        remark = f"{tool.name}: {tool.remark}. " if tool.remark else ""
        if tool.path is None and tool.install:
            print()
            print_wrapped(f"{remark}{tool.name} is missing. To install it:")
            for system, how in tool.install.items():
                print(f"  {system}\n      {how}")
        elif remark:
            print_wrapped(remark)
    print()
    for told in answers:
        print_wrapped(f"{told}.")
    return 0


def _with_tool(args: argparse.Namespace) -> int:
    folder = Path(args.output or tempfile.mkdtemp(prefix=f"rocmforge-{args.tool}-"))
    try:
        found = profile_with(
            args.tool,
            args.recipe or "kernel",
            args.profiled or _generate(args),
            folder,
            counters=args.counter or (),
            limit_seconds=args.limit,
        )
    except BaseException:  # Ctrl-C too
        if args.output is None:
            with suppress(OSError):  # the tool has left something there
                folder.rmdir()
        raise
    verdicts = _verdicts(found)
    if args.json:
        print_json({**found.to_json(), "verdicts": [asdict(one) for one in verdicts]})
        return 0
    for verdict in verdicts:
        print_verdict(verdict)
        print()
    titles, *rows = table(found)
    shown = rows if args.all else rows[:MOST_ROWS]
    print_table(titles, shown if args.all else [[_cut(cell) for cell in row] for row in shown])
    if len(shown) < len(rows):
        print(f"{len(rows) - len(shown)} more: --all shows them")
    for remark in found.remarks:
        print_wrapped(remark)
    print(f"\nkept in {found.folder}")
    return 0


def _cut(cell: str) -> str:
    """Shorten the names of C++ and of paths, which can be hundreds of letters long."""
    return cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 1]}…"


def _generate(args: argparse.Namespace) -> tuple[str, ...]:
    """The command that another profiler runs where none was given."""
    words = [sys.executable, "-m", "rocmforge", "generate", args.model, "--prompt", PROMPT]
    words += ["-n", str(args.tokens), "--ignore-eos"]
    layers = args.gpu_layers
    given = {
        "--device": args.device,
        "--gpu-layers": ",".join(map(str, layers)) if isinstance(layers, list) else layers,
        "--split-mode": None if args.split_mode == SPLIT_MODES[0] else args.split_mode,
        "--ctx": args.ctx,
        "--threads": args.threads,
        "--prefill-chunk": args.prefill_chunk,
    }
    for option, value in given.items():
        if value is not None:
            words += [option, str(value)]
    words += ["--kv-dtype", args.kv_dtype, "--page-size", str(args.page_size)]
    return tuple(words)


def _verdicts(found: ExternalProfile) -> list[Verdict]:
    """What limits the run, and its longest kernels."""
    runs = [one for recording in found.recordings if (one := run_verdict(recording)) is not None]
    kernels = sorted(found.kernels, key=lambda row: -(row.total_ns or 0))[:JUDGED]
    judged = [
        kernel_verdict(row.kernel, counted(row.counters, row.mean_ns and row.mean_ns / 1e9))
        for row in kernels
        if row.counters
    ]
    return runs[:1] + judged
