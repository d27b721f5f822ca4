"""On a box: measures one part in a checkout of its own, packs what came of it into a bundle.

As a program it takes the box's name, the folder for the bundle, and the task as JSON. Builds of
commits are kept on the box; a checkout goes when its part is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from rocmforge import env
from rocmforge.atomic import scratch_folder
from rocmforge.bench.asv import Builds
from rocmforge.bench.files import write_bytes
from rocmforge.bench.fleet import bundle
from rocmforge.bench.fleet.parts import Part
from rocmforge.errors import RocmforgeError, one_line
from rocmforge.hardware import hardware_tag

_MAIN = "import sys; from rocmforge.__main__ import main; sys.exit(main())"
_MOST_BUILDS = 8
MINUTE_S = 60.0
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at a part.

    Parameters
    ----------
    part
        What is measured.
    token
        Eight hex digits that no other attempt has.
    repository
        Where the box clones from: a folder that it sees, or an address.
    max_load
        As of ``bench run``, 0 … 1.
    minutes
        After which the measuring is stopped.
    """

    part: Part
    token: str
    repository: str
    max_load: float
    minutes: int

    @property
    def file_name(self) -> str:
        """The name of its bundle."""
        return bundle.name_of(self.part, self.token)


def task_json(task: Task) -> str:
    """Return a task as text; `task_of` reads it."""
    return json.dumps(asdict(task))


def task_of(text: str) -> Task:
    """Read what `task_json` returned."""
    data = json.loads(text)
    part = data.pop("part")
    return Task(part=Part(**{**part, "bench": tuple(part["bench"])}), **data)


def measure(task: Task, box: str) -> bytes:
    """Measure a part here, whatever comes of it.

    Parameters
    ----------
    task
        What to do.
    box
        The engine's name of this machine.

    Returns
    -------
    bytes
        The bundle: results, or why there are none, with the log.
    """
    box = re.sub(r"^\.|[^\w.:-]", "-", box)  # no name of a folder above, and no hidden one
    folder = env.cache_folder("fleet") / box
    folder.mkdir(exist_ok=True)
    devices = {name: os.environ[name] for name in _VISIBLE if name in os.environ}
    chosen = re.sub(r"\W", "-", _devices_of_the_job() or "-".join(devices.values()))
    # a launcher that was killed may have left a worker on these devices
    with _lock(folder / f"devices-{chosen}.lock"), scratch_folder(folder / "run") as work:
        began, code, why = _now(), None, None
        log = work / bundle.LOG
        log.touch()
        try:
            checkout = _check_out(task, work / "checkout", log)
            words = _command(task, checkout, log)
            code = _run(words, checkout, log, MINUTE_S * task.minutes)
            if code not in bundle.MEASURED:
                why = f"exit {code}: {last_line(log)}"
            elif not (checkout / bundle.RESULTS).is_dir():
                why = f"exit {code}, and no {bundle.RESULTS}/ in the checkout: {last_line(log)}"
            else:
                os.rename(checkout / bundle.RESULTS, work / bundle.RESULTS)
        except subprocess.TimeoutExpired:
            why = f"not done after {task.minutes} minutes: {last_line(log)}"
        except (RocmforgeError, OSError, ValueError) as error:
            why = one_line(error)
        bundle.Provenance(
            part=task.part,
            token=task.token,
            box=box,
            host=platform.node(),
            hardware_tag=hardware_tag(),
            began=began,
            ended=_now(),
            exit_code=code,
            why=why,
            versions={"python": platform.python_version(), **_versions("rocmforge", "asv")},
            devices=devices,
        ).save(work / bundle.PROVENANCE)
        log.write_bytes(log.read_bytes()[-bundle.LOG_BYTES :])
        bundle.pack(work / task.file_name, work)
        return (work / task.file_name).read_bytes()


def deliver(box: str, inbox: str, text: str) -> None:
    """Measure a task of `task_json`, and put the bundle into a folder that the launcher sees."""
    task = task_of(text)
    write_bytes(Path(inbox) / task.file_name, measure(task, box))


def _check_out(task: Task, checkout: Path, log: Path) -> Path:
    """Clone the repository at the commit, without results of others."""
    source = Path(task.repository)
    shared = ["--shared"] if source.is_dir() else []
    where = str(source.resolve()) if shared else task.repository
    _run_or_fail(["git", "clone", "-q", "--no-checkout", *shared, where, str(checkout)], log)
    commit = task.part.commit
    _run_or_fail(["git", "-C", str(checkout), "checkout", "-q", "--detach", commit], log)
    shutil.rmtree(checkout / bundle.RESULTS, ignore_errors=True)
    return checkout


def _command(task: Task, checkout: Path, log: Path) -> list[str]:
    """Return what measures the checkout: a command for a shell, or `bench run` of its build."""
    part = task.part
    if part.command:
        return ["sh", "-c", part.command, "fleet", part.commit, part.kind]
    python = _build(part.commit, checkout, checkout.parent.parent)
    chosen = [word for one in part.bench for word in ("--bench", one)]
    load = ["--max-load", f"{100 * task.max_load:g}"]
    # -I: the package of the build, and not the checkout's files, of which none is compiled
    run = [str(python), "-I", "-c", _MAIN, "bench", "run", "--profile", part.profile]
    return [*run, *chosen, *load, "--save-results"]


def _build(commit: str, checkout: Path, box: Path) -> Path:
    """Return the interpreter of a commit's build; the box keeps those that were used last."""
    with _lock(box / "builds.lock"):
        python = Builds(checkout, box, hardware_tag()).prepare(commit)
        folder = python.parent.parent
        (folder / "built").touch()
        builds = [path.parent for path in folder.parent.glob("*/built")]
        builds.sort(key=lambda path: (path / "built").stat().st_mtime)
        for old in builds[:-_MOST_BUILDS]:
            shutil.rmtree(old, ignore_errors=True)
        return python


def _devices_of_the_job() -> str:
    """Return Slurm's own numbers of a job's GPUs: where it hides the others, every job sees a 0."""
    return os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS") or ""


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait until no other process of this box holds a lock; hold it during the block."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_or_fail(words: Sequence[str], log: Path) -> None:
    if code := _run(words, log.parent, log, 600):
        raise OSError(f"{' '.join(words[:4])}: exit {code}: {last_line(log)}")


def _run(words: Sequence[str], folder: Path, log: Path, seconds: float) -> int:
    """Run a program, what it prints going to the log; stop it and its children after so long.

    Its home is the box's own: asv keeps a file of machines there, which boxes would overwrite.
    """
    home = log.parent.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own = {"HOME": str(home), "ROCMFORGE_CACHE": str(env.cache_dir().absolute())}
    with log.open("ab") as file:
        process = psutil.Popen(
            words,
            cwd=folder,
            env={**kept, **own},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            return int(process.wait(seconds))
        except BaseException as error:
            family = [process]
            with contextlib.suppress(psutil.NoSuchProcess):
                family += process.children(recursive=True)
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()
            if isinstance(error, psutil.TimeoutExpired):
                raise subprocess.TimeoutExpired(words, seconds) from error
            raise


def last_line(log: Path) -> str:
    """Return what a log said last, shortened."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return one_line(lines[-1] if lines else "it said nothing", 300)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _versions(*names: str) -> Mapping[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    deliver(*sys.argv[1:])
