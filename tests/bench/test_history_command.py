"""The history tool and what it shows: exit codes, formats, figures, commands that bisect."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from asv_tree import Bench, report
from history_tree import PLAIN, WHO, HistoryTree, noisy

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.documents import history_to_markdown
from rocmforge.bench.findings import State, bisect_command, exit_code, judge
from rocmforge.bench.history import History, read_history
from rocmforge.bench.noise import Noise
from rocmforge.bench.plots import history_plots
from rocmforge.bench.results import Direction
from rocmforge.bench.worsening import Kind

pytest.importorskip("scipy")
COUNT = 24


@pytest.fixture
def branch(tmp_path: Path) -> HistoryTree:
    tree = HistoryTree(tmp_path, COUNT)
    tree.benchmark("rope.track_us", "us")
    tree.benchmark("decode.track_rate", "tokens/s")
    return tree


def stepped(*factors: tuple[int, float]) -> list[float]:
    values = noisy(COUNT)
    for at, factor in factors:
        values[at:] *= factor
    return [float(value) for value in values]


def history_of(tree: HistoryTree) -> History:
    return read_history(ResultsDirectory(tree.results), tree.commits)


def shown(bench: Bench, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = bench("history", "--format", "json", *arguments)
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == code
    return document


def test_a_step_that_stands_is_named(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((16, 1.3)), "decode.track_rate": stepped((16, 1.3))})
    document = shown(bench, code=1)  # a throughput that rises is no regression
    (one,) = document["findings"]
    assert (one["benchmark"], one["kind"], one["state"]) == (
        "rope.track_us",
        "change point",
        "stands",
    )
    assert (one["last_good"], one["first_bad"]) == (branch.commits[15], branch.commits[16])
    assert one["factor"] == pytest.approx(1.3, abs=0.02)
    assert one["factor_low"] < one["factor"] < one["factor_high"]
    assert one["before"]["low"] < one["before"]["median"] < one["before"]["high"]
    assert (one["before"]["commits"], one["after"]["commits"]) == (16, 8)
    table = bench("history")
    assert table.returncode == 1
    assert "FAIL: got worse (exit 1): 1 × change point, stands" in table.stdout
    assert f"{branch.commits[15][:8]} … {branch.commits[16][:8]}" in table.stdout


def test_a_throughput_that_falls_is_worse(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"decode.track_rate": stepped((12, 0.8))})
    (one,) = shown(bench, code=1)["findings"]
    assert one["factor"] == pytest.approx(1.25, abs=0.02)
    assert one["after"]["median"] < one["before"]["median"]
    assert one["direction"] == "higher"


def test_what_was_mended_passes_and_comes_last(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((8, 1.5), (16, 1 / 1.5))})
    (one,) = shown(bench)["findings"]
    assert (one["state"], one["mended"]) == ("mended", branch.commits[16])
    branch.measure(
        {
            "rope.track_us": stepped((8, 1.5), (16, 1 / 1.5)),
            "decode.track_rate": stepped((12, 0.8)),
        }
    )
    assert [one["state"] for one in shown(bench, code=1)["findings"]] == ["stands", "mended"]


def test_a_drift_is_one_finding(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped(*((at, 1.02) for at in range(5, 18)))})
    (one,) = shown(bench, code=1)["findings"]
    assert one["kind"] == "drift"
    assert one["factor"] > 1.2


def test_no_step_across_a_change_of_the_benchmark(branch: HistoryTree, bench: Bench) -> None:
    for position, value in enumerate(stepped((12, 1.5))):
        version = "old" if position < 12 else "new"
        branch.run(branch.commits[position], {"rope.track_us": value}, version=version)
    assert shown(bench)["findings"] == []


def test_what_a_former_version_showed_does_not_fail(branch: HistoryTree, bench: Bench) -> None:
    for position, value in enumerate(stepped((8, 1.5))):
        version = "old" if position < 16 else "new"
        branch.run(branch.commits[position], {"rope.track_us": value}, version=version)
    (one,) = shown(bench)["findings"]
    assert one["state"] == "benchmark changed since"


def test_gaps_widen_the_range(branch: HistoryTree, bench: Bench) -> None:
    values: list[Any] = stepped((12, 1.3))
    values[11], values[12], values[13] = None, float("nan"), ...
    branch.measure({"rope.track_us": values})
    (one,) = shown(bench, code=1)["findings"]
    assert (one["last_good"], one["first_bad"]) == (branch.commits[10], branch.commits[14])
    span = f"{branch.commits[10][:12]}~1..{branch.commits[14][:12]}"
    assert shlex.split(one["command"]) == [
        *("asv", "find", "--machine", "box", span, r"^rope\.track_us$")
    ]


def test_thresholds_are_those_of_the_gate(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((12, 1.2))})
    assert shown(bench, "--threshold", "25")["findings"] == []
    assert len(shown(bench, "--threshold", "15", code=1)["findings"]) == 1
    config = '{"version": 1, "regressions_thresholds": {".*": 0.1, "rope": 0.3}} // asv'
    (branch.root / "asv.conf.json").write_text(config)
    assert shown(bench)["findings"] == []
    assert len(shown(bench, "--threshold", "15", code=1)["findings"]) == 1


def test_known_noise_of_this_code_holds_back(branch: HistoryTree) -> None:
    branch.measure({"rope.track_us": stepped((22, 1.3))})
    history = history_of(branch)
    assert len(judge(history)) == 1
    loud = Noise("us", "1", (1.0, 2.0), 0)
    assert judge(history, noise={"rope.track_us": loud}) == []
    assert len(judge(history, noise={"rope.track_us": Noise("us", "2", (1.0, 2.0), 0)})) == 1
    assert len(judge(history, noise={"rope.track_us": Noise("ms", "1", (1.0, 2.0), 0)})) == 1


def beside(branch: HistoryTree, rates: list[float], **more: Any) -> None:
    """Report for each commit how fast the machine read memory."""
    for position, rate in enumerate(rates):
        reference = {"read_gb_per_second": [rate], "square_roots_per_ns": [1.0]}
        file = branch.result_file(position)
        report(file, "rope.track_us", None, None, {}, reference=reference, **more)


def test_a_step_of_the_machine_itself_is_no_verdict(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((12, 1.3))})
    beside(branch, [45.0] * 12 + [33.0] * (COUNT - 12))
    (one,) = shown(bench)["findings"]
    assert one["state"] == "cannot tell"
    assert one["note"] == "the machine itself read memory at 45 GB/s then and 33 GB/s now"
    assert "cannot tell (the machine itself read memory" in bench("history").stdout


def test_a_step_on_a_machine_that_is_as_fast_stands(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((12, 1.3))})
    beside(branch, [45.0, 44.0] * (COUNT // 2))
    (one,) = shown(bench, code=1)["findings"]
    assert (one["state"], one["note"]) == ("stands", "")


def test_a_step_between_days_without_a_reference_is_no_verdict(
    branch: HistoryTree, bench: Bench
) -> None:
    for position, value in enumerate(stepped((12, 1.3))):
        date = 1_700_000_000_000 + 86_400_000 * (position >= 12)
        branch.run(branch.commits[position], {"rope.track_us": value}, date=date)
    (one,) = shown(bench)["findings"]
    assert one["state"] == "cannot tell"
    assert one["note"].startswith("measured 24 hours apart")


def test_a_kind_of_noisy_processes_holds_a_step_back(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((22, 1.3))})
    assert len(shown(bench, code=1)["findings"]) == 1
    for median in (1.0, 2.0):
        beside(branch, [45.0] * COUNT, median=median)
    assert shown(bench)["findings"] == []


def test_counts_that_begin_at_zero(branch: HistoryTree, bench: Bench) -> None:
    branch.benchmark("kernels.track_spills", "registers")
    branch.measure({"kernels.track_spills": [0.0] * 23 + [3.0]})
    (one,) = shown(bench, code=1)["findings"]
    assert (one["factor"], one["factor_low"], one["factor_high"]) == (None, None, None)
    assert one["last_good"] == branch.commits[22]
    assert "inf" in bench("history").stdout


@pytest.mark.parametrize("measured", [1, 3])
def test_too_few_commits_are_nothing_to_judge(
    branch: HistoryTree, bench: Bench, measured: int
) -> None:
    branch.measure({"rope.track_us": [1.0] * measured + [...] * (COUNT - measured)})
    done = bench("history")
    assert done.returncode == 3
    assert (
        f"no benchmark has more than {measured} measured commits, wanted at least 4" in done.stderr
    )


def test_no_results_are_nothing_to_judge(branch: HistoryTree, bench: Bench) -> None:
    done = bench("history")
    assert done.returncode == 3
    assert "nothing measured" in done.stderr


def test_broken_input_is_named(branch: HistoryTree, bench: Bench) -> None:
    paths = branch.measure({"rope.track_us": stepped()})
    paths[5].write_text(paths[5].read_text()[:100])
    done = bench("history")
    assert done.returncode == 2
    assert paths[5].name in done.stderr
    for wrong in (["--branch", "nowhere"], ["--threshold", "0"], ["--bench", "("]):
        assert bench("history", *wrong).returncode == 2
    assert bench("history", "--results", "nowhere").returncode == 2
    assert bench("history", "--figure", "a.gif").returncode == 2


def test_equal_values_pass(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": [7.0] * COUNT})
    assert shown(bench)["findings"] == []
    assert (
        "PASS: nothing worse at the newest commit (exit 0): no change point"
        in bench("history").stdout
    )


def test_since_cuts_the_history_off(branch: HistoryTree, bench: Bench) -> None:
    branch.measure({"rope.track_us": stepped((8, 1.3))})
    assert len(shown(bench, code=1)["findings"]) == 1
    assert shown(bench, "--since", branch.commits[10])["findings"] == []


def test_markdown_keeps_its_cells(branch: HistoryTree, bench: Bench) -> None:
    branch.benchmark("größe.track_µs", "us", {"a": ["'x|y'<b>@team\x1b[31m"]})
    branch.measure({"größe.track_µs": [[value] for value in stepped((12, 1.3))]})
    done = bench("history", "--format", "markdown")
    assert done.returncode == 1
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("| 1 "))
    assert r"größe.track_µs('x\|y'&lt;b&gt;@&#8203;team" in row
    assert "\x1b" not in done.stdout
    assert row.replace("\\|", "").count("|") == 11
    assert done.stdout.count("```") == 2


def test_commands_name_direction_root_and_configuration(branch: HistoryTree) -> None:
    values: list[Any] = stepped((4, 0.7))
    values[1:4] = [..., ..., ...]
    values[0] = values[5] / 0.7
    branch.measure({"decode.track_rate": values})
    branch.measure({"rope.track_us": stepped((12, 1.3))}, environment="py")
    results = ResultsDirectory(branch.results)
    history = read_history(results, branch.commits, "virtualenv-py3.11")
    finding = judge(read_history(results, branch.commits, "py"))[0]
    again = bisect_command(finding, history)
    good, bad = branch.commits[11][:12], branch.commits[12][:12]
    assert again.startswith(f"rocmforge bench confirm {good} {bad} --bench")
    root = dataclasses.replace(
        finding,
        good=0,
        bad=5,
        series=dataclasses.replace(finding.series, direction=Direction.HIGHER),
    )
    words = shlex.split(bisect_command(root, history, Path(".asv/asv.conf.json")))
    assert words[:4] == ["asv", "--config", ".asv/asv.conf.json", "find"]
    assert words[4:7] == ["--machine", "box", "--invert"]
    first, last = branch.commits[0][:12], branch.commits[5][:12]
    assert words[7] == f"{last} --not {first}^@"
    listed = branch.git("rev-list", "--reverse", *shlex.split(words[7])).split()
    assert listed == branch.commits[:6]


def test_findings_stand_first_and_worst_first(branch: HistoryTree) -> None:
    branch.benchmark("a.track_us", "us")
    branch.measure(
        {
            "a.track_us": stepped((12, 1.2)),
            "rope.track_us": stepped((12, 1.5)),
            "decode.track_rate": stepped((6, 0.4), (12, 2.5)),
        }
    )
    findings = judge(history_of(branch))
    assert [one.series.name for one in findings] == [
        *("rope.track_us", "a.track_us", "decode.track_rate")
    ]
    assert [one.state for one in findings] == [State.STANDS, State.STANDS, State.MENDED]
    assert {one.kind for one in findings} == {Kind.CHANGE_POINT}
    assert exit_code(findings) == 1
    assert exit_code(findings[2:]) == 0
    assert history_to_markdown(findings[2:], history_of(branch)).startswith("**PASS")


def test_figures_show_values_levels_and_marks(branch: HistoryTree, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    branch.measure({"rope.track_us": stepped((12, 1.3)), "decode.track_rate": stepped()})
    history = history_of(branch)
    findings = judge(history)
    whole = tmp_path / "new" / "history.svg"
    assert history_plots(history, findings, whole) == [whole]
    text = whole.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert text.index("<!-- rope.track_us -->") < text.index("<!-- decode.track_rate -->")
    for words in (
        "µs (lower is better)",
        "tokens/s (higher is better)",
        "change point × 1.30, stands",
    ):
        assert f"<!-- {words} -->" in text
    folder = history_plots(history, findings, tmp_path / "each")
    assert [path.name for path in folder] == ["rope.track_us.svg", "decode.track_rate.svg"]
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        (path,) = history_plots(history, findings, tmp_path / f"h{suffix}")
        assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match="wanted a folder or one of"):
        history_plots(history, findings, tmp_path / "h.gif")


def test_the_figure_of_the_tool(branch: HistoryTree, bench: Bench) -> None:
    pytest.importorskip("matplotlib")
    branch.measure({"rope.track_us": stepped()})
    assert bench("history", "--figure", "figures").returncode == 0
    assert (branch.root / "figures" / "rope.track_us.svg").exists()


CONFIG = """\
{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"],
 "environment_type": "virtualenv", "benchmark_dir": "benchmarks", "results_dir": "results",
 "env_dir": "env", "build_command": [], "uninstall_command": [],
 "install_command": ["python {conf_dir}/link.py {build_dir} %s"]}
"""
LINK = """\
import sys, sysconfig
from pathlib import Path
Path(sysconfig.get_path("purelib"), "tiny.pth").write_text("\\n".join(sys.argv[1:]) + "\\n")
"""
SUITE = """\
from tiny import STEPS

def track_us(op):
    return STEPS[op]

track_us.params = [["rope", "matmul"]]
track_us.param_names = ["op"]
track_us.unit = "us"

def track_rate():
    return 1e6 / STEPS["matmul"]

track_rate.unit = "tokens/s"
"""


@pytest.mark.slow
def test_asv_finds_the_commit_by_the_printed_commands(tmp_path: Path, bench: Bench) -> None:
    pytest.importorskip("asv")
    pytest.importorskip("virtualenv")
    environment = {**os.environ, **WHO, **PLAIN, "HOME": str(tmp_path)}

    def call(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    (tmp_path / "asv.conf.json").write_text(CONFIG % sysconfig.get_path("purelib"))
    (tmp_path / "link.py").write_text(LINK)
    for folder in ("tiny", "benchmarks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "suite.py").write_text(SUITE)
    call("git", "init", "-q", "-b", "main", ".")
    commits = []
    for number in range(9):
        steps = 1250 if number >= 4 else 1000
        source = f"STEPS = {{'rope': 1000, 'matmul': {steps}}}  # {number}\n"
        (tmp_path / "tiny" / "__init__.py").write_text(source)
        call("git", "add", "-A", "tiny")
        call("git", "commit", "-q", "-m", f"commit {number}")
        commits.append(call("git", "rev-parse", "HEAD"))
    machine = bench("machine", "--file", tmp_path / ".asv-machine.json").stdout.strip()
    asv = (sys.executable, "-m", "asv")
    (tmp_path / "measured").write_text("\n".join([*commits[:2], *commits[6:]]) + "\n")
    call(*asv, "run", "--machine", machine, "HASHFILE:measured")
    done = bench("history", "--format", "json")
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert [one["benchmark"] for one in findings] == [
        "suite.track_rate",
        "suite.track_us('matmul')",
    ]
    for one in findings:
        assert (one["last_good"], one["first_bad"]) == (commits[1], commits[6])
        said = call(*asv, *shlex.split(one["command"])[1:])
        assert f"found: {commits[4][:8]}" in said.splitlines()[-1]
