"""Prompts that share pages on a GPU, or on its stand-in, while its cache grows too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shared_prompts import check_divergence, check_logits, check_tokens
from slow_parameters import others_slow

from rocmforge.engine import Engine
from rocmforge.gpu import cache as device_cache
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Kernels
from rocmforge.kv import KV_DTYPES
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms

pytestmark = pytest.mark.either_wave


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q8_0", seed=5, layers=2)


@pytest.fixture(params=others_slow(KV_DTYPES, ("f16", "q8_0")))
def engine(
    request: pytest.FixtureRequest, kernels: Kernels, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """An engine whose cache begins with one page and moves as it grows."""
    monkeypatch.setattr(device_cache, "FIRST_TOKENS", 16)
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    options: dict[str, Any] = {"ctx": 64, "sequences": 4, "page_size": 16}
    with Engine.from_gguf(model, device, kv_dtype=request.param, **options) as engine:
        yield engine
        assert isinstance(engine.cache, DeviceKVCache)
        assert engine.cache.moves > 1


def same(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert relative_rms(got, wanted) <= 1e-6


def test_logits_in_shared_pages(engine: Engine) -> None:
    check_logits(engine, same)
    check_divergence(engine, same)


def test_tokens_in_shared_pages(engine: Engine) -> None:
    check_tokens(engine)
