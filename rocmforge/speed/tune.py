"""Finds the constants of kernels that are fastest on a card: `rocmforge tune`.

Whole decode steps of a few models choose those of GEMVs and of products of 9 to 64 tokens, and
which fusions are worth it (tune_steps.py). The tiles of prompts get their measured speeds
(tune_tiles.py). Constants replace the op's own only where a step gives the same logits (within 3 %,
`DIFFERENT`) and a second run finds it faster again.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rocmforge import env
from rocmforge.devices import open_backend
from rocmforge.errors import DeviceError
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.gpu.ops import matmul_batch
from rocmforge.gpu.ops.gemv_constants import TOKENS
from rocmforge.gpu.tuning import UNTUNED, Tuning, read_tuning, save_tuning, tuning_file
from rocmforge.loading import Options, load
from rocmforge.model.synthetic import make_model
from rocmforge.plan.protocols import Progress
from rocmforge.speed.tune_cases import find_case
from rocmforge.speed.tune_steps import DEPTH, Found, Steps, with_rule
from rocmforge.speed.tune_tiles import tile_cases, tile_speeds

COUNTS = MappingProxyType(
    {"gemv": TOKENS, "experts": TOKENS, "batch": matmul_batch.TOKENS, "fusions": (1,)}
)
"""Sequences of the steps by which a part is tuned."""


@dataclass(frozen=True)
class Model:
    """A model of random weights with the shapes of a real one.

    Parameters
    ----------
    preset, mix, layers
        As of `make_model`: so many layers that no cache of a card holds their weights.
    experts
        Whether it is a mixture of experts.
    """

    preset: str
    mix: str
    layers: int
    experts: bool = False


MODELS = (
    Model("7B", "Q4_K_M", 4),
    Model("1.1B", "Q4_K_M", 8),
    Model("8B", "Q4_K_M", 2),
    Model("7B", "Q4_0", 4),
    Model("7B", "Q6_K", 4),
    Model("7B", "Q8_0", 3),
    Model("7B", "F16", 2),
    Model("30B-A3B", "Q4_K_M", 2, experts=True),
    Model("gpt-oss-20B", "MXFP4", 2, experts=True),
)
"""What several of them share is chosen by the first, and taken back where it slows another."""

PAGE_SIZE = 32
CONTEXT = -(-(DEPTH + 1) // PAGE_SIZE) * PAGE_SIZE
"""Tokens of a sequence that the KV cache has memory for."""

OPTIONS = Options(
    device=None,
    gpu_layers=None,
    split_mode="layer",
    ctx=CONTEXT,
    threads=None,
    sequences=1,
    kv_dtype="f16",
    page_size=PAGE_SIZE,
    whole_cache=False,
    weight_format=None,
)


def tune(
    device: str | None,
    parts: Sequence[str],
    model: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, list[Found]]:
    """Measure a card, write its table, and return the file and what was found.

    What an older table says of other kernels is kept. The table is written after each step.

    Parameters
    ----------
    device
        As of `open_backend`; it has to be a GPU.
    parts
        Some of "gemv" (up to 8 tokens), "experts" (the same, of mixtures), "batch" (9 to 64),
        "tile" (prompts) and "fusions".
    model
        A GGUF file whose steps are timed; None: those of MODELS.
    progress
        Told how many steps and tiles are done, and of how many.

    Raises
    ------
    DeviceError
        It is no GPU, or has nothing to tune, or a launch fails.
    GGUFError, ModelError, OutOfMemoryError
        As of `load`.
    OSError
        The table cannot be written.
    ValueError
        The cache or a model of MODELS cannot be written, or the model was trained for fewer than
        CONTEXT tokens.
    """
    if model is not None and set(parts) == {"tile"}:
        raise ValueError(f"model: got {model}, but tiles are timed without a model")
    counts = sorted({count for part in parts for count in COUNTS.get(part, ())})
    with closing(open_backend(device)) as backend:
        if not isinstance(backend, GpuBackend):
            raise DeviceError(
                "no GPU to tune: the kernels of the CPU have no table; `rocmforge devices` says "
                "what is here and why a GPU is not used"
            )
        kernels = backend.kernels
        properties = kernels.runtime.properties
        folder = env.cache_folder("tuning")  # before minutes of work
        path = folder / tuning_file(properties).name
        old = read_tuning(path, properties) if path.exists() else UNTUNED
        tiles = list(tile_cases(properties)) if "tile" in parts else []
        models = _models(parts, model) if counts else []
        total = len(tiles) + len(models) * len(counts)
        if not total:
            raise DeviceError(f"{properties.name} has no matrix units, and so no tiles to tune")

        def save(table: Tuning, done: int) -> None:
            save_tuning(path, properties, table)
            if progress is not None:
                progress(done, total)

        if progress is not None:
            progress(0, total)
        search = _Search(parts, replace(old, date=_now()), save)
        with tempfile.TemporaryDirectory() as made:
            for one in models:
                file, shown = _file(one, Path(made))
                search.run(f"{backend.name}:{properties.index}", file, shown, counts)
                if file != one:
                    file.unlink()
        for key, speeds in tile_speeds(kernels, tiles):
            search.table = search.table.changed(key, speeds)
            search.done()
    return path, search.found


def _models(parts: Sequence[str], model: Path | None) -> Sequence[Model | Path]:
    """The models whose steps decide these parts: for experts alone, mixtures."""
    if model is not None:
        return [model]
    every = not set(parts) <= {"experts", "tile"}
    return [one for one in MODELS if every or one.experts]


def _file(model: Model | Path, folder: Path) -> tuple[Path, str]:
    """File and name of a model; one of MODELS is made."""
    if isinstance(model, Path):
        return model, model.name
    path = make_model(folder / "model.gguf", model.preset, model.mix, layers=model.layers)
    return path, f"{model.preset} {model.mix}"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


class _Search:
    """The best table so far, and what was found on the way; `save` takes it after each step."""

    def __init__(
        self, parts: Sequence[str], table: Tuning, save: Callable[[Tuning, int], None]
    ) -> None:
        self.table = table
        self.found: list[Found] = []
        self._parts = parts
        self._save = save
        self._decided: set[str] = set()  # keys and fusions
        self._done = 0

    def done(self) -> None:
        """Save the table: one more step or tile is done."""
        self._done += 1
        self._save(self.table, self._done)

    def run(self, device: str, file: Path, shown: str, counts: Sequence[int]) -> None:
        """Improve the table by the steps of a model."""
        options = replace(OPTIONS, device=device, sequences=max(counts))
        with ExitStack() as opened:
            made = load(file, options, opened)
            executor, backend = made.executor, made.stages[-1].backend
            assert isinstance(executor, GpuExecutor)
            assert isinstance(backend, GpuBackend)
            for count in counts:
                name = f"{shown}, {count} sequence" + "s" * (count > 1)
                steps = Steps(executor, backend.kernels, made.config.vocab_size, count, name)
                with closing(steps):
                    if "fusions" in self._parts:
                        self._fuse(steps, decides=count == 1)
                    self._improve(steps)
                self.done()

    def _improve(self, steps: Steps) -> None:
        asked = []
        for words in steps.asked(self.table):
            case = find_case(words, steps.properties) if words[0] in self._parts else None
            if case is None:
                continue
            asked.append(case.key)
            if case.key not in self._decided:
                self._decided.add(case.key)
                self.table, found = steps.best_constants(self.table, case)
                self.found.append(found)
            elif case.key in self.table.constants:
                self._take_back(steps, [case.key], self.table.changed(case.key, None))
        own = self.table
        for key in asked:
            own = own.changed(key, None)
        self._take_back(steps, asked, own)  # each may cost less than is seen of it alone

    def _fuse(self, steps: Steps, decides: bool) -> None:
        for rule in FUSIONS:
            if rule in self._decided:
                if rule in self.table.without:
                    self._take_back(steps, [rule], with_rule(self.table, rule))
            elif decides:
                self.table, found = steps.best_fusion(self.table, rule)
                if found is not None:  # the model uses it
                    self._decided.add(rule)
                    self.found.append(found)

    def _take_back(self, steps: Steps, keys: Sequence[str], own: Tuning) -> None:
        """Go back to what the code has where what was chosen slows this step."""
        seconds = steps.slower(self.table, own)
        if seconds is None:
            return
        self.table = own
        for place, one in enumerate(self.found):
            if one.key in keys and one.changed:
                self.found[place] = replace(
                    one, steps=steps.shown, best=one.own, own_seconds=seconds, best_seconds=seconds
                )
