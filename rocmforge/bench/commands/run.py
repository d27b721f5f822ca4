"""`rocmforge bench run`: measures HEAD and shows it beside this machine's stored baseline."""

from __future__ import annotations

import argparse

from rocmforge.bench.arguments import add_max_load, add_profile

EPILOG = """\
Results of a tree with changes belong to no commit: they go to .asv/uncommitted, and no page shows
them. Others go to .asv/results, which git ignores, under this machine's hardware tag: a run never
changes what is committed in results/ and baselines/. Copies of the committed results join it, so
that the dashboard in .asv/html shows their history too. To compare commits that you measured:
  .venv/bin/rocmforge bench compare COMMIT COMMIT --results .asv/results
`asv run` without --config measures in an environment of its own and writes to results/.

A slower number than the stored baseline is shown but is no failure: one run on a busy machine
proves nothing. `rocmforge bench gate` makes it one. The comparison is saved in .asv/comparisons.

Each process also adds the environment of its run to a .jsonl file beside asv's result file. A
benchmark is marked where other work took more of the CPU time than --max-load, or where something
throttled. Where more than half of the timed ones are marked, `bench gate`, --save-baseline and
--save-results refuse the run. They refuse to begin on a machine that is busy already.

environment variables:
  ROCFORGE_TEST_MODEL or ROCMFORGE_TEST_MODEL   a GGUF file instead of the generated model
  ROCMFORGE_CACHE      where generated models are kept
  ROCMFORGE_THREADS    CPU threads
"""
KEPT = "suites that were finished are kept below .asv (quick is measured in one go)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench run`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept=KEPT)
    add_profile(parser)
    add_max_load(parser)
    parser.add_argument(
        "--save-baseline",
        action="store_true",
        help="write baselines/<hardware tag>/baseline.json from this run (clean tree only)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="with --save-baseline: though the older one has benchmarks that this run has not",
    )
    parser.add_argument(
        "--save-results",
        action="store_true",
        help="copy asv's own result file to results/<hardware tag>/ (clean tree only)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and show; return the exit code."""
    from rocmforge.bench.head import run_head

    return run_head(args)
