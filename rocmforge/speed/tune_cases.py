"""What `rocmforge tune` tries in the place of an op's own constants, by their key in a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import cast

from rocmforge.gpu.ops import expert_constants, matmul_batch
from rocmforge.gpu.ops.dot_rows import constants_of
from rocmforge.gpu.ops.expert_constants import ExpertCut, ExpertOp
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES, Cut, own_cuts
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Constants, joined

NIBBLES = "Q4_K"  # a format whose products on matrix units are tuned
BLOCK = ("WAVES", "ROWS", "UNITS")
GEMV_TRIED = (4, 8, 16), (1, 2, 4), (1, 2, 4)
LANES_TRIED, BUFFERS_TRIED = (16, 32), (1, 2)
ROW_WAVES_TRIED = 4, 8
EXPERTS_TRIED = (4, 8, 16), (1, 2, 4), (1, 2, 3, 4)
EXPERT_LANES_TRIED, BLOCKS_TRIED = (8, 16, 32), (1, 2, 3, 4, 8)
MOST_THREADS = 2048  # of a multiprocessor of NVIDIA
LEAST_IN_FLIGHT, MOST_IN_FLIGHT = 2, (8, 4)
"""Units of all rows that a lane has in flight, of one or two tokens and of more: for more tokens
its registers hold more sums."""

Round = Callable[[Constants], Sequence[Constants]]


@dataclass(frozen=True)
class Case:
    """A key, and what to try for it.

    Parameters
    ----------
    key
        Of the table.
    shown
        For people.
    own
        What the op takes by itself.
    rounds
        What to try instead, one round after the other: each is given the best so far.
    """

    key: str
    shown: str
    own: Constants
    rounds: tuple[Round, ...]


def find_case(key: Sequence[object], properties: DeviceProperties) -> Case | None:
    """Return the case of a key's words as `Tuning.get` is given them; None: it has none."""
    match key:
        case ("gemv", str(name), str(kind), int(tokens)):
            return _gemv(name, kind, tokens, properties)
        case (expert_constants.KEY, str(op), str(name), int(rows), int(columns), int(tokens)):
            return _experts(cast(ExpertOp, op), name, (rows, columns), tokens, properties)
        case ("batch", int(tokens)):
            return _batch(tokens, properties)
    return None


def _round(
    names: Sequence[str], tried: Sequence[Sequence[int]], fits: Callable[[Constants], bool]
) -> Round:
    """Every combination of some constants that a kernel can have."""

    def others(best: Constants) -> list[Constants]:
        every = (dict(zip(names, values, strict=True)) for values in itertools.product(*tried))
        return [found for one in every if fits(found := {**best, **one})]

    return others


def _gemv(name: str, kind: str, tokens: int, properties: DeviceProperties) -> Case:
    key = joined(("gemv", name, kind, tokens))
    own = own_cuts(properties.architecture)[key]
    fits = partial(_gemv_fits, properties, tokens)
    blocks = _round(BLOCK, GEMV_TRIED, fits)
    lanes = _round(("LANES", "BUFFERS"), (LANES_TRIED, BUFFERS_TRIED), fits)
    rounds = (blocks,) if own.lanes == MATRIX_LANES else (blocks, lanes)
    return Case(key, f"GEMV, {name}, {kind}", _constants(own), rounds)


def _constants(cut: Cut | ExpertCut) -> Constants:
    return {name.upper(): value for name, value in cut._asdict().items()}


def _lower(constants: Constants) -> dict[str, int]:
    return {name.lower(): int(value) for name, value in constants.items()}


def _gemv_fits(properties: DeviceProperties, tokens: int, found: Constants) -> bool:
    """Whether a kernel with these constants compiles and fits: threads, lanes, room in LDS."""
    cut = Cut(**_lower(found))
    constants = constants_of(properties.architecture, cut, tokens)
    if constants.matrix_units:
        return cut.rows % 2 == 0 and 2 * cut.rows <= cut.waves and cut.rows * cut.units <= 8
    chunk = constants.SLOTS // tokens // (cut.lanes * cut.units)
    return (
        LEAST_IN_FLIGHT <= cut.rows * cut.units <= MOST_IN_FLIGHT[tokens > 2]
        and cut.waves * properties.wave_size <= 1024
        and tokens * cut.rows <= cut.lanes
        and chunk > 0
    )


def _experts(
    op: ExpertOp, name: str, shape: tuple[int, int], tokens: int, properties: DeviceProperties
) -> Case:
    chosen = expert_constants.choose(properties.architecture, name, shape, tokens, op)

    def fits(found: Constants) -> bool:
        cut = ExpertCut(**_lower(found))
        threads = cut.waves * properties.wave_size
        return (
            LEAST_IN_FLIGHT <= cut.rows * cut.units <= MOST_IN_FLIGHT[0]
            and threads <= 1024
            and threads * cut.blocks <= MOST_THREADS
            and cut.lanes * cut.units <= chosen.rows.SLOTS
        )

    resident = BLOCKS_TRIED if properties.architecture.startswith("sm_") else (1,)
    blocks = _round(BLOCK, EXPERTS_TRIED, fits)
    lanes = _round(("LANES", "BLOCKS"), (EXPERT_LANES_TRIED, resident), fits)
    key = joined((expert_constants.KEY, op, name, *shape, tokens))
    shown = f"{op}, {name}, {shape[0]} × {shape[1]}"
    return Case(key, shown, _constants(chosen.cut), (blocks, lanes))


def _batch(tokens: int, properties: DeviceProperties) -> Case:
    architecture, wave = properties.architecture, properties.wave_size
    chosen = matmul_batch.choose(architecture, NIBBLES, tokens)
    own = {k: v for k, v in asdict(chosen).items() if k not in ("TOKENS", "COLUMNS")}

    def fits(found: Constants) -> bool:
        constants = replace(chosen, **{name: int(value) for name, value in found.items()})
        return constants.fits(architecture, wave, properties.shared_bytes)

    tiles, stages = ((1, 2), (2, 3)) if architecture.startswith("sm_") else ((2,), (2,))
    tried = {
        "TILES": tiles,
        "ROW_WAVES": ROW_WAVES_TRIED,
        "SPLITS": (1, 2),
        "STAGES": stages,
        "DEPTH": (1, 2),
        "BLOCKS": (1, 2),
    }
    every = _round(list(tried), list(tried.values()), fits)
    return Case(joined(("batch", tokens)), f"matrix units, {tokens} tokens", own, (every,))
