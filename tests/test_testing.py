"""The numpy reference engine gives other programs' exact logits; wrong results are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.model.synthetic import cached_model
from rocmforge.ops.cases import relative_rms
from rocmforge.testing import (
    cached_exact_logits,
    cached_reference_logits,
    check_close,
    reference_logits,
)


@pytest.mark.parametrize("name", ["tiny-f16", "tiny-Q4_K_M", "tiny-qwen2-Q5_0"])
def test_reference_logits_are_the_exact_ones(reference: Path, name: str) -> None:
    stored = np.load(reference / "logits" / f"{name}.npz")
    got = reference_logits(reference / "models" / f"{name}.gguf", stored["ids"].tolist())
    assert relative_rms(got, stored["exact"]) <= 1e-5


def test_reference_logits_are_computed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    model = cached_model("tiny", "Q4_0")
    first = np.array(cached_reference_logits(model, [1, 2, 3]))
    (kept,) = (tmp_path / "logits").iterdir()
    np.save(kept, first + 1)
    np.testing.assert_array_equal(cached_reference_logits(model, [1, 2, 3]), first + 1)
    np.testing.assert_allclose(reference_logits(model, [1, 2, 3]), first, rtol=1e-6)


def test_exact_logits_are_near_the_reference_and_of_these_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    model = cached_model("tiny", "Q4_K_M")
    exact = np.array(cached_exact_logits(model, [1, 2, 3]))
    assert relative_rms(exact, reference_logits(model, [1, 2, 3])) <= 1e-3
    assert relative_rms(_rounded_logits(model, [1, 2, 3]), exact) > 5e-3
    (kept,) = (tmp_path / "logits").iterdir()
    np.save(kept, exact + 1)
    assert relative_rms(cached_exact_logits(model, [1, 2, 3]), exact) > 0.1
    other = tmp_path / "_cpu.so"
    other.write_bytes(b"other kernels")
    monkeypatch.setattr("rocmforge.testing._cpu.__file__", str(other))
    assert relative_rms(cached_exact_logits(model, [1, 2, 3]), exact) == 0


def _rounded_logits(model: Path, ids: list[int]) -> np.ndarray:
    with Engine.from_gguf(model, "cpu") as engine:
        return engine.logits(ids)


def test_reference_logits_of_a_broken_file_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with pytest.raises(MeasurementError, match=r"broken\.gguf: not a GGUF file"):
        cached_reference_logits(broken, [1])
    assert list((tmp_path / "logits").iterdir()) == []


def test_check_close_returns_the_error() -> None:
    assert check_close("op", np.array([1.0, 1.01]), np.array([1.0, 1.0]), 0.1) == pytest.approx(
        0.01 / 2**0.5
    )


@pytest.mark.parametrize("got", [[1.0, 1.3], [1.0, np.nan], [1.0, 1.0, 1.0]])
def test_check_close_refuses_what_is_wrong(got: list[float]) -> None:
    with pytest.raises(MeasurementError, match="op"):
        check_close("op", np.array(got), np.array([1.0, 1.0]), 0.1)
