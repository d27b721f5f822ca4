"""tools/estimate_radeon.py: its arithmetic by hand, what it refuses, and what its tables say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

GPUS = "baselines/sm-90-nvidia-h200/gpu_speed.json"


@pytest.fixture
def tool() -> Any:
    """The script as a module."""
    return tool_module("estimate_radeon")


@pytest.fixture
def report(repo: Path) -> dict[str, Any]:
    """What was measured on an H200."""
    found: dict[str, Any] = json.loads((repo / GPUS).read_text())
    return found


def planned(*steps: tuple[int, int, int, int]) -> Any:
    """A pass of steps, each of bytes, operations, waves and launches."""
    module = tool_module("planned_pass")
    return module.PlannedPass(tuple(module.PlannedStep(*step) for step in steps), ())


def card(tool: Any, processors: int = 10) -> Any:
    """A card of 1 GB/s and 1 TFLOP/s."""
    return tool.Card("card", "gfx1100", processors, 1 << 30, 1e9, 1e12, {})


def test_a_pass_takes_what_a_hand_computes(tool: Any) -> None:
    view = tool.View(0.5, 0.25, 1e-3, 1e-6)
    wide = 10_000  # waves
    # 0.5 GB/s: 1 MB in 2 ms; 0.25 TFLOP/s: 1 GFLOP in 4 ms; a launch 1 ms
    for steps, seconds in (
        ([(1_000_000, 0, wide, 1)], 2e-3 + 1e-3),
        ([(1_000_000, 10**9, wide, 1)], 4e-3 + 1e-3),
        ([(0, 0, 8, 2)], 2e-3),
        ([(1_000_000, 0, wide, 1), (0, 10**9, wide, 3)], 2e-3 + 4e-3 + 4e-3),
    ):
        assert tool.pass_seconds(planned(*steps), card(tool), view) == pytest.approx(seconds)


def test_few_waves_cannot_keep_the_memory_busy(tool: Any) -> None:
    slow = tool.View(1.0, 1.0, 0.0, 1e-3)  # of loads that take 1 ms, a wave gets 512 kB/s
    few = planned((512_000, 0, 2, 1))
    assert tool.pass_seconds(few, card(tool), slow) == pytest.approx(0.5)
    # 100,000 waves are more than 4 SIMD units of each of 2 processors hold, 8 each
    many = planned((512_000, 0, 100_000, 1))
    assert tool.pass_seconds(many, card(tool, 2), slow) == pytest.approx(1 / (4 * 2 * tool.WAVES))
    quick = tool.View(1.0, 1.0, 0.0, 1e-9)
    assert tool.pass_seconds(few, card(tool), quick) == pytest.approx(512_000 / 1e9)


def test_the_witnesses_give_both_ends(tool: Any, report: dict[str, Any]) -> None:
    (xtx,) = (one for one in tool.CARDS if one.name == "RX 7900 XTX")
    low, high = tool.views(xtx, "7B-Q4_0", report)
    # 106 tokens/s of 8B-Q4_K_M, whose matrices, keys and values are 4.718 GB, of 960 GB/s
    assert low.memory == pytest.approx(106 * 4.718 / 960, rel=1e-3)
    (rate,) = (
        row["gb_per_second"]
        for row in report["gemv"]
        if (row["format"], row["rows"], row["columns"]) == ("Q4_0", 22016, 4096)
    )
    assert high.memory == pytest.approx(rate / 4800)
    (ours,) = (row for row in report["models"] if row["model"] == "7B-Q4_0")
    speed = ours["prefill_tokens_per_second"]["512"]
    # 3,552 tokens/s of 13.09 GFLOP each, of 123 TFLOP/s; ours of the H200's 989
    shares = 3552 * 13.09e9 / 123e12, speed * 13.09e9 / 989e12
    assert [low.compute, high.compute] == pytest.approx(sorted(shares), rel=1e-3)
    assert low.launch_seconds > high.launch_seconds
    assert low.latency_seconds > high.latency_seconds


@pytest.mark.parametrize("tokens", [1, 512])
def test_an_estimate_is_a_range_below_the_peaks(
    tool: Any, report: dict[str, Any], tokens: int
) -> None:
    for one in tool.CARDS:
        low, high = tool.estimate(one, "7B-Q4_0", tokens, report)
        assert 0 < low < high
        pass_of = tool._planned("7B-Q4_0", one, tokens)
        limit = min(one.bytes_per_second / pass_of.nbytes, one.flops / pass_of.flops)
        assert high < tokens * limit


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0.0, 0.5, 0.0, 1e-6), r"memory: got 0\.0, wanted a share above 0 and up to 1"),
        ((0.5, 1.5, 0.0, 1e-6), r"compute: got 1\.5, wanted a share"),
        ((float("nan"), 0.5, 0.0, 1e-6), "memory: got nan"),
        ((0.5, 0.5, -1e-6, 1e-6), r"launch, latency: got -1e-06, 1e-06 s"),
        ((0.5, 0.5, 0.0, 0.0), r"launch, latency: got 0\.0, 0\.0 s"),
    ],
)
def test_a_view_out_of_range_is_refused(tool: Any, numbers: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tool.View(*numbers)


def test_the_tables_say_that_they_are_estimates_and_follow_the_measurements(
    tool: Any, report: dict[str, Any]
) -> None:
    shown = tool.radeon_tables(report)
    assert shown.startswith("**Estimates, not measurements**")
    head = next(line for line in shown.splitlines() if line.startswith("| card"))
    assert head.count(", estimate") == head.count(", published") == 2
    assert shown.count("…") >= 2 * len(tool.CARDS) * len(tool.MODELS)
    faster = copy.deepcopy(report)
    for row in faster["gemv"]:
        row["gb_per_second"] *= 1.2
    assert tool.radeon_tables(faster) != shown
    assert tool.radeon_tables({**report, "gpu": "Radeon RX 7900 XTX"}) == ""


def test_the_command_prints_the_tables_or_what_is_wrong(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--model", "7B-Q6_K"]) == 0
    assert "| RX 9070 XT | 7B-Q6_K |" in capsys.readouterr().out
    for model, said in (
        ("9B-Q4_0", "preset: got '9B', wanted one of tiny"),
        ("7B", "mix: got ''"),
        ("3B-Q4_0", "model: got 3B-Q4_0, wanted one measured on the H200: 7B-Q4_K_M"),
    ):
        assert tool.main(["--model", model]) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert not shown.out
