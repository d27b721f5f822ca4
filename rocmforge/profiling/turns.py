"""One turn of generation, its parts stamped, and what some turns add up to.

A turn is the call of the engine that takes in a prompt or a token, the choice of the next token,
and its text. Prefill is one turn, decode one for each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.plan.observation import ObservedPass
from rocmforge.profiling.profile import Part, Phase
from rocmforge.profiling.telemetry import ExecutionSummary
from rocmforge.sampling import Sampler
from rocmforge.text.tokenizer import StreamDecoder

LABELS = {
    "prepare": "preparing inputs (host)",
    "launch": "launching (host)",
    "wait": "waiting for the device",
    "compute": "in the ops",
    "dispatch": "between the ops (host)",
    "copy_out": "copying the logits (host)",
    "sampling": "choosing the token",
    "detokenize": "its text",
    "observing": "reading the stamps (while profiling)",
    "rest": "everything else",
}
"""The parts of a phase's wall time, in order, and their names for readers."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When the parts of a turn began, as readings of `time.perf_counter`.

    Parameters
    ----------
    begin, returned, sampled, end
        The call of the engine, its end, the end of the choice, and of making text.
    passes
        Of the model, as observed; empty: the turn was not.
    """

    begin: float
    returned: float
    sampled: float
    end: float
    passes: tuple[ObservedPass, ...]

    @property
    def seconds(self) -> float:
        """Wall time of the turn."""
        return self.end - self.begin

    def parts(self) -> dict[str, float]:
        """Seconds of each part that was stamped, without the rest."""
        found = {"sampling": self.sampled - self.returned, "detokenize": self.end - self.sampled}
        at = self.begin
        for seen in self.passes:
            for interval in seen.host:
                found[interval.name] = found.get(interval.name, 0.0) + interval.seconds
            found["prepare"] += max(0.0, seen.begin - at)
            if len(seen.host) == 1:  # the ops run on the host
                computing = sum(step.seconds for step in seen.steps)
                found["compute"] = found.get("compute", 0.0) + computing
                between = seen.device.seconds - computing
                found["dispatch"] = found.get("dispatch", 0.0) + between
            found["observing"] = found.get("observing", 0.0) + seen.reading_seconds
            at = seen.end + seen.reading_seconds
        return found


def take_turn(
    call: Callable[[], NDArray[np.float32]],
    sampler: Sampler,
    history: list[int],
    stream: StreamDecoder,
    passes: Sequence[ObservedPass] = (),
) -> Turn:
    """Run a turn; its token is appended to the history.

    Parameters
    ----------
    call
        Calls the engine; returns (V,) logits.
    sampler, history, stream
        Of the sequence.
    passes
        Grows by the passes of the call where the engine is observed.
    """
    before = len(passes)
    begin = time.perf_counter()
    logits = call()
    returned = time.perf_counter()
    history.append(sampler.sample(logits, history))
    sampled = time.perf_counter()
    stream.push(history[-1])
    end = time.perf_counter()
    return Turn(begin, returned, sampled, end, tuple(passes[before:]))


def phase_of(
    name: Literal["prefill", "decode"],
    tokens: int,
    turns: Sequence[Turn],
    summary: ExecutionSummary,
    copies: tuple[float, float] | None,
    ops_from: str,
    plain_seconds: float | None,
) -> Phase:
    """Add up observed turns.

    Parameters
    ----------
    name, tokens, ops_from, plain_seconds
        As of `Phase`.
    turns
        At least one.
    summary
        Of the passes of these turns.
    copies
        Device time of all copies, to the device and from it; None: nothing is copied.
    """
    seconds = sum(turn.seconds for turn in turns)
    sums: dict[str, float] = {}
    for turn in turns:
        for part, took in turn.parts().items():
            sums[part] = sums.get(part, 0.0) + took
    sums["rest"] = seconds - sum(sums.values())
    to_device, to_host = copies or (None, None)
    return Phase(
        name=name,
        tokens=tokens,
        passes=summary.passes,
        seconds=seconds,
        parts=tuple(Part(part, LABELS[part], sums[part]) for part in LABELS if part in sums),
        device_seconds=summary.device_seconds,
        host_to_device_seconds=to_device,
        device_to_host_seconds=to_host,
        ops=summary.ops,
        unaccounted_seconds=summary.device_seconds - summary.op_seconds - sum(copies or ()),
        ops_from=ops_from,
        plain_seconds=plain_seconds,
    )
