"""embed: rows of a raw table bit for bit, and their RMSNorm in every dtype."""

from __future__ import annotations

import numpy as np
import output_dtypes
import packed_streams
import pytest
from format_kinds import of_each_kind
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32, Q8, Permuted
from rocmforge.gpu.ops.embed import embed
from rocmforge.ops import Matrix, cases, reference

Floats = NDArray[np.float32]
EPS = 1e-5


def table_of(name: str, rows: int, columns: int) -> Matrix:
    weights = np.random.default_rng(columns).standard_normal((rows, columns), np.float32)
    return Matrix.from_floats(weights, name)


def rows_of(
    gpu: Gpu, table: Matrix, ids: list[int], packed: bool = False, **norm: object
) -> Floats:
    out = gpu.empty(4 * len(ids) * table.columns)
    launch = embed(
        gpu.kernels,
        table=packed_streams.upload(gpu, table) if packed else gpu.upload(table.data),
        format=table.format.name,
        tokens=gpu.upload(np.array(ids, np.int32)),
        out=out,
        count=len(ids),
        columns=table.columns,
        **norm,  # type: ignore[arg-type]
    )
    gpu.run(launch)
    rows: Floats = gpu.download(out, (len(ids), table.columns), np.float32)
    np.testing.assert_array_equal(rows, table.to_floats()[ids])
    return rows


@pytest.mark.parametrize("name", of_each_kind(FORMATS))
def test_rows_and_their_norm(gpu: Gpu, name: str) -> None:
    """Odd numbers of blocks, so that rows begin at any alignment that the format has."""
    block = FORMATS[name].block_len
    columns = 3 * block if block > 1 else 37
    table = table_of(name, 9, columns)
    weight = np.random.default_rng(1).standard_normal(columns, np.float32)
    normed = gpu.empty(4 * 5 * columns)
    ids = [8, 0, 3, 3, 1]
    norm = {"norm_weight": gpu.upload(weight), "eps": EPS}
    rows = rows_of(gpu, table, ids, **norm, normed=F32(normed))
    got = gpu.download(normed, (5, columns), np.float32)
    wanted = reference.rmsnorm(rows, weight, EPS)
    assert cases.relative_rms(got, wanted) <= cases.RowsCase(1, 1).tolerance("rmsnorm")
    if name in ("F16", "Q4_0", "Q6_K"):
        for dtype in (F16, Permuted):
            if dtype in output_dtypes.fitting(columns, spaced=True):
                halves = output_dtypes.make(gpu, dtype, 5, columns)
                rows_of(gpu, table, ids, **norm, normed=halves)
                got = output_dtypes.read(gpu, halves, 5, columns)
                assert cases.relative_rms(got, wanted) <= 2**-11


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_packed_matrix(gpu: Gpu, name: str) -> None:
    """Bit for bit those of the file, some longer than a block of threads takes at once."""
    block = FORMATS[name].block_len
    for columns in (3 * block if block > 1 else 36, 1024 + 256):
        table = table_of(name, 9, columns)
        weight = np.random.default_rng(1).standard_normal(columns, np.float32)
        normed = gpu.empty(4 * 4 * columns)
        norm = {"norm_weight": gpu.upload(weight), "eps": EPS, "normed": F32(normed)}
        rows = rows_of(gpu, table, [8, 0, 3, 3], packed=True, **norm)
        got = gpu.download(normed, (4, columns), np.float32)
        wanted = reference.rmsnorm(rows, weight, EPS)
        assert cases.relative_rms(got, wanted) <= cases.RowsCase(1, 1).tolerance("rmsnorm")


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "MXFP6_E3M2", "F32"])
def test_rounded_to_int8(gpu: Gpu, name: str) -> None:
    columns = 768
    table = table_of(name, 3, columns)
    weight = np.random.default_rng(2).standard_normal(columns, np.float32)
    memory = gpu.empty(Q8.nbytes(4, columns))
    normed = Q8.at(memory, 4, columns)
    ids = [2, 0, 1, 2]
    rows = rows_of(gpu, table, ids, norm_weight=gpu.upload(weight), eps=EPS, normed=normed)
    codes = gpu.download(normed.codes, (4, columns // 32, 32), np.int8)
    scales = gpu.download(normed.scales, (4, columns // 32), np.float32)
    sums = gpu.download(normed.sums, (4, columns // 32), np.uint32)
    got = (codes * scales[..., None]).reshape(4, columns)
    assert cases.relative_rms(got, reference.rmsnorm(rows, weight, EPS)) <= cases.TOLERANCES["int8"]
    halves = codes.reshape(4, -1, 2, 16).sum(3, dtype=np.int16)
    np.testing.assert_array_equal(sums.view(np.int16).reshape(halves.shape), halves)


@pytest.mark.parametrize(("name", "columns"), [("Q4_0", 8192 + 96), ("Q8_0", 8192), ("F16", 1031)])
def test_rows_longer_than_a_block_of_threads(gpu: Gpu, name: str, columns: int) -> None:
    table = table_of(name, 2, columns)
    weight = np.ones(columns, np.float32)
    normed = gpu.empty(4 * 2 * columns)
    rows = rows_of(gpu, table, [1, 0], norm_weight=gpu.upload(weight), eps=EPS, normed=F32(normed))
    got = gpu.download(normed, (2, columns), np.float32)
    wanted = reference.rmsnorm(rows, weight, EPS)
    assert cases.relative_rms(got, wanted) <= cases.RowsCase(1, 1).tolerance("rmsnorm")


def test_without_a_norm_only_the_rows_are_written(gpu: Gpu) -> None:
    rows_of(gpu, table_of("Q5_K", 4, 512), [3, 1])
