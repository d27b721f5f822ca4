"""A profile of a tiny model on the CPU: parts add up to the wall time, ops are all of the pass."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.devices import open_backend
from rocmforge.engine import Engine
from rocmforge.errors import OutOfPagesError
from rocmforge.model.synthetic import make_model
from rocmforge.plan.observation import ObservedPass
from rocmforge.profile_report import print_profile
from rocmforge.profiling.live import measure
from rocmforge.profiling.profile import Ceiling, FirstToken, Profile
from rocmforge.profiling.roofline import Peaks
from rocmforge.profiling.run import Options, profile_model
from rocmforge.profiling.run_environment import RunEnvironment, Watch
from rocmforge.profiling.telemetry import Telemetry, measure_ceilings
from rocmforge.profiling.ttft import first_token, prompt_of, request
from rocmforge.text.tokenizer import Tokenizer

LAYERS = 3
PROMPT, TOKENS = 40, 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=LAYERS)


@pytest.fixture(scope="module")
def profile(model: Path) -> Profile:
    options = Options(str(model), "cpu", threads=1, ctx=64, prompt_tokens=PROMPT, tokens=TOKENS)
    return profile_model(options)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with Engine.from_gguf(model, "cpu", ctx=64) as engine:
        yield engine


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_the_parts_add_up_to_the_wall_time(profile: Profile, name: str) -> None:
    phase = profile.phase(name)
    assert phase is not None
    parts = {part.name: part.seconds or 0.0 for part in phase.parts}
    assert "rest" in parts
    assert sum(parts.values()) == pytest.approx(phase.seconds)
    assert min(parts.values()) >= -1e-9  # sums of differences of readings of the clock


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_ops_and_what_no_op_accounts_for_are_the_passes(profile: Profile, name: str) -> None:
    phase = profile.phase(name)
    assert phase is not None
    ops = sum(op.seconds for op in phase.ops)
    compute = next(part.seconds for part in phase.parts if part.name == "compute")
    assert ops == pytest.approx(compute)
    assert ops + phase.unaccounted_seconds == pytest.approx(phase.device_seconds)
    assert sum(op.share for op in phase.ops) == pytest.approx(ops / phase.device_seconds)
    assert [op.seconds for op in phase.ops] == sorted(
        (op.seconds for op in phase.ops), reverse=True
    )


def test_every_op_is_counted_once_a_layer_and_pass(profile: Profile, engine: Engine) -> None:
    prefill, decode = profile.phases
    for phase, passes in ((prefill, 1), (decode, TOKENS - 1)):
        calls = {op.label: op.calls for op in phase.ops}
        assert phase.passes == passes
        assert calls["attention"] == calls["kv_append"] == LAYERS * passes
        assert calls["embed"] == calls["matmul_output"] == passes


def test_bytes_and_flops_are_those_of_a_timed_pass(profile: Profile, engine: Engine) -> None:
    sequence = engine.add_sequence()
    timed = engine.timed_pass([sequence], [list(range(3, 3 + PROMPT))])
    wanted = {step.label: (step.cost.bytes, step.cost.flops) for step in timed.steps}
    prefill = profile.phase("prefill")
    assert prefill is not None
    assert {op.label: (op.nbytes, op.flops) for op in prefill.ops} == wanted


def test_the_first_token_is_its_parts_and_load_is_apart(profile: Profile) -> None:
    first = profile.first_token
    parts = {part.name: part for part in first.parts}
    assert list(parts) == [
        "load",
        "tokenize",
        "setup",
        "embedding",
        "host_to_device",
        "prefill",
        "device_to_host",
        "first_token",
    ]
    measured = {name: part.seconds for name, part in parts.items() if part.seconds is not None}
    assert sum(measured.values()) == pytest.approx(first.seconds + first.load_seconds)
    assert min(measured.values()) > 0
    assert {name for name, part in parts.items() if part.reason} == {
        "host_to_device",
        "device_to_host",
    }
    assert first.dominant == "prefill"
    assert first.load_seconds > 0
    assert first.cold_seconds > 0


def test_the_target_judges_the_request_without_loading(engine: Engine, model: Path) -> None:
    tokenizer = Tokenizer.from_gguf(model)
    made = request(engine, tokenizer, prompt_of(tokenizer, 40), telemetry=Telemetry())
    # Nothing but the pass takes time, however loaded the machine was.
    turn = replace(made.turn, sampled=made.turn.returned, end=made.turn.returned)
    made = replace(made, begin=turn.begin, tokenized=turn.begin, turn=turn)
    wanted = made.seconds

    def judged(target: float, load: float = 1e3) -> FirstToken:
        return first_token(made, load_seconds=load, target_seconds=target)

    assert judged(wanted).met
    assert judged(wanted, load=0).advice == ()
    assert len(judged(wanted).advice) == 1
    assert not judged(0.99 * wanted).met
    assert "keep the process running" in judged(wanted).advice[-1]
    told = re.search(r"about (\d+) tokens of prompt meet", " ".join(judged(0.9 * wanted).advice))
    prefill = next(part.seconds for part in judged(wanted).parts if part.name == "prefill")
    assert told is not None
    assert prefill is not None
    assert int(told[1]) == int(40 * (1 - 0.1 * wanted / prefill))
    assert "tokens of prompt meet" not in " ".join(judged(1e-9).advice)


def test_the_whole_document_is_json(profile: Profile) -> None:
    document = json.loads(json.dumps(profile.to_json()))
    assert document["version"] == 1
    (op, *_) = document["phases"][0]["ops"]
    assert op["bytes_per_second"] == pytest.approx(op["nbytes"] / op["seconds"])
    assert op["roofline_fraction"] == pytest.approx(op["ideal_seconds"] / op["seconds"])
    assert document["first_token"]["seconds"] == profile.first_token.seconds
    assert profile.row()["dominant"] == "prefill"


def test_a_prompts_last_token_has_times_where_it_is_a_graph_of_its_own(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Graphs(Telemetry):
        def __call__(self, seen: ObservedPass) -> None:
            super().__call__(replace(seen, graph=True, steps=()) if self.passes else seen)

    monkeypatch.setattr("rocmforge.cpu.executor.HostExecutor.prefill_chunk", 63)
    monkeypatch.setattr("rocmforge.profiling.live.Telemetry", Graphs)
    tokenizer = Tokenizer.from_gguf(model)
    measured = measure(engine, tokenizer, prompt_of(tokenizer, 64), 1, lambda: None)
    assert [seen.graph for seen in measured.prefill.passes] == [False, True]
    alone = measured.step_seconds
    summary = measured.prefill.summary("cpu", alone)
    unknown = measured.prefill.summary("cpu")
    assert math.isnan(unknown.op_seconds)
    assert {op.bytes_per_second for op in unknown.ops} == {None}
    first = {step.name: 0.0 for step in measured.prefill.passes[0].steps}
    for step in measured.prefill.passes[0].steps:
        first[step.name] += step.seconds
    for op in summary.ops:
        assert op.seconds == pytest.approx(first[op.label] + op.calls / 2 * alone[op.label])
        assert alone[op.label] > 0


def test_memory_is_that_of_the_whole_sequence(profile: Profile) -> None:
    memory = profile.memory
    assert memory is not None
    assert memory.kv.use.tokens == PROMPT + TOKENS - 1
    assert memory.kv.bytes_in_use == memory.kv.use.tokens * memory.kv.bytes_per_token
    assert memory.kv.bytes_per_token == LAYERS * memory.kv.bytes_per_token_layer
    assert profile.to_json()["memory"]["kv"]["bytes_in_use"] == memory.kv.bytes_in_use


def test_the_device_is_watched_on_the_time_line_of_the_spans(profile: Profile) -> None:
    assert profile.monitor is not None
    assert profile.monitor.device == "cpu"
    ends = max(span.start + span.seconds for span in profile.spans)
    times = [look.seconds for look in profile.monitor.samples]
    assert times == sorted(times)
    assert -0.1 < times[0] < ends
    assert all(look.memory_used_bytes for look in profile.monitor.samples)


def test_spans_lie_in_the_run_and_nest(profile: Profile) -> None:
    ops = [span for span in profile.spans if span.category == "op"]
    passes = [span for span in profile.spans if span.category == "pass"]
    assert len(passes) == TOKENS
    assert len(ops) == sum(op.calls for phase in profile.phases for op in phase.ops)
    for op in ops:
        assert any(
            p.start <= op.start and op.start + op.seconds <= p.start + p.seconds + 1e-9
            for p in passes
        )
    starts = [span.start for span in profile.spans]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert profile.spans_left_out == 0


def test_what_observing_costs_is_measured_and_told_where_it_is_much(profile: Profile) -> None:
    for phase in profile.phases:
        assert phase.plain_seconds is not None
        assert phase.plain_seconds > 0
        assert phase.observer_cost == pytest.approx(phase.seconds / phase.plain_seconds - 1)
        told = any(f"observed passes of {phase.name} took" in remark for remark in profile.remarks)
        assert told == (phase.observer_cost > 0.05)


def test_more_threads_than_cpus_make_the_profile_doubtful(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rocmforge.profiling.run.measure_ceilings", unsteady)
    cpus = len(os.sched_getaffinity(0))
    profile = profile_model(Options(str(model), "cpu", threads=cpus + 1, prompt_tokens=8, tokens=2))
    threads, reads, *moved = (doubt for doubt in profile.doubts if "Other processes" not in doubt)
    assert f"{cpus + 1} threads on {cpus} usable core" in threads
    assert "the least was 50% of the best" in reads
    assert any("ops of decode moved" in doubt for doubt in moved)  # faster than reads are
    assert all("perhaps" in verdict.summary for verdict in profile.verdicts)
    print_profile(profile)
    printed = capsys.readouterr().out
    assert printed.index("Doubtful: ") < printed.index("perhaps")


def test_other_work_while_the_roofline_is_measured_is_a_doubt(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.0, 0.4])  # of the passes, of the roofline

    class Others(Watch):
        def end(self) -> RunEnvironment:
            return replace(super().end(), others_share=next(shares))

    monkeypatch.setattr("rocmforge.profiling.run.Watch", Others)
    profile = profile_model(Options(str(model), "cpu", threads=1, prompt_tokens=8, tokens=2))
    assert "used 40% of the CPUs while the roofline was measured" in profile.doubts[0]
    assert profile.environment.others_share == 0


def unsteady(*_: object) -> tuple[Ceiling, ...]:
    return (Ceiling("int8", 2e7, 1e11, 1 << 20, 0.5), Ceiling("exact", 2e7, 1e10, 1 << 20, 0.5))


def test_ceilings_share_the_best_read_rate_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([4.6e10, 8.4e10, 2e10, 5e10])

    def peaks(backend: object, working_set: int, precision: str) -> Peaks:
        return Peaks(next(rates), 1e11, working_set, precision)

    monkeypatch.setattr("rocmforge.profiling.telemetry.measure_peaks", peaks)
    found = measure_ceilings(open_backend("cpu"), ("int8", "exact", "bf16"), 1 << 20)
    assert [ceiling.read_bytes_per_second for ceiling in found] == [8.4e10, 8.4e10]
    assert found[0].least_read == pytest.approx(4.6 / 8.4)
    (alone,) = measure_ceilings(open_backend("cpu"), ("exact",), 1 << 20)  # is measured twice
    assert (alone.read_bytes_per_second, alone.least_read) == (5e10, pytest.approx(0.4))


def test_observing_changes_no_logits_and_ends_with_its_block(engine: Engine) -> None:
    ids = list(range(5, 25))
    one, other = engine.add_sequence(), engine.add_sequence()
    plain = [engine.prefill(one, ids), *(engine.decode([one], [7])[0] for _ in range(4))]
    telemetry = Telemetry()
    with engine.observed(telemetry):
        seen = [engine.prefill(other, ids), *(engine.decode([other], [7])[0] for _ in range(4))]
    np.testing.assert_array_equal(plain, seen)
    assert len(telemetry.passes) == 5
    engine.decode([other], [7])
    assert len(telemetry.passes) == 5


def test_observed_and_plain_steps_may_alternate(engine: Engine) -> None:
    """Each records its passes for itself; both read the batch of the moment."""
    ids = list(range(5, 25))
    one, other = engine.add_sequence(), engine.add_sequence()
    for sequence in (one, other):
        engine.prefill(sequence, ids)
    for token in range(40, 48):
        plain = engine.decode([one], [token])
        with engine.observed(lambda seen: None):
            seen = engine.decode([other], [token])
        np.testing.assert_array_equal(plain, seen)


def test_what_an_observer_raises_ends_the_observation(engine: Engine) -> None:
    def fail(seen: ObservedPass) -> None:
        raise RuntimeError("told")

    sequence = engine.add_sequence()
    with pytest.raises(RuntimeError, match="told"), engine.observed(fail):
        engine.prefill(sequence, [5, 6])
    engine.prefill(sequence, [7, 8])


def test_a_long_prompt_is_several_passes(model: Path) -> None:
    options = Options(str(model), "cpu", ctx=700, prompt_tokens=600, tokens=1)
    profile = profile_model(options)
    (prefill,) = profile.phases
    assert (prefill.tokens, prefill.passes) == (600, 2)
    assert next(op.calls for op in prefill.ops if op.label == "attention") == 2 * LAYERS
    parts = [part.seconds or 0.0 for part in prefill.parts]
    assert sum(parts) == pytest.approx(prefill.seconds)
    assert min(parts) >= -1e-9


def test_a_prompt_has_just_as_many_tokens(model: Path) -> None:
    tokenizer = Tokenizer.from_gguf(model)
    for count in (2, 3, 77, 5000):
        prompt = prompt_of(tokenizer, count)
        ids = tokenizer.encode(prompt.text)
        assert prompt.tokens == count <= len(ids)
        assert len(tokenizer.encode(prompt.text[:-1])) < count


def test_a_request_leaves_its_sequence_to_the_caller(engine: Engine, model: Path) -> None:
    tokenizer = Tokenizer.from_gguf(model)
    free = engine.cache.table.allocator.n_free
    made = request(engine, tokenizer, prompt_of(tokenizer, 20))
    assert engine.cache.table.length(made.sequence) == 20
    assert len(made.history) == 21
    engine.remove_sequence(made.sequence)
    assert engine.cache.table.allocator.n_free == free
    with pytest.raises(OutOfPagesError):
        request(engine, tokenizer, prompt_of(tokenizer, 20), room=10_000)
    assert engine.cache.table.allocator.n_free == free
    with pytest.raises(ValueError, match="not observed"):
        first_token(made)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_tokens": 1}, "prompt tokens: got 1, wanted at least 2"),
        ({"tokens": 0}, "tokens: got 0, wanted at least 1"),
        ({"target_seconds": 0.0}, "target: got 0 s, wanted more than 0"),
        ({"target_seconds": float("nan")}, "target: got nan s"),
        ({"ctx": 16, "prompt_tokens": 10, "tokens": 8}, "context: got a prompt of 10 tokens and 8"),
        (
            {"ctx": 16, "tokens": 17},
            "context: got a prompt of 2 tokens and 17 to generate, of which the model reads 18, w",
        ),
        ({"ctx": 16, "tokens": 17}, "wanted at most 16; --ctx N raises that, for this model up to"),
        ({"tokens": 9000}, "the model was trained for no more$"),
    ],
)
def test_what_does_not_fit_is_refused(model: Path, given: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        profile_model(Options(str(model), "cpu", **given))  # type: ignore[arg-type]


def test_the_context_is_filled_to_its_last_token(model: Path) -> None:
    options = Options(str(model), "cpu", ctx=32, prompt_tokens=28, tokens=5)
    assert [phase.tokens for phase in profile_model(options).phases] == [28, 4]
    by_itself = profile_model(Options(str(model), "cpu", ctx=32, tokens=5))
    assert by_itself.settings.prompt_tokens == 28
