"""Reads what rocm-smi and amd-smi say of cards: JSON, CSV or text, of any year.

Keys and units changed over the years, and any value may be "N/A". A value is read only where its
unit is known, and left out where it cannot be true: some tools write 65535 for what they do not
know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocmforge.profiling.readers import smi_forms
from rocmforge.profiling.readers.input_files import check, head_lines
from rocmforge.profiling.readers.records import CardReading, Recording
from rocmforge.profiling.readers.smi_forms import MOST_BYTES, Card
from rocmforge.profiling.readers.values import Omissions

_OF_LEVEL = re.compile(r"(?:\d+ )?\(?(\d+[MG]hz)\)?", re.IGNORECASE)
"""A clock's level, its frequency behind it: ``1 (500Mhz)``; a level alone says none."""

_VALUE = re.compile(r"\(?\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z°%]*)\s*\)?")
_UNIT_IN_KEY = re.compile(r"\((b|kb|mb|mib|gb|w|c|%|mhz)\)", re.IGNORECASE)
_BYTES = {"b": 1, "kb": 1024, "kib": 1024, "mb": 1024**2, "mib": 1024**2}
_SCALES: dict[str, dict[str, float]] = {
    "bytes": {**_BYTES, "gb": 1024**3, "gib": 1024**3},
    "°C": {"c": 1, "°c": 1},
    "W": {"w": 1, "mw": 0.001},
    "MHz": {"mhz": 1, "ghz": 1000},
    "%": {"%": 1},
}
"""What a unit's name is worth. amd-smi's and rocm-smi's "MB" are 1024² bytes."""

_RANGES = {"bytes": (0, 2**50), "°C": (-60, 250), "W": (0, 5000), "MHz": (0, 20_000), "%": (0, 100)}
_UNITLESS = {"bytes": "mb", "°C": "c", "W": "w", "MHz": "mhz", "%": "%"}
"""Units of numbers without one: amd-smi's CSV and older JSON have them."""

_UTILIZATION = (
    "gpu use (%)",
    "usage/gfx_activity",
    "usage/gfx_usage",
    "gfx_activity",
    "gfx_usage",
    "gfx",
    "average_gfx_activity (%)",
)
_MEMORY_ACTIVITY = (
    *("gpu memory read/write activity (%)", "gpu memory use (%)", "usage/umc_activity"),
    *("usage/mem_usage", "umc_activity", "mem_activity"),
    "average_umc_activity (%)",
)
_TOTAL = (
    *(
        "vram total memory (b)",
        "vram total memory (mib)",
        "mem_usage/total_vram",
        "vram/total_vram",
        "vram/total",
    ),
    *("vram/size", "fb_usage/total_fb", "total_vram", "vram_total"),
)
_USED = (
    *(
        "vram total used memory (b)",
        "vram total used memory (mib)",
        "mem_usage/used_vram",
        "vram/used_vram",
        "vram/used",
    ),
    *("fb_usage/used_fb", "used_vram", "vram_used"),
)
_POWER = (
    *("average graphics package power (w)", "current socket graphics package power (w)"),
    *("current socket power (w)", "average socket power (w)", "power/socket_power"),
    *("power/current_socket_power", "power/average_socket_power", "power/current_power"),
    *("power/average_power", "power_usage", "current_socket_power (w)"),
    "average_socket_power (w)",
)
_FLAT_POWER = ("socket_power", "current_socket_power", "average_socket_power")
_LEVEL = ("performance level", "perf_level", "perf_level/perf_level")
_NAME = (
    *("card series", "asic/market_name", "market_name", "device name", "card model"),
    *("board/product_name", "gpu_name"),
)
_ID = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)
"""What rocm-smi writes for a name that it does not know."""

_TIME = ("timestamp", "time", "date")
_TEMPERATURES = {
    "edge": "edge",
    "junction": "hotspot",
    "hotspot": "hotspot",
    "memory": "memory",
    "mem": "memory",
    "vram": "memory",
}
_CLOCKS = {
    "sclk": "core",
    "gfx": "core",
    "gfx_0": "core",
    "gfxclk": "core",
    "mclk": "memory",
    "mem": "memory",
    "mem_0": "memory",
    "uclk": "memory",
}
# The last form of either is that of `rocm-smi --showmetrics`.
_TEMPERATURE_KEY = re.compile(
    r"temperature \(sensor (.+)\) \(c\)|temperature/(\w+?)(?:_temperature)?|(\w+)_temperature"
    r"|(edge|hotspot|junction|mem)|temperature_(\w+) \(c\)"
)
_CLOCK_KEY = re.compile(
    r"(\w+) clock (?:speed|level):?|clocks?/(\w+)/(?:cur_)?clk|(\w+)_(?:clk|clock)"
    r"|current_(\w+) \(mhz\)"
)
_NO_READING = re.compile(r".*_(min|max)|(slowdown|shutdown)_.*")
"""Limits that stand beside the clocks and temperatures of amd-smi's CSV."""


def matches(path: Path) -> bool:
    """Whether the file begins as the output of rocm-smi or amd-smi."""
    return smi_forms.form(head_lines(path)) is not None


def read_smi(path: Path) -> Recording:
    """Read the output of rocm-smi or amd-smi that was kept in a file.

    Raises
    ------
    ResultFileError
        There is no such file, it is too large, or no card is in it.
    """
    check(path, "the output of rocm-smi or amd-smi", MOST_BYTES)
    tool, cards, omissions = smi_forms.cards(path)
    readings = tuple(_reading(card, omissions) for card in cards)
    for card, reading in zip(cards, readings, strict=True):
        if reading == CardReading(card.number):
            omissions.note("a card of which nothing is said that is read here", card.place)
    return Recording(
        tool, readings=readings, remarks=omissions.remarks(), partial=omissions.partial
    )


def _reading(card: Card, omissions: Omissions) -> CardReading:
    values = {key.lower().strip(): value for key, value in card.values.items()}

    def measured(names: tuple[str, ...], unit: str) -> float | None:
        return _first(values, names, unit, card.place, omissions)

    def said(names: tuple[str, ...], but: re.Pattern[str] | None = None) -> str | None:
        texts = (text for name in names if (text := _text(values.get(name))))
        return next((text for text in texts if but is None or not but.fullmatch(text)), None)

    # Without headings, `mem` is a temperature beside others, and else a utilization; and
    # `socket_power` is a limit beside other limits.
    sensors = {"edge", "hotspot"} & values.keys()
    activity = _MEMORY_ACTIVITY if sensors else (*_MEMORY_ACTIVITY, "mem")
    power = _POWER if "max_power" in values else (*_POWER, *_FLAT_POWER)
    temperatures = {key: values[key] for key in values if key != "mem" or sensors}
    total, used = measured(_TOTAL, "bytes"), measured(_USED, "bytes")
    level = said(_LEVEL)
    return CardReading(
        card.number,
        name=said(_NAME, _ID),
        time=said(_TIME),
        utilization_percent=measured(_UTILIZATION, "%"),
        memory_activity_percent=measured(activity, "%"),
        memory_total=None if total is None else round(total),
        memory_used=None if used is None else round(used),
        temperatures_c=_family(
            temperatures, _TEMPERATURE_KEY, _TEMPERATURES, "°C", card, omissions
        ),
        power_w=measured(power, "W"),
        clocks_mhz=_family(values, _CLOCK_KEY, _CLOCKS, "MHz", card, omissions),
        performance_level=_performance(level),
    )


def _performance(level: str | None) -> str | None:
    if level is None or level.lower() in ("unknown", "none"):
        return None
    return re.sub(r"^(amdsmi|rsmi)_dev_perf_level_", "", level.lower())


def _first(
    values: Mapping[str, object],
    names: Iterable[str],
    unit: str,
    place: str,
    omissions: Omissions,
) -> float | None:
    for name in names:
        found = _measured(name, values.get(name), unit, place, omissions)
        if found is not None:
            return found
    return None


def _family(
    values: Mapping[str, object],
    pattern: re.Pattern[str],
    names: Mapping[str, str],
    unit: str,
    card: Card,
    omissions: Omissions,
) -> dict[str, float]:
    """Return all values whose keys have a form, by our names where we have one."""
    found: dict[str, float] = {}
    for key, value in values.items():
        match = pattern.fullmatch(key)
        if match is None:
            continue
        name = next(group for group in match.groups() if group).strip()
        if _NO_READING.fullmatch(name):
            continue
        if " clock level" in key:
            level = _OF_LEVEL.fullmatch(str(value).strip())
            value = level[1] if level else None
        number = _measured(key, value, unit, card.place, omissions)
        if number is not None:
            found.setdefault(names.get(name, name), number)
    return found


def _measured(key: str, value: object, unit: str, place: str, omissions: Omissions) -> float | None:
    """Return a value in a unit; None where the tool does not say it, or it cannot be true."""
    written = None
    if isinstance(value, Mapping):
        written = str(value.get("unit") or "").strip().lower()
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    match = _VALUE.fullmatch(str(value).strip())
    if match is None:
        return None
    in_key = _UNIT_IN_KEY.search(key)
    written = match[2].lower() or written or (in_key[1].lower() if in_key else _UNITLESS[unit])
    scale = _SCALES[unit].get(written)
    if scale is None:
        omissions.note(f"{key} in {written!r}, which is no unit of it, so it is not known", place)
        return None
    number = float(match[1]) * scale
    least, most = _RANGES[unit]
    if not least <= number <= most:
        omissions.note(f"{key} is {match[0][:20]}, which cannot be true, so it is not known", place)
        return None
    return number


def _text(value: object) -> str | None:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    return text if text and text.upper() != "N/A" else None
