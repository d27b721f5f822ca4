"""`rocmforge bench baseline`: lists, makes, refreshes, compares and imports stored baselines."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocmforge.bench.arguments import add_max_load, add_results
from rocmforge.bench.commands.compare import add_options
from rocmforge.bench.defaults import BASELINES

EPILOG = """\
examples:
  rocmforge bench baseline list
  rocmforge bench baseline save --commit HEAD
  rocmforge bench baseline refresh --dry-run
  rocmforge bench baseline compare rocm-6.json rocm-7.json --upgrade
  llama-bench -m model.gguf -r 10 -o json > before.json; rocmforge bench baseline import before.json
"""
SAVE = """\
Makes the baseline of the machine that a commit's results in asv's directory were measured on: for
every benchmark mean, min, max, p50, p95, p99, the 99 % interval of the median, the samples (ms for
times, else the benchmark's own unit), direction and hardware. Run asv with --record-samples, else
only the median and its interval are known. An older baseline at the same place is replaced, unless
that would lose benchmarks that it holds: then only with --replace. A run of which most was measured
under load is refused.
"""
REFRESH = """\
Takes what was measured last, by asv or by `bench run` (with --results or --commit: by asv), and
puts it in place of the same benchmarks in the stored baseline of that hardware. All others stay,
with the commit they were measured at; so does what is marked now (load, throttling) and was not
when it was stored. What was measured with uncommitted changes is refused: no commit is its own.
Shows first what moved; --dry-run does no more.
"""
COMPARE = """\
Judges baseline AFTER by baseline BEFORE, as `bench compare --baseline BEFORE --against AFTER` does.
With --upgrade ROCm and the driver may differ: what it moved, and by how much.
"""
IMPORT = """\
Makes a baseline of the JSON of llama-bench, of the machine that this runs on: run it where
llama-bench ran. Two of them compare builds of llama.cpp, of ROCm or of the driver. An older one at
the same place is replaced, unless it holds tests that the file has not: then only with --replace.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `bench baseline`."""
    parser.epilog = EPILOG
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, line: str, text: str = "") -> argparse.ArgumentParser:
        chosen = commands.add_parser(
            name,
            help=line,
            description=text or line,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        chosen.set_defaults(prog=chosen.prog)
        return chosen

    line = "show every stored baseline: of what, when, how many benchmarks"
    listing = command("list", line)
    listing.add_argument("folder", nargs="?", type=Path, default=BASELINES, help="(%(default)s)")
    save = command("save", "make a baseline of a commit's results in asv's directory", SAVE)
    refresh = command("refresh", "replace in a baseline what was measured anew", REFRESH)
    for chosen in (save, refresh):
        add_results(chosen)
        chosen.add_argument(
            "--commit", metavar="COMMIT", help="a measured one (default: the newest measured one)"
        )
        chosen.add_argument(
            "--out", type=Path, metavar="FILE", help="(baselines/<hardware tag>/baseline.json)"
        )
        add_max_load(chosen)
    refresh.add_argument(
        "--dry-run", action="store_true", help="show what would move; write nothing"
    )
    comparing = command("compare", "what moved from one baseline to another", COMPARE)
    comparing.add_argument("baseline", type=Path, metavar="BEFORE")
    comparing.add_argument("against", type=Path, metavar="AFTER")
    add_options(comparing)
    importing = command("import", "make a baseline of llama-bench's JSON", IMPORT)
    importing.add_argument("file", type=Path, help="of llama-bench -o json or -o jsonl")
    importing.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="(default: baselines/<hardware tag>/llama-bench/<name>.json)",
    )
    for chosen in (save, importing):
        chosen.add_argument(
            "--replace", action="store_true", help="replace a baseline that holds more benchmarks"
        )


def run(args: argparse.Namespace) -> int:
    """Run a subcommand; return the exit code."""
    from rocmforge.bench import judging, upkeep

    work = {
        "list": upkeep.list_all,
        "save": upkeep.save,
        "refresh": upkeep.refresh,
        "compare": judging.judge_baselines,
        "import": upkeep.import_llama_bench,
    }
    return work[args.command](args)
