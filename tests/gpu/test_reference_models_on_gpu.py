"""The reference models on a GPU, or on its stand-in: beside float64, and beside llama.cpp.

Run with `pytest -s` for the table of relative RMS errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from slow_parameters import others_slow

from rocmforge.engine import Engine
from rocmforge.gpu.compiler import Kernels
from rocmforge.ops.cases import relative_rms

HALF_BOUND = 3e-3
NOISE = 1.02  # the order of summation alone moves the int8 path by up to 2 %
NAMES = (
    *("tiny-MXFP4", "tiny-Q4_0", "tiny-Q4_K_M", "tiny-Q6_K", "tiny-Q8_0", "tiny-f16"),
    *("tiny-qwen2-Q4_K_M", "tiny-qwen2-Q5_0"),
)
OF_ITS_KIND = {"tiny-Q4_0", "tiny-Q6_K", "tiny-qwen2-Q5_0"}  # others have such weights


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    lines = [f"{'model':20}{'device':18}{'prompt, f16':>14}{'steps, int8':>14}{'llama.cpp':>12}"]
    yield lines
    print("\n\n" + "\n".join(lines))


@pytest.mark.either_wave
@pytest.mark.parametrize("name", others_slow(NAMES, set(NAMES) - OF_ITS_KIND))
def test_logits(
    name: str,
    kernels: Kernels,
    reference: Path,
    table: list[str],
    request: pytest.FixtureRequest,
) -> None:
    with np.load(reference / "logits" / f"{name}.npz") as data:
        ids, exact, theirs = data["ids"].tolist(), data["exact"], data["llama_cpp"]
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(reference / "models" / f"{name}.gguf", device, ctx=64) as engine:
        prompt = relative_rms(engine.logits(ids), exact)
        sequence = engine.add_sequence()
        steps = relative_rms(np.stack([engine.decode([sequence], [i])[0] for i in ids]), exact)
    bound = relative_rms(theirs, exact)
    shown = request.node.callspec.params["kernels"]
    table.append(f"{name:20}{shown:18}{prompt:14.1e}{steps:14.2e}{bound:12.2e}")
    assert prompt <= HALF_BOUND
    assert steps <= NOISE * bound
