"""Before asv runs, for `rocmforge bench`: check the environment, select benchmarks, make models.

It imports this module from the checkout. The engine is imported in the functions, since asv imports
every module of this folder, at any commit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress

from rocmforge import env
from rocmforge.errors import GGUFError

NO_GPU = r"^(?!.*'gpu')"


def check_environment() -> None:
    """Check the environment variables once, before each process of a benchmark would refuse them.

    Raises
    ------
    ValueError
        A variable has a value that is not allowed, or makes other kernels run than those whose
        results are stored.
    """
    from rocmforge.cpu.backend import instruction_sets
    from rocmforge.gguf.reader import GGUFFile

    env.threads()
    env.device()
    best, isa = instruction_sets()[0], env.cpu_isa()
    differs = {
        f"ROCMFORGE_CPU_ISA={isa}": isa not in (None, best),
        "ROCMFORGE_CPU_EXACT=1": env.cpu_exact(),
        "ROCMFORGE_CPU_BF16=1": env.cpu_bf16(),
        f"ROCMFORGE_TUNING={env.tuning()}": env.tuning() not in (None, env.TUNING_OFF),
    }
    others = [setting for setting, does in differs.items() if does]
    if others:
        raise ValueError(
            f"environment: got {', '.join(others)}, wanted none: results are kept as those with "
            f"{best}; matmul.InstructionSet measures the others"
        )
    model = env.test_model()
    if model is not None:
        try:
            GGUFFile(model).close()
        except (GGUFError, OSError) as error:
            raise ValueError(
                f"{env.test_model_name()}: got {model}, wanted a GGUF file ({error})"
            ) from error


def select(chosen: Sequence[str], profile: str) -> list[str]:
    """Return the expressions for asv: those chosen, or those of a profile."""
    from benchmarks.devices import has_device
    from benchmarks.models import MODELS, USER_MODEL

    gpu = has_device("gpu")
    if chosen:
        return list(chosen)
    if profile == "full":
        return [".*" if gpu else NO_GPU]
    model = USER_MODEL.stem if USER_MODEL else MODELS[0]
    lines = Path(__file__).with_name(f"{profile}.txt").read_text(encoding="utf-8").splitlines()
    return [
        line.replace("<device>", "'(cpu|gpu)'" if gpu else "'cpu'").replace(
            "<model>", re.escape(model)
        )
        for line in lines
        if line and not line.startswith("#")
    ]


def prepare_models(selected: Sequence[str], console: Console) -> None:
    """Make the models that the labels name, and the logits that they are checked against."""
    from benchmarks.checks import wanted_logits
    from benchmarks.models import GENERATED, MODELS, model_path
    from rocmforge.model.synthetic import cached_model

    for name in MODELS:
        if not any(repr(name) in label for label in selected):
            continue
        if name in GENERATED:
            with _bar(f"making model {name}", console) as report:
                cached_model(*GENERATED[name], progress=report)
        path = model_path(name)
        console.print(f"model     {path} ({path.stat().st_size / 1e6:.0f} MB)")
        with console.status("the logits that it is checked against (once; some seconds)"):
            wanted_logits(path)


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    with Progress("{task.description}", BarColumn(), DownloadColumn(), console=console) as progress:
        task = progress.add_task(title, total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield report
