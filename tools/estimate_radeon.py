"""Estimate, without a card, what speed to expect of three Radeon cards: a low and a high value.

Bytes, operations and launches are those of the passes that would run. The cards' figures are their
data sheets'. What share of them is reached, and what a launch costs, are assumptions. Nothing is
measured, and no result is stored: the tables go to docs/PERFORMANCE.md alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_table import table
from planned_pass import PlannedPass, planned_pass

from rocmforge.bench.files import read_json
from rocmforge.bench.formatting import NA, extremes
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.model.synthetic import plan_model

REPO = Path(__file__).resolve().parent.parent
MODELS = ("7B-Q4_0", "8B-Q4_K_M")
PROMPT = 512
DEPTH = 64
"""Tokens in the cache while llama-bench's tg128 decodes 128, on average."""
MATRIX = (22016, 4096)
"""The product whose rate on the H200 counts: large enough that its launch does not."""
SIMDS = 4  # of a work-group processor
LOAD_BYTES = 32 * 16  # of a wave, with one load of 16 bytes a lane
WAVES = 8
"""That a SIMD unit holds at least, of every kernel of decode that reads matrices, keys or values;
a test compiles them."""
BROKEN = 2


@dataclass(frozen=True)
class Card:
    """A card as its data sheet has it.

    Parameters
    ----------
    name, architecture
        As AMD calls them.
    processors
        Work-group processors: pairs of compute units.
    memory_bytes
        Device memory.
    bytes_per_second, flops
        Peaks of memory and of dense float16 products on the matrix units.
    published
        Tokens/s of llama.cpp by model: decode of 128 tokens, prefill of 512.
    """

    name: str
    architecture: str
    processors: int
    memory_bytes: int
    bytes_per_second: float
    flops: float
    published: Mapping[str, tuple[float, float | None]]

    @property
    def device(self) -> DeviceProperties:
        """What the choice of kernels sees."""
        sizes = self.processors, self.memory_bytes, 65536
        return DeviceProperties(0, self.name, self.architecture, 32, *sizes, False)


CARDS = (
    Card("RX 7900 XT", "gfx1100", 42, 20 << 30, 800e9, 103e12, {"7B-Q4_0": (116, 3098)}),
    Card(
        *("RX 7900 XTX", "gfx1100", 48, 24 << 30, 960e9, 123e12),
        {"7B-Q4_0": (167, 3552), "8B-Q4_K_M": (106, None)},
    ),
    Card(
        *("RX 9070 XT", "gfx1201", 32, 16 << 30, 640e9, 195e12),
        {"7B-Q4_0": (101, 5055), "8B-Q4_K_M": (120, 4800)},
    ),
)
H200 = "NVIDIA H200"
H200_BYTES, H200_FLOPS = 4.8e12, 989e12
"""Peaks of its data sheet, as those of a `Card`."""


@dataclass(frozen=True)
class View:
    """What a pass is assumed to reach.

    Parameters
    ----------
    memory, compute
        Share of the data sheet's bytes and operations per second, above 0 and up to 1.
    launch_seconds
        What each launch costs beside the work of its kernel.
    latency_seconds
        From a load to its data, while the memory is busy.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    memory: float
    compute: float
    launch_seconds: float
    latency_seconds: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("memory", "compute"):
            if not 0 < getattr(self, name) <= 1:
                got = getattr(self, name)
                raise ValueError(f"{name}: got {got}, wanted a share above 0 and up to 1")
        if not (self.launch_seconds >= 0 and self.latency_seconds > 0):
            got = f"{self.launch_seconds}, {self.latency_seconds}"
            raise ValueError(f"launch, latency: got {got} s, wanted at least 0 and above 0")


LOW, HIGH = {"launch": 5.6e-6, "latency": 1.0e-6}, {"launch": 1.5e-6, "latency": 0.5e-6}
"""Seconds of a launch and of a load: see docs/PERFORMANCE.md."""


def pass_seconds(planned: PlannedPass, card: Card, view: View) -> float:
    """Return the time of a pass: of its steps one after another, each with its launches.

    A step takes the longer of its bytes over the rate that it reaches and its operations over
    theirs. The rate of bytes is the assumed share of the memory's, or less: no more waves run than
    the SIMD units hold, and each waits once for what all its lanes load at once.
    """
    resident = SIMDS * card.processors * WAVES
    seconds = 0.0
    for step in planned.steps:
        in_flight = min(step.waves, resident) * LOAD_BYTES
        rate = min(view.memory * card.bytes_per_second, in_flight / view.latency_seconds)
        work = max(step.nbytes / rate, step.flops / (view.compute * card.flops))
        seconds += work + step.launches * view.launch_seconds
    return seconds


def views(card: Card, model: str, report: Mapping[str, Any]) -> tuple[View, View]:
    """Return what is assumed at worst and at best.

    Witnesses tell which share of a card's figures a pass reaches: llama.cpp's speeds that are
    published for this card, and our kernels on the H200. The least counts at worst, the greatest
    at best.

    Parameters
    ----------
    card
        The card.
    model
        Preset and mix, as ``7B-Q4_0``.
    report
        What tools/gpu_speed.py wrote on the H200.

    Raises
    ------
    ValueError
        The report has not measured that model.
    """
    measured = _flops_a_token(model, card) * _measured_prefill(report, model)
    memory = [_measured_rate(report, _usual_format(model)) / H200_BYTES]
    compute = [measured / H200_FLOPS]
    for known, (decode, prefill) in card.published.items():
        memory.append(decode * _planned(known, card, 1).nbytes / card.bytes_per_second)
        if prefill is not None:
            compute.append(prefill * _flops_a_token(known, card) / card.flops)
    return (
        View(min(memory), min(compute), LOW["launch"], LOW["latency"]),
        View(max(memory), max(compute), HIGH["launch"], HIGH["latency"]),
    )


def estimate(card: Card, model: str, tokens: int, report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the low and the high estimate of a pass of so many tokens, in tokens/s."""
    planned = _planned(model, card, tokens)
    low, high = (tokens / pass_seconds(planned, card, view) for view in views(card, model, report))
    return low, high


def radeon_tables(report: Mapping[str, Any], models: Sequence[str] = MODELS) -> str:
    """Return the estimates and what they are made of; nothing for a report of another GPU."""
    if report["gpu"] != H200:
        return ""
    speeds, shares, work = [], [], []
    ratios: dict[int, list[float]] = {1: [], PROMPT: []}
    for model in models:
        for card in CARDS:
            cells = [card.name, model]
            theirs = card.published.get(model, (None, None))
            for tokens, published in zip((1, PROMPT), theirs, strict=True):
                low, high = estimate(card, model, tokens, report)
                cells += [f"{_two(low)} … {_two(high)}", _number(published)]
                ratios[tokens] += [one / published for one in (low, high) if published]
            speeds.append(cells)
            low_view, high_view = views(card, model, report)
            shares.append([card.name, model, *_assumed(card, low_view, high_view)])
        for tokens, name in ((1, "a token"), (PROMPT, f"a prompt of {PROMPT}")):
            passes = [_planned(model, card, tokens) for card in CARDS]
            cells = [extremes([one.nbytes / 1e9 for one in passes], digits_after=2)]
            cells += [extremes([one.flops / 1e9 for one in passes])]
            cells += [extremes([one.launches for one in passes])]
            work.append([model, name, *cells])
    peer = "llama.cpp, published"
    heads = ("card", "model", "decode, estimate", peer, f"prefill of {PROMPT}, estimate", peer)
    assumed = ("card", "model", "share of memory", "share of f16", "waves a SIMD unit needs", "has")
    lines = [
        *("**Estimates, not measurements**, in tokens/s, low … high:", "", *table(heads, speeds)),
        *("", _beside_peer(ratios)),
        *("", "What the estimates assume, low … high:", "", *table(assumed, shares)),
        *("", "What a pass reads, computes and launches:", ""),
        *table(("model", "pass", "GB", "GFLOP", "launches"), work),
        *("", f"From the H200 of commit {report['commit'][:8]}, {report['date'][:10]}."),
    ]
    return "\n".join(lines) + "\n"


def _beside_peer(ratios: Mapping[int, Sequence[float]]) -> str:
    """The ends of all estimates over what is published."""
    decode, prefill = (extremes(found, digits_after=1) for found in ratios.values())
    return f"As a multiple of what is published: decode {decode}, prefill {prefill}."


def _assumed(card: Card, low: View, high: View) -> list[str]:
    """Shares, and the waves with which a SIMD unit keeps the memory as busy as they say."""
    simds = SIMDS * card.processors
    needed = sorted(
        view.memory * card.bytes_per_second * view.latency_seconds / LOAD_BYTES / simds
        for view in (low, high)
    )
    return [
        f"{100 * low.memory:.0f} … {100 * high.memory:.0f} %",
        f"{100 * low.compute:.0f} … {100 * high.compute:.0f} %",
        f"{needed[0]:.1f} … {needed[1]:.1f}",
        f"{WAVES} or more",
    ]


def _flops_a_token(model: str, card: Card) -> float:
    """Of a prompt."""
    return _planned(model, card, PROMPT).flops / PROMPT


def _planned(model: str, card: Card, tokens: int) -> PlannedPass:
    depth = DEPTH if tokens == 1 else 0
    return planned_pass(*_names(model), card.device, tokens, depth)


def _names(model: str) -> tuple[str, str]:
    preset, _, mix = model.partition("-")
    return preset, mix


def _usual_format(model: str) -> str:
    """The format that most weights of the matrices have."""
    weights: Counter[str] = Counter()
    for shape, fmt in plan_model(*_names(model)).tensors.values():
        if len(shape) == 2:
            weights[fmt.name] += shape[0] * shape[1]
    return weights.most_common(1)[0][0]


def _measured_prefill(report: Mapping[str, Any], model: str) -> float:
    every = {row["model"]: row["prefill_tokens_per_second"] for row in report["models"]}
    known = {
        name: float(rates[str(PROMPT)]) for name, rates in every.items() if str(PROMPT) in rates
    }
    if model not in known:
        raise ValueError(f"model: got {model}, wanted one measured on the H200: {', '.join(known)}")
    return known[model]


def _measured_rate(report: Mapping[str, Any], name: str) -> float:
    """Bytes per second of a large GEMV."""
    rows = (row for row in report["gemv"] if (row["rows"], row["columns"]) == MATRIX)
    known = {row["format"]: 1e9 * float(row["gb_per_second"]) for row in rows}
    if name not in known:
        raise ValueError(f"format: got {name}, wanted one measured on the H200: {', '.join(known)}")
    return known[name]


def _two(value: float) -> str:
    """Two digits: more would promise too much."""
    return f"{float(f'{value:.1e}'):,.0f}"


def _number(value: float | None) -> str:
    return NA if value is None else f"{value:,.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--model", action="append", help=f"(default: {' '.join(MODELS)})")
    args = parser.parse_args(argv)
    try:
        for path in sorted((REPO / "baselines").glob("*/gpu_speed.json")):
            print(radeon_tables(read_json(path), args.model or MODELS), end="")
    except ValueError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return BROKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
