"""A profile of a tiny model on a GPU or its stand-in: events in a prompt, one graph in decode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.gpu import replay
from rocmforge.gpu.compiler import Kernels
from rocmforge.model.synthetic import make_model
from rocmforge.profile_report import print_profile
from rocmforge.profiling.profile import Profile
from rocmforge.profiling.roofline import Peaks
from rocmforge.profiling.run import Options, profile_model
from rocmforge.profiling.telemetry import Telemetry

pytestmark = pytest.mark.either_wave

LAYERS = 2
PROMPT, TOKENS = 18, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=LAYERS)


@pytest.fixture(scope="module")
def device(kernels: Kernels) -> str:
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


@pytest.fixture
def engine(device: str, model: Path) -> Iterator[Engine]:
    with Engine.from_gguf(model, device, ctx=64, sequences=2) as engine:
        yield engine


def known_peaks(backend: object, working_set: int, precision: str) -> Peaks:
    return Peaks(1e9, 1e12, working_set, precision)


@pytest.fixture(scope="module")
def profile(device: str, model: Path) -> Iterator[Profile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "SHORTEST_S", 1e-6)
        # test_peaks_kernel.py measures them, with fewer products
        patch.setattr("rocmforge.profiling.telemetry.measure_peaks", known_peaks)
        yield profile_model(
            Options(str(model), device, ctx=64, prompt_tokens=PROMPT, tokens=TOKENS)
        )


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_the_parts_add_up_to_the_wall_time(profile: Profile, name: str) -> None:
    phase = profile.phase(name)
    assert phase is not None
    parts = {part.name: part.seconds or 0.0 for part in phase.parts}
    assert {"prepare", "launch", "wait", "copy_out", "sampling", "detokenize"} < set(parts)
    assert sum(parts.values()) == pytest.approx(phase.seconds)
    assert min(parts.values()) >= 0


def test_a_prompts_ops_and_copies_are_its_device_time(profile: Profile) -> None:
    prefill = profile.phase("prefill")
    assert prefill is not None
    assert prefill.host_to_device_seconds is not None
    assert prefill.device_to_host_seconds is not None
    copies = prefill.host_to_device_seconds + prefill.device_to_host_seconds
    ops = sum(op.seconds for op in prefill.ops)
    assert ops + copies == pytest.approx(prefill.device_seconds)
    assert prefill.unaccounted_seconds == pytest.approx(0, abs=1e-9)
    assert all(op.seconds > 0 for op in prefill.ops)
    parts = {part.name: part.seconds for part in profile.first_token.parts}
    assert parts["host_to_device"] == prefill.host_to_device_seconds
    assert parts["device_to_host"] == prefill.device_to_host_seconds


def test_decode_stays_one_graph_whose_ops_are_timed_alone(profile: Profile) -> None:
    decode = profile.phase("decode")
    assert decode is not None
    assert decode.passes == TOKENS - 1
    assert "replayed alone" in decode.ops_from
    assert all(op.seconds > 0 for op in decode.ops)
    assert decode.host_to_device_seconds is not None
    assert decode.device_to_host_seconds is not None
    copies = decode.host_to_device_seconds + decode.device_to_host_seconds
    known = sum(op.seconds for op in decode.ops) + copies
    assert known + decode.unaccounted_seconds == pytest.approx(decode.device_seconds)
    in_decode = [span for span in profile.spans if span.category == "pass"][1:]
    assert len(in_decode) == TOKENS - 1
    assert all(span.track == "device" for span in in_decode)


def test_ops_name_the_kernels_that_ran(profile: Profile, repo: Path) -> None:
    for phase in profile.phases:
        for op in phase.ops:
            assert op.kernels
            for kernel in op.kernels:
                assert kernel.name in (repo / kernel.source).read_text("utf-8")
                assert kernel.blocks
                assert kernel.threads
    prefill, decode = profile.phases
    names = {op.label: {k.source for k in op.kernels} for op in prefill.ops}
    assert names["attention"] == {"kernels/attention_prompt.hip"}
    names = {op.label: {k.source for k in op.kernels} for op in decode.ops}
    assert names["rope_attention"] == {"kernels/rope_attention.hip"}


def test_each_launch_of_a_prompt_and_each_graph_of_decode_is_counted(profile: Profile) -> None:
    prefill, decode = profile.phases
    assert prefill.launches is not None
    assert prefill.launches.count >= sum(op.calls for op in prefill.ops)
    assert prefill.graphs is None
    launching = next(part.seconds for part in prefill.parts if part.name == "launch")
    assert launching is not None
    assert 0 < prefill.launches.total < launching
    assert decode.launches is None
    assert decode.graphs is not None
    assert decode.graphs.count == TOKENS - 1
    assert prefill.recommendation is not None
    assert decode.recommendation is not None
    assert decode.recommendation.action == "nothing"


def test_every_op_is_counted_once_a_layer_and_pass(profile: Profile) -> None:
    prefill, decode = profile.phases
    for phase, passes, attention in (
        (prefill, 1, "attention"),
        (decode, TOKENS - 1, "rope_attention"),
    ):
        calls = {op.label: op.calls for op in phase.ops}
        assert calls[attention] == LAYERS * passes
        assert calls["matmul_output"] == passes


def test_a_terminal_shows_it(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(profile)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[1:])) <= 80
    for told in (
        "waiting for the device",
        "inputs to the device",
        "attention_prompt",
        "rope_attention",
        "one launch",
        "one graph",
    ):
        assert told in text
    assert "no op or copy" in text or "ops overlap" in text


def test_the_document_is_json_and_names_the_device(profile: Profile, device: str) -> None:
    document = json.loads(json.dumps(profile.to_json()))
    assert document["device"]["name"] == device
    assert document["device"]["compute_units"] > 0


def test_device_spans_end_before_the_host_goes_on(profile: Profile) -> None:
    waits = [span for span in profile.spans if span.name == "wait"]
    passes = [span for span in profile.spans if span.category == "pass"]
    assert len(waits) == len(passes) == TOKENS
    for wait, ran in zip(waits, passes, strict=True):
        assert ran.start + ran.seconds == pytest.approx(wait.start + wait.seconds)


def test_observing_changes_no_logits_and_captures_the_same_graph(engine: Engine) -> None:
    ids = list(range(5, 23))
    one, other = engine.add_sequence(), engine.add_sequence()
    plain = [engine.prefill(one, ids), *(engine.decode([one], [7])[0] for _ in range(4))]
    telemetry = Telemetry()
    with engine.observed(telemetry):
        seen = [engine.prefill(other, ids), *(engine.decode([other], [7])[0] for _ in range(4))]
    np.testing.assert_array_equal(plain, seen)
    assert [bool(one.graph) for one in telemetry.passes] == [False, True, True, True, True]
    engine.decode([other], [7])
    assert len(telemetry.passes) == 5


def test_a_graph_is_captured_while_it_is_observed(engine: Engine) -> None:
    sequence = engine.add_sequence()
    engine.prefill(sequence, list(range(5, 23)))
    telemetry = Telemetry()
    with engine.observed(telemetry):
        seen = [engine.decode([sequence], [7])[0] for _ in range(3)]
    first, *later = telemetry.passes
    assert (first.graph, [one.graph for one in later]) == (False, [True, True])
    assert len(first.steps) == len(first.facts()) > 0
    assert [copy.name for copy in first.copies] == ["host_to_device", "device_to_host"]
    assert not np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize(("kernel", "launch"), [(2e-4, 1e-5), (1e-5, 2e-4)])
def test_planted_times_come_back(
    engine: Engine, plant_times: Callable[[float, float], None], kernel: float, launch: float
) -> None:
    """Where the host is the slower one, what an op takes is what launching it takes."""
    ids = list(range(5, 23))
    sequence = engine.add_sequence()
    engine.prefill(sequence, ids)
    engine.cache.table.truncate(sequence, 0)
    telemetry = Telemetry()
    plant_times(kernel, launch)
    with engine.observed(telemetry):
        engine.prefill(sequence, ids)
    (seen,) = telemetry.passes
    facts = seen.facts()
    summary = telemetry.summary(engine.backend.name)
    assert summary.launches == sum(len(fact.kernels) for fact in facts)
    wanted = max(kernel, launch) * summary.launches
    assert summary.op_seconds == pytest.approx(wanted, rel=0.02)
    (attention,) = (op for op in summary.ops if op.label == "attention")
    assert attention.calls == LAYERS
    assert attention.seconds == pytest.approx(LAYERS * max(kernel, launch), rel=0.02)
