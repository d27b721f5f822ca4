"""Passes that the host executor recorded give what passes from Python give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.demo import demo_model
from rocmforge.engine import Engine
from rocmforge.plan import host


def open_engine() -> Engine:
    return Engine.from_gguf(demo_model(), "cpu", threads=2, ctx=256, sequences=4)


def steps() -> Iterator[NDArray[np.float32]]:
    """Decode one, two and three sequences in turns, over several pages and longer prompts."""
    engine = open_engine()
    sequences = [engine.add_sequence(200) for _ in range(3)]
    for number, sequence in enumerate(sequences):
        yield engine.prefill(sequence, list(range(5, 6 + 40 * number)))
    for step in range(40):
        together = sequences[: 1 + step % 3]
        yield engine.decode(together, [7 + step + number for number in range(len(together))])
        if step == 20:
            yield engine.prefill(sequences[0], list(range(3, 103)))  # its buffers are larger
    engine.close()


def test_recorded_passes_give_what_others_give(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = []
    take = host.Inputs.take
    monkeypatch.setattr(
        host.Inputs, "take", lambda self, other: (replayed.append(1), take(self, other))
    )
    recorded = list(steps())
    count = len(replayed)
    assert count > 20  # else nothing is compared
    monkeypatch.setattr(host, "KEPT", 0)
    for step, (got, wanted) in enumerate(zip(recorded, steps(), strict=True)):
        np.testing.assert_array_equal(got, wanted, err_msg=f"step {step}")
    assert len(replayed) == count


def test_logits_are_the_callers_own() -> None:
    engine = open_engine()
    sequence = engine.add_sequence(64)
    engine.prefill(sequence, [1, 2, 3])
    engine.decode([sequence], [4])
    first = engine.decode([sequence], [4])
    kept = first.copy()
    engine.decode([sequence], [9])
    np.testing.assert_array_equal(first, kept)
