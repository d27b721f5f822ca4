"""The shape of a batch, by which passes share their launches."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.gpu.batch_shape import batch_shape, room_of
from rocmforge.gpu.ops.attention_prompt import DEEP_QUERIES, DEEP_TOKENS


@pytest.mark.parametrize(
    ("counts", "before", "deep"),
    [
        ([DEEP_QUERIES], 0, False),
        ([DEEP_QUERIES], DEEP_TOKENS - 1, False),
        ([DEEP_QUERIES], DEEP_TOKENS, True),
        ([DEEP_QUERIES - 1], DEEP_TOKENS, False),
        ([2 * DEEP_QUERIES - 1, 1], 2 * DEEP_TOKENS - 1, False),
        ([2 * DEEP_QUERIES - 1, 1], 2 * DEEP_TOKENS, True),
        ([1], DEEP_TOKENS, False),
    ],
)
def test_a_prompt_behind_many_tokens_is_deep(counts: list[int], before: int, deep: bool) -> None:
    rows = (np.cumsum(counts) - 1).astype(np.int32)
    shape = batch_shape(counts, rows, before)
    assert shape.deep == deep
    assert room_of(shape) == room_of(batch_shape(counts, rows, 0))
