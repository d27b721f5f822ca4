"""Constants of kernels that were measured on a card, as the ops' choosers read them.

`rocmforge tune` writes them to a file of its own for each card. Where a card has no file, or the
file is of other kernel sources or does not name a kernel, the op's own constants hold.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rocmforge import env
from rocmforge.atomic import whole_file
from rocmforge.gpu.kernel_files import kernels_digest
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES, Cut, own_cuts
from rocmforge.gpu.runtime import DeviceProperties

SCHEMA = 2
MOST_BYTES = 1 << 20  # of a file
LARGEST = MappingProxyType(
    {
        "WAVES": 16,
        "ROWS": 8,
        "UNITS": 8,
        "LANES": 32,
        "BUFFERS": 2,
        "BLOCKS": 16,
        "TILES": 2,
        "ROW_WAVES": 16,
        "SPLITS": 4,
        "STAGES": 4,
        "DEPTH": 4,
        "blocks": 1024,
    }
)
"""Of each whole number."""
POWERS_OF_TWO = ("WAVES", "ROWS", "LANES", "ROW_WAVES", "SPLITS")
KERNELS = "kernels"  # the field that names their sources

FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gemv": frozenset({"WAVES", "ROWS", "UNITS", "LANES", "BUFFERS"}),
        "experts": frozenset({"WAVES", "ROWS", "UNITS", "LANES", "BLOCKS"}),
        "batch": frozenset({"TILES", "ROW_WAVES", "SPLITS", "STAGES", "DEPTH", "BLOCKS"}),
        "tile": frozenset({"alone", "full", "blocks"}),
    }
)
"""What a table may say, by the first word of a kernel's key."""

Constants = Mapping[str, int | float]


@dataclass(frozen=True)
class Tuning:
    """What was measured on one card.

    Parameters
    ----------
    constants
        By key, as "gemv few rows nibbles 1": constants of a kernel that replace the op's own.
    without
        The fusion rules that cost more than they bring.
    date
        When it was measured, as ISO 8601 has it; empty: never.
    """

    constants: Mapping[str, Constants] = field(default_factory=lambda: MappingProxyType({}))
    without: tuple[str, ...] = ()
    date: str = ""

    def get(self, *key: object) -> Mapping[str, Any]:
        """Return the constants of a key, whose words are joined; empty where there are none."""
        return self.constants.get(joined(key), {})

    def changed(self, key: str, constants: Constants | None) -> Tuning:
        """Return it with other constants of a key; with None it has none."""
        others = {one: held for one, held in self.constants.items() if one != key}
        own = {} if constants is None else {key: constants}
        return replace(self, constants=MappingProxyType({**others, **own}))


UNTUNED = Tuning()


def joined(key: Iterable[object]) -> str:
    """Return a key's words as tables have them."""
    return " ".join(str(word) for word in key)


def tuning_file(properties: DeviceProperties) -> Path:
    """Return where the table of a card lies, whether it exists or not."""
    words = f"{properties.architecture} {properties.name} {properties.compute_units}"
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return env.cache_dir() / "tuning" / f"{name}.json"


def load_tuning(properties: DeviceProperties) -> Tuning:
    """Return the table of a card, or that of ROCMFORGE_TUNING; an empty one where there is none.

    A file that is broken is warned of, and counts as missing.

    Raises
    ------
    ValueError
        ROCMFORGE_TUNING names no file.
    """
    wanted = env.tuning()
    if wanted == env.TUNING_OFF:
        return UNTUNED
    return read_tuning(tuning_file(properties) if wanted is None else Path(wanted), properties)


def read_tuning(path: Path, properties: DeviceProperties) -> Tuning:
    """Return the table of a file; an empty one, with a warning, where it is broken or another's."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return UNTUNED
    except OSError as error:
        return _broken(path, error.strerror or str(error))
    if len(raw) > MOST_BYTES:
        return _broken(path, f"got more than {MOST_BYTES} bytes")
    try:
        return _parse(json.loads(raw), _card(properties))
    except (ValueError, RecursionError) as error:
        return _broken(path, str(error))


def save_tuning(path: Path, properties: DeviceProperties, tuning: Tuning) -> None:
    """Write the table of a card; an older file is replaced whole.

    Raises
    ------
    OSError
        It cannot be written.
    """
    table = {
        "schema": SCHEMA,
        **_card(properties),
        "date": tuning.date,
        "constants": {key: dict(found) for key, found in sorted(tuning.constants.items())},
        "without": list(tuning.without),
    }
    with whole_file(path) as file:
        file.write(json.dumps(table, indent=1).encode() + b"\n")


def _broken(path: Path, why: str) -> Tuning:
    warnings.warn(
        f"{path}: no table of `rocmforge tune` for this GPU: {why}; it is not used",
        stacklevel=2,
    )
    return UNTUNED


def _card(properties: DeviceProperties) -> dict[str, str | int]:
    """What a table says of the card and the kernels that it was measured with."""
    return {
        "device": properties.name,
        "architecture": properties.architecture,
        "compute_units": properties.compute_units,
        KERNELS: kernels_digest(),
    }


def _parse(table: Any, card: Mapping[str, str | int]) -> Tuning:
    """Make a table of what a file holds; ValueError says what is wrong with it."""
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise ValueError(f"wanted an object of schema {SCHEMA}; `rocmforge tune` writes one")
    for name, value in card.items():
        if name == KERNELS and table.get(name) != value:
            raise ValueError("it is of other kernel sources; `rocmforge tune` measures these")
        if table.get(name) != value:
            raise ValueError(f'"{name}": got {table.get(name)!r:.80}, wanted {value!r}')
    constants, without, date = (table.get(name) for name in ("constants", "without", "date"))
    if not isinstance(constants, dict) or not isinstance(date, str):
        raise ValueError('wanted an object "constants" and a text "date"')
    own = own_cuts(str(card["architecture"]))
    for key, found in constants.items():
        _check(key, found, own)
    if not isinstance(without, list) or not all(isinstance(name, str) for name in without):
        raise ValueError(f'"without": got {without!r:.80}, wanted a list of names')
    return Tuning(MappingProxyType(constants), tuple(without), date)


def _check(key: str, found: Any, own: Mapping[str, Cut]) -> None:
    wanted: Collection[str] = FIELDS.get(key.split(" ")[0], ())
    if not isinstance(found, dict) or set(found) != wanted:
        names = ", ".join(sorted(wanted)) or "no such kernel"
        raise ValueError(f"{key!r:.80}: got {found!r:.80}, wanted an object of {names}")
    for name, value in found.items():
        number = isinstance(value, int if name.isupper() or name == "blocks" else (int, float))
        if not number or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{key!r:.80}, {name}: got {value!r:.40}, wanted a number above 0")
        if name in LARGEST and value > LARGEST[name]:
            raise ValueError(f"{key!r:.80}, {name}: got {value}, wanted at most {LARGEST[name]}")
        if name in POWERS_OF_TWO and value & (value - 1):
            raise ValueError(f"{key!r:.80}, {name}: got {value}, wanted a power of two")
    if key.startswith("gemv ") and key not in own:
        raise ValueError(f"{key!r:.80}: there is no such class of rows, kind or number of tokens")
    # Kernels of matrix units read activations of another dtype.
    matrix = key in own and own[key].lanes == MATRIX_LANES
    lanes = (MATRIX_LANES,) if matrix else (8, 16, 32)
    if found.get("LANES", lanes[0]) not in lanes:
        raise ValueError(f"{key!r:.80}, LANES: got {found['LANES']}, wanted one of {lanes}")
