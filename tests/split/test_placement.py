"""Which layers lie on which GPU, and how many have room: numbers alone."""

from __future__ import annotations

import pytest

from rocmforge.split.placement import fitting_layers, room, split_layers, taken_bytes

GB = 10**9


@pytest.mark.parametrize(
    ("layers", "output", "rooms", "wanted"),
    [
        ([GB] * 12, 0, [8 * GB, 8 * GB], [6, 6]),
        ([GB] * 12, 0, [16 * GB, 8 * GB], [8, 4]),
        ([GB] * 12, 4 * GB, [8 * GB, 8 * GB], [8, 4]),  # the output is the last one's
        ([4 * GB, GB, GB, GB, GB], 0, [8 * GB, 8 * GB], [1, 4]),  # by bytes, not by number
        ([GB] * 3, 0, [80 * GB, GB, GB], [1, 1, 1]),  # each has one
        ([GB] * 4, 0, [0, 0], [2, 2]),
        ([GB] * 5, 0, [GB], [5]),
    ],
)
def test_gpus_share_layers_by_their_room(
    layers: list[int], output: int, rooms: list[int], wanted: list[int]
) -> None:
    assert split_layers(layers, output, rooms) == wanted


@pytest.mark.parametrize(
    ("layers", "output", "rooms", "wanted"),
    [
        ([GB] * 10, GB, [5 * GB], 4),
        ([GB] * 10, GB, [11 * GB], 10),
        ([3 * GB, GB, GB], GB, [5 * GB], 2),  # the first one, with the embedding, is larger
        ([GB] * 10, GB, [GB // 2], 0),
        ([GB] * 10, GB, [4 * GB, 3 * GB], 6),
        ([GB] * 10, 3 * GB, [4 * GB, 2 * GB], 0),  # the last one has no room for the output
    ],
)
def test_as_many_of_the_last_layers_fit_as_have_room(
    layers: list[int], output: int, rooms: list[int], wanted: int
) -> None:
    assert fitting_layers(layers, output, rooms) == wanted


def test_each_gpu_takes_its_layers_and_the_last_one_the_output() -> None:
    assert taken_bytes([4, 1, 1, 2], 3, [1, 2, 1]) == [4, 2, 5]


def test_some_memory_is_kept_for_activations() -> None:
    assert [room(free << 30) for free in (0, 1, 8, 16)] == [0, 512 << 20, 15 << 29, 15 << 30]
