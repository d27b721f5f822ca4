"""A slowdown that studies/planting.py plants on a GPU: replays take longer by just that share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from guarded import Gpu
from tool_modules import tool_module

from rocmforge.gpu import compiler, replay
from rocmforge.gpu import launch as launches
from rocmforge.gpu.arrays import F32
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.replay import Replay

planting = tool_module("planting", "studies")
ROWS, COLUMNS = 64, 256


@pytest.fixture
def plant(
    gpu: Gpu, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """Do what a planted commit does when it opens a device."""
    folder = tmp_path / "kernels"
    shutil.copytree(repo / "kernels", folder)
    (folder / "wait.hip").write_text(planting.WAIT_KERNEL, encoding="utf-8")
    monkeypatch.setattr(Launch, "enqueue", Launch.enqueue)
    monkeypatch.setattr(launches, "_waits", {}, raising=False)
    make = Kernels.__init__
    exec(planting.LAUNCH_PLANT, vars(launches))

    def planted(percent: float) -> None:
        monkeypatch.setattr(Kernels, "__init__", make)
        exec(planting.KERNELS_PLANT.format(permille=round(10 * percent)), vars(compiler))
        Kernels(gpu.runtime, folder=folder, cache=tmp_path / "cache")

    return planted


def test_replays_take_longer_by_what_is_planted(
    gpu: Gpu, plant: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gpu.runtime.platform == "cuda"
    # The stand-in is slow; on a real device, one launch would be less than what a graph costs.
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-3 if real else 1e-5)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    out = gpu.empty(x.nbytes)
    shape = {"rows": ROWS, "columns": COLUMNS, "eps": 1e-5}
    given = {"x": gpu.upload(x), "weight": gpu.upload(np.ones(COLUMNS, np.float32))}
    norm = rmsnorm(gpu.kernels, **given, out=F32(out), **shape)

    def seconds(percent: float) -> float:
        plant(percent)
        one = Replay(gpu.runtime, [norm], calls=1)
        found = min(one.seconds() for _ in range(200))  # some run undisturbed, whatever else does
        one.close()
        return found

    # A real device also takes time between two kernels, which the plant does not double.
    least = 1.3 if real else 1.7
    for _ in range(5):  # the stand-in's times are a CPU's, which may be busy all the while
        plain, planted, again = seconds(0), seconds(100), seconds(0)
        if least < planted / plain < 2.3 and abs(again / plain - 1) < 0.15:
            break
    else:
        pytest.fail(f"plain {plain:g} s, planted {planted:g} s, plain again {again:g} s")
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(gpu.download(out, x.shape, np.float32), wanted, rtol=1e-5)
