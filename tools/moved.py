#!/usr/bin/env python3
"""Says what a script that moved is called now: the old names are links to this one."""

import sys
from pathlib import Path

NOW = {
    "bench.py": "rocmforge bench run (with --gate: rocmforge bench gate)",
    "check_history.py": "rocmforge bench history",
    "compare_commits.py": "rocmforge bench confirm BEFORE AFTER --bench REGEX",
    "dashboard.py": "rocmforge bench dashboard",
    "gate_pull_request.py": "rocmforge bench ci",
    "register_machine.py": "rocmforge bench machine",
    "repeatability.py": "rocmforge bench noise",
    "compare_detectors.py": "studies/compare_detectors.py",
    "dashboard_load.py": "studies/dashboard_load.py",
    "false_alarms.py": "studies/false_alarms.py",
    "gate_trials.py": "studies/gate_trials.py",
}

if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    print(f"tools/{name} is now: {NOW.get(name, 'rocmforge bench')}", file=sys.stderr)
    sys.exit(2)
