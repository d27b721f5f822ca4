"""tools/gpu_speed.py: the ways of a feed-forward part agree with the reference and are timed.

On the stand-in too, whose times mean nothing; a wrong kernel must stop the tool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge import env
from rocmforge.demo import demo_model
from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels

WAYS = ["matmul, swiglu, matmul", "gate_up_swiglu, matmul"]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with a small model and few copies of it."""
    module = tool_module("gpu_speed")
    monkeypatch.setattr(module, "FEED_FORWARDS", ("tiny",))
    monkeypatch.setattr(module, "COLD_BYTES", 1 << 10)
    monkeypatch.setattr(module, "ROUNDS", 1)
    return module


def test_each_way_of_a_feed_forward_part_is_checked_and_timed(
    kernels: Kernels, tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(tool._feed_forward(GpuBackend(kernels)))
    assert [(row["model"], row["way"]) for row in rows] == [("tiny", way) for way in WAYS]
    assert all(row["microseconds"] > 0 for row in rows)
    assert "feed-forward of tiny: gate_up_swiglu, matmul" in capsys.readouterr().out


def test_products_are_timed_by_replays_over_every_copy(
    kernels: Kernels, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "FORMATS", ("Q4_0", "F16"))
    monkeypatch.setattr(tool, "GEMV_SHAPES", ((32, 64),))
    replayed: list[tuple[int, int]] = []
    right = tool.Replay

    def noted(runtime: Any, launches: Any, calls: int) -> Any:
        replayed.append((len(launches), calls))
        return right(runtime, launches, calls)

    monkeypatch.setattr(tool, "Replay", noted)
    rows = list(tool._gemv(GpuBackend(kernels)))
    assert [(row["format"], row["rows"], row["columns"]) for row in rows] == [
        ("Q4_0", 32, 64),
        ("F16", 32, 64),
    ]
    assert all(row["gb_per_second"] > 0 for row in rows)
    assert replayed == [(2, 2), (2, 2)]


def test_a_model_is_decoded_at_a_depth_and_its_prompt_timed(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "DECODED", 4)
    with Engine.from_gguf(demo_model(), "cpu", ctx=20) as engine:
        assert tool._decode(engine, 16) > 0
        assert tool._prefill(engine, 20) > 0
        with pytest.raises(ValueError, match="ctx"):
            tool._decode(engine, 17)


def test_a_wrong_kernel_is_not_timed(
    kernels: Kernels, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tool.gate_up_swiglu

    def wrong(*arguments: Any, gate: Any, up: Any, **options: Any) -> Any:
        return right(*arguments, gate=up, up=gate, **options)

    monkeypatch.setattr(tool, "gate_up_swiglu", wrong)
    with pytest.raises(MeasurementError, match="of tiny, gate_up_swiglu, matmul: wrong result"):
        list(tool._feed_forward(GpuBackend(kernels)))


def test_loading_is_timed_with_an_empty_compile_cache_and_with_a_full_one(
    tool: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[tuple[Path, list[Path]]] = []

    def first_token(path: Path, device: str) -> dict[str, float]:
        cache = env.cache_dir()
        found.append((cache, list(cache.iterdir())))
        (cache / "kernels").mkdir(exist_ok=True)
        return {"kernels": 2.0 - len(found), "the rest": 0.5}

    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(tool, "_first_token", first_token)
    monkeypatch.setattr(tool, "PROMPTS", ())
    monkeypatch.setattr(tool, "DEPTHS", (8,))
    monkeypatch.setattr(tool, "_decode", lambda engine, depth: 1.0)
    report = tool._model("cpu", "tiny", "Q4_0")
    (cache, empty), (again, full) = found
    assert cache == again != tmp_path
    assert empty == []
    assert full == [cache / "kernels"]
    assert env.cache_dir() == tmp_path
    assert report["seconds_with_empty_compile_cache"] == {"kernels": 1.0, "the rest": 0.5}
    assert report["seconds_with_full_compile_cache"] == {"kernels": 0.0, "the rest": 0.5}
    out = capsys.readouterr().out
    assert "tiny Q4_0 kernels, empty cache " in out
    assert "tiny Q4_0 kernels, full cache " in out
