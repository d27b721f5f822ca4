"""`rocmforge tune`: what planted times favour wins; what is wrong, or lucky only once, does not.

Models are tiny, and a launch takes as long as a test says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import build_standin
import numpy as np
import pytest

from rocmforge.cli import main
from rocmforge.gpu import replay
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.gemv_constants import own_cuts
from rocmforge.gpu.ops.prompt_tiles import has_matrix_units
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.tuning import UNTUNED, Tuning, load_tuning, save_tuning, tuning_file
from rocmforge.loading import load
from rocmforge.model.synthetic import make_model
from rocmforge.speed import tune as module
from rocmforge.speed import tune_cases, tune_steps, tune_tiles
from rocmforge.speed.tune_cases import Case, find_case
from rocmforge.speed.tune_steps import Steps

pytestmark = pytest.mark.either_wave

Cost = Callable[[Launch], float]
GEMVS = ("matmul", "gate_up_swiglu", "matmul_rmsnorm")


class Planted:
    """In the place of `Replay`: a launch takes as long as `cost` says, without being run."""

    cost: Cost = staticmethod(lambda launch: 1.0)

    def __init__(self, runtime: object, launches: Sequence[Launch], calls: int) -> None:
        self._launches = launches
        self._calls = calls

    def seconds(self) -> float:
        """Of one call."""
        return sum(type(self).cost(launch) for launch in self._launches) / self._calls

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cost], None]:
    def planted(cost: Cost) -> None:
        monkeypatch.setattr(Planted, "cost", staticmethod(cost))
        monkeypatch.setattr(tune_steps, "Replay", Planted)
        monkeypatch.setattr(tune_tiles, "Replay", Planted)

    return planted


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models that the stand-in runs in no time, and few sets of constants."""
    monkeypatch.setattr(tune_cases, "GEMV_TRIED", ((4, 8), (1,), (1, 2)))
    monkeypatch.setattr(tune_cases, "LANES_TRIED", (32,))
    monkeypatch.setattr(tune_cases, "EXPERTS_TRIED", ((4, 8), (1, 2), (1, 2)))
    monkeypatch.setattr(tune_cases, "EXPERT_LANES_TRIED", (16, 32))
    monkeypatch.setattr(tune_cases, "BLOCKS_TRIED", (1,))
    monkeypatch.setattr(tune_cases, "ROW_WAVES_TRIED", (4,))
    monkeypatch.setattr(tune_tiles, "COLUMNS", 256)
    monkeypatch.setattr(tune_tiles, "MOST_BLOCKS", 2)
    monkeypatch.setattr(tune_tiles, "WEIGHT_BYTES", 2 << 20)
    monkeypatch.setattr(tune_steps, "DEPTH", 4)
    monkeypatch.setattr(module, "MODELS", (module.Model("tiny", "Q4_K_M", 1),))
    monkeypatch.setattr(module, "COUNTS", {"gemv": (1,), "batch": (16,), "fusions": (1,)})
    monkeypatch.setenv("ROCMFORGE_CACHE", str(build_standin.cache_beside(tmp_path / "cache")))
    monkeypatch.delenv("ROCMFORGE_TUNING", raising=False)  # the benchmarks set it


@pytest.fixture
def steps(kernels: Kernels, tmp_path: Path) -> Iterator[Steps]:
    """A step of one sequence."""
    yield from _steps(kernels, tmp_path, 1)


def _steps(kernels: Kernels, folder: Path, count: int, preset: str = "tiny") -> Iterator[Steps]:
    path = make_model(folder / "tiny.gguf", preset, "Q4_K_M", layers=1)
    properties = kernels.runtime.properties
    options = replace(module.OPTIONS, device=_device(kernels), sequences=count)
    with ExitStack() as opened:
        made = load(path, options, opened)
        backend, executor = made.stages[0].backend, made.executor
        assert isinstance(backend, GpuBackend)
        assert isinstance(executor, GpuExecutor)
        made_steps = Steps(executor, backend.kernels, made.config.vocab_size, count, "tiny")
        opened.callback(made_steps.close)
        assert made_steps.properties == properties
        yield made_steps


def _device(kernels: Kernels) -> str:
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


def _cases(steps: Steps) -> list[Case]:
    found = (find_case(words, steps.properties) for words in steps.asked(UNTUNED))
    return [case for case in found if case is not None]


def _waves(launch: Launch, wave: int) -> int:
    return launch.threads // wave


def test_a_step_asks_for_the_constants_of_its_products(steps: Steps) -> None:
    asked = steps.asked(UNTUNED)
    kinds = {words[0] for words in asked}
    assert kinds == {"gemv"}
    assert all(find_case(words, steps.properties) for words in asked)
    assert {words[2] for words in asked} == {"nibbles", "planes"}
    assert find_case(("tile", 1, 2), steps.properties) is None


def test_the_constants_with_which_a_step_takes_the_least_time_win(
    steps: Steps, plant: Callable[[Cost], None]
) -> None:
    wave = steps.properties.wave_size

    def cost(launch: Launch) -> float:
        return 1.0 if launch.name not in GEMVS or _waves(launch, wave) == 4 else 2.0

    plant(cost)
    table = UNTUNED
    for case in _cases(steps):
        before = table
        table, found = steps.best_constants(table, case)
        assert found.best["WAVES"] == 4
        assert found.changed == (case.own["WAVES"] != 4)
        assert (found.best_seconds < found.own_seconds) == found.changed
        assert (table == before) == (not found.changed)
        assert found.tried > 1
        assert found.refused == 0
    assert {one["WAVES"] for one in table.constants.values()} == {4}


def test_less_than_half_a_percent_changes_nothing(
    steps: Steps, plant: Callable[[Cost], None]
) -> None:
    wave = steps.properties.wave_size
    plant(lambda launch: 0.996 if _waves(launch, wave) == 4 else 1.0)
    for case in _cases(steps):
        table, found = steps.best_constants(UNTUNED, case)
        assert table == UNTUNED
        assert not found.changed
        assert found.best_seconds == found.own_seconds


def test_who_was_fast_only_once_does_not_win(
    steps: Steps, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run, of the fastest and what there was, has longer medians."""
    wave = steps.properties.wave_size
    lucky = True
    plant(lambda launch: 0.5 if lucky and _waves(launch, wave) == 4 else 1.0)
    judge = Steps._judge
    compared: list[bool] = []

    def later(self: Steps, own: Tuning, other: Tuning) -> Any:
        nonlocal lucky
        lucky = False
        compared.append(other is not own)
        return judge(self, own, other)

    monkeypatch.setattr(Steps, "_judge", later)
    case = next(case for case in _cases(steps) if case.own["WAVES"] != 4)
    table, found = steps.best_constants(UNTUNED, case)
    assert compared == [True]
    assert table == UNTUNED
    assert not found.changed


def test_constants_that_do_not_compile_or_compute_wrong_are_refused(
    steps: Steps, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(lambda launch: float(launch.threads))
    case = _cases(steps)[0]
    wrong = {**case.own, "ROWS": 3}  # lanes do not divide among three rows
    one = replace(case, rounds=(lambda best: [wrong],))
    table, found = steps.best_constants(UNTUNED, one)
    assert table == UNTUNED
    assert (found.tried, found.refused) == (1, 1)

    waves = 8 if case.own["WAVES"] > 8 else 4
    other = replace(case, rounds=(lambda best: [{**case.own, "WAVES": waves}],))
    table, found = steps.best_constants(UNTUNED, other)
    assert found.changed == (waves < case.own["WAVES"])
    assert found.refused == 0

    calls: list[Any] = []
    executor_pass = steps._executor.timed_pass

    def spoiled(*arguments: Any) -> Any:
        made = executor_pass(*arguments)
        calls.append(made)
        if len(calls) == 2:  # the incumbent is the first
            logits = made.result()
            logits[-1] = np.nan  # what no thread wrote
            monkeypatch.setattr(made, "result", lambda: logits)
        return made

    monkeypatch.setattr(steps._executor, "timed_pass", spoiled)
    table, found = steps.best_constants(UNTUNED, other)
    assert table == UNTUNED
    assert found.refused == 1


def test_noise_alone_changes_nothing(
    steps: Steps, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of all constants are drawn from one distribution, wider than what is worth it."""
    plant(lambda launch: 1.0)
    random = np.random.default_rng(0)
    monkeypatch.setattr(Planted, "seconds", lambda self: float(random.normal(1.0, 0.01)))
    for case in _cases(steps):
        table, found = steps.best_constants(UNTUNED, case)
        assert table == UNTUNED
        assert found.tried > 1


def test_constants_that_slow_a_step_are_told(steps: Steps, plant: Callable[[Cost], None]) -> None:
    wave = steps.properties.wave_size
    case = _cases(steps)[0]
    waves = 8 if case.own["WAVES"] != 8 else 4
    table = UNTUNED.changed(case.key, {**case.own, "WAVES": waves})
    plant(lambda launch: 2.0 if _waves(launch, wave) == waves else 1.0)
    seconds = steps.slower(table, UNTUNED)
    assert seconds is not None
    assert seconds < 2.0 * len(steps._executor.step_builds(1))
    plant(lambda launch: 1.0)
    assert steps.slower(table, UNTUNED) is None
    assert steps.slower(UNTUNED, UNTUNED) is None


def test_what_slows_a_later_model_is_taken_back(
    kernels: Kernels,
    plant: Callable[[Cost], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second model has twice the layers of the first; both have the same shapes."""
    if kernels.runtime.platform != "hip":
        pytest.skip("one kind of device is enough")
    models = (module.Model("tiny", "Q4_K_M", 1), module.Model("tiny", "Q4_K_M", 2))
    monkeypatch.setattr(module, "MODELS", models)
    wave = kernels.runtime.properties.wave_size
    plant(lambda launch: 1.0)
    run = module._Search.run
    runs: list[str] = []

    def noted(self: Any, *arguments: Any) -> None:
        liked = 4 if not runs else 8
        plant(lambda launch: 1.0 + (_waves(launch, wave) != liked))
        runs.append(arguments[2])
        run(self, *arguments)

    monkeypatch.setattr(module._Search, "run", noted)
    device = _device(kernels)
    assert main(["tune", "--device", device, "--only", "gemv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert len(runs) == 2
    architecture = kernels.runtime.properties.architecture
    own = {key: cut.waves for key, cut in own_cuts(architecture).items()}
    tuned = load_tuning(kernels.runtime.properties).constants
    assert all(own[key] == 16 or one["WAVES"] != 4 for key, one in tuned.items())
    back = [one for one in found if own[one["key"]] == 8]
    assert back
    assert not any(one["changed"] or one["key"] in tuned for one in back)


def test_small_losses_of_many_constants_are_seen_together(
    steps: Steps, plant: Callable[[Cost], None]
) -> None:
    """By each product a step loses 0.15 %, by all five of them more than 0.5 %."""
    wave = steps.properties.wave_size
    plant(lambda launch: 1.0)
    search = module._Search(["gemv"], UNTUNED, lambda table, done: None)
    cases = [case for case in _cases(steps) if case.own["WAVES"] != 4]
    assert len(cases) > 1
    for case in cases:
        search.table = search.table.changed(case.key, {**case.own, "WAVES": 4})
        search._decided.add(case.key)
        one = {**case.own, "WAVES": 4}
        search.found.append(
            tune_steps.Found(case.key, case.shown, "another", case.own, one, 2.0, 1.0, 1, 0)
        )
    search._decided |= {case.key for case in _cases(steps)}
    more = 0.0015 * len(steps._executor.step_builds(1))
    plant(lambda launch: 1.0 + more * (_waves(launch, wave) == 4 and launch.name in GEMVS))
    search._improve(steps)
    assert search.table == UNTUNED
    assert not any(one.changed for one in search.found)


def test_seven_wins_of_nine_are_not_enough(
    steps: Steps, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(lambda launch: 1.0)
    case = _cases(steps)[0]
    other = UNTUNED.changed(case.key, {**case.own, "WAVES": 4 if case.own["WAVES"] != 4 else 8})
    for wins, worth in ((7, False), (8, True)):
        times = [[1.0] * 9, [0.99] * wins + [1.01] * (9 - wins)]
        monkeypatch.setattr(tune_steps, "_in_turns", lambda *_, times=times: times)
        assert steps._judge(UNTUNED, other) == (worth, 1.0, 0.99 if worth else 1.0)


def test_a_fusion_is_switched_on_again_where_a_later_step_needs_it(
    steps: Steps, plant: Callable[[Cost], None]
) -> None:
    search = module._Search(["fusions"], UNTUNED, lambda table, done: None)
    plant(lambda launch: 20.0 if launch.name == "rope_attention" else 1.0)
    search._fuse(steps, decides=True)
    assert search.table.without == ("rope_attention",)
    plant(lambda launch: 0.1 if launch.name == "rope_attention" else 1.0)
    search._fuse(steps, decides=False)
    assert search.table.without == ()
    assert not any(one.changed for one in search.found)


def test_what_was_found_is_saved_when_it_is_interrupted(
    kernels: Kernels, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.runtime.platform != "hip":
        pytest.skip("one kind of device is enough")
    monkeypatch.setattr(module, "COUNTS", {"gemv": (1, 2)})
    wave = kernels.runtime.properties.wave_size
    plant(lambda launch: 1.0 + (_waves(launch, wave) != 4))
    improve, calls = module._Search._improve, []

    def interrupted(self: Any, steps: Steps) -> None:
        calls.append(steps.shown)
        if len(calls) == 2:
            raise KeyboardInterrupt
        improve(self, steps)

    monkeypatch.setattr(module._Search, "_improve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        module.tune(_device(kernels), ["gemv"])
    assert calls == ["tiny Q4_K_M, 1 sequence", "tiny Q4_K_M, 2 sequences"]
    found = load_tuning(kernels.runtime.properties).constants
    assert found
    assert {one["WAVES"] for one in found.values()} == {4}


def test_mixtures_alone_are_timed_for_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [one.experts for one in module._models(["experts", "tile"], None)] == [True, True]
    assert len(module._models(["experts", "gemv"], None)) == len(module.MODELS)
    with pytest.raises(ValueError, match="tiles are timed without a model"):
        module.tune(None, ["tile"], Path("model.gguf"))


def test_an_error_gives_back_memory_sequences_and_the_tuning(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-5)
    runtime = steps._kernels.runtime
    case = _cases(steps)[0]
    steps.slower(UNTUNED.changed(case.key, case.rounds[0](case.own)[0]), UNTUNED)  # all compiled
    held: list[int] = []
    allocate, free = runtime.allocate, runtime.free

    def interrupted(self: Replay) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "allocate", lambda n: held.append(allocate(n)) or held[-1])
        patch.setattr(runtime, "free", lambda at: (held.remove(at), free(at)))
        patch.setattr(Replay, "seconds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps.best_constants(UNTUNED, case)
    assert held == []
    assert steps._kernels.tuning is steps._tuning
    table = steps._executor.cache.table
    assert [table.length(sequence) for sequence in steps._ids] == [tune_steps.DEPTH]


@pytest.mark.slow
def test_products_of_16_tokens_give_the_same_with_every_set(
    kernels: Kernels, tmp_path: Path, plant: Callable[[Cost], None]
) -> None:
    for steps in _steps(kernels, tmp_path, 16):
        plant(lambda launch: float(launch.threads))
        cases = [case for case in _cases(steps) if case.key == "batch 16"]
        assert len(cases) == has_matrix_units(kernels.runtime.properties.architecture)
        for case in cases:
            table, found = steps.best_constants(UNTUNED, case)
            assert found.refused == 0
            assert found.tried > 1
            assert table.get(*case.key.split())["SPLITS"] == 1


def test_experts_have_constants_of_their_own(
    kernels: Kernels, tmp_path: Path, plant: Callable[[Cost], None]
) -> None:
    wave = kernels.runtime.properties.wave_size
    own = {"expert_gate_up", "expert_matmul"}
    plant(lambda x: 2.0 if x.name in own and _waves(x, wave) != 4 else 1.0)
    for steps in _steps(kernels, tmp_path, 1, "tiny-moe"):
        cases = [case for case in _cases(steps) if case.key.startswith("experts ")]
        assert {case.key.split()[1] for case in cases} == own
        table = UNTUNED
        for case in cases:
            table, found = steps.best_constants(table, case)
            assert found.refused == 0
            assert found.tried > 2
            assert found.best["WAVES"] == 4
        assert {one["WAVES"] for one in table.constants.values()} == {4}


def test_a_fusion_without_which_a_step_is_faster_is_left_out(
    steps: Steps, plant: Callable[[Cost], None]
) -> None:
    plant(lambda launch: 20.0 if launch.name == "rope_attention" else 1.0)
    table, found = steps.best_fusion(UNTUNED, "rope_attention")
    assert table.without == ("rope_attention",)
    assert found is not None
    assert found.changed
    kept, found = steps.best_fusion(replace(table, without=("gate_up_swiglu",)), "gate_up_swiglu")
    assert kept.without == ()
    assert found is not None
    assert not found.changed
    assert steps.best_fusion(table, "rmsnorm_route") == (table, None)  # a dense model has no use


def test_speeds_of_tiles_are_those_of_the_blocks_that_a_unit_holds(
    kernels: Kernels, plant: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_tiles, "WEIGHT_BYTES", 16 << 20)  # tiles for 132 units
    units = kernels.runtime.properties.compute_units

    def cost(launch: Launch) -> float:
        across, down, _ = launch.grid
        return 1.0 if across * down <= units else 1.5  # two blocks hide each other's waits

    plant(cost)
    cases = list(tune_tiles.tile_cases(kernels.runtime.properties))
    constants = dict(tune_tiles.tile_speeds(kernels, cases))
    assert {key.startswith("tile f16 ") for key in constants} == {True, False}
    for key, found in constants.items():
        words = [int(word) for word in key.split() if word.isdigit()]
        assert found["alone"] == pytest.approx(words[0] * words[1] / 1e9)
        assert found["full"] == pytest.approx(2 * words[0] * words[1] / 1.5 / 1e9)
        assert found["blocks"] == 2


@pytest.mark.parametrize("named", [False, True], ids=["random models", "a model"])
def test_the_command_writes_a_table_that_later_devices_take(
    kernels: Kernels,
    plant: Callable[[Cost], None],
    named: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kernels.runtime.platform != "hip":
        pytest.skip("one kind of device is enough")
    properties = kernels.runtime.properties
    wave = properties.wave_size
    plant(lambda launch: 1.0 + (_waves(launch, wave) != 4))
    path = tuning_file(properties)
    path.parent.mkdir(parents=True)
    kept = {"WAVES": 2, "ROWS": 1, "UNITS": 1, "LANES": 32, "BUFFERS": 1}
    old = Tuning(MappingProxyType({"gemv many rows bytes 1": kept}), ("rope_attention",), "2026")
    save_tuning(path, properties, old)
    model = [str(make_model(tmp_path / "own.gguf", "tiny", "Q4_K_M", layers=1))] if named else []
    assert main(["tune", *model, "--device", _device(kernels), "--only", "gemv", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["table"] == str(path)
    assert any(one["changed"] for one in document["found"])
    assert {one["steps"] for one in document["found"]} == {
        ("own.gguf" if named else "tiny Q4_K_M") + ", 1 sequence"
    }
    table = load_tuning(properties)
    assert table.constants["gemv many rows bytes 1"] == kept  # of no kernel that was timed
    assert table.without == ("rope_attention",)
    others = [one for key, one in table.constants.items() if key != "gemv many rows bytes 1"]
    assert others
    assert {one["WAVES"] for one in others} == {4}
    assert main(["devices"]) == 0
    assert "tuned 20" in capsys.readouterr().out
    device = ["--device", _device(kernels)]
    assert main(["tune", *device, "--reset"]) == 0
    assert not path.exists()
    assert main(["tune", *device, "--reset"]) == 0
    assert "there is no table of this GPU" in capsys.readouterr().err
    assert main(["tune", *device, "--reset", "--only", "gemv"]) == 2
    assert "--reset deletes the whole table" in capsys.readouterr().err


def test_the_cpu_has_nothing_to_tune_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "unused"))
    assert main(["tune", "--device", "cpu"]) == 1
    assert "no GPU to tune" in capsys.readouterr().err
    assert not (tmp_path / "unused").exists()


def test_a_broken_model_ends_it_before_anything_is_timed(
    kernels: Kernels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert main(["tune", str(broken), "--device", _device(kernels)]) == 1
    assert str(broken) in capsys.readouterr().err
    assert not tuning_file(kernels.runtime.properties).exists()


def test_replays_stand_where_planted_times_do(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-5)
    assert tune_steps.Replay is Replay
    case = _cases(steps)[0]
    one = replace(case, rounds=(lambda best: case.rounds[0](best)[:2],))
    _, found = steps.best_constants(UNTUNED, one)
    assert found.own_seconds > 0
