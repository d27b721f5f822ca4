"""What measures a commit in tests of a fleet: writes asv's results, the same for the same commit.

Called as ``python fleet_standin.py JOURNAL SECONDS COMMIT KIND``. It adds a line to the journal
when it begins and when it is done; a kind whose name begins with ``broken`` fails.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from asv_tree import MACHINE, AsvTree, report


def measure(commit: str, kind: str) -> None:
    """Write one benchmark of two parameters, and what its processes reported."""
    tree = AsvTree(Path("results"))
    tree.benchmark("matmul.track_ms", "ms", {"size": ["1", "2"]})
    tree.benchmark(f"rope.time_{kind}")
    value = 1 + int(commit[:4], 16) / 1e6
    values = {"matmul.track_ms": [value, 2 * value], f"rope.time_{kind}": value / 1000}
    machine = {**MACHINE, "machine": f"box-{kind}"}
    if kind.startswith(("gfx", "sm_")):
        machine["gfx"] = kind
    written = tree.run(commit, values, machine=machine, environment="existing-py3.11")
    for index in (0, 1):
        median = values["matmul.track_ms"][index]
        report(written, "matmul.track_ms", index, None, {"others_share": 0.0}, median=median)


def main(journal: str, seconds: str, commit: str, kind: str) -> None:
    with Path(journal).open("a", encoding="utf-8") as file:
        print("began", commit, kind, file=file, flush=True)
        time.sleep(float(seconds))
        if kind.startswith("broken"):
            sys.exit("no such device")
        measure(commit, kind)
        print("ended", commit, kind, file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
