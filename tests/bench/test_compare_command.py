"""`rocmforge bench compare | baseline | machine | confirm`: exit codes, help, what they print."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from asv_tree import MACHINE, RESULT_OF_B, A, AsvTree, B, Bench, report
from rich.console import Console

from rocmforge.bench import asv, remeasure
from rocmforge.bench import pull_request as gate
from rocmforge.bench.asv_results import MEASURE, ResultsDirectory
from rocmforge.bench.cli import main
from rocmforge.hardware import detect, hardware_tag

CHECK, BASELINES, REGISTER = "compare", "baseline", "machine"
BASELINE = "baselines/cpu-amd-epyc-zen4-2c/baseline.json"


def test_regression_is_1_and_named(two_commits: AsvTree, bench: Bench) -> None:
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 1, done.stderr
    worst = [line for line in done.stdout.splitlines() if line.startswith("regression")]
    assert ["matmul.track_ms" in worst[0], "matmul.track_tokens" in worst[1]] == [True, True]
    assert len(worst) == 2


def test_improvement_is_0(two_commits: AsvTree, bench: Bench) -> None:
    done = bench(CHECK, "bbbb", "--format", "json", "aaaa")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"]["improved"] == 2
    assert document["outcome"] == "pass"


def test_newly_failing_benchmark_is_1(two_commits: AsvTree, bench: Bench) -> None:
    two_commits.run(B, {"rope.time_rope": None})
    done = bench(CHECK, "aaaa", "bbbb", "--bench", "rope")
    assert done.returncode == 1, done.stderr
    assert "failed (before: ok)  rope.time_rope" in done.stdout


def test_threshold_and_selection(two_commits: AsvTree, bench: Bench) -> None:
    assert bench(CHECK, "aaaa", "bbbb", "--threshold", "20").returncode == 0
    done = bench(CHECK, "aaaa", "bbbb", "--bench", r"track_ms\('Q4_0', 1\)")
    assert done.returncode == 0
    assert "1 ok; threshold" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give two commits, or --baseline FILE"),
        (["aaaa"], "give two commits"),
        (["aaaa", "bbbb", "aaaa"], "give two commits"),
        (["--baseline", "x.json", "aaaa", "bbbb"], "at most one commit"),
        (["aaaa", "bbbb", "--threshold", "0.1"], "got '0.1', wanted percent"),
        (["aaaa", "bbbb", "--threshold", "-5"], "got '-5', wanted percent"),
        (["aaaa", "bbbb", "--bench", "("], "wanted an expression"),
        (["aaaa", "aaaaaa"], "twice"),
        (["aaaa", "none"], "got 'none', wanted one that git knows"),
        (["aaaa", "bbbb", "--machine", "other"], "machine: got other, wanted one of box"),
        (["aaaa", "bbbb", "--results", "elsewhere"], "elsewhere: results directory"),
        (["--baseline", "no.json"], "no.json: file: got none"),
        (["aaaa", "bbbb", "--figure", "x.gif"], "wanted a name that ends in .svg"),
        (["--baseline", "results/benchmarks.json"], "benchmarks.json: baselines: got nothing"),
    ],
)
def test_usage_is_2(two_commits: AsvTree, bench: Bench, arguments: list[str], message: str) -> None:
    done = bench(CHECK, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_input_is_2_and_named(two_commits: AsvTree, bench: Bench) -> None:
    path = two_commits.results / "box" / "bbbbbbbb-virtualenv-py3.11.json"
    path.write_bytes(path.read_bytes()[:500])
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 2
    assert f"results/box/{path.name}: content: got" in done.stderr
    assert bench(BASELINES, "save").returncode == 2


@pytest.mark.parametrize(
    "values",
    [
        {"rope.time_rope": math.nan},
        {"rope.time_rope": math.nan, "matmul.track_ms": [math.nan] * 4},
        {"gpu.time_gpu": 1.0},
        {},
    ],
)
def test_nothing_measured_is_3(two_commits: AsvTree, bench: Bench, values: dict[str, Any]) -> None:
    two_commits.run(B, values)
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 3
    assert "nothing measured" in done.stdout


def test_what_is_missing_makes_no_pass(two_commits: AsvTree, bench: Bench) -> None:
    rope = 0.00204
    lost = {"matmul.track_ms": [float("nan")] * 4, "matmul.track_tokens": float("nan")}
    two_commits.run(B, {"rope.time_rope": rope, **lost}, samples={"rope.time_rope": [[rope] * 9]})
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 3, done.stderr
    assert "missing: 4 benchmarks had a value before, none to compare it with" in done.stdout
    assert "FAIL: benchmarks that were measured before are missing or not comp" in done.stdout
    assert bench(CHECK, "aaaa", "bbbb", "--allow-missing").returncode == 0
    assert bench(CHECK, "aaaa", "bbbb", "--bench", "rope").returncode == 0
    slow = 2 * rope
    two_commits.run(B, {"rope.time_rope": slow, **lost}, samples={"rope.time_rope": [[slow] * 9]})
    assert bench(CHECK, "aaaa", "bbbb").returncode == 1  # worse than missing


def test_what_was_not_selected_is_not_missing(two_commits: AsvTree, bench: Bench) -> None:
    rope = 0.00204
    two_commits.run(B, {"rope.time_rope": rope}, samples={"rope.time_rope": [[rope] * 9]})
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 0, done.stdout
    assert "not selected: 4 benchmarks had a value before; the later run was of oth" in done.stdout
    assert "missing" not in done.stdout
    assert "skipped" not in done.stdout
    assert "track_ms" not in done.stdout


def test_a_renamed_benchmark_is_missing_and_named(two_commits: AsvTree, bench: Bench) -> None:
    grid = {"format": ["'Q4_0'", "'Q8_0'"], "tokens": ["1", "8"]}
    del two_commits.benchmarks["matmul.track_ms"]
    two_commits.benchmark("matmul.track_milliseconds", "ms/token", grid)
    two_commits.benchmark("matmul.track_tokens", "tokens/s", {"n": ["1"]}, direction="higher")
    nine = {"rope.time_rope": [[0.002 + i * 1e-5 for i in range(9)]]}
    values = {
        "matmul.track_milliseconds": [1.0, 2.0, None, 4.0],
        "matmul.track_tokens": [100.0],
        "rope.time_rope": 0.00204,
    }
    two_commits.run(B, values, samples=nine)
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("missing (renamed to matmul.track_milliseconds?)") == 3
    assert "missing (its parameters are now n)" in done.stdout


def test_no_results_at_all_is_3(two_commits: AsvTree, bench: Bench) -> None:
    for path in (two_commits.results / "box").glob("*-virtualenv*"):
        path.unlink()
    for script, arguments in ((CHECK, ["aaaa", "bbbb"]), (BASELINES, ["save"])):
        done = bench(script, *arguments)
        assert done.returncode == 3
        assert "no result file" in done.stderr


@pytest.mark.parametrize("command", [(CHECK, "HEAD~1", "HEAD"), ("history",)])
def test_before_any_run_here_it_says_the_command_and_no_other_machine(
    two_commits: AsvTree, bench: Bench, repo: Path, command: tuple[str, ...]
) -> None:
    two_commits.run(A, {}, machine={**MACHINE, "machine": "another"})
    done = bench(*command)
    assert done.returncode == 3, done.stderr
    assert "nothing measured here yet" in done.stderr
    assert MEASURE in done.stderr
    assert "box" not in done.stderr
    assert MEASURE in (repo / "README.md").read_text("utf-8")


@pytest.mark.parametrize("command", [(CHECK, "aaaa", "bbbb"), (BASELINES, "save")])
def test_results_that_cannot_be_read_are_2(
    two_commits: AsvTree, bench: Bench, command: tuple[str, ...]
) -> None:
    folder = "x" * 300  # longer than any file system's names
    done = bench(*command, "--results", folder)
    assert done.returncode == 2, done.stderr
    assert folder in done.stderr
    assert "Traceback" not in done.stderr


def test_selection_that_finds_nothing_is_3(two_commits: AsvTree, bench: Bench) -> None:
    assert bench(CHECK, "aaaa", "bbbb", "--bench", "no_such").returncode == 3


def test_hardware_mismatch_is_4_and_names_the_field(two_commits: AsvTree, bench: Bench) -> None:
    two_commits.run(B, {"rope.time_rope": 9.0}, machine={**MACHINE, "cpu": "AMD EPYC 9B14"})
    done = bench(CHECK, "aaaa", "bbbb")
    assert done.returncode == 4, done.stderr
    assert "hardware differs: cpu_name: AMD EPYC → AMD EPYC 9B14" in done.stdout
    assert "hardware mismatch  " not in done.stdout  # one sentence, no row for each benchmark


def test_a_machine_without_a_baseline_hears_how_to_store_one(
    two_commits: AsvTree, bench: Bench
) -> None:
    """A virtual machine that hides AVX-512 is told so, and shown no row of another's."""
    hidden = {**MACHINE, "cpu_isa": "avx2"}
    two_commits.run(B, {"rope.time_rope": 9.0}, machine=hidden)
    assert bench(BASELINES, "save", "--commit", "aaaa", "--out", "b.json").returncode == 0
    done = bench(CHECK, "--baseline", "b.json", "bbbb")
    assert done.returncode == 4, done.stderr
    assert "hardware differs: cpu_isa: avx512 → avx2" in done.stdout
    said = "no baseline for this machine (cpu-amd-epyc-zen4-avx2-2c) yet: rocmforge bench run "
    assert f"{said}--profile full --save-baseline stores one" in done.stdout
    assert "hardware mismatch  " not in done.stdout
    assert bench(BASELINES, "save", "--commit", "bbbb").returncode == 0
    done = bench(CHECK, "--baseline", "b.json", "bbbb")
    own = "baselines/cpu-amd-epyc-zen4-avx2-2c/baseline.json"
    assert f"this machine's baseline: {own}" in done.stdout
    assert bench(CHECK, "--baseline", own, "bbbb").returncode == 0


def test_a_baseline_is_not_replaced_by_less(two_commits: AsvTree, bench: Bench) -> None:
    assert bench(BASELINES, "save", "--commit", "aaaa", "--out", "b.json").returncode == 0
    two_commits.run(B, {"rope.time_rope": 1.0})
    done = bench(BASELINES, "save", "--commit", "bbbb", "--out", "b.json")
    assert done.returncode == 2
    assert "b.json: got results without 4 of its benchmarks" in done.stderr
    assert (
        bench(BASELINES, "save", "--commit", "bbbb", "--out", "b.json", "--replace").returncode == 0
    )


def test_baseline_there_and_back(two_commits: AsvTree, bench: Bench, tmp_path: Path) -> None:
    done = bench(BASELINES, "save", "--commit", "aaaa")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{BASELINE}: 5 benchmarks of aaaaaaaa on cpu-amd-epyc-zen4-2c\n"
    assert bench(CHECK, "--baseline", BASELINE, "aaaa").returncode == 0
    newest = bench(CHECK, "--baseline", BASELINE, "--format", "markdown")
    assert newest.returncode == 1, newest.stderr
    assert "| regression | matmul.track_tokens |" in newest.stdout
    two_commits.run(B, {"rope.time_rope": 1.0}, machine={**MACHINE, "num_cpu": "4"})
    assert bench(CHECK, "--baseline", BASELINE, "bbbb").returncode == 4


def test_baseline_of_nothing_is_3_and_keeps_the_old(
    two_commits: AsvTree, bench: Bench, tmp_path: Path
) -> None:
    assert bench(BASELINES, "save", "--out", "b.json").returncode == 0
    before = (tmp_path / "b.json").read_bytes()
    two_commits.run(B, {"rope.time_rope": math.nan})
    done = bench(BASELINES, "save", "--out", "b.json", "--commit", "bbbb")
    assert done.returncode == 3
    assert "nothing measured" in done.stderr
    assert (tmp_path / "b.json").read_bytes() == before


def test_baseline_of_an_unknown_machine_is_2(two_commits: AsvTree, bench: Bench) -> None:
    two_commits.run(B, {"rope.time_rope": 1.0}, machine={"machine": "box"})
    done = bench(BASELINES, "save", "--commit", "bbbb")
    assert done.returncode == 2
    assert "machine" in done.stderr


@pytest.mark.parametrize("script", [CHECK, BASELINES, REGISTER])
def test_help(bench: Bench, script: str) -> None:
    done = bench(script, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout
    assert "exit codes:" in done.stdout


def test_register_machine_keeps_the_others(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "machines.json"
    file.write_text('{"old": {"machine": "old"}, "version": 1}')
    done = bench(REGISTER, "--file", file)
    tag = hardware_tag()
    assert (done.returncode, done.stdout) == (0, f"{tag}\n")
    machines = json.loads(file.read_text())
    assert set(machines) == {"old", tag, "version"}
    assert machines[tag]["num_cpu"] == str(detect().cpu_count)
    assert bench(REGISTER, "--file", file, "--name", "mine").stdout == "mine\n"


def test_register_machine_with_a_broken_file_is_2(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "machines.json"
    file.write_text("{")
    done = bench(REGISTER, "--file", file)
    assert done.returncode == 2
    assert os.fspath(file) in done.stderr


def test_what_was_measured_under_load_is_known_where_it_was_kept(
    two_commits: AsvTree, bench: Bench, tmp_path: Path
) -> None:
    assert bench(CHECK, "aaaa", "bbbb", "--bench", "track_tokens").returncode == 1
    conditions = {"others_share": 0.9, "quota_throttled_share": None}
    report(tmp_path / RESULT_OF_B, "matmul.track_tokens", None, None, conditions)
    done = bench(CHECK, "aaaa", "bbbb", "--bench", "track_tokens")
    assert done.returncode == 3, done.stderr
    assert "cannot tell (other work took 90 % of the CPU time)" in done.stdout
    for index in range(4):
        report(tmp_path / RESULT_OF_B, "matmul.track_ms", index, None, conditions)
    done = bench(CHECK, "aaaa", "bbbb", "--bench", "rope", "--out", "out")
    assert done.returncode == 3, done.stderr
    assert "bbbbbbbb-virtualenv-py3.11.json: 4 of 5 timed benchmarks were disturbed" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [(KeyboardInterrupt(), 130, "interrupted"), (OSError("no space left"), 2, "cut_short")],
)
def test_a_confirmation_that_is_cut_short_is_no_pass_in_any_report(
    two_commits: AsvTree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    outcome: str,
) -> None:
    class Broken:
        def __init__(self, *arguments: object) -> None:
            pass

        def prepare(self, commit: str) -> None:
            raise error

    here = ResultsDirectory(two_commits.results).load(B).hardware
    monkeypatch.setattr(remeasure, "Builds", Broken)
    monkeypatch.setattr(remeasure, "detect", lambda: here)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["confirm", "aaaa", "bbbb", "--out", "out"]) == code
    document = json.loads((tmp_path / "out" / "gate.json").read_text(encoding="utf-8"))
    assert (document["outcome"], document["exit_code"]) == (outcome, code)
    assert document["counts"]["regression"] == 0
    head = (tmp_path / "out" / "gate.md").read_text(encoding="utf-8").splitlines()[0]
    assert head.startswith("**FAIL: measuring again was ")
    suite = ElementTree.parse(tmp_path / "out" / "gate.junit.xml").getroot()
    assert int(suite.attrib["errors"]) == 1


def test_the_noise_of_this_hardware_is_known_and_another_can_be_named(
    two_commits: AsvTree, bench: Bench, tmp_path: Path
) -> None:
    label = "matmul.track_tokens"
    loud = {"unit": "tokens/s", "version": "1", "medians": [80.0, 100.0], "marked": 0}
    noise = {"version": 1, "benchmarks": {label: loud}}
    path = (tmp_path / BASELINE).with_name("noise.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(noise), encoding="utf-8")
    done = bench(CHECK, "aaaa", "bbbb", "--bench", label)
    assert done.returncode == 3, done.stderr  # the only one cannot be judged
    assert (
        "cannot tell (runs of one commit differ by 25 %: measure both interleaved)" in done.stdout
    )
    (tmp_path / "quiet.json").write_text('{"version": 1, "benchmarks": {}}', encoding="utf-8")
    assert bench(CHECK, "aaaa", "bbbb", "--noise", "quiet.json").returncode == 1
    assert bench(CHECK, "aaaa", "bbbb", "--noise", "none.json").returncode == 2
    path.write_text("{", encoding="utf-8")
    assert bench(CHECK, "aaaa", "bbbb").returncode == 2


def test_thresholds_of_asvs_settings_count_unless_one_is_given(
    two_commits: AsvTree, bench: Bench, tmp_path: Path
) -> None:
    config = tmp_path / "asv.conf.json"
    config.write_text('{"version": 1, "regressions_thresholds": {".*track_": 0.3}} // x\n')
    assert bench(CHECK, "aaaa", "bbbb").returncode == 0
    shown = bench(CHECK, "aaaa", "bbbb", "--all").stdout
    assert "ok (threshold 30 %)" in shown
    assert bench(CHECK, "aaaa", "bbbb", "--threshold", "10").returncode == 1
    for text in ("{", '{"version": 1, "regressions_thresholds": {"(": 0.3}}'):
        config.write_text(text)
        done = bench(CHECK, "aaaa", "bbbb")
        assert done.returncode == 2
        assert "asv.conf.json" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_fails_in_one_round_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asv, appending to samples, keeps only what the last round says."""
    tree = AsvTree(tmp_path / gate.RAW / "results")
    tree.benchmark("m.track_ms", "ms", {"n": ["1", "2"]})
    turns = iter([(A, [1.0, 1.0]), (B, [1.0, None]), (B, [1.0, 1.0]), (A, [1.0, 1.0])])

    def run(words: list[str], *more: object) -> int:
        commit, values = next(turns)
        assert commit in words
        python = "/one/python" if commit == A else "/other/python"
        name = asv.asv_environment_name(python)
        tree.run(commit, {"m.track_ms": values}, environment=name)
        return asv.FAILURES if None in values else 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate.shutil, "rmtree", lambda *more, **options: None)
    monkeypatch.setattr(gate.project, "write_config", lambda root, work: None)
    monkeypatch.setattr(gate.asv, "write_config", lambda root, work: None)
    monkeypatch.setattr(gate.asv, "run", run)
    gate._measure([A, B], ["/one/python", "/other/python"], "box", ["m"], 2, Console())
    found = ResultsDirectory(tmp_path / gate.WORK / "results", "box")
    assert [[r.value for r in found.load(c).results] for c in (A, B)] == [[1.0, 1.0], [1.0, None]]
