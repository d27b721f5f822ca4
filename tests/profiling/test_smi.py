"""What rocm-smi and amd-smi wrote, in all forms and years; the samples' values read by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from mutations import FEW, MANY, MOST_SECONDS, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.records import CardReading
from rocmforge.profiling.readers.smi import matches, read_smi

OLD_JSON = """WARNING: AMD GPU device(s) is/are in a low-power state.

{"card1": {"Temperature (Sensor edge) (C)": "45.0", "Temperature (Sensor junction) (C)": "47.5",
  "Temperature (Sensor HBM 0) (C)": "N/A", "mclk clock speed:": "(96Mhz)",
  "sclk clock speed:": "(500Mhz)", "Performance Level": "auto",
  "Average Graphics Package Power (W)": "36.5", "GPU use (%)": "12", "GPU memory use (%)": "3",
  "VRAM Total Memory (B)": "12868124672", "VRAM Total Used Memory (B)": "1572757504",
  "Card series": "Navi 22"}, "system": {"Driver version": "6.3.6"}}
"""
NEW_JSON = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": 2,
                "usage": {
                    "gfx_activity": {"value": 97, "unit": "%"},
                    "umc_activity": {"value": 41, "unit": "%"},
                    "vcn_activity": ["N/A"],
                },
                "power": {"socket_power": {"value": 612, "unit": "W"}, "gfx_voltage": "N/A"},
                "clock": {
                    "gfx_0": {
                        "clk": {"value": 2100, "unit": "MHz"},
                        "min_clk": {"value": 500, "unit": "MHz"},
                    },
                    "mem_0": {"clk": {"value": 1300, "unit": "MHz"}},
                    "vclk_0": {"clk": "N/A"},
                },
                "temperature": {
                    "edge": "N/A",
                    "hotspot": {"value": 71, "unit": "C"},
                    "mem": {"value": 55, "unit": "C"},
                },
                "mem_usage": {
                    "total_vram": {"value": 196592, "unit": "MB"},
                    "used_vram": {"value": 283, "unit": "MB"},
                },
                "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
            }
        ]
    },
    indent=1,
)
NUMBERS_JSON = json.dumps(
    [
        {
            "gpu": 0,
            "usage": {"gfx_activity": 5},
            "temperature": {"edge_temperature": 40, "hotspot_temperature": "44 °C"},
            "power": {"current_power": "36 W"},
            "fb_usage": {"total_fb": "16368 MB", "used_fb": "N/A"},
            "clock": {"gfx": {"cur_clk": 300}, "mem": {"cur_clk": 96}},
        }
    ]
)
CSV = """timestamp,gpu,gfx_activity,umc_activity,jpeg,socket_power,gfx_0_clk,gfx_0_max_clk,\
mem_0_clk,edge,hotspot,mem,used_vram,total_vram
1772939616,0,95,80,"['N/A', 0]",350,1980,2100,901,N/A,72,65,4096,196592
1772939617,0,88,75,"['N/A', 0]",65535,1950,2100,901,N/A,70,64,4097,196592
"""
OLD_CSV = """device,GPU use (%)
card0,42
card1,17

device,Current Socket Graphics Package Power (W),VRAM Total Memory (B)
card0,210.0,17163091968
"""
MONITOR_CSV = """gpu,power_usage,max_power,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,\
mem_clock,vram_used,vram_total
0,180,300,60,58,2400,99,35,900,1024,16384
"""
STATIC_CSV = """gpu,market_name,max_power,min_power,socket_power,slowdown_hotspot_temperature
0,MI300A,550,0,550,100
"""
TEXT = """GPU: 1
    USAGE:
        GFX_ACTIVITY: 63 %
        UMC_ACTIVITY: N/A
    POWER:
        SOCKET_POWER: 140 W
    CLOCK:
        GFX_0:
            CLK: 1700 MHz
            MAX_CLK: 2100 MHz
        MEM_0:
            CLK: 0.9 GHz
    TEMPERATURE:
        EDGE: N/A
        HOTSPOT: 51 °C
    PERF_LEVEL: AMDSMI_DEV_PERF_LEVEL_MANUAL
    MEM_USAGE:
        TOTAL_VRAM: 64 GB
        USED_VRAM: 512 KB
"""
OLD_TEXT = """========================= ROCm System Management Interface =========================
GPU[0]\t\t: Average Graphics Package Power (W): 36.0
GPU[0]\t\t: GPU use (%): 4
GPU[1]\t\t: GPU use (%): N/A
"""
MIB = 1024**2


def read(tmp_path: Path, text: str) -> tuple[CardReading, ...]:
    path = tmp_path / "smi.txt"
    path.write_text(text, encoding="utf-8")
    assert matches(path)
    return read_smi(path).readings


def test_rocm_smis_json_below_a_warning(tmp_path: Path) -> None:
    assert read(tmp_path, OLD_JSON) == (
        CardReading(
            1,
            name="Navi 22",
            utilization_percent=12,
            memory_activity_percent=3,
            memory_total=12868124672,
            memory_used=1572757504,
            temperatures_c={"edge": 45, "hotspot": 47.5},
            power_w=36.5,
            clocks_mhz={"memory": 96, "core": 500},
            performance_level="auto",
        ),
    )


def test_a_number_is_no_name(tmp_path: Path) -> None:
    names = '"Card series": "0x1002", "Card model": "0xc1e", "GPU use (%)": "1"'
    assert read(tmp_path, f'{{"card0": {{{names}}}}}')[0].name is None


def test_a_clocks_level_says_its_frequency_or_nothing(tmp_path: Path) -> None:
    text = """{"card0": {"sclk clock level": "1 (852Mhz)", "mclk clock level:": "3",
      "pcie clock level": "1 (8.0GT/s x16)", "fclk clock level": "100Mhz"}}"""
    (one,) = read(tmp_path, text)
    assert one.clocks_mhz == {"core": 852, "fclk": 100}


def test_amd_smis_json_with_values_and_units(tmp_path: Path) -> None:
    assert read(tmp_path, NEW_JSON) == (
        CardReading(
            2,
            utilization_percent=97,
            memory_activity_percent=41,
            memory_total=196592 * MIB,
            memory_used=283 * MIB,
            temperatures_c={"hotspot": 71, "memory": 55},
            power_w=612,
            clocks_mhz={"core": 2100, "memory": 1300},
            performance_level="auto",
        ),
    )


def test_amd_smis_first_json(tmp_path: Path) -> None:
    (one,) = read(tmp_path, NUMBERS_JSON)
    assert (one.utilization_percent, one.power_w) == (5, 36)
    assert one.temperatures_c == {"edge": 40, "hotspot": 44}
    assert (one.memory_total, one.memory_used) == (16368 * MIB, None)
    assert one.clocks_mhz == {"core": 300, "memory": 96}


def test_rocm_smis_metrics(tmp_path: Path) -> None:
    text = """{"card0": {"temperature_edge (C)": "41", "temperature_mem (C)": "62",
      "average_gfx_activity (%)": "3", "average_umc_activity (%)": "4",
      "average_socket_power (W)": "20", "current_socket_power (W)": "N/A",
      "current_gfxclk (MHz)": "1041", "current_uclk (MHz)": "65535"}}"""
    (one,) = read(tmp_path, text)
    assert (one.utilization_percent, one.memory_activity_percent, one.power_w) == (3, 4, 20)
    assert one.temperatures_c == {"edge": 41, "memory": 62}
    assert one.clocks_mhz == {"core": 1041}


@pytest.mark.parametrize("line", [" " * 200_000 + "a", "GPU[0] :" + " " * 200_000 + "x"])
def test_a_long_line_is_read_in_time(tmp_path: Path, line: str) -> None:
    start = time.monotonic()
    assert read(tmp_path, f"{line}\n{TEXT}{line}\n")[0].utilization_percent == 63
    assert time.monotonic() - start < MOST_SECONDS


def test_samples_over_time_in_csv(tmp_path: Path) -> None:
    first, second = read(tmp_path, CSV)
    assert (first.time, second.time) == ("1772939616", "1772939617")
    assert (first.power_w, first.utilization_percent, first.memory_activity_percent) == (
        350,
        95,
        80,
    )
    assert first.temperatures_c == {"hotspot": 72, "memory": 65}
    assert first.clocks_mhz == {"core": 1980, "memory": 901}
    assert (first.memory_used, first.memory_total) == (4096 * MIB, 196592 * MIB)
    assert second.power_w is None  # 65535 is what the driver writes for "not known"


def test_what_cannot_be_true_is_said(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv"
    path.write_text(CSV, encoding="utf-8")
    assert any("65535" in remark for remark in read_smi(path).remarks)


def test_rocm_smis_csv_in_several_tables(tmp_path: Path) -> None:
    readings = read(tmp_path, OLD_CSV)
    assert [(one.card, one.utilization_percent, one.power_w) for one in readings] == [
        (0, 42, None),
        (1, 17, None),
        (0, None, 210),
    ]
    assert readings[2].memory_total == 17163091968


def test_the_monitors_csv(tmp_path: Path) -> None:
    (one,) = read(tmp_path, MONITOR_CSV)
    assert (one.utilization_percent, one.memory_activity_percent, one.power_w) == (99, 35, 180)
    assert one.temperatures_c == {"hotspot": 60, "memory": 58}
    assert (one.memory_used, one.clocks_mhz) == (1024 * MIB, {"core": 2400, "memory": 900})


def test_limits_are_no_readings(tmp_path: Path) -> None:
    (one,) = read(tmp_path, STATIC_CSV)
    assert one == CardReading(0, name="MI300A")


def test_amd_smis_text(tmp_path: Path) -> None:
    (one,) = read(tmp_path, TEXT)
    assert one.card == 1
    assert (one.utilization_percent, one.power_w, one.performance_level) == (63, 140, "manual")
    assert one.clocks_mhz == {"core": 1700, "memory": 900}
    assert one.temperatures_c == {"hotspot": 51}
    assert (one.memory_total, one.memory_used) == (64 * 1024 * MIB, 512 * 1024)


def test_rocm_smis_text(tmp_path: Path) -> None:
    first, second = read(tmp_path, OLD_TEXT)
    assert (first.card, first.power_w, first.utilization_percent) == (0, 36, 4)
    assert second == CardReading(1)


def test_documents_behind_each_other_and_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    path.write_text(f"{NEW_JSON}\n{NEW_JSON}\n{NEW_JSON[:-9]}", encoding="utf-8")
    recording = read_smi(path)
    assert len(recording.readings) == 2
    assert recording.partial


def test_cards_before_the_place_where_a_document_was_cut_off(tmp_path: Path) -> None:
    whole = json.loads(NEW_JSON)["gpu_data"][0]
    text = json.dumps([whole, {**whole, "gpu": 3}, whole], indent=1)
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex('"perf_level"')], encoding="utf-8")
    recording = read_smi(path)
    assert [(one.card, one.power_w) for one in recording.readings] == [(2, 612), (3, 612)]
    assert recording.partial


def test_a_card_of_which_nothing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "smi.json"
    path.write_text('[{"gpu": 0, "usage": "N/A", "temperature": {"edge": "N/A"}}]')
    recording = read_smi(path)
    assert recording.readings == (CardReading(0),)
    assert any("nothing is said" in remark for remark in recording.remarks)


def test_lines_of_a_log_above_the_json(tmp_path: Path) -> None:
    (one,) = read(tmp_path, f"[WARNING] a card sleeps\n{NEW_JSON}")
    assert (one.card, one.power_w) == (2, 612)


def test_a_unit_of_another_kind_is_not_read(tmp_path: Path) -> None:
    text = NEW_JSON.replace('"unit": "W"', '"unit": "mWh"')
    (one,) = read(tmp_path, text)
    assert one.power_w is None


@pytest.mark.parametrize("text", ["{}", '{"card": 3}', "device,name\n0,x\n", "hello\n"])
def test_no_cards(tmp_path: Path, text: str) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(text, encoding="utf-8")
    assert not matches(path)
    with pytest.raises(ResultFileError, match=r"smi\.txt"):
        read_smi(path)


def test_every_sample_of_rocm_smi(samples: Path) -> None:
    files = sorted((samples / "rocm_smi").glob("*.json"))
    assert files
    for path in files:
        content = json.loads(path.read_text())
        cards = {key: card for key, card in content.items() if key.startswith("card")}
        recording = read_smi(path)
        assert recording.tool == "rocm-smi"
        assert not recording.partial
        assert [f"card{one.card}" for one in recording.readings] == list(cards)
        used = sum(int(card["VRAM Total Used Memory (B)"]) for card in cards.values())
        assert sum(one.memory_used or 0 for one in recording.readings) == used
        edges = [float(card["Temperature (Sensor edge) (C)"]) for card in cards.values()]
        assert [one.temperatures_c["edge"] for one in recording.readings] == edges
        powers = [card["Average Graphics Package Power (W)"] for card in cards.values()]
        known = [None if power.startswith("N/A") else float(power) for power in powers]
        assert [one.power_w for one in recording.readings] == known
        clocks = [int(card["sclk clock speed:"].strip("(Mhz)")) for card in cards.values()]
        assert [one.clocks_mhz["core"] for one in recording.readings] == clocks


def test_every_sample_of_amd_smi(samples: Path) -> None:
    files = sorted((samples / "amd_smi").iterdir())
    assert files
    for path in files:
        text = path.read_text(errors="replace")
        recording = read_smi(path)
        assert len(recording.readings) == sum(
            line.startswith("GPU: ") for line in text.splitlines()
        )
        assert recording.readings[0].memory_total == 64289 * MIB
        assert recording.readings[0].power_w is None  # the text has only the limit
        assert recording.readings[0].temperatures_c == {}


FORMS = {
    "old.json": OLD_JSON,
    "new.json": NEW_JSON,
    "new.csv": CSV,
    "old.csv": OLD_CSV,
    "new.txt": TEXT,
    "old.txt": OLD_TEXT,
}


@pytest.mark.parametrize("form", FORMS)
def test_broken_files(tmp_path: Path, form: str) -> None:
    refused, recorded = read_all(FORMS[form].encode(), FEW, tmp_path / form, read_smi)
    assert refused + recorded == FEW
    assert recorded > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_broken_files(tmp_path: Path, form: str) -> None:
    assert sum(read_all(FORMS[form].encode(), MANY, tmp_path / form, read_smi)) == MANY
