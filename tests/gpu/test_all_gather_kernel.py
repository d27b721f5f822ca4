"""all_gather: the columns of every rank side by side, on all ranks, between sums and alone."""

from __future__ import annotations

from threading import Timer

import numpy as np
import pytest
from test_all_reduce_kernel import Floats, Open, Ranks, check_sums, grouped, opened, random_parts

from rocmforge.gpu import peers
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import all_gather as op
from rocmforge.gpu.peers import BLOCK

__all__ = ["opened"]
WORDS = 1 << 11  # fewer than in use: several launches soon


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (peers, op):
        monkeypatch.setattr(module, "WORDS", WORDS)
    monkeypatch.setattr(peers, "NUMBERS", 1 << 15)


def launches(ranks: Ranks, rank: int, whole: Floats) -> tuple[list[Launch], int]:
    """One rank's, with its own columns of (T, V) numbers, and where all will be."""
    (rows, columns), count = whole.shape, len(ranks.gpus)
    gpu, begin, end = ranks.gpus[rank], columns * rank // count, columns * (rank + 1) // count
    part, x = gpu.upload(np.ascontiguousarray(whole[:, begin:end])), gpu.empty(whole.nbytes)
    own = op.all_gather(
        gpu.kernels, part=part, x=x, rows=rows, columns=columns, peers=ranks.group.peers[rank]
    )
    return own, x


def check(ranks: Ranks, shapes: list[tuple[int, int]]) -> None:
    """Calls in a row, on every rank bit for bit."""
    random = np.random.default_rng(3)
    wholes = [random.standard_normal(shape, np.float32) for shape in shapes]
    every = [[launches(ranks, i, whole) for whole in wholes] for i in range(len(ranks.gpus))]
    ranks.run([[one for own, _ in calls for one in own] for calls in every])
    for gpu, calls in zip(ranks.gpus, every, strict=True):
        for (_, x), whole in zip(calls, wholes, strict=True):
            np.testing.assert_array_equal(gpu.download(x, whole.shape, np.float32), whole)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("through_host", [False, True])
def test_every_rank_gets_all_columns(opened: Open, count: int, through_host: bool) -> None:
    """Odd widths leave the last rank a column more, which is alone in a block where BLOCK ends."""
    shapes = [
        (1, count),
        (1, count * BLOCK + 1),
        (3, 97),
        (5, 1000),
        (1, WORDS * count + 7),
        (2, 9),
    ]
    with grouped(opened(count), through_host) as ranks:
        check(ranks, shapes)
        check_sums(ranks, random_parts(count, [252, WORDS, 36]))  # which use the same inboxes
        check(ranks, shapes[::-1])


def test_ranks_that_begin_one_after_another_wait_for_each_other(opened: Open) -> None:
    """Many calls whose blocks have few columns: none may be more than a call ahead."""
    with grouped(opened(2)) as ranks:
        check(ranks, [(1, 3)] * 20)


def test_a_group_that_is_stopped_waits_for_nobody(opened: Open) -> None:
    with grouped(opened(2)) as ranks:
        alone, _ = launches(ranks, 0, np.zeros((1, 64), np.float32))
        stop = Timer(0.2, ranks.group.stop)
        stop.start()
        ranks.run([alone, []])  # its peer does not come
        stop.join()
        ranks.group.restart()
        check(ranks, [(2, 33)])
