"""Damaged metadata and tensors of every architecture: the file runs, or ends in a clean error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from model.small_models import write_model, written

from rocmforge.engine import Engine
from rocmforge.errors import RocmforgeError
from rocmforge.info import read_info
from rocmforge.model.architectures import ARCHITECTURES

EXPERTS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 96,
}
WINDOW = {"attention__sliding_window": 5}
SHARED = ("qwen2moe", "granitemoe")
ODD: tuple[Any, ...] = (
    *(0, 1, 2, 3, 7, 16, 255, 1 << 20, (1 << 32) - 1),
    *(0.0, -1.0, 0.5, 1e30, math.nan, math.inf),
    *("", "yarn", "gemma", True, False),
    *([], [1, 0], [True, False, True], [0.5], ["a"]),
)
ROUNDS = 40


def model_of(architecture: str, path: Path) -> Path:
    keys: dict[str, Any] = {}
    row = ARCHITECTURES[architecture]
    if row.mixture == "always":
        keys |= EXPERTS
    if architecture in SHARED:
        keys["shared"] = 32
    if row.global_every is not None:
        keys |= WINDOW
    return written(architecture, **keys)(path)


def rewritten(source: Path, target: Path, rng: np.random.Generator) -> str:
    """Copy a file with one or two of its keys or tensors changed; return what was."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    own = {
        name.removeprefix(f"{architecture}."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith(f"{architecture}.")
    }
    tensors = {t.name: np.array(t.data) for t in reader.tensors}
    changes = []
    row = ARCHITECTURES[architecture]
    names = [*own, *row.own_keys]
    for _ in range(rng.integers(1, 3)):
        kind = rng.integers(0, 4)
        if kind < 2:
            name = names[rng.integers(len(names))]
            own[name] = ODD[rng.integers(len(ODD))]
            changes.append(f"{name} = {own[name]!r}")
        elif kind == 2 and own:
            name = list(own)[rng.integers(len(own))]
            del own[name]
            changes.append(f"without {name}")
        else:
            name = list(tensors)[rng.integers(len(tensors))]
            if rng.integers(2):
                del tensors[name]
                changes.append(f"without {name}")
            else:
                tensors[name] = np.ascontiguousarray(tensors[name][..., :-1])
                changes.append(f"{name} cut")
    write_model(target, architecture, own, tensors)
    return ", ".join(changes)


def outcome(source: Path, target: Path, rng: np.random.Generator) -> str:
    """What becomes of a damaged file: it runs, or is refused with some words."""
    what = rewritten(source, target, rng)
    try:
        read_info(target)
        with Engine.from_gguf(target, "cpu", ctx=16) as engine:
            shape = engine.logits([1, 2, 3]).shape
            return "runs" if shape == (3, engine.config.vocab_size) else f"{what}: {shape}"
    except (RocmforgeError, ValueError) as error:
        return "refused" if str(error) else f"{what}: no words"
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_damage_ends_in_a_clean_error_or_runs(architecture: str, tmp_path: Path) -> None:
    source = model_of(architecture, tmp_path / "source.gguf")
    with Engine.from_gguf(source, "cpu", ctx=16) as engine:
        assert np.isfinite(engine.logits([1, 2, 3])).all()
    rng = np.random.default_rng(len(architecture))
    outcomes = {outcome(source, tmp_path / "damaged.gguf", rng) for _ in range(ROUNDS)}
    assert outcomes <= {"refused", "runs"}
    assert "refused" in outcomes
