"""Every file that the dashboard reads, with nonsense in every place: shown or refused by name.

Without asv, whose part is one process; what it is given is what `publish` reads first.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import A, AsvTree, B, report
from documents import changed, places

from rocmforge.bench.asv_results import ResultsDirectory, read_benchmarks
from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.dashboard.data_files import FOLDER
from rocmforge.bench.dashboard.machines import load_run, read_machines
from rocmforge.bench.dashboard.render import Site, write_pages
from rocmforge.bench.run_environment import with_stored_environments
from rocmforge.errors import ResultFileError, RocmforgeError

PREFILL = "inference.Prompt.track_prefill_tokens_per_second"
ROOFLINE = "roofline.Matmul.track_inverse_roofline_fraction"
CARD = {
    "device": "card",
    "throttle": ["heat"],
    "clock_mhz": [1, 2, 3],
    "utilization_before": 0.1,
    "other_processes": 0,
}
CONDITIONS = {
    "others_share": 0.01,
    "quota_throttled_share": 0.0,
    "load_average": 1.5,
    "cpu_mhz": [1000, 2000, 3000],
    "governor": "powersave",
    "gpus": [CARD],
    "versions": {"numpy": "2.0"},
}
MADE = {"commit": None, "date": "2026-11-20T20:39:22+00:00"}
PHASE = {"unit": "tokens/s", "rocmforge": 2.0, "llama.cpp": 1.0, "ratio": 2.0}
REPORTS: dict[str, dict[str, Any]] = {
    "gpu_speed.json": {
        **MADE,
        "gpu": "Card",
        "models": [
            {
                "model": "7B-Q8_0",
                "prefill_tokens_per_second": {"512": 100.0},
                "decode_tokens_per_second": {"128": 10.0},
                "seconds_with_full_compile_cache": {"the same prompt again": 0.1},
            }
        ],
    },
    "formats.json": {
        **MADE,
        "model": "demo-F32",
        "threads": 2,
        "formats": {"Q4_0": {"prefill_tokens_per_second": 2.0, "decode_tokens_per_second": 1.0}},
    },
    "llama.cpp/model.json": {
        **MADE,
        "model": "1.1B-Q4_0.gguf",
        "threads": 2,
        "prompt_tokens": 128,
        "phases": {"prefill": {**PHASE, "ratio_min": 1.9, "ratio_max": 2.1}},
    },
}
BOX = "baselines/box"
FILES = [
    "results/box/bbbbbbbb-env.json",
    "results/box/bbbbbbbb-env.jsonl",
    f"{BOX}/baseline.json",
    *(f"{BOX}/{name}" for name in REPORTS),
]
VALUES: dict[str, Any] = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "null": None,
    "negative": -(10**30),
    "huge": 10**400,
    "tiny": 1e-300,
    "true": True,
    "number": 5,
    "text": "<i>",
    "list": [],
    "nested": {"a": [{"a": None}]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of two commits, a baseline, conditions and every report, all whole."""
    tree = AsvTree(tmp_path / "results")
    params = {"model": ["'1.1B-Q4_0'"], "tokens": ["128"], "device": ["'cpu'"]}
    tree.benchmark(PREFILL, "tokens/s", params, direction="higher")
    tree.benchmark(ROOFLINE, "times ideal")
    for commit, value in ((A, 100.0), (B, 50.0)):
        values = {PREFILL: [value], ROOFLINE: 1.5}
        samples = {name: [[v, v + 0.01]] for name, v in ((PREFILL, value), (ROOFLINE, 1.5))}
        written = tree.run(commit, values, samples=samples, environment="env")
        report(written, PREFILL, 0, 1e-4, CONDITIONS)
    first = with_stored_environments(ResultsDirectory(tree.results).load(A))
    machine = replace(first.hardware, gpu_name="Card", gpu_architecture="sm_90")
    save_baseline(tmp_path / BOX / "baseline.json", replace(first, hardware=machine))
    for name, content in REPORTS.items():
        write(tmp_path / BOX / name, content)
    (tmp_path / "pages").mkdir()
    return tmp_path


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def show(folder: Path) -> str:
    """Make our pages; return all of them, with the data that they load."""
    results, pages = folder / "results", folder / "pages"
    known = read_benchmarks(results / "benchmarks.json")
    machines = read_machines(results, folder / "baselines", {}, known)
    runs = {m.tag: [load_run(run, known) for run in m.runs] for m in machines}
    write_pages(pages, Site(machines, runs, {}, folder / "baselines", {}))
    written = [*pages.glob("*.html"), *(pages / FOLDER).rglob("*.js")]
    return "".join(path.read_text(encoding="utf-8") for path in written)


def refusal(folder: Path) -> str | None:
    """What is said of files that are refused; None where they are shown, without their markup."""
    try:
        assert "<i>" not in show(folder)
    except RocmforgeError as error:
        return str(error)
    return None


def test_whole_files_are_shown(folder: Path) -> None:
    text = show(folder)
    for words in (
        "interleaved with llama.cpp",
        "format by format",
        "card throttled: heat",
        '"value":10.0',  # tokens/s of gpu_speed.json
        '"value":0.666667',  # of the roofline
    ):
        assert words in text


FEW = ("NaN", "null", "huge", "text", "nested")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("values", [FEW, pytest.param(tuple(VALUES), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_nonsense_is_shown_or_refused_by_name(
    folder: Path, name: str, values: tuple[str, ...]
) -> None:
    path = folder / name
    whole = json.loads(path.read_text(encoding="utf-8"))
    refused = 0
    for place in places(whole, 1):
        for value in map(VALUES.__getitem__, values):
            write(path, changed(whole, place, value))
            said = refusal(folder)
            assert said is None or path.name in said, (place, value)
            refused += said is not None
    assert refused


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_other_content_is_refused_by_name(folder: Path, name: str, content: str) -> None:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    if not content and path.suffix == ".jsonl":  # a full disk left it so: no reports
        show(folder)
        return
    with pytest.raises(ResultFileError, match=path.name):
        show(folder)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("key", ["commit", "date"])
def test_a_report_says_when_it_was_made(folder: Path, name: str, key: str) -> None:
    report = {other: value for other, value in REPORTS[name].items() if other != key}
    write(folder / BOX / name, report)
    with pytest.raises(ResultFileError, match=f"{key}: got nothing"):
        show(folder)
