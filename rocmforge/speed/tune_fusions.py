"""Which fusions make decode steps slower on a card, by steps with and without each."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rocmforge import env
from rocmforge.engine import Engine
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Tuning, save_tuning
from rocmforge.model.synthetic import make_model
from rocmforge.speed.sequences import Sequences
from rocmforge.speed.tune_cases import ROUNDS, WORTH, Found

PRESET, MIX, LAYERS = "1.1B", "Q4_K_M", 4
DEPTH = 64  # tokens before
STEPS = 16  # of a round


def costly_fusions(
    device: str, properties: DeviceProperties, table: Tuning
) -> tuple[tuple[str, ...], list[Found]]:
    """Return the rules without which a decode step takes less time, and what each one brings.

    Parameters
    ----------
    device
        "hip:0", "cuda:1", …
    properties
        Of it.
    table
        What else was tuned.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        path = make_model(Path(folder) / "model.gguf", PRESET, MIX, layers=LAYERS)
        held = []
        for left_out in (None, *FUSIONS):
            own = Path(folder) / f"{left_out}.json"
            without = () if left_out is None else (left_out,)
            save_tuning(own, properties, replace(table, without=without))
            with env.tuned_by(own):
                engine = opened.enter_context(Engine.from_gguf(path, device, ctx=1024))
            room = (ROUNDS + 1) * STEPS
            held.append(opened.enter_context(Sequences(engine, DEPTH, 1, room)))
        rounds = [[_step_seconds(one) for one in held] for _ in range(ROUNDS + 1)]
    with_all, *others = (statistics.median(times) for times in zip(*rounds[1:], strict=True))
    found = [_judged(rule, with_all, time) for rule, time in zip(FUSIONS, others, strict=True)]
    return tuple(rule for rule, one in zip(FUSIONS, found, strict=True) if one.changed), found


def _judged(rule: str, with_it: float, without: float) -> Found:
    worth = without > WORTH * with_it
    best = with_it if worth else without
    return Found(f"fusion {rule}", {"fused": 1}, {"fused": int(worth)}, with_it, best, 1, 0)


def _step_seconds(sequences: Sequences) -> float:
    return statistics.median(sequences.step_seconds() for _ in range(STEPS))
