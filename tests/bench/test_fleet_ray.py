"""The engine of a fleet on a real Ray cluster of four nodes, one of which is killed at work.

Skipped where the extra `fleet-ray` is not installed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_runs import Fleet

from rocmforge.bench.fleet.ray_cluster import RayEngine

ray = pytest.importorskip("ray", reason="no ray: pip install -e '.[fleet-ray]'")
pytestmark = pytest.mark.fleet

# Names that engines know, and whose hardware the stand-in claims; without a GPU that Ray counts.
NODES = {"n0": "gfx942", "n1": "gfx942", "n2": "cpu", "n3": "cpu"}
KINDS = ("gfx942", "cpu")


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that was killed does not come back."""
    monkeypatch.setattr("rocmforge.bench.fleet.runner._BOX_PATIENCE_S", 5.0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that measures nothing."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def nodes(cluster: Any) -> dict[str, Any]:
    """Four nodes, each with processes of its own."""
    return {name: add(cluster, name) for name in NODES}


def add(cluster: Any, name: str) -> Any:
    kind = NODES[name]
    return cluster.add_node(
        num_cpus=1,
        num_gpus=0 if kind == "cpu" else 1,
        resources={kind: 1},
        node_name=name,
        object_store_memory=80 * 2**20,
    )


def kill(node: Any) -> None:
    """SIGKILL for a node's raylet and all that it started."""
    raylets = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
    for process in [*(c for one in raylets for c in one.children(recursive=True)), *raylets]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def is_working(node: Any) -> bool:
    """Whether a worker of the node runs a program: git, or what measures."""
    with contextlib.suppress(psutil.NoSuchProcess):
        (raylet,) = (psutil.Process(info.process.pid) for info in node.all_processes["raylet"])
        workers = [one for one in raylet.children() if one.name().startswith("ray::")]
        return any(one.children() for one in workers)
    return False


def engine_of(fleet: Fleet) -> RayEngine:
    return RayEngine(fleet.store.inbox, "auto")


def test_all_parts_are_measured_each_copy_on_another_node(
    nodes: dict[str, Any], tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path / "run")
    engine = engine_of(fleet)
    assert engine.boxes() == {"gfx942": {"n0", "n1"}, "cpu": {"n2", "n3"}}
    outcome = fleet.run(engine, fleet.wanted(KINDS), interval_s=0.2)
    assert (outcome.missing, outcome.failures) == ({}, {})
    gathered = fleet.store.known()
    boxes = {part: one.box for part, one in gathered.items()}
    assert all(NODES[box] == part.kind for part, box in boxes.items())
    assert len({(part.commit, box) for part, box in boxes.items()}) == len(boxes) == 8
    devices = {part.kind: one.devices for part, one in gathered.items()}
    assert devices["gfx942"]["ROCR_VISIBLE_DEVICES"] == "0"
    began = fleet.journal("began")
    fleet.run(engine, fleet.wanted(KINDS), interval_s=0.2)
    assert fleet.journal("began") == began == 8


def test_a_node_that_dies_while_it_measures(nodes: dict[str, Any], tmp_path: Path) -> None:
    calm = Fleet(tmp_path / "calm", seconds=0.0)
    assert calm.run(engine_of(calm), calm.wanted(KINDS), interval_s=0.2).missing == {}
    fleet = Fleet(tmp_path / "run", seconds=3.0)
    killed = []

    def kill_one() -> None:
        while not (working := [name for name, node in nodes.items() if is_working(node)]):
            time.sleep(0.1)
        time.sleep(random.random())
        killed.append(random.choice(working))
        kill(nodes[killed[0]])

    killer = threading.Thread(target=kill_one)
    killer.start()
    outcome = fleet.run(engine_of(fleet), fleet.wanted(KINDS), interval_s=0.2)
    killer.join()
    assert outcome.missing == {}
    assert len(outcome.failures) == 1
    assert fleet.tree() == calm.tree()
    assert sorted(fleet.store.known()) == sorted(fleet.wanted(KINDS))
    assert fleet.journal("began") <= 9
    assert killed[0] not in set().union(*engine_of(fleet).boxes().values())


def test_the_last_node_of_a_kind_is_reported_and_the_rest_stays(
    nodes: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("n2", "n3"):
        kill(nodes[name])
    fleet = Fleet(tmp_path / "run", seconds=0.0)
    engine = engine_of(fleet)
    while "cpu" in engine.boxes():
        time.sleep(0.5)
    outcome = fleet.run(engine, fleet.wanted(KINDS), interval_s=0.2)
    assert {*outcome.missing.values()} == {"no box of kind cpu, the engine has gfx942"}
    assert {part.kind for part in fleet.store.known()} == {"gfx942"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_in_each_of_twenty_runs(cluster: Any, nodes: dict[str, Any], tmp_path: Path) -> None:
    """Any node, at work or not, at any moment of the run; then another takes its place."""
    calm = Fleet(tmp_path / "calm", seconds=0.0)
    assert calm.run(engine_of(calm), calm.wanted(KINDS), interval_s=0.2).missing == {}
    undisturbed, cost = calm.tree(), []
    for seed in range(20):
        chance = random.Random(seed)
        fleet = Fleet(tmp_path / str(seed), seconds=0.5)
        victim = chance.choice([*NODES])
        killer = threading.Timer(chance.uniform(0.0, 5.0), kill, [nodes[victim]])
        killer.start()
        outcome = fleet.run(engine_of(fleet), fleet.wanted(KINDS), interval_s=0.2)
        killer.join()
        assert outcome.missing == {}
        assert fleet.tree() == undisturbed
        assert sorted(fleet.store.known()) == sorted(fleet.wanted(KINDS))
        assert sum(len(said) for said in outcome.failures.values()) <= 1
        assert fleet.journal("began") <= 9  # the part that ran there alone is repeated
        cost.append(fleet.journal("began") - fleet.journal("ended"))
        while victim in set().union(*engine_of(fleet).boxes().values()):
            time.sleep(0.2)
        nodes[victim] = add(cluster, victim)
    print(f"{sum(cost)} of {len(cost)} kills came while the stand-in measured there")
    assert len(cost) == 20
    assert any(cost)
