"""`rocmforge bench run | gate`: refusals, and the whole way with the real asv on a tiny suite."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tiny_project import git, inside

from rocmforge.bench import head
from rocmforge.bench import project as project_module
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.cli import main
from rocmforge.bench.measure import Run
from rocmforge.bench.results import ResultSet
from rocmforge.cpu.backend import instruction_sets
from rocmforge.hardware import Hardware, hardware_tag

pytest.importorskip("asv")

ABSENT_SUITE = '''\
"""What this machine cannot run, and why."""


class Absent:
    params = [["a", "b", "c", "d"], ["cpu", "gpu"]]
    param_names = ["letter", "device"]

    def setup(self, letter, device):
        if device == "gpu":
            raise NotImplementedError("no GPU's: it is missing")

    def track_n(self, letter, device):
        print("said of what has a value: in no reason")
        return 1


def setup_alone():
    raise NotImplementedError("its inputs, (1), are far too large")


def track_alone():
    return 1


track_alone.setup = setup_alone
'''


@pytest.fixture(scope="module")
def first_run(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a project whose one commit was measured and is the baseline."""
    home = tmp_path_factory.mktemp("home")
    with inside(repo, home / "project"):
        assert main(["run", "--bench", r"^tiny\.track_ms", "--save-baseline"]) == 0
    return home


@pytest.fixture
def measured_project(repo: Path, first_run: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it."""
    shutil.copytree(first_run, tmp_path, symlinks=True, dirs_exist_ok=True)
    with inside(repo, tmp_path / "project"):
        yield tmp_path / "project"


def test_help_names_exit_codes_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for word in (
        "--profile",
        "--max-load",
        "bench gate",
        "--save-baseline",
        "exit codes",
        "ROCFORGE_TEST_MODEL",
    ):
        assert word in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bench", "("],
        ["--fool"],
        ["HEAD"],
        ["--profile", "fast"],
        ["--max-load", "101"],
        ["--max-load", "some"],
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_without_git_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(project_module.shutil, "which", lambda name: None)
    assert main(["run"]) == 2
    assert "git is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("initialized", [False, True])
def test_without_a_commit_it_says_what_to_do(
    tmp_path: Path,
    initialized: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if initialized:
        git(tmp_path, "init", "-q")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 2
    message = capsys.readouterr().err
    assert "no git repository with a commit" in message
    assert "git init and git commit" in message


def test_a_changed_tree_makes_no_baseline(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "new.py").touch()
    assert main(["run", "--save-baseline", "--bench", r"^tiny\."]) == 2
    assert "commit them before --save-baseline" in capsys.readouterr().err
    assert not (project / ".asv").exists()


def test_a_gate_fails_where_a_benchmark_of_the_baseline_has_no_value_now(
    measured_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = (measured_project / "baselines").glob("*/baseline.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    entry = json.loads(json.dumps(document["baselines"]["tiny.track_ms('cpu')"]))
    entry["name"] = "tiny.track_ms('gpu')"
    entry["metadata"]["params"] = {"device": "'gpu'"}
    document["baselines"]["tiny.track_ms('gpu')"] = entry
    path.write_text(json.dumps(document), encoding="utf-8")
    capfd.readouterr()
    assert main(["gate", "--bench", r"^tiny\.track_ms"]) == 3
    shown = capfd.readouterr().out
    assert "none to compare it with now: tiny.track_ms('gpu')" in shown
    assert "gate      FAIL: benchmarks that were measured before are missing or not" in shown
    assert main(["gate", "--bench", r"^tiny\.track_ms.*cpu"]) == 0


def test_the_whole_way(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figure = project / "benchmarks" / "figure.txt"
    baseline = project / "baselines" / hardware_tag() / "baseline.json"

    assert main(["gate", "--bench", r"^tiny\.track_ms"]) == 3
    assert "rocmforge bench gate: no baseline for this machine" in capfd.readouterr().err
    assert main(["run", "--bench", r"^tiny\.track_ms", "--save-baseline"]) == 0
    shown = capfd.readouterr().out
    none = f"no baseline for this machine ({hardware_tag()}) yet: "
    assert f"baseline  {none}rocmforge bench run --profile full --save-baseline stores one" in shown
    assert "tiny\n  track_ms cpu" in re.sub(r" +\n", "\n", shown)
    assert "2.004 ms" in shown
    stored = load_baseline(baseline)
    assert [r.label for r in stored.results] == ["tiny.track_ms('cpu')"]
    assert str(project) not in baseline.read_text(encoding="utf-8")
    assert sys.executable not in baseline.read_text(encoding="utf-8")
    assert stored.results[0].summary is not None
    assert stored.results[0].summary.iterations == 9
    assert stored.hardware.python_version is not None
    assert (project / ".asv" / "html" / "index.json").is_file()
    assert not (project / "results").exists()
    local = Path(".asv", "baselines", hardware_tag(), "baseline.json")
    assert f"as JSON   {local}\n          this run alone; later runs are not compared" in shown

    figure.write_text("2.4", encoding="utf-8")
    assert main(["run", "--bench", r"^tiny\."]) == 1
    shown = capfd.readouterr().out
    assert "+20.0 % regression" in shown
    assert "failed    tiny.track_broken" in shown
    assert "wrong result on purpose" in shown
    assert "has changes on top" in shown
    left = project / ".asv" / "baselines" / hardware_tag() / "baseline.json"
    assert (stored.uncommitted_changes, load_baseline(left).uncommitted_changes) == (False, True)
    measured = ResultsDirectory(project / ".asv" / "results", hardware_tag())
    assert len(measured.files()) == 1

    assert main(["gate", "--bench", r"^tiny\.track_ms"]) == 1
    assert "gate      FAIL: regression (exit 1): 1 regression" in capfd.readouterr().out


def test_a_failed_benchmark_leaves_the_gate_its_verdict_and_has_a_reason(
    measured_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = measured_project
    path = project / "benchmarks" / "figure.txt"
    path.write_text("2.4", encoding="utf-8")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "slower")
    capfd.readouterr()
    report = project / ".asv" / "gate.json"
    assert main(["gate", "--no-confirm", "--bench", r"^tiny\.", "--json", str(report)]) == 1
    shown = capfd.readouterr().out
    assert "failed    tiny.track_broken: ValueError: wrong result on purpose\n" in shown
    assert "track_ms('cpu'): regression → regression at ratio 1.200 (1.19" in shown
    assert "gate      FAIL: regression (exit 1): 1 regression, 1 failed" in shown
    assert json.loads(report.read_text(encoding="utf-8"))["exit_code"] == 1

    path.write_text("2.0", encoding="utf-8")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "as fast")
    assert main(["gate", "--no-confirm", "--bench", r"^tiny\.", "--json", str(report)]) == 1
    assert "gate      FAIL: failed benchmarks (exit 1): 1 failed, " in capfd.readouterr().out
    assert json.loads(report.read_text(encoding="utf-8"))["exit_code"] == 1

    assert main(["gate", "--bench", "track_broken"]) == 1
    shown = capfd.readouterr().out
    assert "gate      FAIL: failed benchmarks (exit 1): 1 failed; " in shown
    assert "as JSON" not in shown


def test_what_is_not_available_has_its_reason(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "benchmarks" / "absent.py").write_text(ABSENT_SUITE, encoding="utf-8")
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "absent")
    assert main(["run", "--bench", r"^(absent|tiny\.track_ms)"]) == 0
    shown = capfd.readouterr().out
    assert "n/a       no GPU's: it is missing: absent.Absent.track_n('a', 'gpu'), " in shown
    assert (
        "absent.Absent.track_n('b', 'gpu'), absent.Absent.track_n('c', 'gpu') and 1 more" in shown
    )
    assert "n/a       it gave no number: tiny.track_ms('gpu')\n" in shown
    assert "n/a       its inputs, (1), are far too large: absent.track_alone\n" in shown
    assert re.search(r"track_n +a gpu +n/a", shown)
    assert "skipped" not in shown
    assert "For parameters" not in shown

    assert main(["run", "--bench", "absent.*gpu"]) == 3
    said = capfd.readouterr()
    assert "nothing measured: no benchmark has a value here\n  n/a: no GPU's: it is" in said.err


def test_a_run_under_an_override_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    card = Hardware(gpu_name="RX 6700 XT", gpu_architecture="gfx1030", gfx_override="10.3.0")
    found = ResultSet(Path("r.json"), "box", "a" * 40, None, "env", card, ())
    head._print_notes(Run(found, [], "box", *[Path()] * 3), head.plain_console())
    said = capsys.readouterr().out
    assert said == "note      HSA_OVERRIDE_GFX_VERSION=10.3.0: compared with its like alone\n"


@pytest.mark.slow
def test_a_baseline_of_other_hardware_is_one_sentence_with_the_field(
    measured_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--bench", r"^tiny\.track_ms.*cpu"]
    (path,) = (measured_project / "baselines").glob("*/baseline.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    for hardware in (
        document["metadata"]["hardware"],
        *(e["hardware"] for e in document["baselines"].values()),
    ):
        hardware["cpu_count"] = 4096
    path.write_text(json.dumps(document), encoding="utf-8")
    capfd.readouterr()
    assert main(["run", *chosen]) == 0
    shown = capfd.readouterr().out
    (line,) = (line for line in shown.splitlines() if "4096" in line)
    assert re.search(r"baseline +baselines/.*: not compared: cpu_count: 4096 → \d+$", line)
    assert "hardware mismatch" not in shown
    assert "--save-baseline stores this one's" in shown
    assert main(["gate", *chosen]) == 4


def test_a_baseline_is_not_replaced_by_less(
    measured_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = measured_project
    arguments = ["--bench", r"^tiny\.track_ms", "--save-baseline"]
    (path,) = (project / "baselines").glob("*/baseline.json")
    text = path.read_text(encoding="utf-8").replace("track_ms", "track_other")
    path.write_text(text, encoding="utf-8")
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "more")
    capfd.readouterr()
    assert main(["run", *arguments]) == 2
    assert "without 1 of its benchmarks (tiny.track_other" in capfd.readouterr().err
    assert path.read_text(encoding="utf-8") == text
    assert main(["run", *arguments, "--replace"]) == 0


SLOW = '''\
"""Says that it runs, and is never done."""

import os
import time
from pathlib import Path


def track_ms():
    Path(__file__).with_name("slow.pid").write_text(str(os.getpid()))
    time.sleep(600)
'''
RUN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_what_was_measured_before_an_interruption_is_kept_and_nothing_goes_on(
    repo: Path, project: Path, number: signal.Signals
) -> None:
    (project / "benchmarks" / "zz_slow.py").write_text(SLOW, encoding="utf-8")
    begin = RUN + "from rocmforge.__main__ import main; sys.exit(main())"
    said = project / "said.txt"
    with (
        said.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", begin, "bench", "run", "--bench", r"^(tiny\.track_ms|zz_slow)"],
            cwd=project,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(repo)},
            start_new_session=True,
        ) as process,
    ):
        marker = project / "benchmarks" / "slow.pid"
        for _ in range(600):
            if process.poll() is not None or (marker.exists() and marker.read_text()):
                break
            time.sleep(0.1)
        assert process.poll() is None, said.read_text()
        process.send_signal(number)
        assert process.wait(60) == 130, said.read_text()
    assert "interrupted; suites that were finished are kept" in said.read_text()
    assert "Traceback" not in said.read_text()
    results = ResultsDirectory(project / ".asv" / "uncommitted" / "results", hardware_tag())
    found = results.load(results.newest())
    assert {r.label for r in found.results if r.value is not None} == {"tiny.track_ms('cpu')"}
    with contextlib.suppress(psutil.NoSuchProcess):  # asv does not wait for what its server forked
        psutil.Process(int(marker.read_text())).wait(10)


def test_nothing_measured_is_no_success(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--bench", r"^tiny\.track_broken"]) == 1
    assert "failed    tiny.track_broken: ValueError" in capfd.readouterr().out
    assert main(["run", "--bench", r"^tiny\.track_broken", "--save-baseline"]) == 3
    assert "nothing measured" in capfd.readouterr().err


def test_no_benchmark_selected_is_an_error(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--bench", "no such name"]) == 2
    said = capfd.readouterr()
    assert "--bench: got no such name, found in no name of a benchmark" in said.err
    assert not (project / ".asv").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ROCMFORGE_THREADS", "abc", "ROCMFORGE_THREADS: got 'abc', wanted 1 to"),
        ("ROCMFORGE_CPU_ISA", "sse4", "ROCMFORGE_CPU_ISA: got 'sse4', wanted one of"),
        ("ROCMFORGE_CPU_EXACT", "1", "environment: got ROCMFORGE_CPU_EXACT=1, wanted none"),
        ("ROCMFORGE_CPU_BF16", "1", "environment: got ROCMFORGE_CPU_BF16=1, wanted none"),
        ("ROCMFORGE_DEVICE", "tpu", "ROCMFORGE_DEVICE: got 'tpu', wanted one of"),
        ("ROCFORGE_TEST_MODEL", "no/such.gguf", "ROCFORGE_TEST_MODEL: got no/such.gguf, wanted a"),
        ("ROCMFORGE_TEST_MODEL", __file__, f"ROCMFORGE_TEST_MODEL: got {__file__}, wanted a GGUF"),
    ],
)
def test_a_wrong_environment_is_said_once_before_anything_is_made(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["run", "--bench", r"^tiny\."]) == 2
    said = capfd.readouterr()
    assert said.err.count("error") == 1
    assert message in said.err
    assert not (project / ".asv").exists()


@pytest.mark.skipif(instruction_sets()[0] == "portable", reason="portable is the best here")
def test_results_of_another_instruction_set_are_not_kept_as_the_best_ones(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "portable")
    assert main(["run", "--bench", r"^tiny\."]) == 2
    assert "environment: got ROCMFORGE_CPU_ISA=portable, wanted none" in capfd.readouterr().err
    assert not (project / ".asv").exists()
