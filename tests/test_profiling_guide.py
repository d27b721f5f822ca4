"""The profiling guide's commands are those of the command line, its rules those of the code."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from rocmforge.cli import main
from rocmforge.profiling import bottleneck, counter_rules, counters, launches, recipes


@pytest.fixture(scope="module")
def guide(repo: Path) -> str:
    return (repo / "docs" / "PROFILING_GUIDE.md").read_text("utf-8")


def blocks(guide: str) -> list[str]:
    return re.findall(r"^```\n(.*?)^```", guide, re.M | re.S)


def profile_commands(guide: str) -> list[list[str]]:
    """Every line of a code block that starts `rocmforge profile`, without its comment."""
    lines = [line for block in blocks(guide) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("rocmforge ")]
    return [found[1:] for found in words if found[1] == "profile"]


def test_every_profile_command_is_understood(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option or recipe is exit code 2; here the tools and the model are missing: 1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = profile_commands(guide)
    assert len(found) > 10
    for words in found:
        listing = "--tools" in words
        assert main(words) == (0 if listing else 1), capsys.readouterr().err
        said = capsys.readouterr()
        assert listing or "model.gguf" in said.err or "is not installed" in said.err, words


def test_every_recipe_is_shown(guide: str) -> None:
    shown = {
        words[words.index("--recipe") + 1]
        for words in profile_commands(guide)
        if "--recipe" in words
    }
    assert shown | {"kernel"} == set(recipes.RECIPES)


def test_the_command_for_rocprofv3_is_what_runs(guide: str) -> None:
    program = ("rocmforge", "generate", "…")
    runs = recipes.build("rocprofv3", "memory", "gfx1100", program, Path("FOLDER"))
    assert "\n".join(recipes.shown(run.argv) for run in runs) + "\n" in blocks(guide)
    assert counters.LEVEL_COMMAND in guide
    assert counters.BACK_COMMAND in guide


def test_the_checklist_has_every_verdict_with_its_limit(guide: str) -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|[^|]*\|[^|]*\|$", guide, re.M))
    assert set(bottleneck.NAMES.values()) <= set(rows)
    limits = {
        "transfer": [bottleneck.COPIED],
        "launch": [bottleneck.WAITING, bottleneck.LAUNCHING],
        "memory": [bottleneck.NEAR],
        "compute": [bottleneck.NEAR],
    }
    for bound, wanted in limits.items():
        shown = re.findall(r"(\d+) %", rows[bottleneck.NAMES[bound]])  # type: ignore[index]
        assert shown == [f"{100 * limit:.0f}" for limit in wanted]
    assert [bound for bound, _ in bottleneck.RULES] == [
        "transfer",
        "launch",
        "memory",
        "compute",
        "occupancy",
        "none",
    ]  # the table's order


def test_the_limits_of_launches_and_counters_are_those_of_the_rules(guide: str) -> None:
    for words, limit in (
        ("mean above {} µs | capture a graph", launches.GRAPH_S * 1e6),
        ("median above {} µs | batch operations", launches.BATCH_S * 1e6),
        ("mean above {} µs | defer synchronization", launches.DEFER_S * 1e6),
        ("Waves fill less than {} % of what fits", counter_rules.FEW_WAVES * 100),
        ("LDS banks are in conflict for {} % or more", counter_rules.CONFLICTS * 100),
        ("Vector or matrix units work {} % of the time", counter_rules.BUSY * 100),
    ):
        assert words.format(f"{limit:.0f}") in guide
