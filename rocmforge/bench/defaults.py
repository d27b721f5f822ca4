"""Where the gate looks and what it takes where no option says otherwise."""

from __future__ import annotations

from pathlib import Path

CONFIG = Path("asv.conf.json")
BASELINES = Path("baselines")
RESULTS = Path("results")
PROFILES = ("quick", "standard", "full")
FORMATS = ("table", "json", "markdown", "junit")
FILES = {"json": "gate.json", "markdown": "gate.md", "junit": "gate.junit.xml"}
FEWEST_RUNS = 2
"""Runs of one commit, of which fewer say nothing about noise."""
OTHERS_LIMIT = 0.20
"""Share of the CPU time, or of a GPU's time, above which other work marks a benchmark."""
