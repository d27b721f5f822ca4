"""Products of 9 to 2,048 tokens against the float64 reference: every format, awkward shapes,
several matrices in one launch, bands of rows that blocks share, what becomes of the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_kinds import of_each_kind
from guarded import Gpu
from matrix_units import skip_without_mma_sync
from numpy.typing import NDArray
from output_dtypes import batch_input, read
from packed_streams import upload
from test_matmul_prompt_kernel import TOLERANCE, Data, data

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, Halves, Permuted
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import matmul_batch as op
from rocmforge.gpu.ops.batch_blocks import COUNTERS, Sharing, Work
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix

NAMES = [name for name in FORMATS if DENSE.get(name, name) in op.FORMATS]
SHAPES = ((9, 1, 256), (17, 33, 768), (64, 130, 512))  # tokens, rows, columns


def scratch(gpu: Gpu, nbytes: int = 1 << 22) -> op.Scratch:
    return op.Scratch(gpu.empty(nbytes), gpu.upload(np.zeros(COUNTERS, np.uint32)))


def multiply(
    gpu: Gpu,
    cases: Sequence[Data],
    before: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
) -> list[NDArray[np.float32]]:
    """What the kernel gives for matrices that share x, each (T, N)."""
    x = cases[0].x
    shapes = [(len(x), case.matrix.rows) for case in cases]
    given = [gpu.empty(4 * t * n) if before is None else gpu.upload(before) for t, n in shapes]
    gpu.run(
        op.matmul_batch(
            gpu.kernels,
            x=batch_input(gpu, x),
            weights=[upload(gpu, case.matrix) for case in cases],
            outs=given,
            biases=[None if bias is None else gpu.upload(bias)] * len(cases),
            tokens=len(x),
            scratch=scratch(gpu),
            accumulate=before is not None,
        )
    )
    return [gpu.download(out, shape, np.float32) for out, shape in zip(given, shapes, strict=True)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_every_format(gpu: Gpu, name: str, shape: tuple[int, int, int]) -> None:
    case = data(*shape, name)
    assert relative_rms(multiply(gpu, [case])[0], case.wanted) < TOLERANCE


@pytest.mark.parametrize("tokens", [9, 16, 32, 33, 48, 65, 128, 130, 320])
def test_tokens_and_columns_that_fill_no_step(gpu: Gpu, tokens: int) -> None:
    case = data(tokens, 70, 160, "Q4_0")
    assert relative_rms(multiply(gpu, [case])[0], case.wanted) < TOLERANCE


LARGE_SCALES: dict[str, NDArray[Any]] = {
    "Q8_0": np.array([[40000.0], [1 / 64], [1 / 64]], np.float16),
    "MXFP4": np.array([[141], [133], [117], [254]], np.uint8),
    "NVFP4": np.array([[126, 16, 16, 126], [88, 0, 127, 16], [16] * 4], np.uint8),
}
"""Scales at the beginning of a block, for rows in turn.

Some make weights too large for float16, some are too large to be raised by 2^15, some are small.
"""


def matrix_beyond_float16(
    name: str, rows: int, columns: int, seed: int
) -> tuple[Matrix, NDArray[np.float64]]:
    """A matrix with such scales; and its weights, clipped."""
    fmt, scales = FORMATS[name], LARGE_SCALES[name]
    own = scales[np.arange(rows) % len(scales)].view(np.uint8)
    shape = rows, columns // fmt.block_len, fmt.block_bytes
    raw = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    raw[:, :, : own.shape[1]] = own[:, None]
    matrix = Matrix(raw.reshape(rows, -1), fmt)
    return matrix, np.clip(matrix.to_floats().astype(np.float64), -65504, 65504)


def assert_close_by_rows(got: NDArray[np.float32], wanted: NDArray[np.float64]) -> None:
    """Within the rounding of weights, for each row of a matrix by itself."""
    sizes = np.sqrt(np.mean(wanted**2, axis=0))
    np.testing.assert_allclose(got / sizes, wanted / sizes, rtol=0, atol=8 * TOLERANCE)


@pytest.mark.parametrize("name", LARGE_SCALES)
@pytest.mark.parametrize("tokens", [9, 33])
def test_rows_beyond_float16_leave_their_neighbours_alone(gpu: Gpu, tokens: int, name: str) -> None:
    """Lanes whose weights are clipped and lanes whose are not multiply together."""
    matrix, weights = matrix_beyond_float16(name, 70, 128, seed=tokens)
    x = (np.random.default_rng(0).standard_normal((tokens, 128)) / 64).astype(np.float16)
    wanted = x.astype(np.float64) @ weights.T
    assert_close_by_rows(multiply(gpu, [Data(x, matrix, wanted)])[0], wanted)


def test_three_matrices_of_different_formats(gpu: Gpu) -> None:
    cases = [data(20, rows, 512, name) for rows, name in ((130, "Q4_K"), (7, "Q4_K"), (65, "Q6_K"))]
    x = cases[0].x
    for case, got in zip(cases, multiply(gpu, cases), strict=True):
        wanted = x.astype(np.float64) @ case.matrix.to_floats().astype(np.float64).T
        assert relative_rms(got, wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("tokens", "rows", "columns"), [(12, 40, 256), (70, 150, 512), (200, 257, 160)]
)
def test_a_bias_and_the_residual_are_added(gpu: Gpu, tokens: int, rows: int, columns: int) -> None:
    case = data(tokens, rows, columns, "Q8_0")
    before = np.random.default_rng(1).standard_normal((tokens, rows), np.float32)
    bias = np.random.default_rng(2).standard_normal(rows, np.float32)
    got = multiply(gpu, [case], before, bias)[0]
    assert relative_rms(got, case.wanted + before + bias) < TOLERANCE


def gate_and_up(
    gpu: Gpu,
    name: str,
    tokens: int,
    rows: int,
    columns: int,
    scratch: op.Scratch,
    dtype: type[Halves] = F16,
) -> tuple[Launch, Halves, NDArray[np.float64]]:
    """The launch, its output, and what that has to be."""
    gate, up = (data(tokens, rows, columns, name, seed=seed) for seed in (0, 1))
    out = dtype(gpu.empty(2 * tokens * rows))
    launch = op.gate_up_swiglu_batch(
        gpu.kernels,
        x=batch_input(gpu, gate.x),
        gate=upload(gpu, gate.matrix),
        up=upload(gpu, up.matrix),
        out=out,
        tokens=tokens,
        scratch=scratch,
    )
    ups = gate.x.astype(np.float64) @ up.matrix.to_floats().astype(np.float64).T
    return launch, out, gate.wanted / (1 + np.exp(-gate.wanted)) * ups


def with_tiles(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tiles: int) -> None:
    """Gives waves so many tiles of 16 rows. An H100 has one, of which a lane holds two lines."""
    skip_without_mma_sync(gpu)
    choose = op.choose
    monkeypatch.setattr(op, "choose", lambda *given: replace(choose(*given), TILES=tiles))


@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("tokens", [9, 40, 64])
def test_waves_have_one_tile_or_two(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tokens: int, tiles: int
) -> None:
    with_tiles(gpu, monkeypatch, tiles)
    cases = [data(tokens, rows, 512, name) for rows, name in ((130, "Q4_K"), (21, "Q6_K"))]
    x = cases[0].x
    for case, got in zip(cases, multiply(gpu, cases), strict=True):
        wanted = x.astype(np.float64) @ case.matrix.to_floats().astype(np.float64).T
        assert relative_rms(got, wanted) < TOLERANCE
    launch, out, wanted = gate_and_up(gpu, "Q4_K", tokens, 50, 768, scratch(gpu))
    gpu.run(launch)
    assert relative_rms(gpu.download(out.address, wanted.shape, np.float16), wanted) < TOLERANCE


@pytest.mark.parametrize("name", ["Q4_K", "F16", "Q5_1"])
@pytest.mark.parametrize("tokens", [10, 40, 100])
def test_gate_and_up(gpu: Gpu, name: str, tokens: int) -> None:
    launch, out, wanted = gate_and_up(gpu, name, tokens, 50, 768, scratch(gpu))
    gpu.run(launch)
    got = gpu.download(out.address, (tokens, 50), np.float16)
    assert relative_rms(got.astype(np.float32), wanted) < TOLERANCE


def test_gate_and_up_for_a_product_that_reads_permuted(gpu: Gpu) -> None:
    launch, out, wanted = gate_and_up(gpu, "Q4_K", 20, 128, 256, scratch(gpu), Permuted)
    gpu.run(launch)
    assert relative_rms(read(gpu, out, 20, 128), wanted) < TOLERANCE


def one_tile(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, tokens: int, number: int = -1
) -> op.Constants:
    """Leave only one tile to choose from: the last is the tall one, where there is one."""
    tile = op.tiles(gpu.kernels.runtime.properties.architecture, name, tokens)[number]
    monkeypatch.setattr(op, "tiles", lambda *_: (tile,))
    return tile


def just_enough(
    gpu: Gpu, name: str, rows: Sequence[int], columns: int, tokens: int
) -> tuple[op.Scratch, int]:
    """Memory that the launch asks for, not a byte more, and its number of counters."""
    cut = op._cut(gpu.kernels, name, rows, columns, tokens)
    nbytes, counters = cut.partial_bytes, cut.bands * cut.token_tiles
    arrivals = gpu.upload(np.zeros(counters, np.uint32))
    return op.Scratch(gpu.empty(max(16, nbytes)), arrivals), counters


Ways = tuple[Sharing, ...] | None
OWN, PAIRS = (Sharing.OWN,), (Sharing.PAIRS,)


def share_bands(monkeypatch: pytest.MonkeyPatch, count: int, ways: Ways) -> None:
    """Let so many blocks share all bands, by these kernels; None: by those that CUDA has."""
    monkeypatch.setattr(op, "can_be_even", lambda _: True)
    if ways is not None:
        monkeypatch.setattr(op, "ways", lambda *_: ways)

    def blocks(work: Work, *, even: bool) -> int:
        return count if even else work.bands * max(1, count // work.bands)

    monkeypatch.setattr(op, "blocks", blocks)


NAMES_OF_THREE = (
    ("Q4_K", "Q4_K", "Q6_K"),
    ("Q6_K", "Q4_K", "Q4_K"),
    ("Q4_K", "Q6_K", "Q4_K"),
    ("Q4_K", "Q6_K", "Q8_0"),
    ("Q4_K", "Q4_K", "Q4_K"),
    ("Q6_K", "Q4_K"),
)


@pytest.mark.parametrize(
    ("tokens", "names", "ways", "count"),
    [
        (*kind, count)
        for kind in (
            *((9, names, None) for names in NAMES_OF_THREE),
            *((tokens, NAMES_OF_THREE[0], way) for tokens in (9, 40) for way in (OWN, PAIRS)),
            *((tokens, NAMES_OF_THREE[0], None) for tokens in (40, 97)),
        )
        for count in (2, 3, 4, 7, 11)  # blocks for up to four bands
    ],
    ids=str,
)
def test_blocks_share_the_bands_of_several_matrices(
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    names: tuple[str, ...],
    ways: Ways,
    count: int,
) -> None:
    """The same sums every time, in no more memory than was asked for; counters are 0 again."""
    band = one_tile(gpu, monkeypatch, names[0], tokens).rows
    rows = (2 * band - 3, 5, band)[: len(names)]
    share_bands(monkeypatch, count, ways)
    cases = [data(tokens, n, 1536, name) for n, name in zip(rows, names, strict=True)]
    x = cases[0].x
    own, counters = just_enough(gpu, names[0], rows, 1536, tokens)
    outs = [gpu.empty(4 * tokens * n) for n in rows]
    launch = op.matmul_batch(
        gpu.kernels,
        x=batch_input(gpu, x),
        weights=[upload(gpu, case.matrix) for case in cases],
        outs=outs,
        biases=[None] * len(rows),
        tokens=tokens,
        scratch=own,
    )
    results = []
    for _ in range(2):
        gpu.run(launch)
        each = zip(outs, rows, strict=True)
        results.append([gpu.download(out, (tokens, n), np.float32) for out, n in each])
    for case, first, second in zip(cases, *results, strict=True):
        np.testing.assert_array_equal(first, second)
        wanted = x.astype(np.float64) @ case.matrix.to_floats().astype(np.float64).T
        assert relative_rms(first, wanted) < TOLERANCE
    assert not gpu.download(own.arrivals, (counters,), np.uint32).any()


@pytest.mark.parametrize(
    ("tokens", "ways", "count"),
    [
        (tokens, way, count)
        for tokens in (9, 32, 64, 100)
        for way in (OWN, None)
        for count in (1, 2, 3, 4, 7, 9)  # blocks for three bands
    ],
)
def test_blocks_share_the_bands_of_gate_and_up(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tokens: int, ways: Ways, count: int
) -> None:
    share_bands(monkeypatch, count, ways)
    band = one_tile(gpu, monkeypatch, "Q4_K", tokens).rows
    rows = 3 * band // 2 - 5
    own, counters = just_enough(gpu, "Q4_K", [2 * rows], 1536, tokens)
    launch, out, wanted = gate_and_up(gpu, "Q4_K", tokens, rows, 1536, own)
    for _ in range(2):
        gpu.run(launch)
        got = gpu.download(out.address, (tokens, rows), np.float16)
        assert relative_rms(got.astype(np.float32), wanted) < TOLERANCE
    assert not gpu.download(own.arrivals, (counters,), np.uint32).any()


@pytest.mark.parametrize("ways", [OWN, None])
def test_blocks_share_bands_of_waves_of_one_tile(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, ways: Ways
) -> None:
    with_tiles(gpu, monkeypatch, 1)
    names = NAMES_OF_THREE[0]
    test_blocks_share_the_bands_of_several_matrices(gpu, monkeypatch, 9, names, ways, 7)
    test_blocks_share_the_bands_of_gate_and_up(gpu, monkeypatch, 64, ways, 7)


@pytest.mark.hopper
@pytest.mark.parametrize("names", [NAMES_OF_THREE[0], ("Q8_0", "IQ2_S"), ("MXFP4",)], ids=str)
@pytest.mark.parametrize("tile", [0, 1, 2], ids=["narrow", "wide", "tall"])
@pytest.mark.parametrize("tokens", [65, 128, 200, 300])
def test_each_tile_of_many_tokens(
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    tile: int,
    names: tuple[str, ...],
) -> None:
    """With fewer blocks than bands, as many, and more; where there are tiles to choose from."""
    if gpu.kernels.runtime.properties.architecture != "sm_90":
        pytest.skip("Hopper alone has large tiles")
    one_tile(gpu, monkeypatch, names[0], tokens, tile)
    for count in (1, 2, 3, 7):
        test_blocks_share_the_bands_of_several_matrices(
            gpu, monkeypatch, tokens, names, None, count
        )
        test_blocks_share_the_bands_of_gate_and_up(gpu, monkeypatch, tokens, None, count)


@pytest.mark.parametrize("tokens", [16, 130, 520])
def test_a_router(gpu: Gpu, tokens: int) -> None:
    case = data(tokens, 128, 256, "F32")
    assert relative_rms(multiply(gpu, [case])[0], case.wanted) < TOLERANCE
