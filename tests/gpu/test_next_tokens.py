"""Tokens chosen on a GPU, or on its stand-in: those of the host's sampler, and no logits come back.

Logits of `decode` and the tokens of `decode_tokens` come from sequences that hold the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.plan.observation import ObservedPass
from rocmforge.sampling import Sampler, SamplingParams, choose

pytestmark = pytest.mark.either_wave

IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(12)]
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=1),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=2),
    SamplingParams(temperature=1.3, min_p=0.05, seed=3),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=2)


@pytest.fixture
def engine(kernels: Kernels, model: Path) -> Iterator[Engine]:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(model, device, ctx=64, sequences=8, page_size=16) as engine:
        yield engine


@pytest.fixture
def to_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy to the host."""
    copies: list[int] = []
    plain = Runtime.copy_to_host

    def noted(self: Runtime, target: NDArray[Any], source: int, stream: Any = None) -> None:
        copies.append(target.nbytes)
        plain(self, target, source, stream)

    monkeypatch.setattr(Runtime, "copy_to_host", noted)
    return copies


def test_the_tokens_are_those_of_the_host_for_the_same_logits(
    engine: Engine, to_host: list[int]
) -> None:
    here = [Sampler(params) for params in PARAMS]
    there = [Sampler(params) for params in PARAMS]
    pairs = [(engine.add_sequence(), engine.add_sequence()) for _ in PARAMS]
    last = []
    for (one, other), on_host, on_device in zip(pairs, here, there, strict=True):
        logits = engine.prefill(one, IDS)
        to_host.clear()
        last.append(engine.prefill_token(other, IDS, on_device.draw()))
        assert not to_host  # the kernel writes tokens there itself
        assert last[-1] == on_host.sample(logits, ())
    for _ in range(5):  # the second run of a shape is captured, later ones are replayed
        logits = engine.decode([one for one, _ in pairs], last)
        wanted = [sampler.sample(row, ()) for sampler, row in zip(here, logits, strict=True)]
        to_host.clear()
        last = engine.decode_tokens(
            [other for _, other in pairs], last, [sampler.draw() for sampler in there]
        )
        assert last == wanted
        assert not to_host


def test_a_generation_copies_no_logits(engine: Engine, to_host: list[int]) -> None:
    params = [SamplingParams(max_tokens=6, temperature=0.7, top_k=20, seed=i) for i in range(3)]
    first = [(t.prompt, t.id) for t in engine.generate([IDS[:5], IDS[:7], IDS], params)]
    assert len(first) == 18
    assert not to_host
    assert first == [(t.prompt, t.id) for t in engine.generate([IDS[:5], IDS[:7], IDS], params)]


def test_a_penalty_for_repetition_is_the_hosts(engine: Engine, to_host: list[int]) -> None:
    params = SamplingParams(max_tokens=4, repetition_penalty=1.5)
    tokens = [t.id for t in engine.generate([IDS], params)]
    assert min(to_host) == 4 * engine.config.vocab_size
    sequence, sampler, history = engine.add_sequence(), Sampler(params), list(IDS)
    logits = engine.prefill(sequence, IDS)
    for token in tokens:
        assert sampler.sample(logits, history) == token
        history.append(token)
        logits = engine.decode([sequence], [token])[0]


def test_logits_that_are_not_numbers_are_refused_as_on_the_host(engine: Engine) -> None:
    executor: Any = engine._executor
    one, other = engine.add_sequence(), engine.add_sequence()
    draw = Sampler(PARAMS[1]).draw()
    engine.prefill_token(one, IDS, draw)
    for address, array in executor._constants._held.values():
        if array.dtype == np.float32 and array.ndim == 1:  # weights of norms
            executor._runtime.copy_to_device(address, np.full_like(array, np.nan))
    with pytest.raises(ValueError, match="logits: got NaN for token 0"):
        choose(engine.prefill(other, IDS), draw)
    for _ in range(3):
        with pytest.raises(ValueError, match="logits: got NaN for token 0"):
            engine.decode_tokens([other, one], [5, 6], [draw, draw])


def test_an_observer_sees_the_choice_by_name(engine: Engine) -> None:
    seen: list[ObservedPass] = []
    sequence = engine.add_sequence()
    draw = Sampler(PARAMS[2]).draw()
    with engine.observed(seen.append):
        engine.prefill_token(sequence, IDS, draw)
    assert seen[0].steps[-1].name == "sample"
    facts = seen[0].facts()[-1]
    assert [kernel.name for kernel in facts.kernels] == ["argmax_parts", "sample"]
    assert facts.cost.bytes >= 4 * engine.config.vocab_size
