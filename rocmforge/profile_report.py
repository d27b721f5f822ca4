"""A profile as a terminal shows it, 80 columns wide: the answer first, then the tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rocmforge.profiling.condition_charts import quantities
from rocmforge.profiling.memory import MemoryProfile
from rocmforge.profiling.monitor import Monitored
from rocmforge.profiling.profile import FirstToken, Op, Part, Phase, Profile, Verdict
from rocmforge.profiling.run_environment import RunEnvironment
from rocmforge.quantities import human_size, number_text, rate_text, time_text
from rocmforge.terminal import print_table, printable

WIDTH = 80
MOST_OPS = 8  # rows of a phase, unless all are wanted
LEAST_SHARE = 0.005  # of a kernel's op, to be listed


def print_profile(profile: Profile, every: bool = False) -> None:
    """Print a profile.

    Parameters
    ----------
    profile
        Measured.
    every
        All ops and their kernels, and not only the longest.
    """
    model, device = profile.model, profile.device
    print_wrapped(
        f"{printable(model.path)} (mostly {model.format}, {human_size(model.file_bytes)})"
    )
    print_wrapped(f"{device.name}: {device.description}, {device.architecture}, {device.units}")
    for doubt in profile.doubts:
        print()
        print_wrapped(f"Doubtful: {doubt}")
    for verdict in profile.verdicts:
        print()
        print_verdict(verdict)
    _print_first_token(profile.first_token)
    for phase in profile.phases:
        _print_phase(phase, every, device.name == "cpu")
    if profile.memory is not None:
        _print_memory(profile.memory, profile.settings.prefill_chunk)
    _print_ceilings(profile)
    if profile.monitor is not None:
        _print_monitored(profile.monitor)
    _print_conditions(profile.environment)
    for remark in profile.remarks:
        print()
        print_wrapped(remark)


def print_wrapped(text: str, indent: str = "", first: str | None = None) -> None:
    """Print a paragraph; `indent` stands before its lines, `first` before the first one."""
    start = indent if first is None else first
    print(
        textwrap.fill(
            text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        )
    )


def print_verdict(verdict: Verdict) -> None:
    """Print what limits something, the evidence, and what to try."""
    print_wrapped(verdict.summary)
    for sentence in verdict.evidence:
        print_wrapped(sentence, "    ", "  - ")
    for sentence in verdict.advice:
        print_wrapped(sentence, "       ", "  try: ")


def _print_first_token(first: FirstToken) -> None:
    word = "met" if first.met else "missed"
    target = f"the target of {time_text(first.target_seconds)} is {word}"
    print(f"\nFirst token: {time_text(first.seconds)}; {target}")
    parts = [part for part in first.parts if part.name != "load"]
    rows = _part_rows(parts, first.seconds, first.dominant)
    rows.append(("request to first token", time_text(first.seconds), "100.0%", ""))
    load = next(part for part in first.parts if part.name == "load")
    rows.append((f"before: {load.label}", time_text(load.seconds), "", ""))
    print_table(("part", "time", "share", ""), rows)
    for part in parts:
        if part.reason:
            print_wrapped(f"{part.label}: {part.reason}", "    ", "  ")
            break
    for sentence in first.advice:
        print_wrapped(sentence, "       ", "  try: ")


def _part_rows(parts: Sequence[Part], whole: float, dominant: str = "") -> list[tuple[str, ...]]:
    return [
        (
            part.label,
            time_text(part.seconds),
            "" if part.seconds is None else f"{part.seconds / whole:.1%}",
            "<- longest" if part.name == dominant else "",
        )
        for part in parts
    ]


def _print_phase(phase: Phase, every: bool, on_cpu: bool) -> None:
    rate = f"{number_text(phase.tokens_per_second)} tokens/s"
    if phase.plain_seconds:
        rate += f" ({number_text(phase.tokens / phase.seconds)} observed)"
    print(f"\n{phase.name.capitalize()}: {phase.tokens} tokens, {rate}")
    parts = _part_rows(phase.parts, phase.seconds)
    print_table(("wall time", "time", "share"), [row[:3] for row in parts])
    if not on_cpu:
        busy = f"{time_text(phase.device_seconds)} of {time_text(phase.seconds)}"
        print_wrapped(f"the device worked for {busy}", "  ")
    print()
    shown = phase.ops if every else phase.ops[:MOST_OPS]
    rows = [_op_row(op) for op in shown]
    rows += list(_rest_rows(phase, phase.ops[len(shown) :], on_cpu))
    titles = ("op", "calls", "time", "share", "GB/s", "GFLOP/s", "roofline")
    print_table(titles, rows)
    print_wrapped(f"times: {phase.ops_from}", "  ")
    _print_launches(phase)
    if every or not on_cpu:
        _print_kernels([op for op in shown if every or op.share >= LEAST_SHARE])


def _op_row(op: Op) -> tuple[str, ...]:
    fraction = op.roofline_fraction
    return (
        op.label,
        str(op.calls),
        time_text(op.seconds),
        f"{op.share:.1%}",
        rate_text(op.bytes_per_second),
        rate_text(op.flops_per_second),
        "" if fraction is None else f"{fraction:.0%}",
    )


def _rest_rows(phase: Phase, others: Sequence[Op], on_cpu: bool) -> Iterator[tuple[str, ...]]:
    whole = max(phase.device_seconds, sum(op.seconds for op in phase.ops))

    def row(name: str, seconds: float, calls: str = "") -> tuple[str, ...]:
        share = f"{seconds / whole:.1%}" if whole > 0 else ""
        return name, calls, time_text(seconds), share, "", "", ""

    if others:
        calls = sum(op.calls for op in others)
        yield row(f"{len(others)} others (--all)", sum(op.seconds for op in others), str(calls))
    for name, seconds in phase.besides_ops(on_cpu):
        yield row(name, seconds)


def _print_launches(phase: Phase) -> None:
    found = {"one launch": phase.launches, "one graph": phase.graphs}
    rows = [
        (name, str(times.count), *map(time_text, (times.mean, times.p50, times.p95, times.p99)))
        for name, times in found.items()
        if times is not None
    ]
    if rows:
        print()
        print_table(("host's time for", "count", "mean", "p50", "p95", "p99"), rows)
    if phase.recommendation is not None:
        print_wrapped(f"{phase.recommendation.action}: {phase.recommendation.reason}", "    ", "  ")


def _print_kernels(ops: Sequence[Op]) -> None:
    rows = []
    for op in ops:
        for kernel in op.kernels:
            source = kernel.source.rpartition("/")[2].removesuffix(".hip")
            row = [op.label, kernel.name, source]
            if kernel.blocks is not None:
                row.append(f"{kernel.blocks} x {kernel.threads}")
            rows.append(row)
    titles = ("op", "kernel", "file", "grid")
    print()
    print_table(titles[: max(map(len, rows), default=0)], rows, left=True)


def _print_memory(memory: MemoryProfile, prefill_chunk: int) -> None:
    kv, executor = memory.kv, memory.executor
    passes = f"prompts: at most {prefill_chunk} tokens a pass"
    use = kv.use
    rows = [
        ("weights", human_size(memory.weight_bytes), ""),
        ("pool of keys and values", human_size(kv.pool_bytes), "so far"),
        ("  at most", human_size(kv.full_bytes), f"{kv.capacity_tokens} tokens"),
        ("  in use", human_size(kv.bytes_in_use), f"{use.tokens} tokens in {use.taken} pages"),
        ("  a token", human_size(kv.bytes_per_token), f"{kv.bytes_per_token_layer} bytes a layer"),
        ("  page table", human_size(kv.table_bytes), f"{kv.table_overhead:.3%} of the pool"),
        ("  empty places", human_size(kv.unused_bytes), "in the last pages of sequences"),
        ("  free pages", str(use.free), f"in {use.free_runs} runs, {use.scatter:.0%} scattered"),
        ("activations", human_size(executor.activations), passes),
        ("constants and inputs", human_size(executor.constants + executor.inputs), ""),
    ]
    if memory.device is not None:
        free = f"{human_size(memory.device.free)} free"
        rows.append(("the device has", human_size(memory.device.total), free))
    if memory.host_bytes is not None:
        most = f"{human_size(memory.host_peak_bytes)} at most"
        rows.append(("this process", human_size(memory.host_bytes), most))
    print()
    print_table(("memory", "", ""), rows)


def _print_ceilings(profile: Profile) -> None:
    if not profile.ceilings:
        return
    print("\nThe roofline, measured in this run")
    held = human_size(profile.ceilings[0].working_set)
    print_wrapped(f"reads of {held}, as many as a pass needs: a cache's, if they fit one", "  ")
    rows = [
        (c.precision, rate_text(c.read_bytes_per_second), rate_text(c.operations_per_second))
        for c in profile.ceilings
    ]
    print_table(("precision", "reads GB/s", "GFLOP/s"), rows)


def _print_monitored(seen: Monitored) -> None:
    rows = []
    for name, unit, field, factor in quantities(seen.device):
        if found := seen.summary.get(field):
            cells = (f"{factor * value:.4g}" for value in found)
            rows.append((f"{name}, {unit}", *cells))
    if not rows:
        return
    print()
    looks = f"{len(seen.samples)} looks at {seen.device}"
    print_table((f"{looks} ({seen.source})", "least", "mean", "most"), rows)
    if seen.throttle:
        print_wrapped(f"clocks were held down by {', '.join(seen.throttle)}", "  ")


def _print_conditions(environment: RunEnvironment) -> None:
    found = [f"{environment.cpus} CPU{'' if environment.cpus == 1 else 's'}"]
    if environment.others_share is not None:
        found.append(f"others used {environment.others_share:.0%} of them")
    if environment.cpu_mhz is not None:
        found.append(f"{environment.cpu_mhz.min:.0f} to {environment.cpu_mhz.max:.0f} MHz")
    print()
    print_wrapped(f"Conditions: {'; '.join(found)}.")
    print_wrapped(
        "; ".join(f"{name} {value}" for name, value in environment.versions.items()), "  ", "  "
    )
