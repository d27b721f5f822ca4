"""How fast each model runs in each format and phase on one machine, from every source.

Sources are the suites' benchmarks of whole models and the reports under baselines/. A benchmark
that failed or was skipped is a row without a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rocmforge.bench.dashboard.machines import Machine, Report, latest
from rocmforge.bench.dashboard.points import usable
from rocmforge.bench.files import finite_number
from rocmforge.bench.formatting import ends, iso, plain_params
from rocmforge.bench.results import Direction, ResultSet, Status
from rocmforge.errors import ResultFileError

TTFT, PREFILL, DECODE = "TTFT", "prefill", "decode"
SHORT = 128  # tokens of a prompt that decoding does not name
PHASES = {
    "inference.Prompt.track_ttft_ms": (TTFT, "prompt of {tokens}"),
    "inference.Prompt.track_prefill_tokens_per_second": (PREFILL, "prompt of {tokens}"),
    "inference.Decode.track_decode_tokens_per_second": (DECODE, "batch {batch}"),
    "inference.Context.track_decode_ms_per_token": (DECODE, "a token at {context}, {kv} cache"),
    "inference.Size.track_prefill_ms_per_token": (PREFILL, "a token of the prompt"),
    "inference.Size.track_decode_ms_per_token": (DECODE, "a token"),
}
"""Benchmark to phase and setting; the words in braces are its parameters."""
RATES = "_ms_per_token"
"""End of the names whose milliseconds a token become tokens/s: one unit for all that is alike."""
_MODEL = re.compile(r"(.+?)[-.]((?:I?Q|B?F|MXFP)\d.*)")


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured number.

    ``low`` and ``high`` are the 99 % interval of the value; ``peer`` is llama.cpp's value, measured
    interleaved, and ``ratio`` ours over it, from ``ratio_low`` to ``ratio_high`` over the rounds.
    ``absent`` says why there is no value, ``marked`` why it is not to be trusted.
    """

    model: str
    format: str | None
    phase: str
    setting: str
    device: str | None
    value: float | None
    unit: str
    direction: Direction | None
    commit: str | None
    date: str | None
    source: str
    low: float | None = None
    high: float | None = None
    peer: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    marked: str | None = None
    absent: str | None = None


def speeds(machine: Machine) -> list[Speed]:
    """List all speeds of whole models on a machine: runs, baseline, other reports.

    Raises
    ------
    ResultFileError
        A report lacks something.
    """
    return [
        *_of_results(machine),
        *_of_reports(machine.peers, _of_peer),
        *_of_reports((machine.gpu_speed,), _of_gpu),
        *_of_reports((machine.formats,), _of_formats),
    ]


def split_model(name: str) -> tuple[str, str | None]:
    """Split ``1.1B-Q4_K_M`` into the model and its format; None: the name has none."""
    stem = name.removesuffix(".gguf")
    parts = _MODEL.fullmatch(stem)
    return (parts[1], parts[2]) if parts else (stem, None)


def _of_results(machine: Machine) -> Iterator[Speed]:
    for result, results in latest(machine).values():
        params = plain_params(result)
        if result.name not in PHASES or "model" not in params:
            continue
        phase, setting = PHASES[result.name]
        model, kind = split_model(params["model"])
        low, high = ends(result.summary)
        value, unit, direction = result.value, result.unit or "", result.direction
        if result.name.endswith(RATES):
            value, low, high = (1000 / x if x else None for x in (value, high, low))
            unit, direction = "tokens/s", Direction.HIGHER
        absent = None if result.status is Status.OK else result.status.value
        if result.value is not None and not usable(value):
            value, absent = None, "its value is no speed"
        if not (usable(low) and usable(high)):
            low = high = None
        yield Speed(
            model=model,
            format=kind,
            phase=phase,
            setting=setting.format_map(_Named(params)),
            device=params.get("device"),
            value=value,
            unit=unit,
            direction=direction,
            commit=result.commit or results.commit,
            date=iso(result.started_at or results.commit_date),
            source=_source(machine, results),
            low=low,
            high=high,
            marked=result.marked,
            absent=absent,
        )


def _source(machine: Machine, results: ResultSet) -> str:
    if results is machine.baseline:
        return "baseline"
    return "newest run" if results is machine.newest else "an earlier run"


def _of_reports(
    reports: Iterable[Report | None], read: Callable[[Report], Iterable[Speed]]
) -> Iterator[Speed]:
    """Read reports; what one lacks is an error that names it."""
    for report in reports:
        if report is None:
            continue
        try:
            yield from read(report)
        except (KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__} {error}"
            raise ResultFileError(
                report.path, "report", got=got, wanted="what its tool in tools/ writes"
            ) from error


class _Named(dict[str, str]):
    """Parameters for a setting; one that the benchmark lacks is n/a."""

    def __missing__(self, key: str) -> str:
        return "n/a"


def _of_peer(report: Report) -> Iterator[Speed]:
    content = report.content
    model, kind = split_model(str(content["model"]))
    many, depth = content.get("sequences", 1), content["prompt_tokens"]
    decoding = "one sequence" if many == 1 else f"{many} sequences"
    said = [f"{name}={value}" for name, value in content.get("variables", {}).items()]
    kind = " ".join([kind or "", *said]).strip() or None
    if depth > SHORT:
        decoding += f" at {depth}"
    for phase, row in content["phases"].items():
        prompts = f"prompt of {depth}" if many == 1 else f"{many} prompts of {depth}"
        setting = prompts if phase == PREFILL else decoding
        value, peer, ratio, least, most = (
            finite_number(report.path, f"{name} of {phase}", row[name])
            for name in ("rocmforge", "llama.cpp", "ratio", "ratio_min", "ratio_max")
        )
        yield Speed(
            model=model,
            format=kind,
            phase=phase,
            setting=setting,
            device=_threads(content["threads"]),
            value=value,
            unit=str(row["unit"]),
            direction=Direction.HIGHER,
            commit=report.commit,
            date=report.date,
            source="interleaved with llama.cpp",
            peer=peer,
            ratio=ratio,
            ratio_low=least,
            ratio_high=most,
        )


def _of_gpu(report: Report) -> Iterator[Speed]:
    for model in report.content["models"]:
        name, kind = split_model(str(model["model"]))
        rows = [
            (PREFILL, f"prompt of {n}", value, "tokens/s")
            for n, value in model["prefill_tokens_per_second"].items()
        ]
        rows += [
            (DECODE, f"context of {n}", value, "tokens/s")
            for n, value in model["decode_tokens_per_second"].items()
        ]
        parts = model["seconds_with_full_compile_cache"].items()
        rows += [(TTFT, what, value, "s") for what, value in parts if "prompt" in what]
        for row in rows:
            yield replace(_plain(report, name, kind, row), device="gpu")


def _of_formats(report: Report) -> Iterator[Speed]:
    """The demo model with its matrices in each format."""
    model, _ = split_model(str(report.content["model"]))
    for kind, row in report.content["formats"].items():
        for phase in (PREFILL, DECODE):
            value = row[f"{phase}_tokens_per_second"]
            yield _plain(report, model, kind, (phase, "format by format", value, "tokens/s"))


def _threads(count: object) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _plain(
    report: Report, model: str, kind: str | None, found: tuple[str, str, object, str]
) -> Speed:
    """Make one of a value as it stands in a report; seconds become ms."""
    phase, setting, stored, unit = found
    value = finite_number(report.path, f"{phase} of {model}, {setting}", stored)
    if unit == "s":
        value, unit = 1e3 * value, "ms"
    threads = report.content.get("threads")
    return Speed(
        model=model,
        format=kind,
        phase=phase,
        setting=setting,
        device=None if threads is None else _threads(threads),
        value=value,
        unit=unit,
        direction=Direction.HIGHER if unit.endswith("/s") else Direction.LOWER,
        commit=report.commit,
        date=report.date,
        source=report.path.name,
    )
