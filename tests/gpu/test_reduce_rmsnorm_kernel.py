"""reduce_rmsnorm: each rank adds up and norms its own tokens, and gives the norms to all others."""

from __future__ import annotations

from threading import Timer

import numpy as np
import output_dtypes
import pytest
from test_all_reduce_kernel import (
    Floats,
    Open,
    Ranks,
    grouped,
    in_order,
    opened,
    random_parts,
)

from rocmforge.gpu import peers
from rocmforge.gpu.arrays import F16
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import reduce_rmsnorm as op
from rocmforge.gpu.peers import CHUNK
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms

__all__ = ["opened"]
EPS = 1e-5
HALVES = output_dtypes.TOLERANCES[F16]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NUMBERS", 1 << 21)  # smaller inboxes


def random_norm(columns: int) -> Floats:
    return np.random.default_rng(1).standard_normal(columns, np.float32)


def launched(ranks: Ranks, rank: int, part: Floats, eps: float = EPS) -> tuple[Launch, int, F16]:
    """A rank's launch for its (T, K) numbers, its x and what it writes."""
    gpu, (rows, columns) = ranks.gpus[rank], part.shape
    assert op.runs(rows, columns, ranks.group.peers[rank])
    x, out = gpu.upload(part), output_dtypes.make(gpu, F16, rows, columns)
    assert isinstance(out, F16)
    launch = op.reduce_rmsnorm(
        gpu.kernels,
        x=x,
        norm=gpu.upload(random_norm(columns)),
        out=out,
        rows=rows,
        columns=columns,
        eps=eps,
        peers=ranks.group.peers[rank],
    )
    return launch, x, out


def results(ranks: Ranks, part: Floats, eps: float = EPS) -> list[tuple[Floats, Floats]]:
    """Each rank's norms, and its x afterwards; `part` has (ranks, T, K) numbers."""
    own = [launched(ranks, i, numbers, eps) for i, numbers in enumerate(part)]
    ranks.run([[launch] for launch, _, _ in own])
    return [
        (
            output_dtypes.read(gpu, out, *part[0].shape).astype(np.float32),
            gpu.download(x, part[0].shape, np.float32),
        )
        for gpu, (_, x, out) in zip(ranks.gpus, own, strict=True)
    ]


def check(ranks: Ranks, rows: int, columns: int, size: float = 1.0) -> None:
    """Every rank has all norms, and the sums of its own tokens alone."""
    count, eps = len(ranks.gpus), EPS * size**2  # the norms are as large whatever the size
    (part,) = random_parts(count, [rows * columns])
    part = np.float32(size) * part.reshape(count, rows, columns)
    total = in_order(part)
    exact = reference.rmsnorm(total, random_norm(columns), eps)
    for i, (got, summed) in enumerate(results(ranks, part, eps)):
        assert relative_rms(got, exact) <= 2 * HALVES
        first, end = op.own_rows(rows, ranks.group.peers[i])
        np.testing.assert_array_equal(summed[:first], part[i, :first])
        np.testing.assert_array_equal(summed[end:], part[i, end:])
        if end > first:
            assert relative_rms(summed[first:end], total[first:end]) <= HALVES


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("through_host", [False, True])
def test_all_ranks_get_the_norms(opened: Open, count: int, through_host: bool) -> None:
    with grouped(opened(count), through_host) as ranks:
        most = count * (ranks.group.peers[0].flags // 2)
        for rows, columns in (
            (most, 8),
            (count, 8),
            (7, 1032),
            (4, 2056),
            (5, 24),
            (37 * count + 1, 24),
        ):
            check(ranks, rows, columns)


@pytest.mark.usefixtures("small")
def test_sums_of_both_kinds_follow_each_other(opened: Open) -> None:
    with grouped(opened(2)) as ranks:
        for numbers in (peers.WORDS + 4, 3 * CHUNK - 12):
            check(ranks, 6, 1024)
            (part,) = random_parts(2, [numbers])
            for own in ranks.sums([part, part]):
                np.testing.assert_array_equal(own[1], in_order(part))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [1e-9, 1e12])
def test_rows_beyond_the_range_of_halves(opened: Open, size: float) -> None:
    with grouped(opened(2)) as ranks:
        check(ranks, 4, 64, size)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(opened: Open, wrong: float) -> None:
    """And is found there by all ranks, whoever had it and whoever adds it up."""
    count, rows, columns = 2, 6, 64
    (part,) = random_parts(count, [rows * columns])
    part = part.reshape(count, rows, columns)
    part[0, 1, 5] = part[0, 4, 6] = part[1, 0, 7] = part[1, 5, 8] = wrong
    good = [2, 3]
    exact = reference.rmsnorm(in_order(part)[good], random_norm(columns), EPS)
    with grouped(opened(count)) as ranks:
        for i, (got, summed) in enumerate(results(ranks, part)):
            assert relative_rms(got[good], exact) <= 2 * HALVES
            for row, column in ((1, 5), (4, 6), (0, 7), (5, 8)):
                assert np.isnan(got[row, column])
                first, end = op.own_rows(rows, ranks.group.peers[i])
                if first <= row < end:
                    np.testing.assert_equal(summed[row, column], np.float32(wrong))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("through_host", [False, True])
def test_a_group_that_is_stopped_waits_for_no_rows_and_begins_anew(
    opened: Open, through_host: bool
) -> None:
    with grouped(opened(2), through_host) as ranks:
        check(ranks, 75, 24)
        launch, _, _ = launched(ranks, 0, np.ones((75, 24), np.float32))
        stop = Timer(0.2, ranks.group.stop)
        stop.start()
        ranks.run([[launch], []])  # its peer does not come
        stop.join()
        ranks.group.restart()
        check(ranks, 75, 24)
        check(ranks, 7, 1032)


def test_what_travels_has_to_fit() -> None:
    for ranks in range(2, peers.MOST_RANKS + 1):
        assert op.runs(2048, 4096, peers.Peers(0, ranks, (), ()))
    two = peers.Peers(0, 2, (), ())
    for rows, columns, fits in (
        (2048, 4096, True),
        (2048, 8192, True),
        (2048, 16384, False),
        (2048, 4100, False),
        (1, 4096, False),
        (2048, 8, True),
        (2050, 8, True),
        (2052, 8, False),
    ):
        assert op.runs(rows, columns, two) == fits
    assert [op.own_rows(7, peers.Peers(i, 3, (), ())) for i in range(3)] == [(0, 2), (2, 4), (4, 7)]
