"""One of four nodes is killed at a random moment: nothing is lost, nothing twice, the same tree.

Nodes are processes of this machine (`LocalEngine`), and the kill is SIGKILL of one's group. What
measures is a stand-in; engine, worker, bundles and store are the real ones. With Slurm's and Ray's
own nodes the same is in test_fleet_slurm.py and test_fleet_ray.py.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from fleet_runs import Fleet

from rocmforge.bench.fleet.local import LocalBox, LocalEngine

NODES = {"n0": "east", "n1": "east", "n2": "west", "n3": "west"}
MEASURING_S = 0.5  # of each part; two on each node, one after the other
LATEST_S = 2 * MEASURING_S + 0.2
"""Before which the kill comes: no machine is done by then, since two workers start besides."""


def engine_of(fleet: Fleet) -> LocalEngine:
    boxes = {name: LocalBox(kind) for name, kind in NODES.items()}
    return LocalEngine(boxes, fleet.store.inbox)


class Killer(threading.Thread):
    """Kills what runs on one node, after a while; waits for one that is at work."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._chance, self._after = chance, chance.uniform(0.0, LATEST_S)
        self.killed: str | None = None

    def run(self) -> None:
        time.sleep(self._after)
        for _ in range(200):
            working = [p for p in psutil.Process().children() if node_of(p)]
            if working:
                process = self._chance.choice(working)
                self.killed = node_of(process)
                os.killpg(process.pid, signal.SIGKILL)
                return
            time.sleep(0.01)


def node_of(process: psutil.Process) -> str | None:
    """The node of a worker's process; None: it is another process, or has ended."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return None
    return words[3] if words[2:3] == ["rocmforge.bench.fleet.worker"] else None


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))


def one_run(root: Path, seed: int, undisturbed: dict[str, bytes]) -> bool:
    """Run with a kill, check what remains; return whether the kill cost an attempt."""
    fleet = Fleet(root, MEASURING_S)
    killer = Killer(random.Random(seed))
    killer.start()
    outcome = fleet.run(engine_of(fleet), fleet.wanted())
    killer.join()
    assert killer.killed
    assert outcome.missing == {}
    assert fleet.tree() == undisturbed
    parts = fleet.store.known()
    assert sorted(parts) == sorted(fleet.wanted())
    failed = [line for said in outcome.failures.values() for line in said]
    assert failed in ([], [f"{killer.killed}: its process was ended by SIGKILL"])
    assert fleet.journal("began") <= len(parts) + len(failed)  # what was gathered is not repeated
    assert [*fleet.store.inbox.iterdir()] == []
    return bool(failed)


def runs(folder: Path, seeds: range) -> list[bool]:
    calm = Fleet(folder / "calm", seconds=0.0)
    outcome = calm.run(engine_of(calm), calm.wanted())
    assert (outcome.missing, outcome.failures) == ({}, {})
    assert calm.journal("ended") == 8
    undisturbed = calm.tree()
    assert len(undisturbed) == 11  # two kinds: two results, two reports, a machine; benchmarks
    return [one_run(folder / str(seed), seed, undisturbed) for seed in seeds]


def test_a_killed_node_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    assert any(runs(tmp_path, range(3)))


@pytest.mark.slow
def test_in_each_of_twenty_runs(tmp_path: Path) -> None:
    cost = runs(tmp_path, range(100, 120))
    print(f"{sum(cost)} of {len(cost)} kills cost an attempt")
    assert len(cost) == 20
    assert sum(cost) > 15  # others came between the bundle and the end of its process
