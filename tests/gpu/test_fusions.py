"""Whole models with other fusion rules: right logits, whichever kernels a pass consists of.

One model has layers whose gate and up differ in format, which no kernel takes together with SwiGLU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.gpu import expert_launches, product_launches
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.fusion import FUSIONS, Fusion
from rocmforge.gpu.launch import Launch
from rocmforge.model import synthetic
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms
from rocmforge.testing import reference_logits

pytestmark = pytest.mark.either_wave

INT8_BOUND = 0.03

IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(9)]
MIXED = {"blk.0.ffn_gate.weight": "Q8_0", "blk.1.ffn_up.weight": "F16"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of plain Q4_K_M, and one with layers of a Q8_0 gate and of a dense up."""
    folder = tmp_path_factory.mktemp("models")
    plain = make_model(folder / "plain.gguf", "tiny", "Q4_K_M", seed=5, layers=3)
    chosen = synthetic.tensor_format

    def tensor_format(mix: Any, config: Any, name: str, shape: tuple[int, ...]) -> str:
        return MIXED.get(name) or chosen(mix, config, name, shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "tensor_format", tensor_format)
        mixed = make_model(folder / "mixed.gguf", "tiny", "Q4_K_M", seed=5, layers=3)
    return {"plain": plain, "mixed": mixed}


def watched(run: Any, names: list[str]) -> Any:
    """Return what makes a launch, so that its name is noted."""

    def call(*arguments: Any, **options: Any) -> Launch:
        launch: Launch = run(*arguments, **options)
        names.append(launch.name)
        return launch

    return call


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the feed-forward kernels and of norms that passes consist of, as they are made."""
    names: list[str] = []
    for name in ("gate_up_swiglu", "swiglu", "matmul_rmsnorm"):
        right = getattr(product_launches, name)
        monkeypatch.setattr(product_launches, name, watched(right, names))
    return names


def steps(path: Path, kernels: Kernels) -> NDArray[np.float32]:
    """Logits of single tokens; the last ones come from a captured graph."""
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(path, device, ctx=32) as engine:
        sequence = engine.add_sequence()
        return np.stack([engine.decode([sequence], [i])[0] for i in IDS])


def choose(monkeypatch: pytest.MonkeyPatch, fused: Collection[Fusion]) -> None:
    """Let engines fuse by these rules."""
    monkeypatch.setattr("rocmforge.gpu.kept_passes.wanted_fusions", lambda tuning: fused)


def test_gate_and_up_of_two_formats(
    kernels: Kernels,
    models: dict[str, Path],
    launched: list[str],
) -> None:
    got = steps(models["mixed"], kernels)
    assert relative_rms(got, reference_logits(models["mixed"], IDS)) <= INT8_BOUND
    feed_forward = [name for name in launched if name != "matmul_rmsnorm"]
    assert feed_forward[-3:] == ["swiglu", "swiglu", "gate_up_swiglu"]


def test_prompts_of_them_take_swiglu_alone(
    kernels: Kernels,
    models: dict[str, Path],
    launched: list[str],
) -> None:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(models["mixed"], device, ctx=32) as engine:
        del launched[:]
        got = engine.logits(IDS)
    assert relative_rms(got, reference_logits(models["mixed"], IDS)) <= INT8_BOUND
    assert launched[:2] == ["swiglu", "swiglu"]


def test_every_choice_of_rules_gives_right_logits(
    kernels: Kernels,
    models: dict[str, Path],
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = reference_logits(models["plain"], IDS)
    choices: Sequence[tuple[tuple[Fusion, ...], str, bool]] = (
        ((), "swiglu", False),
        (("gate_up_swiglu",), "gate_up_swiglu", False),
        (("matmul_rmsnorm",), "swiglu", True),
        (FUSIONS, "gate_up_swiglu", True),
    )
    for fused, kernel, normed in choices:
        choose(monkeypatch, fused)
        del launched[:]
        got = steps(models["plain"], kernels)
        assert [name for name in launched if name != "matmul_rmsnorm"][-3:] == [kernel] * 3
        assert ("matmul_rmsnorm" in launched) == normed
        assert relative_rms(got, wanted) <= INT8_BOUND


@pytest.mark.parametrize("mix", ["Q4_K_M", "F16"])
def test_rules_of_experts_give_right_logits(
    kernels: Kernels, tmp_path: Path, mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny-moe", mix, seed=5, layers=3)
    wanted = reference_logits(path, IDS)
    made: list[str] = []
    for of, name in (
        (expert_launches, "rmsnorm_route"),
        (expert_launches.experts, "route"),
        (expert_launches.experts, "add_experts"),
        (expert_launches.experts, "add_experts_rmsnorm"),
    ):
        monkeypatch.setattr(of, name, watched(getattr(of, name), made))
    choices: Sequence[tuple[tuple[Fusion, ...], list[str]]] = (
        ((), ["route", "add_experts"] * 3),
        (("rmsnorm_route",), ["rmsnorm_route", "add_experts"] * 3),
        (
            FUSIONS,
            ["rmsnorm_route", "add_experts_rmsnorm"] * 2 + ["rmsnorm_route", "add_experts"]
            if mix == "Q4_K_M"
            else ["rmsnorm_route", "add_experts"] * 3,
        ),
    )
    for fused, names in choices:
        choose(monkeypatch, fused)
        del made[:]
        got = steps(path, kernels)
        assert made[-6:] == names
        assert relative_rms(got, wanted) <= INT8_BOUND
