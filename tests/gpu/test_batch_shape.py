"""The shape of a batch, by which passes share their launches."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.gpu.batch_shape import DEEP, batch_shape, room_of


@pytest.mark.parametrize(
    ("counts", "before", "deep"),
    [
        ([512], 0, False),
        ([512], DEEP - 1, False),
        ([512], DEEP, True),
        ([9, 1], DEEP, False),
        ([9, 1], 2 * DEEP, True),
        ([1], DEEP, False),
        ([1, 1], 4 * DEEP, False),
    ],
)
def test_a_prompt_behind_many_tokens_is_deep(counts: list[int], before: int, deep: bool) -> None:
    rows = (np.cumsum(counts) - 1).astype(np.int32)
    shape = batch_shape(counts, rows, before)
    assert shape.deep == deep
    assert room_of(shape) == room_of(batch_shape(counts, rows, 0))
