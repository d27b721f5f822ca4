"""What `make dashboard` runs: publishes the results and the baselines as pages.

Parses, calls `rocmforge.bench.dashboard`. The pages load nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmforge.bench import exits
from rocmforge.bench.asv import read_config
from rocmforge.bench.dashboard.publish import publish

ROOT = Path(__file__).resolve().parent.parent
EPILOG = """\
examples:
  dashboard.py                               what is committed in results/ and baselines/
  dashboard.py --config .asv/asv.conf.json   what make bench measured here

The pages need a web server (.venv/bin/asv preview is one) but for the summary, which opens as a
file too. exit codes: 0 published, 2 a file is broken or asv failed, 130 interrupted; where it is
not 0 the older pages stay.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Publish results and baselines as pages that work offline.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    config, baselines = ROOT / "asv.conf.json", ROOT / "baselines"
    parser.add_argument(
        "--config", type=Path, default=config, metavar="FILE", help="asv's (default: %(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="(default: results_dir of the configuration)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="DIR", help="(default: html_dir of the configuration)"
    )
    parser.add_argument("--baselines", type=Path, default=baselines, metavar="DIR")
    args = parser.parse_args(argv)
    return exits.run(parser.prog, lambda: _publish(args))


def _publish(args: argparse.Namespace) -> int:
    settings, base = read_config(args.config), args.config.parent
    results = args.results or base / settings.get("results_dir", "results")
    html = args.html or base / settings.get("html_dir", "html")
    log = html.parent / "dashboard.log"
    page = publish(args.config, results, html, args.baselines, log, print)
    print(f"published {os.path.relpath(page)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
