"""What limits a phase, by its own telemetry: the rules, the numbers behind them, what to try.

The rules are tried in the order of `RULES`; the first that holds is the verdict. A limit that lies
outside the kernels (copies, launches) comes before those inside: as long as the device waits, its
kernels are not what to mend. `counter_rules.py` has the rules for profilers' counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocmforge.profiling.profile import Bound, Ceiling, Device, Op, Phase, Verdict

COPIED = 0.3  # share of the wall time that copies take
WAITING = 0.3  # share of the wall time in which no kernel runs
LAUNCHING = 0.8  # share of the time until the device is done in which the host still launches
EMPTY = 0.5  # share of the compute units that have no block, over the op time
NEAR = 0.4  # of a ceiling, from which on it is the limit
MOST_OPS = 3  # named in the evidence

NAMES: dict[Bound, str] = {
    "memory": "memory-bound",
    "compute": "compute-bound",
    "launch": "launch-bound",
    "occupancy": "occupancy-bound",
    "transfer": "transfer-bound",
    "none": "bound by no limit that was measured",
}
"""How the verdict is told."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the rules look at, as shares from 0 to 1; None: not known here.

    Parameters
    ----------
    memory, compute
        What the ops reach of the read rate and of the rate of products.
    waiting
        Of the wall time: nothing runs on the device, or on a CPU no op.
    gaps
        Of the device's time: between its kernels.
    launching
        Of the time from the first launch until the device is done: the host launches. Where it is
        all of it, kernels wait for their launches, and events between them do not show the wait.
    copied
        Of the wall time: copies.
    empty
        Of the compute units: without a block, because the kernel that runs has fewer blocks. Each
        op counts by its time.
    """

    memory: float | None
    compute: float | None
    waiting: float
    gaps: float
    launching: float
    copied: float
    empty: float


def phase_verdict(
    phase: Phase,
    ceilings: Sequence[Ceiling],
    device: Device,
    cpus: int | None = None,
    sure: bool = True,
) -> Verdict:
    """Say what limits a phase.

    Parameters
    ----------
    phase
        Measured.
    ceilings
        Of the device; without them neither memory nor compute can be the verdict.
    device
        That ran it.
    cpus
        That the process may use; None: not known.
    sure
        Whether nothing disturbed the measurements; otherwise the verdict says "perhaps".
    """
    shares = shares_of(phase, ceilings, device)
    bound = next(bound for bound, holds in RULES if holds(shares))
    return Verdict(
        subject=phase.name,
        bound=bound,
        summary=_summary(phase, bound, sure),
        evidence=tuple(_evidence(phase, shares, device)),
        advice=_advice(phase, bound, device, cpus),
    )


def shares_of(phase: Phase, ceilings: Sequence[Ceiling], device: Device) -> Shares:
    """Return what the rules look at."""
    parts = {part.name: part.seconds or 0.0 for part in phase.parts}
    wall = phase.seconds - parts.get("observing", 0.0)
    op_seconds = sum(op.seconds for op in phase.ops)
    on_cpu = device.name == "cpu"
    busy = op_seconds if on_cpu else min(phase.device_seconds, wall)
    copied = (phase.host_to_device_seconds or 0.0) + (phase.device_to_host_seconds or 0.0)
    launch, wait = parts.get("launch", 0.0), parts.get("wait", 0.0)
    return Shares(
        memory=_of_reads(phase.ops, ceilings),
        compute=_of_products(phase.ops, ceilings),
        waiting=_share(wall - busy, wall),
        gaps=0.0 if on_cpu else _share(phase.unaccounted_seconds, phase.device_seconds),
        launching=_share(launch, launch + wait),
        copied=_share(copied, wall),
        empty=0.0 if on_cpu else _empty(phase.ops, device.compute_units),
    )


def _near(one: float | None, other: float | None) -> bool:
    return one is not None and one >= NEAR and one >= (other or 0.0)


RULES: tuple[tuple[Bound, Callable[[Shares], bool]], ...] = (
    ("transfer", lambda s: s.copied >= COPIED),
    ("launch", lambda s: max(s.waiting, s.gaps) >= WAITING or s.launching >= LAUNCHING),
    ("memory", lambda s: _near(s.memory, s.compute)),
    ("compute", lambda s: _near(s.compute, s.memory)),
    ("occupancy", lambda s: s.empty >= EMPTY),
    ("none", lambda s: True),
)
"""In the order of trying."""


def _of_reads(ops: Sequence[Op], ceilings: Sequence[Ceiling]) -> float | None:
    seconds = sum(op.seconds for op in ops)
    if not ceilings or seconds <= 0:
        return None
    rate = max(ceiling.read_bytes_per_second for ceiling in ceilings)
    return sum(op.nbytes for op in ops) / rate / seconds


def _of_products(ops: Sequence[Op], ceilings: Sequence[Ceiling]) -> float | None:
    seconds = sum(op.seconds for op in ops)
    rates = {ceiling.precision: ceiling.operations_per_second for ceiling in ceilings}
    if not rates or seconds <= 0:
        return None
    return sum(op.flops / rates[op.precision] for op in ops if op.precision in rates) / seconds


def _empty(ops: Sequence[Op], compute_units: int) -> float:
    idle = 0.0
    for op in ops:
        blocks = [kernel.blocks for kernel in op.kernels if kernel.blocks is not None]
        if blocks:
            idle += op.seconds * max(0.0, 1 - max(blocks) / compute_units)
    return _share(idle, sum(op.seconds for op in ops))


def _share(part: float, whole: float) -> float:
    return max(0.0, part / whole) if whole > 0 else 0.0


def _summary(phase: Phase, bound: Bound, sure: bool) -> str:
    first = phase.ops[0]
    what = f"{phase.name.capitalize()} is {'' if sure else 'perhaps '}{NAMES[bound]}"
    return f"{what}; {first.label} takes {first.share:.0%} of its op time."


def _evidence(phase: Phase, shares: Shares, device: Device) -> list[str]:
    on_cpu = device.name == "cpu"
    found = []
    if shares.memory is not None:
        read = sum(op.nbytes for op in phase.ops) / sum(op.seconds for op in phase.ops)
        found.append(
            f"The ops move {read / 1e9:.3g} GB/s, {_percent(shares.memory, shares.compute)} of "
            "what this device reads."
        )
    if shares.compute is not None:
        rate = sum(op.flops for op in phase.ops) / sum(op.seconds for op in phase.ops)
        found.append(
            f"They compute {rate / 1e9:.4g} GFLOP/s, {_percent(shares.compute, shares.memory)} of "
            "what it reaches in the same precisions."
        )
    if shares.memory is not None or shares.compute is not None:
        found.append(f"From {NEAR:.0%} on, the higher of the two is called the limit.")
    if on_cpu:
        found.append(f"Outside the ops passes {shares.waiting:.1%} of the wall time.")
        return found + _slowest(phase)
    found.append(f"The device has nothing to do in {shares.waiting:.1%} of the wall time.")
    found.append(
        f"The host launches for {shares.launching:.0%} of the time until the device is done."
    )
    found.append(f"Gaps between kernels take {shares.gaps:.1%} of the device's time.")
    found.append(f"Copies take {shares.copied:.1%} of the wall time.")
    found.append(
        f"Over the op time, {shares.empty:.0%} of the {device.compute_units} compute units have no "
        "block to run."
    )
    return found + _slowest(phase)


def _percent(share: float, other: float | None) -> str:
    """Whole percents, but a digit more, rounded down, where those would hide what is the limit."""
    near = min(abs(share - NEAR), abs(share - other) if other is not None else 1.0)
    return f"{math.floor(share * 1e3) / 10:.1f}%" if near < 0.01 else f"{share:.0%}"


def _slowest(phase: Phase) -> list[str]:
    """The ops that lose most time against the roofline."""
    losing = [(op.seconds - op.ideal_seconds, op) for op in phase.ops if op.ideal_seconds]
    losing = [pair for pair in losing if pair[0] > 0.02 * sum(op.seconds for op in phase.ops)]
    losing.sort(key=lambda pair: -pair[0])
    return [
        f"{op.label} reaches {op.roofline_fraction:.0%} of the roofline and takes {op.share:.0%}."
        for _, op in losing[:MOST_OPS]
    ]


def _advice(phase: Phase, bound: Bound, device: Device, cpus: int | None) -> tuple[str, ...]:
    losing = _slowest(phase)
    kind = device.name.partition(":")[0]
    told = [_WORDS_OF.get((kind, bound), _WORDS[bound])]
    if kind == "cpu" and bound == "compute" and cpus is not None and device.compute_units < cpus:
        told.insert(0, f"Take more threads: {device.compute_units} of {cpus} CPUs are used.")
    if losing and bound in ("memory", "compute", "none"):
        told.append(f"Look at {losing[0].split()[0]} first.")
    return tuple(told)


_WORDS: dict[Bound, str] = {
    "memory": "Fewer bytes are faster: a smaller format of weights, or more sequences at once, "
    "which share each read. What a format costs, `rocmforge perplexity --weight-format` says. "
    "It reads 90 kB of English twice, which takes a CPU minutes: `--text` gives it less.",
    "compute": "Fewer products are faster: a shorter prompt, or one whose beginning is kept.",
    "launch": "The host does not keep the device busy: more sequences at once share each launch. "
    "Look at the launches, and at other load on the CPU.",
    "transfer": "Look at the card's link (PCIe lanes and generation), and whether another process "
    "uses it.",
    "occupancy": "The kernels are too small for this device: more sequences or longer prompts give "
    "more blocks.",
    "none": "Counters say what the kernels wait for: `rocmforge profile --with rocprofv3 --recipe "
    "stall`, where that tool is (`rocmforge profile --tools`).",
}
_WORDS_OF: dict[tuple[str, Bound], str] = {
    ("cpu", "launch"): "The host's work between the ops takes the time, as in very small models: "
    "more sequences at once share it.",
    ("cpu", "none"): "A sampling profiler says where the kernels wait: `rocmforge profile --with "
    "perf`, where that tool is (`rocmforge profile --tools`).",
    ("cuda", "none"): "Counters say what the kernels wait for: NVIDIA's `ncu` around `rocmforge "
    "generate` shows them, `nsys` the kernels over time.",
}
