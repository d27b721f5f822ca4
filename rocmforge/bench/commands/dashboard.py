"""`rocmforge bench dashboard`: publishes results and baselines as pages that load nothing else."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rocmforge.bench.defaults import BASELINES, CONFIG

EPILOG = """\
examples:
  rocmforge bench dashboard                               what is committed in results/, baselines/
  rocmforge bench dashboard --config .asv/asv.conf.json   what was measured here

The pages open as files. asv's own graphs need a web server; .venv/bin/asv preview is one. Where the
exit code is not 0, the older pages stay.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench dashboard`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--config", type=Path, default=CONFIG, metavar="FILE", help="asv's (default: %(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="(default: results_dir of the configuration)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="DIR", help="(default: html_dir of the configuration)"
    )
    parser.add_argument(
        "--baselines", type=Path, default=BASELINES, metavar="DIR", help="(default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Publish; say where."""
    from rocmforge.bench.asv import read_config
    from rocmforge.bench.dashboard.publish import publish

    settings, base = read_config(args.config), args.config.parent
    results = args.results or base / settings.get("results_dir", "results")
    html = args.html or base / settings.get("html_dir", "html")
    page = publish(args.config, results, html, args.baselines, html.parent / "dashboard.log", print)
    print(f"published {os.path.relpath(page)}")
    return 0
