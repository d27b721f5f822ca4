"""`rocmforge bench baseline` as a user runs it: list, refresh, compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import MACHINE, RESULT_OF_B, A, AsvTree, B, Bench, report
from documents import LLAMA_BENCH

from rocmforge.bench.baseline import baseline_path, load_baseline, save_baseline
from rocmforge.hardware import detect

TOOL, STORED = "baseline", Path("baselines/cpu-amd-epyc-zen4-2c/baseline.json")


@pytest.fixture
def stored(two_commits: AsvTree, bench: Bench, tmp_path: Path) -> Path:
    """A baseline of commit A; of commit B there is one benchmark, 50 % slower, and a new one."""
    assert bench(TOOL, "save", "--commit", "aaaa").returncode == 0
    rope = [0.003 + i * 1e-5 for i in range(9)]
    two_commits.benchmark("new.time_new")
    values = {"rope.time_rope": rope[4], "new.time_new": 1.0, "matmul.track_tokens": None}
    two_commits.run(B, values, samples={"rope.time_rope": [rope]}, date=1_700_000_100_000)
    return tmp_path / STORED


def entries(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["baselines"]
    return found


def test_refresh_shows_what_moved_and_keeps_the_rest(stored: Path, bench: Bench) -> None:
    before = entries(stored)
    text = stored.read_bytes()
    done = bench(TOOL, "refresh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "regression" in done.stdout
    assert "suite rope: 49.0 % worse" in done.stdout
    assert f"{STORED}: 1 replaced, 1 added, 4 kept: not written" in done.stdout
    assert stored.read_bytes() == text

    done = bench(TOOL, "refresh")
    assert done.returncode == 0, done.stderr
    assert f"{STORED}: 1 replaced, 1 added, 4 kept: 6 benchmarks, now of bbbbbbbb" in done.stdout
    now = entries(stored)
    assert set(now) == {*before, "new.time_new"}
    assert now["rope.time_rope"]["metrics"]["p50_ms"] == pytest.approx(3.04)
    assert now["rope.time_rope"]["metadata"]["commit"] is None
    kept = now["matmul.track_tokens"]  # it failed in the later run
    assert kept["metadata"]["commit"] == A
    assert kept["metrics"] == before["matmul.track_tokens"]["metrics"]
    assert kept["timestamp"] == before["matmul.track_tokens"]["timestamp"]
    metadata = json.loads(stored.read_text(encoding="utf-8"))["metadata"]
    assert (metadata["commit"], metadata["skipped"]) == (B, ["gpu.time_gpu"])
    assert metadata["failed"] == ["matmul.track_ms('Q8_0', 1)"]
    assert {r.label: r.commit for r in load_baseline(stored).results}["new.time_new"] is None


def test_a_refresh_on_another_kernel_says_what_was_measured_on_which(
    stored: Path, two_commits: AsvTree, bench: Bench
) -> None:
    newer = {**MACHINE, "os": "Linux 6.9.0"}
    two_commits.run(B, {"rope.time_rope": 0.002}, machine=newer, date=1_700_000_100_000)
    assert bench(TOOL, "refresh").returncode == 0
    now = entries(stored)
    assert now["rope.time_rope"]["hardware"]["os"] == "Linux 6.9.0"
    assert now["matmul.track_tokens"]["hardware"]["os"] == "Linux 6.1.0"
    again = {r.label: r.hardware for r in load_baseline(stored).results}
    assert again["rope.time_rope"] is None
    assert again["matmul.track_tokens"] is not None
    assert bench(TOOL, "refresh").returncode == 0
    assert entries(stored) == now


def test_a_refresh_from_other_hardware_is_4_and_names_the_fields(
    stored: Path, two_commits: AsvTree, bench: Bench
) -> None:
    text = stored.read_bytes()
    other = {**MACHINE, "num_cpu": "4", "cpu_isa": "avx2"}
    two_commits.run(B, {"rope.time_rope": 0.002}, machine=other, date=1_700_000_100_000)
    done = bench(TOOL, "refresh", "--out", STORED)
    assert done.returncode == 4
    assert "is of other hardware: cpu_isa: avx512 → avx2, cpu_count: 2 → 4" in done.stderr
    assert stored.read_bytes() == text
    assert bench(TOOL, "refresh").returncode == 3  # that machine has no baseline
    assert "bench baseline save makes one" in bench(TOOL, "refresh").stderr


def test_what_was_measured_under_load_refreshes_nothing(
    stored: Path, bench: Bench, tmp_path: Path
) -> None:
    conditions = {"others_share": 0.9, "quota_throttled_share": None}
    for name in ("rope.time_rope", "new.time_new"):
        report(tmp_path / RESULT_OF_B, name, None, None, conditions)
    text = stored.read_bytes()
    done = bench(TOOL, "refresh")
    assert done.returncode == 3
    assert "disturbed by other work" in done.stderr
    assert stored.read_bytes() == text
    done = bench(TOOL, "save", "--commit", "bbbb", "--replace")
    assert done.returncode == 3
    assert "disturbed by other work" in done.stderr
    assert stored.read_bytes() == text


def test_what_is_marked_keeps_what_was_stored(stored: Path, bench: Bench, tmp_path: Path) -> None:
    conditions = {"others_share": 0.9, "quota_throttled_share": None}
    report(tmp_path / RESULT_OF_B, "rope.time_rope", None, None, conditions)
    before = entries(stored)["rope.time_rope"]["metrics"]
    done = bench(TOOL, "refresh")
    assert done.returncode == 0, done.stderr
    assert "0 replaced, 1 added, 5 kept (1 for being marked now): 6 benchmarks" in done.stdout
    assert entries(stored)["rope.time_rope"]["metrics"] == before


def test_refresh_takes_what_make_bench_left_where_that_is_later(
    stored: Path, bench: Bench, tmp_path: Path
) -> None:
    here = detect()
    mine = baseline_path(tmp_path / "baselines", here)
    left = baseline_path(tmp_path / ".asv" / "baselines", here)
    run = replace(load_baseline(stored), hardware=here, commit="c" * 40)
    save_baseline(mine, run)
    rope = tuple(r for r in run.results if r.label == "rope.time_rope")
    save_baseline(left, replace(run, results=rope, commit="d" * 40))
    done = bench(TOOL, "refresh")
    assert done.returncode == 0, done.stderr
    assert "1 replaced, 0 added, 4 kept: 5 benchmarks, now of dddddddd" in done.stdout
    assert entries(mine)["matmul.track_tokens"]["metadata"]["commit"] == "c" * 40

    text = mine.read_bytes()
    save_baseline(left, replace(run, commit="d" * 40, uncommitted_changes=True))
    done = bench(TOOL, "refresh")
    assert done.returncode == 2
    assert "got what was measured with changes on top of dddddddd" in done.stderr
    assert mine.read_bytes() == text


def test_list_shows_every_kind(stored: Path, bench: Bench, tmp_path: Path) -> None:
    run = load_baseline(stored)
    llama = replace(run, asv_environment="llama.cpp", commit="0c21677e")
    save_baseline(stored.parent / "llama-bench" / "new.json", llama)
    (stored.parent / "noise.json").write_text('{"version": 1}', encoding="utf-8")
    done = bench(TOOL, "list")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "hardware tag file kind commit date benchmarks hardware"
    tag = "cpu-amd-epyc-zen4-2c"
    assert lines[1].startswith(f"{tag} {tag}/baseline.json measured aaaaaaaa 2023-11-14 5 cpu_name")
    assert f"{tag}/llama-bench/new.json imported from llama-bench 0c21677e 2023" in lines[2]
    assert len(lines) == 3

    (stored.parent / "broken.json").write_text("{", encoding="utf-8")
    done = bench(TOOL, "list")
    assert done.returncode == 2
    assert "broken.json: content" in done.stderr
    assert "new.json" in done.stdout


def test_list_of_nothing(bench: Bench, tmp_path: Path) -> None:
    assert bench(TOOL, "list").returncode == 2
    (tmp_path / "baselines").mkdir()
    done = bench(TOOL, "list")
    assert (done.returncode, done.stderr) == (
        3,
        "rocmforge bench baseline list: baselines: no baseline\n",
    )


def test_compare_is_bench_compare(stored: Path, bench: Bench, tmp_path: Path) -> None:
    assert bench(TOOL, "save", "--commit", "bbbb", "--out", "b.json").returncode == 0
    arguments = ("--bench", "rope", "--format", "json")
    done = bench(TOOL, "compare", STORED, "b.json", *arguments)
    same = bench("compare", "--baseline", STORED, "--against", "b.json", *arguments)
    assert (done.returncode, done.stdout) == (1, same.stdout)
    assert bench(TOOL, "compare", STORED, "b.json").returncode == 1
    missing = bench(TOOL, "compare", STORED, "b.json", "--threshold", "60")
    assert missing.returncode == 3
    assert "missing: 4 benchmarks" in missing.stdout


def test_an_upgrade_says_what_moved(stored: Path, bench: Bench) -> None:
    run = load_baseline(stored)
    card = replace(run.hardware, gpu_name="NVIDIA H200", driver_version="570.1", rocm_version="6.4")
    newer = replace(card, driver_version="580.2", rocm_version="7.0")
    before, after = stored.with_name("six.json"), stored.with_name("seven.json")
    save_baseline(before, replace(run, hardware=card))
    save_baseline(after, replace(run, hardware=newer))
    done = bench(TOOL, "compare", before, after)
    assert done.returncode == 4
    assert "hardware differs: driver_version: 570 → 580" in done.stdout
    done = bench(TOOL, "compare", before, after, "--upgrade")
    assert done.returncode == 0, done.stderr
    assert "differs, compared all the same: driver_version: 570.1 → 580.2" in done.stdout
    assert "suite matmul: unchanged (geometric mean of 4 slowdowns 1.000" in done.stdout


def test_an_import_loses_no_test_unasked(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "llama.json"
    file.write_text(
        json.dumps([LLAMA_BENCH, {**LLAMA_BENCH, "n_prompt": 0, "n_gen": 128}]), encoding="utf-8"
    )
    arguments = ("import", file, "--out", "out.json")
    assert bench(TOOL, *arguments).returncode == 0
    file.write_text(json.dumps([LLAMA_BENCH]), encoding="utf-8")
    done = bench(TOOL, *arguments)
    assert done.returncode == 2
    assert "out.json: got results without 1 of its benchmarks" in done.stderr
    assert bench(TOOL, *arguments, "--replace").returncode == 0
    assert len(entries(tmp_path / "out.json")) == 1


@pytest.mark.parametrize(
    "arguments", [(), ("forget",), ("list", "--all"), ("compare", "a.json"), ("import",)]
)
def test_usage_is_2(bench: Bench, arguments: tuple[str, ...]) -> None:
    done = bench(TOOL, *arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
