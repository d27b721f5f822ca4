"""Passes of a model on several devices, to be compared with those on one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.sampling import SamplingParams

IDS = [3 + (7 * i * i + 11 * i) % 90 for i in range(24)]


def steps(engine: Engine) -> list[NDArray[np.float32]]:
    """Logits of prompts in pieces, of steps of two sequences, and of longer prompts between."""
    first, second = engine.add_sequence(), engine.add_sequence()
    engine.prefill(first, IDS[:7])
    found = [engine.prefill(first, IDS[7:12]), engine.prefill(second, IDS[:3])]
    both = [second, first]
    for at in range(6):  # where a GPU has a graph of the step, memory moves for the second prompt
        found.append(engine.decode(both, [IDS[3 + at], IDS[12 + at]]))
        if at in (1, 3):
            found.append(engine.logits(IDS[: 6 * (at + 1)]))
    for sequence in both:
        engine.remove_sequence(sequence)
    return found


def tokens(engine: Engine) -> list[list[int]]:
    """Of two prompts together, the second one sampled."""
    params = SamplingParams(max_tokens=6), SamplingParams(max_tokens=6, temperature=0.7, seed=3)
    found: list[list[int]] = [[], []]
    for token in engine.generate([IDS[:5], IDS[3:9]], params):
        found[token.prompt].append(token.id)
    return found
