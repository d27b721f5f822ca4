"""`rocmforge bench` itself: help, usage, where it works, and where comparisons are saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from asv_tree import AsvTree, Bench

from rocmforge.bench.cli import COMMANDS, main
from rocmforge.bench.exits import TABLE
from rocmforge.bench.judging import comparison_path

HEAVY = {"numpy", "scipy", "rich", "matplotlib", "asv", "jinja2"}


@pytest.fixture
def bench(repo: Path, tmp_path: Path) -> Bench:
    """In a process of its own."""
    return Bench(repo, tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_the_one_table_of_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: rocmforge bench {command} ")
    assert shown.endswith(TABLE.rstrip("\n") + "\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "(default: those of the profile, which this option sets aside)"),
        ("gate", "(default: those of the profile, which this option sets aside)"),
        ("model", "the CPU has no row for stream, which only the GPU can run"),
    ],
)
def test_help_says_what_is_left_out(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [[], ["measure"], ["--version"]])
def test_what_is_no_command_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: rocmforge bench" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_usage_error_waits_for_no_library(command: str) -> None:
    code = (
        "import sys\nfrom rocmforge.bench.cli import main\n"
        f"try:\n    main([{command!r}, '--no-such-option'])\n"
        f"except SystemExit:\n    print(sorted({HEAVY!r} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "error: " in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["gate"], ["noise"], ["ci", "a", "b"], ["confirm", "a", "b", "--bench", "x"]],
)
def test_what_measures_works_at_the_root_only(bench: Bench, arguments: list[str]) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert (
        "got no asv.conf.json and no benchmarks, wanted the root of the repository" in done.stderr
    )


def test_a_comparison_is_saved_and_its_path_printed(
    two_commits: AsvTree, bench: Bench, tmp_path: Path
) -> None:
    done = bench("compare", "aaaa", "bbbb", "--json", "mine.json")
    assert done.returncode == 1, done.stderr
    saved = ".asv/comparisons/aaaaaaaa-bbbbbbbb"
    assert done.stdout.splitlines()[-1] == f"saved {saved}.json and .md"
    text = (tmp_path / f"{saved}.json").read_text(encoding="utf-8")
    assert json.loads(text)["outcome"] == "regression"
    assert (tmp_path / "mine.json").read_text(encoding="utf-8") == text
    assert "| regression |" in (tmp_path / f"{saved}.md").read_text(encoding="utf-8")

    done = bench("compare", "aaaa", "bbbb", "--format", "json")
    assert done.stdout == text
    assert done.stderr == f"saved {saved}.json and .md\n"


def test_expressions_add_up(two_commits: AsvTree, bench: Bench) -> None:
    chosen = ("--bench", "rope", "--bench", "(?i)TRACK_TOKENS")
    done = bench("compare", "aaaa", "bbbb", "--format", "json", *chosen)
    labels = {row["label"] for row in json.loads(done.stdout)["rows"]}
    assert labels == {"rope.time_rope", "matmul.track_tokens"}


def test_a_baselines_commit_names_no_folder() -> None:
    path = comparison_path(("../../x", "b" * 40), "confirmed")
    assert path == Path(".asv/comparisons/______x-bbbbbbbb-confirmed")
