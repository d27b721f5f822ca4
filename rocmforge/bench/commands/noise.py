"""`rocmforge bench noise`: measures one commit again and again; how much do its runs differ?"""

from __future__ import annotations

import argparse

from rocmforge.bench.arguments import add_max_load, add_profile, whole
from rocmforge.bench.defaults import FEWEST_RUNS

EPILOG = """\
spread   of the medians of the runs: half of them lie within this share, (q75 - q25) / median
largest  change that any two runs showed though the code is the same, max / min - 1: once saved, the
         noise floor of this benchmark
processes  the noise floor that it has otherwise: nine of ten benchmarks of its kind differ by less
         between the processes of one run
marked   runs in which other work or throttling disturbed it

How long a run of each profile takes stands in benchmarks/README.md under "Run". What is not
measured here keeps the floor of its processes.

Every run is kept in .asv/repeatability/COMMIT/PROFILE/NN.json (a hash in place of PROFILE with
--bench); those of earlier calls with the same selection count too: an interrupted call is continued
by the next.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench noise`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept="finished runs are kept")
    parser.add_argument(
        "--runs",
        type=whole(FEWEST_RUNS),
        default=10,
        metavar="N",
        help="in all (default: %(default)s)",
    )
    add_profile(parser)
    add_max_load(parser)
    parser.add_argument(
        "--save",
        action="store_true",
        help="write baselines/<hardware tag>/noise.json, which the gate reads",
    )
    parser.add_argument(
        "--replace", action="store_true", help="with --save: though benchmarks are lost by it"
    )


def run(args: argparse.Namespace) -> int:
    """Measure what is not there yet, show what all runs say, save it."""
    from rocmforge.bench.repeat import measure_noise

    return measure_noise(args)
