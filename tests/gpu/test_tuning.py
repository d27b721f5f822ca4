"""Tables of tuned constants: what is written comes back, and choosers use what is not broken."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rocmforge.gpu.fusion import FUSIONS, wanted_fusions
from rocmforge.gpu.kernel_files import kernels_digest
from rocmforge.gpu.ops import dot_rows, matmul_batch, matmul_f16, matmul_prompt
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES, TOKENS, Cut, class_of, row_classes
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import UNTUNED, Tuning, load_tuning, save_tuning, tuning_file

CARD = DeviceProperties(
    index=0,
    name="AMD Radeon RX 7900 XTX",
    architecture="gfx1100",
    wave_size=32,
    compute_units=96,
    memory_bytes=24 << 30,
    shared_bytes=64 << 10,
    integrated=False,
)
KEY = "gemv few rows nibbles 1"
OTHER = {"WAVES": 8, "ROWS": 1, "UNITS": 2, "LANES": 32, "BUFFERS": 1}
BATCH = {"TILES": 2, "ROW_WAVES": 8, "SPLITS": 1, "STAGES": 2, "DEPTH": 1, "BLOCKS": 1}
EXPERT = "experts expert_matmul Q4_K 16384 768 1"
EXPERT_LANES = {"WAVES": 8, "ROWS": 2, "UNITS": 3, "LANES": 4, "BLOCKS": 1}
TABLE = Tuning(
    MappingProxyType(
        {
            "gemv many rows nibbles 1": {
                "WAVES": 16,
                "ROWS": 1,
                "UNITS": 4,
                "LANES": 16,
                "BUFFERS": 2,
            },
            "batch 16": BATCH,
        }
    ),
    ("embed_rmsnorm",),
    "2026-11-23T12:00:00+00:00",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    monkeypatch.delenv("ROCMFORGE_TUNING", raising=False)
    (tmp_path / "tuning").mkdir()
    return tmp_path


def test_a_card_without_a_table_has_no_constants_and_all_fusions() -> None:
    assert load_tuning(CARD) is UNTUNED
    assert wanted_fusions(UNTUNED) == FUSIONS


def test_what_is_written_comes_back() -> None:
    save_tuning(tuning_file(CARD), CARD, TABLE)
    assert load_tuning(CARD) == TABLE
    assert wanted_fusions(load_tuning(CARD)) == FUSIONS[1:]


@pytest.mark.parametrize("other", [{"compute_units": 84}, {"name": "AMD Radeon RX 7900 XT"}])
def test_another_card_does_not_take_it(other: dict[str, Any]) -> None:
    save_tuning(tuning_file(CARD), CARD, TABLE)
    assert load_tuning(replace(CARD, **other)) is UNTUNED


def test_a_variable_sets_the_table_aside_or_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tuning(tuning_file(CARD), CARD, TABLE)
    other = replace(TABLE, without=())
    save_tuning(tmp_path / "other.json", CARD, other)
    monkeypatch.setenv("ROCMFORGE_TUNING", "off")
    assert load_tuning(CARD) is UNTUNED
    monkeypatch.setenv("ROCMFORGE_TUNING", str(tmp_path / "other.json"))
    assert load_tuning(CARD) == other


def test_choosers_take_what_a_table_says_and_nothing_else_changes() -> None:
    architecture = CARD.architecture
    own = dot_rows.choose(architecture, "Q4_K", (22016, 4096), 1)
    tuned = dot_rows.choose(architecture, "Q4_K", (22016, 4096), 1, tuning=TABLE)
    assert tuned == replace(own, WAVES=16, ROWS=1, UNITS=4, LANES=16, BUFFERS=2) != own
    for name, rows, tokens, op in (
        ("Q6_K", 22016, 1, "matmul"),
        ("Q4_K", 4096, 1, "matmul"),
        ("Q4_K", 22016, 2, "matmul"),
        ("Q4_K", 22016, 1, "gate_up_swiglu"),
    ):
        same = dot_rows.choose(architecture, name, (rows, 4096), tokens, op, TABLE)
        assert same == dot_rows.choose(architecture, name, (rows, 4096), tokens, op)
    batch = matmul_batch.choose(architecture, "Q4_K", 12, TABLE)
    assert (batch.ROW_WAVES, batch.TOKENS, batch.COLUMNS) == (8, 16, 128)
    assert matmul_batch.choose(architecture, "Q4_K", 32, TABLE).ROW_WAVES == 4


@pytest.mark.parametrize(
    ("architecture", "tokens", "lanes", "wanted"),
    [
        ("gfx1100", 1, 4, "one of (8, 16, 32)"),
        ("sm_90", 1, 4, "one of (8, 16, 32)"),
        ("sm_90", 8, 32, "one of (4,)"),
    ],
)
def test_lanes_of_matrix_units_are_refused_where_there_are_none(
    architecture: str, tokens: int, lanes: int, wanted: str
) -> None:
    """Their kernel reads activations of another dtype."""
    card = replace(CARD, architecture=architecture)
    key = f"gemv {class_of(architecture, 'matmul', (4096, 4096)).name} nibbles {tokens}"
    found = {"WAVES": 8, "ROWS": 2, "UNITS": 1, "LANES": lanes, "BUFFERS": 1}
    save_tuning(tuning_file(card), card, Tuning(MappingProxyType({key: found})))
    with pytest.warns(UserWarning, match=re.escape(f"LANES: got {lanes}, wanted {wanted}")):
        assert load_tuning(card) is UNTUNED


def test_tiles_take_their_speeds_from_a_table_only_if_it_has_all() -> None:
    own = matmul_prompt.tiles("gfx1100", "Q4_K")
    keys = [" ".join(("tile", *map(str, vars(t.constants).values()))) for t in own]
    speeds = {key: {"alone": 1.0, "full": 2.0 + i, "blocks": 1} for i, key in enumerate(keys)}
    some = Tuning(MappingProxyType({keys[0]: speeds[keys[0]]}))
    assert matmul_prompt.tiles("gfx1100", "Q4_K", some) == own
    tuned = matmul_prompt.tiles("gfx1100", "Q4_K", Tuning(MappingProxyType(speeds)))
    assert [t.full for t in tuned] == [2.0 + i for i in range(len(own))]
    assert [t.constants for t in tuned] == [t.constants for t in own]


def test_tiles_of_float16_weights_have_a_table_of_their_own() -> None:
    own = matmul_f16.tiles("gfx942")
    keys = [" ".join(("tile f16", *map(str, vars(t.constants).values()))) for t in own]
    speeds = {key: {"alone": 1.0, "full": 2.0 + i, "blocks": 1} for i, key in enumerate(keys)}
    tuned = matmul_f16.tiles("gfx942", Tuning(MappingProxyType(speeds)))
    assert [t.full for t in tuned] == [2.0 + i for i in range(len(own))]


def _broken(path: list[str], value: object) -> str:
    table: Any = {
        "schema": 2,
        "device": CARD.name,
        "architecture": CARD.architecture,
        "compute_units": CARD.compute_units,
        "kernels": kernels_digest(),
        "date": "",
        "constants": {KEY: {"WAVES": 8, "ROWS": 1, "UNITS": 2, "LANES": 32, "BUFFERS": 1}},
        "without": [],
    }
    at = table
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return json.dumps(table)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[1]", "wanted an object of schema 2; `rocmforge tune` writes one"),
        ("[" * 100_000, "recursion"),
        (_broken(["schema"], 1), "wanted an object of schema 2; `rocmforge tune` writes one"),
        (_broken(["constants"], []), 'wanted an object "constants"'),
        (_broken(["constants", "x"], {}), "'x': got {}, wanted an object of no such kernel"),
        (
            _broken(["constants", KEY], {"WAVES": 8}),
            "wanted an object of BUFFERS, LANES, ROWS, UNITS, WAVES",
        ),
        (_broken(["constants", KEY, "WAVES"], 0), "WAVES: got 0, wanted a number above 0"),
        (_broken(["constants", KEY, "WAVES"], 1.5), "WAVES: got 1.5, wanted a number above 0"),
        (_broken(["constants", KEY, "WAVES"], True), "WAVES: got True, wanted a number"),
        (_broken(["constants", KEY, "WAVES"], "8); x"), "WAVES: got '8); x', wanted a number"),
        (_broken(["constants", KEY, "WAVES"], 1 << 40), "wanted at most 16"),
        (_broken(["constants", KEY, "WAVES"], 12), "WAVES: got 12, wanted a power of two"),
        (_broken(["constants", KEY, "LANES"], 24), "LANES: got 24, wanted a power of two"),
        (_broken(["constants", "gemv nonsense"], OTHER), "'gemv nonsense': there is no such class"),
        (_broken(["constants", "batch 16"], {**BATCH, "TILES": 3}), "TILES: got 3, wanted at most"),
        (_broken(["constants", EXPERT], EXPERT_LANES), "LANES: got 4, wanted one of (8, 16, 32)"),
        (_broken(["without"], "all"), "\"without\": got 'all', wanted a list"),
        (_broken(["device"], "RX 7600"), "\"device\": got 'RX 7600', wanted"),
        (_broken(["compute_units"], 84), '"compute_units": got 84, wanted 96'),
        (_broken(["kernels"], "0" * 16), "of other kernel sources; `rocmforge tune` measures"),
        ("0" * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_a_broken_table_is_named_and_not_used(text: str, said: str) -> None:
    tuning_file(CARD).write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match="no table of `rocmforge tune` for this GPU") as warned:
        assert load_tuning(CARD) is UNTUNED
    assert said in str(warned[0].message)
    assert str(tuning_file(CARD)) in str(warned[0].message)


@pytest.mark.parametrize("architecture", ["gfx1100", "sm_90"])
@pytest.mark.parametrize("op", ["matmul", "gate_up_swiglu"])
def test_each_class_of_rows_has_constants_that_can_be(architecture: str, op: str) -> None:
    classes = row_classes(architecture, op)
    assert classes[0].first == 1
    for one in classes:
        columns = one.shape[1]
        assert class_of(architecture, op, (one.first, columns)) is one
        assert class_of(architecture, op, one.shape) is one
        assert one.first == 1 or class_of(architecture, op, (one.first - 1, columns)) is not one
        if one.columns is not None:
            assert class_of(architecture, op, (one.first, one.columns + 1)) is not one
        assert set(one.chosen) - {"short blocks"} == {"nibbles", "planes", "bytes", "dense"}
        short = one.chosen.get("short blocks", one.chosen["nibbles"])
        assert one.constants("short blocks") == tuple(Cut(*each) for each in short)
        for chosen in one.chosen.values():
            for tokens, cut in zip(TOKENS, (Cut(*each) for each in chosen), strict=True):
                lanes, rows = cut.lanes, cut.rows
                if lanes == MATRIX_LANES:  # all lanes of the block share eight times as many rows
                    lanes, rows = 32 * cut.waves, 8 * rows
                assert tokens * rows <= lanes  # a lane for each result
                assert 32 * cut.waves <= 1024
                most = 8 if architecture == "sm_90" else 4  # what registers hold
                assert cut.rows * cut.units <= most
