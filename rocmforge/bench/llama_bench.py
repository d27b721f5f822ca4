"""Reads what `llama-bench -o json` prints, so that it can be a baseline.

A test is a prompt (pp512) or generated tokens (tg128), at some depth. Its samples are tokens/s.
Source of the format: llama.cpp, tools/llama-bench/README.md.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from rocmforge.bench.files import finite_number, kind_of, parse_json, read_text, typed_field
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware

ASV_ENVIRONMENT = "llama.cpp"
NAME = "llama_bench.track_tokens_per_second"
PARAMS = {
    "n_threads": "threads",
    "n_gpu_layers": "gpu_layers",
    "n_batch": "batch",
    "n_ubatch": "ubatch",
    "type_k": "type_k",
    "type_v": "type_v",
    "flash_attn": "flash_attention",
}
"""Settings that make another benchmark of it, as llama-bench names them, and our names."""


def read_llama_bench(path: Path, hardware: Hardware) -> ResultSet:
    """Read a file that `llama-bench -o json` or `-o jsonl` wrote.

    Parameters
    ----------
    path
        The file.
    hardware
        Of the machine that it ran on, for llama-bench names only parts of it.

    Raises
    ------
    ResultFileError
        The file is missing, truncated, no output of llama-bench, or of several builds.
    MeasurementError
        It holds no test.
    """
    rows = _rows(path)
    if not rows:
        raise MeasurementError(f"{path}: no test: nothing measured")
    results = [_result(path, number, row) for number, row in enumerate(rows)]
    labels = [result.label for result in results]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ResultFileError(path, twice, got="twice", wanted="each test once")
    commits = {typed_field(path, row, "build_commit", str, "a string") for row in rows}
    if len(commits) > 1:
        raise ResultFileError(path, "build_commit", got=sorted(commits), wanted="one build")
    return ResultSet(
        source=path,
        machine="llama-bench",
        commit=commits.pop(),
        commit_date=None,
        asv_environment=ASV_ENVIRONMENT,
        hardware=hardware,
        results=tuple(results),
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    wanted = "llama-bench's JSON"
    text = read_text(path, wanted)
    if text.lstrip().startswith("{"):
        rows = [parse_json(path, line, wanted) for line in text.splitlines() if line.strip()]
    else:
        rows = parse_json(path, text, wanted)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultFileError(path, "content", got=kind_of(rows), wanted="a list of tests")
    return rows


def _result(path: Path, number: int, row: dict[str, Any]) -> Result:
    what = f"test {number}"
    stored = typed_field(path, row, "samples_ts", list, f"a list in {what}")
    samples = [finite_number(path, f"samples_ts of {what}", value) for value in stored]
    if not samples or min(samples) <= 0:
        raise ResultFileError(path, f"samples_ts of {what}", got=stored, wanted="tokens/s above 0")
    prompt, generated = (_count(path, row, key, what) for key in ("n_prompt", "n_gen"))
    depth = _count(path, row, "n_depth", what) if "n_depth" in row else 0
    parts = [f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)
    if not parts:
        raise ResultFileError(path, f"n_prompt, n_gen of {what}", got="0, 0", wanted="one above 0")
    params = {
        "model": typed_field(path, row, "model_filename", str, f"a string in {what}"),
        "test": "+".join(parts) + (f" @ {depth}" if depth else ""),
        "backend": str(row.get("backends", "unknown")),
        **{name: row[key] for key, name in PARAMS.items() if key in row},
    }
    params["model"] = Path(str(params["model"])).name
    summary = summarize(samples)
    return Result(
        name=NAME,
        param_names=tuple(params),
        params=tuple(repr(value) for value in params.values()),
        status=Status.OK,
        value=summary.p50,
        summary=summary,
        samples=tuple(samples),
        unit="tokens/s",
        direction=Direction.HIGHER,
        version=None,
        started_at=_moment(path, row.get("test_time"), what),
    )


def _count(path: Path, row: dict[str, Any], key: str, what: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ResultFileError(path, f"{key} of {what}", got=value, wanted="a count")
    return value


def _moment(path: Path, value: object, what: str) -> int | None:
    if value is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError as error:
        raise ResultFileError(path, f"test_time of {what}", got=value, wanted="ISO 8601") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return round(moment.timestamp() * 1000)
