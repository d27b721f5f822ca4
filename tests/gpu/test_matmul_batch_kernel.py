"""Products of 9 to 128 tokens against the float64 reference: every format, awkward shapes, several
matrices in one launch, bands of rows that blocks share, what becomes of the sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from format_kinds import of_each_kind
from guarded import Gpu
from matrix_units import skip_without_mma_sync
from numpy.typing import NDArray
from packed_streams import upload
from test_matmul_prompt_kernel import TOLERANCE, Data, data

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import matmul_batch as op
from rocmforge.gpu.tuning import UNTUNED
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix

ARCHITECTURES = ("gfx1100", "gfx1200", "gfx90a", "sm_80", "sm_90")
NAMES = [name for name in FORMATS if DENSE.get(name, name) in op.FORMATS]
SHAPES = ((9, 1, 256), (17, 33, 768), (64, 130, 512))  # tokens, rows, columns


def scratch(gpu: Gpu, nbytes: int = 1 << 22) -> op.Scratch:
    return op.Scratch(gpu.empty(nbytes), gpu.upload(np.zeros(4096, np.uint32)))


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
            x=F16(gpu.upload(x)),
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


@pytest.mark.parametrize("tokens", [9, 16, 32, 33, 48, 65, 128])
def test_tokens_and_columns_that_fill_no_step(gpu: Gpu, tokens: int) -> None:
    case = data(tokens, 70, 160, "Q4_0")
    assert relative_rms(multiply(gpu, [case])[0], case.wanted) < TOLERANCE


def matrix_beyond_float16(rows: int, groups: int, seed: int) -> tuple[Matrix, NDArray[np.float64]]:
    """Of Q8_0: 40000 · code in each third row, else code / 64; and its weights, clipped."""
    raw = np.zeros((rows, groups * 34), np.uint8)
    blocks = raw.reshape(rows, groups, 34)
    scales = np.where(np.arange(rows) % 3 == 0, 40000.0, 1 / 64).astype(np.float16)
    blocks[:, :, :2] = scales.view(np.uint8).reshape(rows, 1, 2)
    codes = np.random.default_rng(seed).integers(-127, 128, (rows, groups, 32), np.int8)
    blocks[:, :, 2:] = codes.view(np.uint8)
    matrix = Matrix(raw, FORMATS["Q8_0"])
    return matrix, np.clip(matrix.to_floats().astype(np.float64), -65504, 65504)


def assert_close_by_rows(got: NDArray[np.float32], wanted: NDArray[np.float64]) -> None:
    """Within the rounding of weights, for each row of a matrix by itself."""
    sizes = np.sqrt(np.mean(wanted**2, axis=0))
    np.testing.assert_allclose(got / sizes, wanted / sizes, rtol=0, atol=8 * TOLERANCE)


@pytest.mark.parametrize("tokens", [9, 33])
def test_rows_beyond_float16_leave_their_neighbours_alone(gpu: Gpu, tokens: int) -> None:
    """Lanes whose weights are clipped and lanes whose are not multiply together."""
    matrix, weights = matrix_beyond_float16(70, 4, seed=tokens)
    x = (np.random.default_rng(0).standard_normal((tokens, 128)) / 64).astype(np.float16)
    wanted = x.astype(np.float64) @ weights.T
    assert_close_by_rows(multiply(gpu, [Data(x, matrix, wanted)])[0], wanted)


def test_three_matrices_of_different_formats(gpu: Gpu) -> None:
    cases = [data(20, rows, 512, name) for rows, name in ((130, "Q4_K"), (7, "Q4_K"), (65, "Q6_K"))]
    x = cases[0].x
    for case, got in zip(cases, multiply(gpu, cases), strict=True):
        wanted = x.astype(np.float64) @ case.matrix.to_floats().astype(np.float64).T
        assert relative_rms(got, wanted) < TOLERANCE


def test_a_bias_and_the_residual_are_added(gpu: Gpu) -> None:
    case = data(12, 40, 256, "Q8_0")
    before = np.random.default_rng(1).standard_normal((12, 40), np.float32)
    bias = np.random.default_rng(2).standard_normal(40, np.float32)
    got = multiply(gpu, [case], before, bias)[0]
    assert relative_rms(got, case.wanted + before + bias) < TOLERANCE


def gate_and_up(
    gpu: Gpu, name: str, tokens: int, rows: int, columns: int, scratch: op.Scratch
) -> tuple[Launch, F16, NDArray[np.float64]]:
    """The launch, its output, and what that has to be."""
    gate, up = (data(tokens, rows, columns, name, seed=seed) for seed in (0, 1))
    out = F16(gpu.empty(2 * tokens * rows))
    launch = op.gate_up_swiglu_batch(
        gpu.kernels,
        x=F16(gpu.upload(gate.x)),
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


def just_enough(
    gpu: Gpu, name: str, rows: Sequence[int], columns: int, tokens: int
) -> tuple[op.Scratch, int]:
    """Memory that the launch asks for, not a byte more, and its number of counters."""
    nbytes = op.scratch_bytes(gpu.kernels, name, rows, columns, tokens)
    of_block = op.choose(gpu.kernels.runtime.properties.architecture, name, tokens)
    counters = sum(-(-n // of_block.rows) for n in rows) * -(-tokens // of_block.TOKENS)
    arrivals = gpu.upload(np.zeros(counters, np.uint32))
    return op.Scratch(gpu.empty(max(16, nbytes)), arrivals), counters


NAMES_OF_THREE = (
    ("Q4_K", "Q4_K", "Q6_K"),
    ("Q6_K", "Q4_K", "Q4_K"),
    ("Q4_K", "Q6_K", "Q4_K"),
    ("Q4_K", "Q6_K", "Q8_0"),
    ("Q4_K", "Q4_K", "Q4_K"),
    ("Q6_K", "Q4_K"),
)


@pytest.mark.parametrize("count", [4, 7, 11])  # blocks for up to four bands
@pytest.mark.parametrize(
    ("tokens", "names", "possible"),
    [(9, names, True) for names in NAMES_OF_THREE]
    + [(tokens, NAMES_OF_THREE[0], False) for tokens in (9, 40)]
    + [(tokens, NAMES_OF_THREE[0], True) for tokens in (40, 97)],
    ids=str,
)
def test_blocks_share_the_bands_of_several_matrices(
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    names: tuple[str, ...],
    possible: bool,
    count: int,
) -> None:
    """The same sums every time, in no more memory than was asked for; counters are 0 again."""
    band = op.choose(gpu.kernels.runtime.properties.architecture, names[0], tokens).rows
    rows = (2 * band - 3, 5, band)[: len(names)]
    monkeypatch.setattr(op, "can_be_even", lambda _: possible)
    monkeypatch.setattr(op, "blocks", lambda bands, *_, **__: max(count, bands))
    cases = [data(tokens, n, 1536, name) for n, name in zip(rows, names, strict=True)]
    x = cases[0].x
    own, counters = just_enough(gpu, names[0], rows, 1536, tokens)
    outs = [gpu.empty(4 * tokens * n) for n in rows]
    launch = op.matmul_batch(
        gpu.kernels,
        x=F16(gpu.upload(x)),
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


@pytest.mark.parametrize("count", [3, 4, 7, 9])  # blocks for three bands
@pytest.mark.parametrize("possible", [False, True])
@pytest.mark.parametrize("tokens", [9, 32, 64])
def test_blocks_share_the_bands_of_gate_and_up(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tokens: int, possible: bool, count: int
) -> None:
    monkeypatch.setattr(op, "can_be_even", lambda _: possible)
    monkeypatch.setattr(op, "blocks", lambda *_, **__: count)
    band = op.choose(gpu.kernels.runtime.properties.architecture, "Q4_K", tokens).rows
    rows = 3 * band // 2 - 5
    own, counters = just_enough(gpu, "Q4_K", [2 * rows], 1536, tokens)
    launch, out, wanted = gate_and_up(gpu, "Q4_K", tokens, rows, 1536, own)
    for _ in range(2):
        gpu.run(launch)
        got = gpu.download(out.address, (tokens, rows), np.float16)
        assert relative_rms(got.astype(np.float32), wanted) < TOLERANCE
    assert not gpu.download(own.arrivals, (counters,), np.uint32).any()


@pytest.mark.parametrize("possible", [False, True])
def test_blocks_share_bands_of_waves_of_one_tile(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, possible: bool
) -> None:
    with_tiles(gpu, monkeypatch, 1)
    names = NAMES_OF_THREE[0]
    test_blocks_share_the_bands_of_several_matrices(gpu, monkeypatch, 9, names, possible, 7)
    test_blocks_share_the_bands_of_gate_and_up(gpu, monkeypatch, 64, possible, 7)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tokens", op.TOKENS)
@pytest.mark.parametrize("name", ["Q4_K", "F16"])
def test_constants_fit_the_kernel(architecture: str, name: str, tokens: int) -> None:
    constants = op.choose(architecture, name, tokens)
    assert constants.fits(architecture, wave_size(architecture), 48 << 10)
    if architecture == "sm_90":  # what kernels/batch_warpgroup.h asserts
        assert constants.ROW_WAVES % 4 == 0
        assert constants.TOKENS % (constants.ROW_WAVES * constants.SPLITS) == 0


def test_blocks_are_as_many_as_take_least_time() -> None:
    h200 = {"token_tiles": 1, "compute_units": 132, "even": True}
    assert op.blocks(16, 32, resident=1, **h200) == 8 * 16
    assert op.blocks(96, 32, resident=3, **h200) == 4 * 96
    assert op.blocks(86, 32, resident=1, **h200) == 132
    assert op.blocks(86, 32, resident=1, **{**h200, "even": False}) == 3 * 86
    assert op.blocks(125, 32, resident=1, **h200) == 125
    assert op.blocks(501, 32, resident=1, **h200) == 501
    assert op.blocks(1, 1, resident=2, **h200) == 1


def test_common_formats_are_compiled_ahead() -> None:
    for architecture in ("gfx1100", "gfx942", "sm_80", "sm_90"):
        listed = [(b.file, dict(b.defines or {})) for b in op.builds(architecture)]
        assert len(listed) == len({str(entry) for entry in listed})
        properties = SimpleNamespace(architecture=architecture, compute_units=132)
        kernels: Any = SimpleNamespace(
            runtime=SimpleNamespace(properties=properties), tuning=UNTUNED
        )
        shapes = ((22016, 4096), (4096, 11008))
        for tokens, (rows, columns) in itertools.product((9, 16, 33, 64), shapes):
            cut = op._cut(kernels, "Q4_K", [rows], columns, tokens)
            assert (op.GATE_UP_FILE, {**cut.defines, "FORMAT_0": "Q4_K"}) in listed
