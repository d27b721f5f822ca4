"""The engine of a fleet on a real Slurm of four nodes, one of which is killed while it measures.

Skipped where Debian's slurm-wlm and munge, or the extra `fleet-slurm`, are not installed.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_runs import Fleet
from slurm_cluster import NODES, SlurmCluster, cluster, lacking, wait_for

from rocmforge.bench.fleet.slurm import SlurmEngine

pytest.importorskip("submitit", reason="no submitit: pip install -e '.[fleet-slurm]'")
pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(lacking() is not None, reason=lacking() or "there is Slurm"),
]
KINDS = {kind: {"constraint": kind} for kind in ("east", "west")}


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that was killed does not come back."""
    monkeypatch.setattr("rocmforge.bench.fleet.runner._BOX_PATIENCE_S", 5.0)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    (tmp_path / "slurm").mkdir()
    with cluster(tmp_path / "slurm") as made:
        yield made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))


def engine_of(fleet: Fleet) -> SlurmEngine:
    return SlurmEngine(fleet.store.inbox, fleet.root / "fleet" / "slurm", 5, KINDS)


def test_all_parts_are_measured_each_copy_on_another_node(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path / "run")
    engine = engine_of(fleet)
    assert engine.boxes() == {"east": {"n0", "n1"}, "west": {"n2", "n3"}}
    outcome = fleet.run(engine, fleet.wanted(), interval_s=0.5)
    assert (outcome.missing, outcome.failures) == ({}, {})
    boxes = {part: one.box for part, one in fleet.store.known().items()}
    assert {NODES[box] for part, box in boxes.items() if part.kind == "west"} == {"west"}
    assert len({(part.commit, box) for part, box in boxes.items()}) == len(boxes) == 8
    began = fleet.journal("began")
    fleet.run(engine, fleet.wanted(), interval_s=0.5)
    assert fleet.journal("began") == began == 8


def test_a_node_that_dies_while_it_measures(slurm: SlurmCluster, tmp_path: Path) -> None:
    calm = Fleet(tmp_path / "calm", seconds=0.0)
    assert calm.run(engine_of(calm), calm.wanted(), interval_s=0.5).missing == {}
    fleet = Fleet(tmp_path / "run", seconds=3.0)
    killed = []

    def kill() -> None:
        while not (working := slurm.working()):
            time.sleep(0.1)
        time.sleep(random.random())
        killed.append(random.choice(working))
        slurm.kill_node(killed[0])

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = fleet.run(engine_of(fleet), fleet.wanted(), interval_s=0.5)
    killer.join()
    assert outcome.missing == {}
    assert len(outcome.failures) == 1
    ((said,),) = outcome.failures.values()
    assert "no bundle came" in said
    assert fleet.tree() == calm.tree()
    assert sorted(fleet.store.known()) == sorted(fleet.wanted())
    assert fleet.journal("began") <= 9
    assert killed[0] not in set().union(*engine_of(fleet).boxes().values())


def test_a_job_that_is_canceled_is_tried_on_another_node(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """As by a scheduler that preempts it, or by an administrator."""
    fleet = Fleet(tmp_path / "run", seconds=3.0)
    wanted = fleet.wanted(("east",), boxes=1)[:1]

    def cancel() -> None:
        while not fleet.journal("began"):
            time.sleep(0.1)
        subprocess.run(["scancel", "--name", "fleet-east"], check=True)

    canceler = threading.Thread(target=cancel)
    canceler.start()
    outcome = fleet.run(engine_of(fleet), wanted, interval_s=0.5)
    canceler.join()
    assert outcome.missing == {}
    ((said,),) = outcome.failures.values()
    (made,) = fleet.store.known().values()
    assert not said.startswith(f"{made.box}: ")


def test_the_last_node_of_a_kind_is_reported_and_the_rest_stays(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    for name in ("n0", "n1"):
        slurm.kill_node(name)
    fleet = Fleet(tmp_path / "run", seconds=0.0)
    engine = engine_of(fleet)
    while "east" in engine.boxes():
        time.sleep(0.5)
    outcome = fleet.run(engine, fleet.wanted(), interval_s=0.5)
    assert {part.kind for part in outcome.missing} == {"east"}
    assert {*outcome.missing.values()} == {"no box of kind east, the engine has west"}
    assert {part.kind for part in fleet.store.known()} == {"west"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_each_of_twenty_runs(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Any node, at work or not, at any moment of the run; then it starts again."""
    calm = Fleet(tmp_path / "calm", seconds=0.0)
    assert calm.run(engine_of(calm), calm.wanted(), interval_s=0.5).missing == {}
    undisturbed, cost = calm.tree(), []
    for seed in range(20):
        chance = random.Random(seed)
        fleet = Fleet(tmp_path / str(seed), seconds=1.0)
        victim = chance.choice([*NODES])
        killer = threading.Timer(chance.uniform(0.0, 8.0), slurm.kill_node, [victim])
        killer.start()
        outcome = fleet.run(engine_of(fleet), fleet.wanted(), interval_s=0.5)
        killer.join()
        assert outcome.missing == {}
        assert fleet.tree() == undisturbed
        assert sorted(fleet.store.known()) == sorted(fleet.wanted())
        assert sum(len(said) for said in outcome.failures.values()) <= 1
        assert fleet.journal("began") <= 9  # the part that ran there alone is repeated
        cost.append(fleet.journal("began") - fleet.journal("ended"))
        slurm.start_node(victim)
        wait_for(lambda: slurm.states().count("idle") == len(NODES), victim, 60.0)
    print(f"{sum(cost)} of {len(cost)} kills came while the stand-in measured there")
    assert len(cost) == 20
    assert any(cost)
