"""`rocmforge tune`: the constants that planted times favour win, wrong and lucky ones do not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import build_standin
import numpy as np
import pytest

from rocmforge.cli import main
from rocmforge.gpu import replay
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import gemv_constants
from rocmforge.gpu.ops.gemv_constants import class_of, row_classes
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.tuning import UNTUNED, Constants, load_tuning, tuning_file
from rocmforge.speed import tune as module
from rocmforge.speed import tune_cases, tune_fusions
from rocmforge.speed.tune import Search

pytestmark = pytest.mark.either_wave

Cost = Callable[[Launch], float]


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


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shapes that the stand-in multiplies in no time, and few cases."""
    for table in (gemv_constants.CUDA, gemv_constants.AMD):
        name = "CUDA" if table is gemv_constants.CUDA else "AMD"
        tiny = {
            op: tuple(replace(one, shape=(max(one.first, 64), 256)) for one in classes)
            for op, classes in table.items()
        }
        monkeypatch.setattr(gemv_constants, name, tiny)
    monkeypatch.setattr(tune_cases, "KINDS", MappingProxyType({"nibbles": "Q4_K"}))
    monkeypatch.setattr(tune_cases, "BATCH_SHAPES", ((64, 256, False), (64, 256, True)))
    monkeypatch.setattr(tune_cases, "GEMV_TRIED", ((4, 8), (1,), (1, 2)))
    monkeypatch.setattr(tune_cases, "ROW_WAVES_TRIED", (4,))
    monkeypatch.setattr(tune_cases, "TILE_COLUMNS", 256)
    monkeypatch.setattr(tune_cases, "TOKENS", (1,))
    monkeypatch.setattr(tune_cases.matmul_batch, "TOKENS", (16,))
    monkeypatch.setattr(tune_cases, "MOST_BLOCKS", 2)
    monkeypatch.setattr(module, "MOST_BLOCKS", 2)
    monkeypatch.setattr(module, "WEIGHT_BYTES", 2 << 20)
    monkeypatch.setattr(module, "PARTIAL_BYTES", 1 << 20)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(build_standin.cache_beside(tmp_path / "cache")))
    monkeypatch.delenv("ROCMFORGE_TUNING", raising=False)  # the benchmarks set it


def searched(
    kernels: Kernels, parts: Sequence[str], cost: Cost
) -> tuple[dict[str, Constants], list[Any]]:
    planted: Any = type("PlantedCost", (Planted,), {"cost": staticmethod(cost)})
    return Search(kernels, parts, replay=planted).run()


def test_the_constants_with_the_least_time_win(kernels: Kernels) -> None:
    wave = kernels.runtime.properties.wave_size
    constants, found = searched(
        kernels, ["gemv"], lambda launch: 1.0 if launch.threads == 4 * wave else 2.0
    )
    architecture = kernels.runtime.properties.architecture
    names = [x.name for op in tune_cases.GEMVS for x in row_classes(architecture, op)]
    own = {case.key: case.own for case in tune_cases.gemv_cases(kernels.runtime.properties)}
    assert list(own) == [f"gemv {name} nibbles 1" for name in names]
    assert set(constants) == {key for key, found in own.items() if found["WAVES"] != 4}
    assert all(one["WAVES"] == 4 for one in constants.values())
    assert all(one.best_seconds == 1.0 and one.own_seconds == 2.0 for one in found if one.changed)
    assert kernels.tuning is UNTUNED


def test_less_than_two_percent_changes_nothing(kernels: Kernels) -> None:
    wave = kernels.runtime.properties.wave_size
    cost: Cost = lambda launch: 0.985 if launch.threads == 4 * wave else 1.0  # noqa: E731
    constants, found = searched(kernels, ["gemv"], cost)
    assert constants == {}
    assert not any(one.changed for one in found)


def test_who_was_fast_only_once_does_not_win(kernels: Kernels) -> None:
    wave = kernels.runtime.properties.wave_size
    made: list[int] = []

    class Lucky(Planted):
        def __init__(self, runtime: object, launches: Sequence[Launch], calls: int) -> None:
            super().__init__(runtime, launches, calls)
            self._lucky = launches[0].threads == 4 * wave and len(made) < luck
            made.append(launches[0].threads)

        def seconds(self) -> float:
            return 0.5 if self._lucky else 1.0

    case = next(iter(tune_cases.gemv_cases(kernels.runtime.properties)))
    luck = 1 + len(case.others)  # the first run of the first case
    search = Search(kernels, ["gemv"], replay=Lucky)  # type: ignore[arg-type]
    constants, _ = search.run()
    assert constants == {}
    assert len(made) > luck


def test_constants_that_do_not_compile_or_compute_wrong_are_refused(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(tune_cases.gemv_cases(kernels.runtime.properties))[:1]
    own = every[0].own
    wrong = {**own, "ROWS": 3}  # lanes do not divide among three rows
    case = tune_cases.Case(**{**vars(every[0]), "others": [wrong]})
    monkeypatch.setattr(module, "gemv_cases", lambda properties: [case])
    constants, found = searched(kernels, ["gemv"], lambda launch: 1.0)
    assert constants == {}
    assert (found[0].tried, found[0].refused) == (1, 1)

    other = {**own, "WAVES": 4}
    monkeypatch.setattr(
        module, "gemv_cases", lambda _: [tune_cases.Case(**{**vars(case), "others": [other]})]
    )
    results = Search._results

    def spoiled(self: Search, case: Any, constants: Constants, memory: Any) -> Any:
        got = results(self, case, constants, memory)
        return got if constants == own else got * np.float32(1.01)

    monkeypatch.setattr(Search, "_results", spoiled)
    constants, found = searched(kernels, ["gemv"], lambda launch: float(launch.threads))
    assert constants == {}
    assert found[0].refused == 1


def test_batches_give_the_same_with_every_set(kernels: Kernels) -> None:
    constants, found = searched(kernels, ["batch"], lambda launch: float(launch.threads))
    assert [one.refused for one in found] == [0]
    assert found[0].tried > 1
    assert constants["batch 16"]["SPLITS"] == 1


def test_speeds_of_tiles_are_those_of_the_blocks_that_a_unit_holds(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WEIGHT_BYTES", 16 << 20)  # tiles for 132 units
    units = kernels.runtime.properties.compute_units

    def cost(launch: Launch) -> float:
        across, down, _ = launch.grid
        return 1.0 if across * down <= units else 1.5  # two blocks hide each other's waits

    constants, _ = searched(kernels, ["tile"], cost)
    assert {key.startswith("tile f16 ") for key in constants} == {True, False}
    for key, found in constants.items():
        words = [int(word) for word in key.split() if word.isdigit()]
        assert found["alone"] == pytest.approx(words[0] * words[1] / 1e9)
        assert found["full"] == pytest.approx(2 * words[0] * words[1] / 1.5 / 1e9)
        assert found["blocks"] == 2


def test_the_command_writes_a_table_that_later_devices_take(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kernels.runtime.platform != "hip":
        pytest.skip("one kind of device is enough")
    wave = kernels.runtime.properties.wave_size
    monkeypatch.setattr(Planted, "cost", staticmethod(lambda x: 1.0 + (x.threads != 4 * wave)))
    monkeypatch.setattr(module.Search.__init__, "__defaults__", (None, Planted))
    device = f"hip:{kernels.runtime.properties.index}"
    assert main(["tune", "--device", device, "--only", "gemv", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    path = tuning_file(kernels.runtime.properties)
    assert document["table"] == str(path)
    assert any(one["changed"] for one in document["found"])
    architecture = kernels.runtime.properties.architecture
    key = f"gemv {class_of(architecture, 'matmul', (64, 256)).name} nibbles 1"
    assert load_tuning(kernels.runtime.properties).get(key)["WAVES"] == 4
    assert main(["devices"]) == 0
    assert "tuned 20" in capsys.readouterr().out
    assert main(["tune", "--device", device, "--reset"]) == 0
    assert not path.exists()
    assert main(["tune", "--device", device, "--reset"]) == 0
    assert "there is no table of this GPU" in capsys.readouterr().err


def test_a_fusion_without_which_decoding_is_faster_is_left_out(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.runtime.platform != "hip":
        pytest.skip("one kind of device is enough")
    monkeypatch.setattr(tune_fusions, "PRESET", "tiny")
    monkeypatch.setattr(tune_fusions, "LAYERS", 1)
    properties = kernels.runtime.properties

    def seconds(sequences: Any) -> float:
        without = sequences._engine.backend.kernels.tuning.without
        return 1.1 - 0.1 * ("embed_rmsnorm" in without) + 0.01 * ("gate_up_swiglu" in without)

    monkeypatch.setattr(tune_fusions, "_step_seconds", seconds)
    device = f"hip:{properties.index}"
    without, found = tune_fusions.costly_fusions(device, properties, UNTUNED)
    assert without == ("embed_rmsnorm",)
    assert [one.changed for one in found] == [rule == "embed_rmsnorm" for rule in FUSIONS]
    assert "ROCMFORGE_TUNING" not in os.environ


def test_a_replay_can_stand_where_planted_times_do(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-5)
    monkeypatch.setattr(module, "WEIGHT_BYTES", 1 << 16)
    every = list(tune_cases.gemv_cases(kernels.runtime.properties))[:1]
    search = Search(kernels, [], replay=Replay)
    search._cases = [tune_cases.Case(**{**vars(every[0]), "others": every[0].others[:1]})]
    _, found = search.run()
    assert found[0].own_seconds > 0
