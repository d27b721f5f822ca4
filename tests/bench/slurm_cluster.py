"""A real Slurm of four nodes on this machine, from Debian's packages, with a munge of its own.

Needs root: `apt-get install slurm-wlm munge`. Nothing outside its folder is written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
NODES = {"n0": "east", "n1": "east", "n2": "west", "n3": "west"}
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={controller}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdTimeout=5
KillWait=2
JobRequeue=0
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A controller, and a slurmd for each node; the nodes' features are the kinds of `NODES`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.config = folder / "slurm.conf"
        ports = free_ports(len(NODES) + 1)
        lines = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=localhost Port={port} CPUs=1 "
            f"RealMemory=100 Feature={kind}"
            for (name, kind), port in zip(NODES.items(), ports, strict=False)
        ]
        values = {"folder": folder, "controller": ports[-1], "nodes": "\n".join(lines)}
        self.config.write_text(CONFIG.format(**values))

    def start(self) -> None:
        (self._folder / "state").mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = [f"--{name}-file={self._folder}/munge.{name}" for name in ("key", "pid", "log")]
        seed = f"--seed-file={self._folder}/munge.seed"
        munge = f"--socket={self._folder}/munge.socket"
        self._spawn("munged", "--foreground", "--force", munge, seed, *files)
        wait_for(lambda: (self._folder / "munge.socket").exists(), "munged")
        self._spawn("slurmctld", "-D", "-f", str(self.config))
        for name in NODES:
            self.start_node(name)
        wait_for(lambda: self.states().count("idle") == len(NODES), "slurmd")

    def start_node(self, name: str) -> None:
        self._spawn("slurmd", "-D", "-N", name, "-f", str(self.config))

    def stop(self) -> None:
        for name in NODES:
            kill(jobs_of(name))
        for process in reversed(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                kill(psutil.Process(process.pid).children(recursive=True))
            kill([process])
            process.wait()

    def states(self) -> list[str]:
        words = ["sinfo", "-h", "-N", "-o", "%T"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()

    def working(self) -> list[str]:
        """Nodes on which a worker of a job runs."""
        return [name for name in NODES if jobs_of(name)]

    def kill_node(self, name: str) -> None:
        """SIGKILL for the node's slurmd, and for all that its jobs run."""
        daemons = [one for one in self._started if [*one.args][1:4] == ["-D", "-N", name]]
        kill([*daemons, *jobs_of(name)])
        for one in daemons:
            one.wait()
            self._started.remove(one)

    def _spawn(self, *words: str) -> None:
        with (self._folder / f"{words[0]}.said").open("ab") as said:
            self._started.append(subprocess.Popen(words, stdout=said, stderr=said))


def jobs_of(node: str) -> list[psutil.Process]:
    """The processes of a node's jobs, with the daemons that started them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURMD_NODENAME") == node:
                parent = process.parent()
                if parent is not None and parent.name() == "slurmstepd":
                    found[parent.pid] = parent
                found[process.pid] = process
    return [*found.values()]


def kill(processes: Iterable[psutil.Process | subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(what: Callable[[], object], name: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: not there after {seconds} s")
        time.sleep(0.1)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster during the block, which the programs of Slurm find by SLURM_CONF."""
    made = SlurmCluster(folder)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(made.config)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        del os.environ["SLURM_CONF"]
        if before is not None:
            os.environ["SLURM_CONF"] = before


def lacking() -> str | None:
    """Why there can be no cluster here; None: there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "no root: slurmd starts jobs of users"
