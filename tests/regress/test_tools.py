"""The scripts of tools/ as a user runs them: every exit code, help, and what they print."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from asv_tree import MACHINE, AsvTree, B, Tools

from rocmforge.hardware import detect, hardware_tag
from rocmforge.regress.conditions import write_report

CHECK, CONVERT, REGISTER = "check_regressions.py", "asv_to_baseline.py", "register_machine.py"
BASELINE = "baselines/cpu-amd-epyc-zen4-2c/baseline.json"


def test_regression_is_1_and_named(two_commits: AsvTree, tools: Tools) -> None:
    done = tools(CHECK, "aaaa", "bbbb")
    assert done.returncode == 1, done.stderr
    worst = [line for line in done.stdout.splitlines() if line.startswith("regression")]
    assert ["matmul.track_ms" in worst[0], "matmul.track_tokens" in worst[1]] == [True, True]
    assert len(worst) == 2


def test_improvement_is_0(two_commits: AsvTree, tools: Tools) -> None:
    done = tools(CHECK, "bbbb", "--format", "json", "aaaa")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"]["improved"] == 2
    assert document["outcome"] == "pass"


def test_newly_failing_benchmark_is_1(two_commits: AsvTree, tools: Tools) -> None:
    two_commits.run(B, {"rope.time_rope": None})
    done = tools(CHECK, "aaaa", "bbbb", "--benchmark", "rope")
    assert done.returncode == 1, done.stderr
    assert "failed (before: ok)  rope.time_rope" in done.stdout


def test_threshold_and_selection(two_commits: AsvTree, tools: Tools) -> None:
    assert tools(CHECK, "aaaa", "bbbb", "--threshold", "20").returncode == 0
    done = tools(CHECK, "aaaa", "bbbb", "--benchmark", r"track_ms\('Q4_0', 1\)")
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
        (["aaaa", "bbbb", "--benchmark", "("], "wanted an expression"),
        (["aaaa", "aaaaaa"], "twice"),
        (["aaaa", "none"], "got 'none', wanted one that git knows"),
        (["aaaa", "bbbb", "--machine", "other"], "machine: got other, wanted one of box"),
        (["aaaa", "bbbb", "--results", "elsewhere"], "elsewhere: results directory"),
        (["--baseline", "no.json"], "no.json: file: got none"),
        (["aaaa", "bbbb", "--figure", "x.gif"], "wanted a name that ends in .svg"),
        (["--baseline", "no.json", "--confirm"], "a baseline cannot be measured again"),
        (["--baseline", "results/benchmarks.json"], "benchmarks.json: baselines: got nothing"),
    ],
)
def test_usage_is_2(two_commits: AsvTree, tools: Tools, arguments: list[str], message: str) -> None:
    done = tools(CHECK, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_input_is_2_and_named(two_commits: AsvTree, tools: Tools) -> None:
    path = two_commits.results / "box" / "bbbbbbbb-virtualenv-py3.11.json"
    path.write_bytes(path.read_bytes()[:500])
    done = tools(CHECK, "aaaa", "bbbb")
    assert done.returncode == 2
    assert f"results/box/{path.name}: content: got" in done.stderr
    assert tools(CONVERT).returncode == 2


@pytest.mark.parametrize(
    "values",
    [
        {"rope.time_rope": math.nan},
        {"rope.time_rope": math.nan, "matmul.track_ms": [math.nan] * 4},
        {"gpu.time_gpu": 1.0},
        {},
    ],
)
def test_nothing_measured_is_3(two_commits: AsvTree, tools: Tools, values: dict[str, Any]) -> None:
    two_commits.run(B, values)
    done = tools(CHECK, "aaaa", "bbbb")
    assert done.returncode == 3
    assert "nothing measured" in done.stdout


def test_no_results_at_all_is_3(two_commits: AsvTree, tools: Tools) -> None:
    for path in (two_commits.results / "box").glob("*-virtualenv*"):
        path.unlink()
    for script, arguments in ((CHECK, ["aaaa", "bbbb"]), (CONVERT, [])):
        done = tools(script, *arguments)
        assert done.returncode == 3
        assert "no result file" in done.stderr


@pytest.mark.parametrize("script", [CHECK, CONVERT])
def test_results_that_cannot_be_read_are_2(two_commits: AsvTree, tools: Tools, script: str) -> None:
    folder = "x" * 300  # longer than any file system's names
    done = tools(script, "--results", folder, *(["aaaa", "bbbb"] if script == CHECK else []))
    assert done.returncode == 2, done.stderr
    assert folder in done.stderr
    assert "Traceback" not in done.stderr


def test_selection_that_finds_nothing_is_3(two_commits: AsvTree, tools: Tools) -> None:
    assert tools(CHECK, "aaaa", "bbbb", "--benchmark", "no_such").returncode == 3


def test_hardware_mismatch_is_4_and_names_the_field(two_commits: AsvTree, tools: Tools) -> None:
    two_commits.run(B, {"rope.time_rope": 9.0}, machine={**MACHINE, "cpu": "AMD EPYC 9B14"})
    done = tools(CHECK, "aaaa", "bbbb")
    assert done.returncode == 4, done.stderr
    assert "hardware differs: cpu_name: AMD EPYC → AMD EPYC 9B14" in done.stdout


def test_a_baseline_is_not_replaced_by_less(two_commits: AsvTree, tools: Tools) -> None:
    assert tools(CONVERT, "--commit", "aaaa", "--out", "b.json").returncode == 0
    two_commits.run(B, {"rope.time_rope": 1.0})
    done = tools(CONVERT, "--commit", "bbbb", "--out", "b.json")
    assert done.returncode == 2
    assert "b.json: got results without 4 of its benchmarks" in done.stderr
    assert tools(CONVERT, "--commit", "bbbb", "--out", "b.json", "--replace").returncode == 0


def test_baseline_there_and_back(two_commits: AsvTree, tools: Tools, tmp_path: Path) -> None:
    done = tools(CONVERT, "--commit", "aaaa")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{BASELINE}: 5 benchmarks of aaaaaaaa on cpu-amd-epyc-zen4-2c\n"
    assert tools(CHECK, "--baseline", BASELINE, "aaaa").returncode == 0
    newest = tools(CHECK, "--baseline", BASELINE, "--format", "markdown")
    assert newest.returncode == 1, newest.stderr
    assert "| regression | matmul.track_tokens |" in newest.stdout
    two_commits.run(B, {"rope.time_rope": 1.0}, machine={**MACHINE, "num_cpu": "4"})
    assert tools(CHECK, "--baseline", BASELINE, "bbbb").returncode == 4


def test_baseline_of_nothing_is_3_and_keeps_the_old(
    two_commits: AsvTree, tools: Tools, tmp_path: Path
) -> None:
    assert tools(CONVERT, "--out", "b.json").returncode == 0
    before = (tmp_path / "b.json").read_bytes()
    two_commits.run(B, {"rope.time_rope": math.nan})
    done = tools(CONVERT, "--out", "b.json", "--commit", "bbbb")
    assert done.returncode == 3
    assert "nothing measured" in done.stderr
    assert (tmp_path / "b.json").read_bytes() == before


def test_baseline_of_an_unknown_machine_is_2(two_commits: AsvTree, tools: Tools) -> None:
    two_commits.run(B, {"rope.time_rope": 1.0}, machine={"machine": "box"})
    done = tools(CONVERT, "--commit", "bbbb")
    assert done.returncode == 2
    assert "register_machine.py" in done.stderr


@pytest.mark.parametrize("script", [CHECK, CONVERT, REGISTER])
def test_help(tools: Tools, script: str) -> None:
    done = tools(script, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout
    if script != REGISTER:
        assert "exit codes:" in done.stdout


def test_register_machine_keeps_the_others(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "machines.json"
    file.write_text('{"old": {"machine": "old"}, "version": 1}')
    done = tools(REGISTER, "--file", file)
    tag = hardware_tag()
    assert (done.returncode, done.stdout) == (0, f"{tag}\n")
    machines = json.loads(file.read_text())
    assert set(machines) == {"old", tag, "version"}
    assert machines[tag]["num_cpu"] == str(detect().cpu_count)
    assert tools(REGISTER, "--file", file, "--name", "mine").stdout == "mine\n"


def test_register_machine_with_a_broken_file_is_2(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "machines.json"
    file.write_text("{")
    done = tools(REGISTER, "--file", file)
    assert done.returncode == 2
    assert os.fspath(file) in done.stderr


def test_what_was_measured_under_load_is_known_where_it_was_kept(
    two_commits: AsvTree, tools: Tools, tmp_path: Path
) -> None:
    assert tools(CHECK, "aaaa", "bbbb", "--benchmark", "track_tokens").returncode == 1
    conditions = {"others_share": 0.9, "quota_throttled_share": None}
    write_report(tmp_path / "conditions" / B, "matmul.track_tokens", None, None, conditions)
    done = tools(CHECK, "aaaa", "bbbb", "--benchmark", "track_tokens")
    assert done.returncode == 3, done.stderr
    assert "cannot tell (other work took 90 % of the CPU time)" in done.stdout


def test_the_noise_of_this_hardware_is_known_and_another_can_be_named(
    two_commits: AsvTree, tools: Tools, tmp_path: Path
) -> None:
    label = "matmul.track_tokens"
    loud = {"unit": "tokens/s", "version": "1", "medians": [80.0, 100.0], "marked": 0}
    noise = {"version": 1, "benchmarks": {label: loud}}
    path = (tmp_path / BASELINE).with_name("noise.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(noise), encoding="utf-8")
    done = tools(CHECK, "aaaa", "bbbb", "--benchmark", label)
    assert done.returncode == 3, done.stderr  # the only one cannot be judged
    assert "cannot tell (runs of one commit differ by 25 %: measure both in turns)" in done.stdout
    (tmp_path / "quiet.json").write_text('{"version": 1, "benchmarks": {}}', encoding="utf-8")
    assert tools(CHECK, "aaaa", "bbbb", "--noise", "quiet.json").returncode == 1
    assert tools(CHECK, "aaaa", "bbbb", "--noise", "none.json").returncode == 2
    path.write_text("{", encoding="utf-8")
    assert tools(CHECK, "aaaa", "bbbb").returncode == 2


def test_thresholds_of_asvs_settings_count_unless_one_is_given(
    two_commits: AsvTree, tools: Tools, tmp_path: Path
) -> None:
    config = tmp_path / "asv.conf.json"
    config.write_text('{"version": 1, "regressions_thresholds": {".*track_": 0.3}} // x\n')
    assert tools(CHECK, "aaaa", "bbbb").returncode == 0
    shown = tools(CHECK, "aaaa", "bbbb").stdout
    assert "ok (threshold 30 %)" in shown
    assert tools(CHECK, "aaaa", "bbbb", "--threshold", "10").returncode == 1
    for text in ("{", '{"version": 1, "regressions_thresholds": {"(": 0.3}}'):
        config.write_text(text)
        done = tools(CHECK, "aaaa", "bbbb")
        assert done.returncode == 2
        assert "asv.conf.json" in done.stderr
        assert "Traceback" not in done.stderr
