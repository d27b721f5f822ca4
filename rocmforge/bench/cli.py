"""The command line `rocmforge bench`: the tree of its subcommands, of which one is imported.

A subcommand is a module of `commands`; only the chosen one is imported, so that --help and a wrong
word are answered at once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from rocmforge.bench import exits
from rocmforge.suggestions import Parser

COMMANDS = {
    "model": "measure how fast a model runs here: prompts and decoding, beside the roofline",
    "run": "measure HEAD on this machine and show it beside the stored baseline",
    "gate": "measure HEAD and judge it by this machine's stored baseline",
    "compare": "judge stored results: commit against commit, or a commit against a baseline",
    "confirm": "build two commits and measure them interleaved",
    "history": "find change points and drifts to the worse over the commits of a branch",
    "noise": "measure HEAD several times: how much does each benchmark differ?",
    "baseline": "list, save, refresh, compare and import baselines",
    "dashboard": "publish results and baselines as pages that work offline",
    "ci": "measure two commits interleaved, gate the second, publish the report",
    "fleet": "measure commits on many machines, and gather one dashboard",
    "machine": "tell asv what this machine is, and print its name",
}
PROG = "rocmforge bench"


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; return the exit code. Usage errors and --help leave by SystemExit."""
    if not argv or argv[0] not in COMMANDS:
        _overview().parse_args(argv)
    name, *rest = argv
    command = importlib.import_module(f"rocmforge.bench.commands.{name}")
    parser = parser_of(name)
    # options may stand between two commits; argparse refuses that of a command with subcommands
    parse = parser.parse_args if name == "baseline" else parser.parse_intermixed_args
    args = parse(rest)
    return exits.run(args.prog, lambda: command.run(args), args.kept)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a subcommand, one of `COMMANDS`."""
    parser = _parser(f"{PROG} {name}", f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.")
    importlib.import_module(f"rocmforge.bench.commands.{name}").add_arguments(parser)
    parser.epilog = f"{parser.epilog or ''}{exits.TABLE}"
    return parser


def _overview() -> argparse.ArgumentParser:
    """Return the parser of what stands before a subcommand: nothing but --help."""
    parser = _parser(PROG, "Measure a model, or measure, compare and gate the speed of commits.")
    parser.epilog = "`rocmforge bench COMMAND --help` shows a command's options and examples.\n"
    parser.epilog += exits.TABLE
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, brief in COMMANDS.items():
        commands.add_parser(name, help=brief, allow_abbrev=False)
    return parser


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(prog=prog, kept="")
    return parser
