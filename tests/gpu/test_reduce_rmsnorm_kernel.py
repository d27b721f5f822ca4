"""reduce_rmsnorm: each rank adds up and norms its own tokens, and gives the norms to all others."""

from __future__ import annotations

import numpy as np
import output_dtypes
import pytest
from test_all_reduce_kernel import Open, Ranks, grouped, in_order, opened, random_parts

from rocmforge.gpu import peers
from rocmforge.gpu.arrays import F16
from rocmforge.gpu.ops import reduce_rmsnorm as op
from rocmforge.gpu.peers import CHUNK
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms

__all__ = ["opened"]
EPS = 1e-5
HALVES = output_dtypes.TOLERANCES[F16]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NUMBERS", 1 << 18)  # smaller inboxes


def check(ranks: Ranks, rows: int, columns: int, size: float = 1.0) -> None:
    """Every rank has all norms, and the sums of its own tokens alone."""
    count = len(ranks.gpus)
    assert op.runs(rows, columns, ranks.group.peers[0])
    (part,) = random_parts(count, [rows * columns])
    part = np.float32(size) * part.reshape(count, rows, columns)
    norm = np.random.default_rng(1).standard_normal(columns, np.float32)
    places, launches = [], []
    for i, (gpu, own) in enumerate(zip(ranks.gpus, ranks.group.peers, strict=True)):
        out = output_dtypes.make(gpu, F16, rows, columns)
        assert isinstance(out, F16)
        x = gpu.upload(part[i])
        places.append((x, out))
        launch = op.reduce_rmsnorm(
            gpu.kernels,
            x=x,
            norm=gpu.upload(norm),
            out=out,
            rows=rows,
            columns=columns,
            eps=EPS,
            peers=own,
        )
        launches.append([launch])
    ranks.run(launches)
    total = in_order(part)
    exact = reference.rmsnorm(total, norm, EPS)
    for i, (gpu, (x, out)) in enumerate(zip(ranks.gpus, places, strict=True)):
        got = output_dtypes.read(gpu, out, rows, columns)
        assert relative_rms(got, exact) <= 2 * HALVES
        first, end = op.own_rows(rows, ranks.group.peers[i])
        summed = gpu.download(x, total.shape, np.float32)
        np.testing.assert_array_equal(summed[:first], part[i, :first])
        np.testing.assert_array_equal(summed[end:], part[i, end:])
        if end > first:
            assert relative_rms(summed[first:end], total[first:end]) <= HALVES


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("through_host", [False, True])
def test_all_ranks_get_the_norms(opened: Open, count: int, through_host: bool) -> None:
    with grouped(opened(count), through_host) as ranks:
        for rows, columns in ((count, 8), (7, 1032), (4, 2056), (5, 24)):
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
@pytest.mark.parametrize("size", [1e-4, 1e12])
def test_rows_beyond_the_range_of_halves(opened: Open, size: float) -> None:
    with grouped(opened(2)) as ranks:
        check(ranks, 4, 64, size)


def test_what_travels_has_to_fit() -> None:
    two = peers.Peers(0, 2, (), ())
    for rows, columns, fits in (
        (2048, 4096, True),
        (2048, 8192, True),
        (2048, 16384, False),
        (2048, 4100, False),
        (1, 4096, False),
        (2048, 8, True),
        (2050, 8, False),
    ):
        assert op.runs(rows, columns, two) == fits
    assert [op.own_rows(7, peers.Peers(i, 3, (), ())) for i in range(3)] == [(0, 2), (2, 4), (4, 7)]
