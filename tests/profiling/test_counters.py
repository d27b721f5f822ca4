"""The table of AMD's counters against what each card has, and which values are to be trusted."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rocmforge.profiling import counters

CARDS = {
    "906": ["gfx906"],
    "908": ["gfx908"],
    "90a": ["gfx90a"],
    "942": ["gfx942"],
    "950": ["gfx950"],
    "10": ["gfx1030"],
    "11": ["gfx1100"],
    "12": ["gfx1200", "gfx1201"],
}
"""Cards of each generation that there is a list of counters of; there is none of gfx115x."""

EVERY = [*(card for cards in CARDS.values() for card in cards), "gfx1151"]


@pytest.fixture(scope="module")
def known(samples: Path) -> dict[str, dict[str, str]]:
    lists: dict[str, dict[str, str]] = json.loads(
        (samples / "counters/counters_by_arch.json").read_text()
    )
    return lists


def hardware(known: dict[str, str], name: str) -> set[str]:
    """The hardware counters of a counter: its own, or those of its formula."""
    formula = str(known[name])
    if re.fullmatch(r"[A-Z0-9]+:\d+", formula):
        return {name}
    return set().union(
        *(hardware(known, word) for word in re.findall(r"\w+", formula) if word in known)
    )


@pytest.mark.parametrize("card", [card for cards in CARDS.values() for card in cards])
def test_the_table_is_what_the_card_has(known: dict[str, dict[str, str]], card: str) -> None:
    generation = next(name for name, cards in CARDS.items() if card in cards)
    every = {name for one in EVERY for name in counters.available(one)}
    mine = counters.available(card)
    assert set(mine) == every & set(known[card])
    for name, one in mine.items():
        assert generation in one.generations
        assert set(one.takes) == hardware(known[card], name), name


def test_every_category_has_counters_on_every_card() -> None:
    for card in EVERY:
        for category in counters.CATEGORIES:
            assert counters.of_categories(card, [category]), (card, category)


@pytest.mark.parametrize(
    ("architecture", "generation"),
    [
        ("gfx906", "906"),
        ("gfx90a", "90a"),
        ("gfx941", "942"),
        ("gfx1036", "10"),
        ("gfx1103", "11"),
        ("gfx1150", "115x"),
        ("gfx1201", "12"),
    ],
)
def test_generations(architecture: str, generation: str) -> None:
    assert counters.generation(architecture) == generation


@pytest.mark.parametrize("architecture", ["gfx900", "gfx1250", "sm_90", "", "gfx11000", "x" * 999])
def test_an_architecture_without_counters_is_refused(architecture: str) -> None:
    with pytest.raises(ValueError, match=r"counters: got architecture.*wanted one of gfx906"):
        counters.generation(architecture)


def test_a_name_that_does_not_exist_is_refused_with_the_nearest() -> None:
    counters.check(["SQ_WAVES", "FETCH_SIZE"], "gfx1100")
    with pytest.raises(ValueError, match=r"got 'sq_waves'.*wanted SQ_WAVES"):
        counters.check(["SQ_WAVES", "sq_waves"], "gfx1100")
    # Known to be missing: occupancy and written bytes on gfx12, L1 and VALUBusy on RDNA.
    for card, name in [
        ("gfx1201", "OccupancyPercent"),
        ("gfx1201", "WRITE_SIZE"),
        ("gfx1100", "VALUBusy"),
        ("gfx1030", "TCP_TOTAL_CACHE_ACCESSES_sum"),
        ("gfx942", "L2CacheHit"),
    ]:
        with pytest.raises(ValueError, match=f"got '{name}', which {card} does not have"):
            counters.check([name], card)
    with pytest.raises(ValueError, match="wanted one of"):
        counters.check(["zzzzzzzz"], "gfx1100")


@pytest.mark.parametrize("card", EVERY)
def test_a_run_asks_no_block_for_more_than_it_counts(card: str) -> None:
    limits = {"SQ": 8, "SQC": 8, "TCC": 4, "TCP": 4, "GL2C": 4, "GL1C": 4, "TA": 2, "GRBM": 2}
    limits |= {"GCEA": 2} | ({"TCP": 1} if card == "gfx1151" else {})
    names = list(counters.available(card))
    groups = counters.passes([*names, *names], card)
    assert sorted(name for group in groups for name in group) == sorted(names)
    for group in groups:
        blocks: dict[str, set[str]] = defaultdict(set)
        for name in group:
            for taken in counters.available(card)[name].takes:
                blocks[taken.split("_")[0].replace("SQC", "SQ")].add(taken)
        assert all(len(taken) <= limits[block] for block, taken in blocks.items())


def test_related_counters_are_counted_in_the_same_run() -> None:
    (group,) = counters.passes(["SQ_WAIT_ANY", "SQ_WAVE_CYCLES", "GRBM_GUI_ACTIVE"], "gfx1100")
    assert len(group) == 3
    # A formula and its own part take one place.
    assert len(counters.passes(["FETCH_SIZE", "TCC_EA0_RDREQ_sum"], "gfx942")) == 1
    assert len(counters.passes(["FETCH_SIZE", "WRITE_SIZE"], "gfx1100")) == 2


@pytest.mark.parametrize(
    ("name", "value", "card", "level", "why"),
    [
        ("SQ_INSTS_LDS", 0.0, "gfx1100", "auto", "a zero cannot be told.*'auto'.*STABLE_STD"),
        ("SQ_INSTS_LDS", 0.0, "gfx1100", None, "is not known"),
        ("SQ_INSTS_LDS", 0.0, "gfx1100", "profile_standard", None),
        ("SQ_INSTS_LDS", 0.0, "gfx942", "auto", None),
        ("SQ_INSTS_LDS", 5.0, "gfx1100", "auto", None),
        ("SQ_WAVES_sum", 0.0, "gfx942", "auto", "has more than 0"),
        ("GRBM_COUNT", 0.0, "gfx1201", "profile_peak", "has more than 0"),
        ("SQ_WAVE_CYCLES", 0.0, "gfx1201", "profile_peak", "gfx12 always counts 0"),
        ("WAVE_DEP_WAIT", 12.0, "gfx1200", "profile_peak", "divides by SQ_WAVE_CYCLES"),
        ("SQ_WAVE_CYCLES", 7.0, "gfx1100", "auto", None),
        ("FETCH_SIZE", 512.0, "gfx1151", "profile_standard", "gfx115x counts only some"),
        ("FETCH_SIZE", 512.0, "gfx1100", "auto", None),
        ("SQ_INSTS_VALU", float("nan"), "gfx942", "auto", "no number of events"),
        ("SQ_INSTS_VALU", -1.0, "gfx942", "auto", "no number of events"),
    ],
)
def test_which_values_are_invalid(
    name: str, value: float, card: str, level: str | None, why: str | None
) -> None:
    said = counters.invalid(name, value, card, level)
    assert (said is None) if why is None else (said is not None and re.search(why, said))


def test_recipes_do_not_ask_for_what_is_always_wrong() -> None:
    for card in ("gfx1201", "gfx1151"):
        for name in counters.of_categories(card, counters.CATEGORIES):
            assert counters.invalid(name, 5.0, card, "profile_standard") is None, name


def write_card(root: Path, **files: Any) -> None:
    node = root / "sys/class/kfd/kfd/topology/nodes/0"
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    for folder in (node, device):
        folder.mkdir(parents=True, exist_ok=True)
    (node / "properties").write_text(
        f"location_id 768\ndomain 0\ngfx_target_version {files['version']}\n"
    )
    if "level" in files:
        (device / "power_dpm_force_performance_level").write_text(files["level"])


@pytest.mark.parametrize(
    ("version", "architecture"),
    [(110000, "gfx1100"), (90010, "gfx90a"), (90402, "gfx942"), (110501, "gfx1151")],
)
def test_the_card_is_read_of_the_drivers_files(
    tmp_path: Path, version: int, architecture: str
) -> None:
    assert counters.card_architecture(tmp_path) is None
    assert counters.performance_level(tmp_path) is None
    write_card(tmp_path, version=version)
    assert counters.card_architecture(tmp_path) == architecture
    assert counters.performance_level(tmp_path) is None
    write_card(tmp_path, version=version, level="auto\n")
    assert counters.performance_level(tmp_path) == "auto"


def test_the_level_is_advised_where_it_matters() -> None:
    said = counters.level_advice("gfx1201", "auto")
    assert said is not None
    assert "sudo amd-smi set --perf-level STABLE_STD" in said
    assert "--perf-level AUTO" in said
    assert counters.level_advice("gfx1201", "profile_standard") is None
    assert counters.level_advice("gfx942", "auto") is None
    assert counters.level_advice("gfx1201", None) is None
