"""The engine of a Ray cluster: a custom resource of each node says its kind of machine.

A node of two MI300X is started with ``ray start --resources='{"gfx942": 2}' --num-gpus 2``, one
without a GPU with ``--resources='{"cpu": 1}'``.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.files import write_bytes
from rocmforge.bench.fleet.engine import Ended
from rocmforge.bench.fleet.parts import KNOWN_KIND
from rocmforge.bench.fleet.worker import Task, measure, task_json, task_of
from rocmforge.errors import DeviceError, one_line


class RayEngine:
    """Submits a Ray task for each part, on a node that has its kind as a resource.

    Bundles come back through Ray: nodes need share no folder with this machine.

    Parameters
    ----------
    inbox
        Gets the bundles.
    address
        Of the cluster, ``auto`` for the one that this machine is part of.

    Raises
    ------
    ValueError
        There is no Ray.
    DeviceError
        There is no cluster.
    """

    name = "ray"
    reason = ""

    def __init__(self, inbox: Path, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError(
                f"--engine ray: got {error}, wanted it: pip install -e '.[fleet-ray]'"
            ) from error
        self._ray: Any = ray
        self._inbox = inbox
        self._jobs: dict[str, tuple[Any, Task]] = {}
        self._names: dict[str, str] = {}  # of nodes that were seen, by id
        try:
            if not ray.is_initialized():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise DeviceError(
                f"--address: got {address}, wanted that of a Ray cluster ({one_line(error, 200)})"
            ) from error

    def boxes(self) -> dict[str, set[str]]:
        """Return the nodes that are alive, by the resources that name a kind."""
        nodes = self._ray.nodes()
        self._names |= (names := _names(nodes))
        found: dict[str, set[str]] = {}
        for node in nodes:
            for kind in filter(KNOWN_KIND.fullmatch, node["Resources"] if node["Alive"] else ()):
                found.setdefault(kind, set()).add(names[node["NodeID"]])
        return found

    def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
        """Submit the tasks, to a node of the kind that need not be avoided."""
        others = ",".join(sorted(node for node, name in self._names.items() if name in avoid))
        for task in tasks:
            kind = task.part.kind
            options: dict[str, Any] = {"resources": {kind: 1}, "max_retries": 0, "num_cpus": 0}
            options |= {"num_gpus": 0 if kind == "cpu" else 1, "name": task.part.name}
            if others:
                options["label_selector"] = {"ray.io/node-id": f"!in({others})"}
            remote = self._ray.remote(_measure).options(**options)
            self._jobs[task.token] = remote.remote(task_json(task)), task
        return [task.token for task in tasks]

    def poll(self, jobs: Collection[str]) -> dict[str, Ended]:
        """Return the jobs that have ended; the bundles that they returned are in the inbox then."""
        refs = {self._jobs[job][0]: job for job in jobs}
        if not refs:
            return {}
        ended, _ = self._ray.wait([*refs], num_returns=len(refs), timeout=0)
        return {refs[ref]: self._end(refs[ref]) for ref in ended}

    def cancel(self, jobs: Collection[str]) -> None:
        """Cancel jobs, and end the workers that run them."""
        for job in self._jobs.keys() & jobs:
            self._ray.cancel(self._jobs.pop(job)[0], force=True)

    def _end(self, job: str) -> Ended:
        ref, task = self._jobs.pop(job)
        try:
            box, bundle = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            node = re.search(r"[0-9a-f]{56}", str(error))
            box = self._names.get(node[0]) if node else None
            return Ended(box, f"{type(error).__name__}: {one_line(error, 200)}")
        write_bytes(self._inbox / task.file_name, bundle)
        return Ended(box, "its bundle is gone")


def _names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the nodes that are alive by their ids: a host, unless it has several."""
    alive = {node["NodeID"]: node for node in nodes if node["Alive"]}
    own = {
        key: node["NodeManagerHostname"]
        if node["NodeName"] == node["NodeManagerAddress"]
        else node["NodeName"]
        for key, node in alive.items()
    }
    count = Counter(own.values())
    return {key: name if count[name] == 1 else f"{name}-{key[:6]}" for key, name in own.items()}


def _measure(text: str) -> tuple[str, bytes]:
    """Measure on the node where this task runs, on the GPU that Ray gave it."""
    import ray

    if gpus := ray.get_gpu_ids():
        os.environ["ROCR_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        os.environ.pop("HIP_VISIBLE_DEVICES", None)  # it would count those that are left
    cluster: Any = ray
    box = _names(cluster.nodes())[ray.get_runtime_context().get_node_id()]
    return box, measure(task_of(text), box)
