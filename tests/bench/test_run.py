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
from typing import Any

import psutil
import pytest

from rocmforge.bench import arguments, head, measure, other_work
from rocmforge.bench import project as project_module
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.cli import main
from rocmforge.bench.measure import Run
from rocmforge.bench.reports import read_reports
from rocmforge.bench.results import ResultSet
from rocmforge.bench.tables import MARK_LEGEND
from rocmforge.cpu.backend import instruction_sets
from rocmforge.hardware import Hardware, hardware_tag

pytest.importorskip("asv")

SHARED = (
    *("__init__", "asv_process", "checks", "devices", "models", "prepare"),
    *("recording", "reference", "samples"),
)
"""Modules of our benchmarks that have no benchmark."""

STEADY = """

def _best(call):  # the machine's own speed decides no test
    call()
    return 1e-3
"""

SUITE = '''\
"""Reads its figures from a file, so that a test can change them."""

from pathlib import Path

FIGURE = Path(__file__).with_name("figure.txt")


def track_ms(device):
    if device == "gpu":
        return float("nan")
    return {"samples": [float(FIGURE.read_text()) + i / 1000 for i in range(9)], "number": 1}


track_ms.params = [["cpu", "gpu"]]
track_ms.param_names = ["device"]
track_ms.unit = "ms"


def track_broken():
    raise ValueError("wrong result on purpose")
'''


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


CHECKED_SUITE = '''\
"""A time with a check before it, a size, and a check that fails."""

import numpy as np

from rocmforge.timing import seconds_per_call

from .checks import checked
from .samples import track

SIZES = (1, 50_000)


class Spin:
    params = (SIZES,)
    param_names = ("size",)

    def setup(self, size):
        checked("numbers", lambda: np.array([1.0, 1.001 if size > 1 else 1.0]), np.ones(2), 0.01)

    def track_ms(self, size):
        return track([1e3 * s for s in seconds_per_call(lambda: sum(range(size)), fewest=8)])

    def track_bytes(self, size):
        return size

    track_ms.unit = "ms"
    track_bytes.unit = "bytes"


def track_wrong_ms():
    checked("wrong numbers", lambda: np.zeros(2), np.ones(2), 0.01)
    return 1.0


track_wrong_ms.unit = "ms"
'''


@pytest.fixture
def prepare(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/prepare.py of this repository."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return project_module.preparation(repo)


def make_project(repo: Path, root: Path) -> None:
    """Write a repository with our asv.conf.json, a tiny suite and one commit.

    The suite stands on what ours share.
    """
    (root / "benchmarks").mkdir(parents=True)
    shutil.copy(repo / "asv.conf.json", root)
    shutil.copy(repo / ".gitignore", root)
    for name in SHARED:
        shutil.copy(repo / "benchmarks" / f"{name}.py", root / "benchmarks")
    with (root / "benchmarks" / "reference.py").open("a", encoding="utf-8") as file:
        file.write(STEADY)
    (root / "benchmarks" / "tiny.py").write_text(SUITE, encoding="utf-8")
    (root / "benchmarks" / "figure.txt").write_text("2.0", encoding="utf-8")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")


@contextlib.contextmanager
def inside(repo: Path, root: Path) -> Iterator[None]:
    """Work in a project, made if it is not there; the folder above is home.

    Its suites are `benchmarks`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root.parent))
        patch.delenv("COLUMNS", raising=False)  # the wide tables, also where pytest sets it
        for key in [key for key in os.environ if key.startswith("GIT_")]:
            patch.delenv(key)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        if not root.exists():
            make_project(repo, root)
        patch.chdir(root)
        patch.setattr(arguments, "OTHERS_LIMIT", 1.0)  # what else runs here decides no test
        patch.syspath_prepend(root)
        repos = {name: sys.modules.pop(name) for name in imported_suites()}
        try:
            yield
        finally:
            for name in imported_suites():
                del sys.modules[name]
            sys.modules.update(repos)


@pytest.fixture
def project(repo: Path, tmp_path: Path) -> Iterator[Path]:
    """A project where nothing was measured yet."""
    with inside(repo, tmp_path / "project"):
        yield tmp_path / "project"


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


@pytest.fixture
def checked_project(project: Path) -> Path:
    """The project with a suite that checks its results."""
    (project / "benchmarks" / "checked.py").write_text(CHECKED_SUITE, encoding="utf-8")
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "second")
    return project


def imported_suites() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Processes that keep every CPU busy, three on each."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * len(os.sched_getaffinity(0)))
    ]
    yield
    for process in spinning:
        process.kill()
        process.wait()


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)


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


def test_head_knows_a_changed_tree(project: Path) -> None:
    commit, dirty = project_module.head(project)
    assert (len(commit), dirty) == (40, False)
    (project / "new.py").touch()
    assert project_module.head(project) == (commit, True)


def test_a_changed_tree_makes_no_baseline(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "new.py").touch()
    assert main(["run", "--save-baseline", "--bench", r"^tiny\."]) == 2
    assert "commit them before --save-baseline" in capsys.readouterr().err
    assert not (project / ".asv").exists()


def test_selections(prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import devices, models

    monkeypatch.setattr(devices, "has_device", lambda device: False)
    assert prepare.select(["a", "b"], "quick") == ["a", "b"]
    assert prepare.select([], "full") == [prepare.NO_GPU]
    quick = prepare.select([], "quick")
    assert r"attention.Prefill.time_attention\('512x8x64', 'cpu'\)" in quick
    assert not any("<" in pattern or pattern.startswith("#") for pattern in quick)
    monkeypatch.setattr(models, "USER_MODEL", Path("my model (1).gguf"))
    mine = prepare.select([], "quick")
    assert any(r"my\ model\ \(1\)" in pattern for pattern in mine)
    monkeypatch.setattr(devices, "has_device", lambda device: True)
    assert prepare.select([], "full") == [".*"]
    assert any("'(cpu|gpu)'" in pattern for pattern in prepare.select([], "quick"))
    assert any("'(cpu|gpu)'" in pattern for pattern in prepare.select([], "standard"))


def test_a_long_profile_is_measured_suite_by_suite(prepare: Any) -> None:
    labels = ["a.time_x('Q4_K', 'cpu')", "a.time_x('Q4_K', 'gpu')", "b.track_y", "a.b.time_z(1)"]
    for selection in ([prepare.NO_GPU], [r"time_.\(", "track_y"], [r"^a\.", "^b"]):
        chosen = [x for x in labels if any(re.search(line, x) for line in selection)]
        batches = project_module.by_suite(selection, chosen)
        assert len(batches) == len({label.partition(".")[0] for label in chosen})
        found = [
            x for batch in batches for x in labels if any(re.search(line, x) for line in batch)
        ]
        assert sorted(found) == sorted(chosen)


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


def test_labels_are_what_asv_searches(repo: Path, prepare: Any) -> None:
    labels = project_module.labels(repo)
    assert labels["dequantize.Size.track_bits_per_weight('F16')"] == (
        "dequantize.Size.track_bits_per_weight",
        1,
    )
    assert "matmul.Quantized.time_matmul('Q4_K', 128, 'cpu')" in labels
    assert "memory.KVPerToken.track_kv_bytes_per_token('70B')" in labels


def test_committed_results_join_and_own_ones_stay(project: Path) -> None:
    committed = project / "results" / "box"
    committed.mkdir(parents=True)
    (committed / "machine.json").write_text("committed", encoding="utf-8")
    (committed / "0a0a0a0a-env.json").write_text("committed", encoding="utf-8")
    git(project, "add", "-A")
    own = project / ".asv" / "results" / "box" / "machine.json"
    own.parent.mkdir(parents=True)
    own.write_text("own", encoding="utf-8")
    project_module.write_config(project, project / ".asv")
    path = project / ".asv" / "asv.conf.json"
    assert own.read_text(encoding="utf-8") == "own"
    assert own.with_name("0a0a0a0a-env.json").read_text(encoding="utf-8") == "committed"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("repo", "benchmark_dir"):
        assert (path.parent / config[key]).is_dir()
    assert config["results_dir"] == "results"
    assert config["regressions_first_commits"]


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


def test_results_that_asv_left_are_no_change_of_the_code(project: Path) -> None:
    left = project / "results" / "box" / "0a0a0a0a-env.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}", encoding="utf-8")
    (project / "baselines").mkdir()
    (project / "baselines" / "new.json").touch()
    assert project_module.head(project)[1] is False
    project_module.write_config(project, project / ".asv")
    assert not (project / ".asv" / "results" / "box").exists()


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


def measured(project: Path) -> dict[str, Any]:
    """Return what the local baseline says of each benchmark beside its metrics."""
    path = project / ".asv" / "baselines" / hardware_tag() / "baseline.json"
    stored = json.loads(path.read_text(encoding="utf-8"))["baselines"]
    return {label: entry["metadata"] for label, entry in stored.items()}


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    "command", [["gate"], pytest.param(["run", "--save-baseline"], marks=pytest.mark.slow)]
)
def test_a_busy_machine_is_refused_before_anything_is_measured(
    checked_project: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    begin = time.monotonic()
    assert main([*command, "--bench", r"^checked\.Spin", "--max-load", "20"]) == 3
    assert time.monotonic() - begin < 15
    said = capfd.readouterr().err
    assert re.search(
        r"other work takes \d+ % of the CPU time or more \(limit 20 %, --max-load\)", said
    )
    assert "nothing was measured yet: stop what else runs on this machine" in said
    assert not list((checked_project / ".asv" / "results").glob("*/*.json"))


def test_a_burst_at_the_start_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.8, 0.1])
    monkeypatch.setattr(other_work, "others_share", lambda: next(shares))
    other_work.refuse_busy(0.2)
    assert next(shares, None) is None


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_a_planted_load_marks_what_it_slows_and_refuses_the_run(
    checked_project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "refuse_busy", lambda limit: None)  # it comes a moment later
    arguments = ["--bench", r"^checked\.Spin", "--max-load", "20", "--save-baseline"]
    assert main(["run", *arguments]) == 3
    said = capfd.readouterr()
    assert "2 of 2 timed benchmarks were disturbed by other work" in said.err
    assert "% of the CPU time" in said.err
    assert "stop what else runs" in said.err
    assert MARK_LEGEND in said.out
    assert re.search(r"Spin\.track_ms +50000 +! \d", said.out)
    assert re.search(r"Spin\.track_bytes +50000 +\d", said.out)  # a size has no mark
    assert not (checked_project / "baselines").exists()
    found = measured(checked_project)
    assert "other work took" in found["checked.Spin.track_ms(50000)"]["marked"]
    assert found["checked.Spin.track_ms(50000)"]["conditions"]["others_share"] > 0.2
    assert found["checked.Spin.track_bytes(50000)"]["marked"] is None


def test_errors_and_conditions_stand_with_each_number(
    checked_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--bench", r"^checked\.Spin", "--save-baseline"]) == 0
    shown = capfd.readouterr().out
    assert MARK_LEGEND not in shown
    assert "7.1e-04" in shown
    found = measured(checked_project)
    large, one = (found[f"checked.Spin.track_ms({size})"] for size in (50_000, 1))
    assert large["error"] == pytest.approx(1e-3 / 2**0.5)
    assert one["error"] == 0.0
    assert large["marked"] is None
    assert large["conditions"]["processes"] == 1
    assert large["conditions"]["wall_seconds"] > 0
    assert large["conditions"]["gpus"] == []
    assert "kernel" in large["conditions"]["versions"]
    baseline = checked_project / "baselines" / hardware_tag() / "baseline.json"
    kept = {r.label: r.error for r in load_baseline(baseline).results}
    assert kept["checked.Spin.track_ms(50000)"] == large["error"]

    # measured again, a benchmark's reports are replaced; a wrong result fails and has no number
    (written,) = (checked_project / ".asv" / "results").glob("*/*.jsonl")
    before = read_reports(written)
    assert len(before) == 4
    assert large["reference"]["read_gb_per_second"] > 0.1
    assert len(large["process_medians"]) == 1
    assert main(["run", "--bench", r"^checked\.(Spin\.track_ms|track_wrong)"]) == 1
    shown = capfd.readouterr().out
    assert "wrong numbers: wrong result, not timed" in shown
    assert "failed    checked.track_wrong_ms" in shown
    after = read_reports(written)
    assert len(after) == 4  # the failed one has nothing to say
    assert {len(reports) for reports in after.values()} == {1}
    assert sum(before.get(key) == found for key, found in after.items()) == 2


MEASURES = ("/x/asv/benchmark.py", "run", "/b")


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ([*MEASURES, "m.C.time_x-12", "{}", "None", "/r"], ("m.C.time_x", 12)),
        (["benchmark.py", "run", "/b", "m.track_x", "{}", "None", "/r"], ("m.track_x", None)),
        (["benchmark.py", "discover", "/b", "/r"], None),
        (["benchmark.py", "setup_cache", "/b", "m.time_x-1", "{}"], None),
        ([*MEASURES, "what is this", "{}", "None", "/r"], None),
        ([*MEASURES, "m.C.time_x-12"], None),
        (["pytest", "run", "/b", "m.time_x-1", "{}", "None", "/r"], None),
        (["benchmark.py"], None),
        ([""], None),
    ],
)
def test_the_benchmark_of_a_process(argv: list[str], wanted: tuple[str, int] | None) -> None:
    from benchmarks.recording import measured_benchmark

    found = measured_benchmark(argv)
    assert wanted == (found and (found.benchmark, found.index))


def test_an_error_that_is_none_is_refused() -> None:
    from benchmarks.checks import note_error

    note_error(0.0)
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="finite number"):
            note_error(value)
