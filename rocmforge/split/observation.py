"""An observed pass of a model on several devices: what its stages told, as one pass.

Names of steps begin with their device, as in "hip:0 attention".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rocmforge.plan.observation import Interval, ObservedPass, StepFacts


def merged(names: Sequence[str], seen: Sequence[ObservedPass]) -> ObservedPass:
    """Return one pass made of its stages.

    Parameters
    ----------
    names
        Of the stages' devices.
    seen
        What each of them told, in order. Where one was replayed as a graph, no step has a time.
    """
    first, last = seen[0], seen[-1]
    graph = any(one.graph for one in seen)

    def facts() -> list[StepFacts]:
        return [
            replace(fact, label=f"{name} {fact.label}")
            for name, one in zip(names, seen, strict=True)
            for fact in one.facts()
        ]

    steps = [
        interval._replace(name=f"{name} {interval.name}")
        for name, one in zip(names, seen, strict=True)
        for interval in one.steps
    ]
    begin, end = first.device.start, last.device.start + last.device.seconds
    return ObservedPass(
        begin=first.begin,
        end=last.end,
        host=tuple(part for one in seen for part in one.host),
        steps=() if graph else steps,
        copies=() if graph else tuple(copy for one in seen for copy in one.copies),
        launches=tuple(launch for one in seen for launch in one.launches),
        device=Interval("pass", begin, end - begin),
        graph=graph,
        reading_seconds=last.reading_seconds,
        facts=facts,
    )
