"""matmul of prompts with float16 weights against the float64 reference: awkward shapes, each tile,
what becomes of the sums, gate and up; unpack against numpy; and which tile was fastest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from guarded import Gpu
from model.small_models import written
from numpy.typing import NDArray
from output_dtypes import read
from packed_streams import download_weights, upload
from test_matmul_batch_kernel import LARGE_SCALES, matrix_beyond_float16
from test_matmul_prompt_kernel import Data, data

from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32, Halves, Permuted
from rocmforge.gpu.compiler import Kernels, wave_size
from rocmforge.gpu.kept_passes import KeptPasses
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import Lowering
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import matmul_f16 as op
from rocmforge.gpu.ops.unpack import unpack
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix
from rocmforge.testing import reference_logits

TOLERANCE = 2e-3
HOPPER = "sm_90"  # whose matrix units want tiles of their own
PROMPT_BOUND = 3e-3  # of whole models, as in test_engine_on_gpu.py
SHAPES = ((1, 1, 8), (17, 31, 72), (65, 67, 40), (129, 131, 104))  # tokens, rows, columns
EVERY_TILE = [
    pytest.param(*row, marks=[pytest.mark.hopper] if row[1] else [])
    for row in dict.fromkeys(
        (wave_size(architecture), architecture == HOPPER, tile.constants)
        for architecture in ("gfx1100", "gfx90a", "sm_80", HOPPER)
        for tile in op.tiles(architecture)
    )
]


def multiply(
    gpu: Gpu,
    given: Data,
    before: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    dtype: type = F32,
) -> NDArray[np.float32]:
    """What the kernel gives, (T, N); added to `before` where that is given."""
    shape = (len(given.x), given.matrix.rows)
    size = shape[0] * shape[1] * (4 if dtype is F32 else 2)
    out = dtype(gpu.empty(size) if before is None else gpu.upload(before))
    gpu.run(
        op.matmul_f16(
            gpu.kernels,
            x=F16(gpu.upload(given.x)),
            weights=[upload(gpu, given.matrix)],
            outs=[out],
            tokens=len(given.x),
            biases=[None if bias is None else gpu.upload(bias)],
            accumulate=before is not None,
        )
    )
    got = gpu.download(out.address, shape, np.float32 if dtype is F32 else np.float16)
    return got.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_f16_agrees_with_the_reference(gpu: Gpu, shape: tuple[int, int, int]) -> None:
    given = data(*shape, "F16")
    got = multiply(gpu, given)
    assert relative_rms(got, given.wanted) <= TOLERANCE
    assert np.abs(got - given.wanted).max() <= 8 * TOLERANCE * np.sqrt(np.mean(given.wanted**2))


@pytest.mark.parametrize(("wave", "hopper", "constants"), EVERY_TILE, ids=str)
def test_every_tile(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, wave: int, hopper: bool, constants: op.Constants
) -> None:
    """Those of CUDA, which have more stages there, are tried with two on the stand-in."""
    properties = gpu.runtime.properties
    if wave != properties.wave_size or hopper != (properties.architecture == HOPPER):
        pytest.skip("a tile for another wave size or other matrix units")
    if gpu.runtime.platform != "cuda":
        constants = replace(constants, STAGES=2)
    monkeypatch.setattr(op, "choose", lambda *_: constants)
    given = data(constants.TILE_TOKENS + 1, constants.TILE_ROWS + 3, 72, "F16")
    assert relative_rms(multiply(gpu, given), given.wanted) <= TOLERANCE


@pytest.mark.parametrize("dtype", [F32, F16])
def test_bias_is_added_and_results_are_stored_in_both_dtypes(gpu: Gpu, dtype: type) -> None:
    given = data(17, 31, 72, "F16")
    bias = np.random.default_rng(3).standard_normal(31, np.float32)
    assert relative_rms(multiply(gpu, given, bias=bias, dtype=dtype), given.wanted + bias) <= (
        TOLERANCE
    )


def test_results_are_added_to_the_residual(gpu: Gpu) -> None:
    given = data(17, 31, 72, "F16")
    before = np.random.default_rng(3).standard_normal((17, 31), np.float32)
    got = multiply(gpu, given, before=before)
    assert relative_rms(got - before, given.wanted) <= TOLERANCE


@pytest.mark.parametrize("rows", [(131, 40, 17), (256, 128), (7, 300, 1)], ids=str)
def test_matrices_that_share_x_have_one_launch(gpu: Gpu, rows: tuple[int, ...]) -> None:
    each = [data(67, n, 72, "F16", seed=1) for n in rows]
    bias = np.random.default_rng(3).standard_normal(rows[-1], np.float32)
    outs = [F32(gpu.empty(4 * 67 * n)) for n in rows]
    gpu.run(
        op.matmul_f16(
            gpu.kernels,
            x=F16(gpu.upload(each[0].x)),
            weights=[upload(gpu, one.matrix) for one in each],
            outs=outs,
            tokens=67,
            biases=[*[None] * (len(rows) - 1), gpu.upload(bias)],
        )
    )
    for i, (one, out) in enumerate(zip(each, outs, strict=True)):
        wanted = reference.matmul(each[0].x, one.matrix) + (bias if i == len(rows) - 1 else 0)
        got = gpu.download(out.address, (67, one.matrix.rows), np.float32)
        assert relative_rms(got, wanted) <= TOLERANCE


def test_a_weight_that_is_not_a_number_stays_in_its_row(gpu: Gpu) -> None:
    given = data(17, 31, 72, "F16")
    raw = given.matrix.data.copy()
    raw[7, 20:22] = np.array([np.nan], np.float16).view(np.uint8)
    got = multiply(gpu, Data(given.x, Matrix(raw, FORMATS["F16"]), given.wanted))
    assert np.isnan(got[:, 7]).all()
    others = np.arange(31) != 7
    assert relative_rms(got[:, others], given.wanted[:, others]) <= TOLERANCE


@pytest.mark.parametrize(
    ("shape", "dtype"), [((17, 67, 72), F16), ((3, 31, 8), F16), ((17, 128, 72), Permuted)]
)
def test_gate_up_swiglu_f16(gpu: Gpu, shape: tuple[int, int, int], dtype: type[Halves]) -> None:
    gate, up = data(*shape, "F16", seed=1), data(*shape, "F16", seed=2)
    out = dtype(gpu.empty(2 * shape[0] * shape[1]))
    gpu.run(
        op.gate_up_swiglu_f16(
            gpu.kernels,
            x=F16(gpu.upload(gate.x)),
            gate=upload(gpu, gate.matrix),
            up=upload(gpu, up.matrix),
            out=out,
            tokens=shape[0],
        )
    )
    got = read(gpu, out, *shape[:2])
    wanted = reference.swiglu(gate.wanted, reference.matmul(gate.x, up.matrix))
    assert relative_rms(got, wanted) <= TOLERANCE


def unpacked(gpu: Gpu, matrix: Matrix) -> NDArray[np.float16]:
    """A matrix as the kernel unpacks it, (N, K)."""
    shape = matrix.rows, matrix.columns
    placed = DeviceMatrix.at(gpu.empty(2 * shape[0] * shape[1]), "F16", *shape)
    gpu.run(unpack(gpu.kernels, weights=[upload(gpu, matrix)], outs=[placed]))
    return gpu.download(placed.codes, shape, np.float16)


@pytest.mark.every_format
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "F16"])
def test_unpack(gpu: Gpu, name: str) -> None:
    columns = max(FORMATS[name].block_len, 8)
    rows = 37 if columns > 32 else 261  # a block of 256 threads has less than all units
    random = np.random.default_rng(rows)
    matrix = Matrix.from_floats(random.standard_normal((rows, columns), np.float32), name)
    wanted = download_weights(gpu, upload(gpu, matrix))
    got = unpacked(gpu, matrix)
    assert relative_rms(got, wanted) <= TOLERANCE
    assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_matrices_of_three_formats_are_unpacked_by_one_launch(gpu: Gpu) -> None:
    random = np.random.default_rng(5)
    matrices = [
        Matrix.from_floats(random.standard_normal((rows, 512), np.float32), name)
        for rows, name in ((37, "Q4_K"), (16, "Q6_K"), (7, "Q8_0"))
    ]
    placed = [
        DeviceMatrix.at(gpu.empty(2 * m.rows * m.columns), "F16", m.rows, m.columns)
        for m in matrices
    ]
    weights = [upload(gpu, m) for m in matrices]
    gpu.run(unpack(gpu.kernels, weights=weights, outs=placed))
    for weight, at in zip(weights, placed, strict=True):
        got = gpu.download(at.codes, (at.rows, at.columns), np.float16)
        assert relative_rms(got, download_weights(gpu, weight)) <= TOLERANCE


def test_unpacked_weights_are_finite_but_for_what_is_not_a_number(gpu: Gpu) -> None:
    raw = np.zeros((3, 34), np.uint8)  # Q8_0: 40000 · code, 700 · code, NaN · code
    for row, scale in enumerate((40000.0, 700.0, np.nan)):
        raw[row, :2] = np.array([scale], np.float16).view(np.uint8)
    raw[:, 2:] = np.resize(np.array([0, 1, 2, -1, -2, 93, -94, 127], np.int8), 32).view(np.uint8)
    matrix = Matrix(raw, FORMATS["Q8_0"])
    got = unpacked(gpu, matrix).astype(np.float32)
    np.testing.assert_allclose(got[:2], np.clip(matrix.to_floats()[:2], -65504, 65504), rtol=1e-3)
    assert np.isnan(got[2]).all()


@pytest.mark.parametrize("name", LARGE_SCALES)
def test_unpacked_weights_beyond_float16(gpu: Gpu, name: str) -> None:
    matrix, weights = matrix_beyond_float16(name, 7, 128, seed=0)
    got = unpacked(gpu, matrix)
    np.testing.assert_allclose(got, weights, rtol=1e-3)


@pytest.fixture
def unpacks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of any length multiply with unpacked weights."""
    monkeypatch.setattr(op, "unpacks", lambda *_: True)
    monkeypatch.setattr(Lowering, "batches", lambda *_: False)


@pytest.mark.either_wave
@pytest.mark.parametrize("mix", ["Q4_K_M", "Q8_0", "F16"])
def test_a_model_with_unpacked_weights(
    kernels: Kernels,
    unpacks_all: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mix: str,
) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", mix, seed=5, layers=2)
    agrees(kernels, path, monkeypatch, 250, unpacks=mix != "F16")


@pytest.mark.either_wave
def test_without_memory_for_it_weights_are_multiplied_as_they_are(
    kernels: Kernels, unpacks_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q8_0", seed=5, layers=2)
    ids, refused = [3 + 7 * i % 200 for i in range(21)], []
    reserve = KeptPasses._reserve

    def full(self: KeptPasses, nbytes: int) -> int:
        if self.lowering.unpacks:
            refused.append(nbytes)
            raise OutOfMemoryError("no memory")
        return reserve(self, nbytes)

    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(path, device, ctx=64) as engine:
        monkeypatch.setattr(KeptPasses, "_reserve", full)
        assert relative_rms(engine.logits(ids), reference_logits(path, ids)) <= PROMPT_BOUND
        assert relative_rms(engine.logits(ids), reference_logits(path, ids)) <= PROMPT_BOUND
    assert len(refused) == 1


def test_a_model_with_biases_and_a_norm_after_attention(
    kernels: Kernels, unpacks_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("glm4", rope__dimension_count=8, bias=True)(tmp_path / "m.gguf")
    agrees(kernels, path, monkeypatch, 90)


def agrees(
    kernels: Kernels,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: int,
    unpacks: bool | None = None,
) -> None:
    """A prompt's logits are the reference's, and only matmul_f16 multiplied for them."""
    names: list[str] = []
    enqueue = Launch.enqueue

    def noted(self: Launch, runtime: Runtime, stream: object = None) -> None:
        names.append(self.name)
        enqueue(self, runtime, stream)

    monkeypatch.setattr(Launch, "enqueue", noted)
    ids = [3 + (7 * i * i + 11 * i) % words for i in range(21)]
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(path, device, ctx=64) as engine:
        names.clear()
        assert relative_rms(engine.logits(ids), reference_logits(path, ids)) <= PROMPT_BOUND
    assert "matmul_f16" in names
    assert not {"matmul_prompt", "gate_up_swiglu_prompt", "matmul_batch"} & set(names)
    if unpacks is not None:
        assert ("unpack" in names) == unpacks
        assert "gate_up_swiglu_f16" in names


def test_weights_are_unpacked_for_long_prompts_where_memory_is_fast() -> None:
    quantized = (DeviceMatrix.at(0, "Q4_K", 4096, 4096),)
    wide = (DeviceMatrix.at(0, "F16", 64, 72),)
    for architecture, least in (("sm_90", 129), ("sm_80", 257), ("gfx90a", 257), ("gfx942", 257)):
        assert not op.runs(architecture, quantized, least - 1)
        assert op.runs(architecture, quantized, least)
    for architecture in ("gfx1100", "gfx1200"):
        assert not op.runs(architecture, quantized, 4096)
        assert op.runs(architecture, wide, 65)
    for architecture in ("gfx1030", "gfx906"):
        assert not op.runs(architecture, quantized, 4096)
        assert not op.runs(architecture, wide, 4096)
    assert not op.runs("sm_90", (DeviceMatrix.at(0, "F16", 64, 65),), 512)
    half = DeviceMatrix.at(0, "Q4_K", 65536, 4096)
    assert op.runs("sm_90", (half, half), 512)
    assert not op.runs("sm_90", (half, DeviceMatrix.at(0, "Q4_K", 65537, 4096)), 512)
    assert op.unpacked_bytes("sm_90", (half, half), 512) == op.UNPACKED_BYTES
    assert op.unpacked_bytes("sm_90", (half, half), 128) == 0
    assert op.unpacked_bytes("sm_90", wide, 512) == 0


def test_blocks_fit_the_lds_of_each_architecture() -> None:
    assert len(op.tiles("sm_80")) == 6
    assert all(tile.constants.lds_bytes <= 227 << 10 for tile in op.tiles("sm_90"))
    assert {tile.constants.lds_bytes for tile in op.tiles("sm_89")} <= {72 << 10, 96 << 10}
    assert [tile.blocks for tile in op.tiles("sm_80")] == [1, 1, 2, 2, 1, 1]
    for architecture in ("gfx1100", "gfx1200", "gfx90a", "gfx942"):
        assert all(tile.constants.lds_bytes <= 48 << 10 for tile in op.tiles(architecture))
    assert op.tiles("gfx1030") == ()


MEASURED = {  # TFLOP/s on an H200, 2026-11-24, of 257, 512, 1024 and 2048 tokens with each tile
    (12288, 4096): ((222, 427, 577, 585), (232, 440, 585, 586), (244, 455, 481, 498)),
    (4096, 4096): ((148, 292, 554, 571), (146, 292, 567, 578), (247, 467, 459, 484)),
    (22016, 4096): ((408, 538, 547, 600), (275, 533, 542, 590), (329, 447, 506, 545)),
    (4096, 11008): ((172, 340, 641, 647), (155, 322, 618, 624), (273, 524, 540, 551)),
    (6144, 4096): ((218, 430, 430, 579), (218, 437, 438, 584), (188, 353, 471, 495)),
    (28672, 4096): ((364, 524, 610, 610), (278, 521, 600, 601), (308, 493, 516, 544)),
    (4096, 14336): ((172, 344, 657, 661), (170, 339, 627, 631), (260, 529, 551, 561)),
    (2560, 2048): ((76, 151, 300, 304), (82, 163, 323, 328), (127, 253, 266, 353)),
    (11264, 2048): ((332, 346, 463, 476), (195, 365, 492, 499), (267, 373, 397, 448)),
    (2048, 5632): ((79, 158, 314, 591), (80, 158, 315, 590), (140, 263, 496, 499)),
}


def test_the_chosen_tile_is_nearly_the_fastest_on_the_h200() -> None:
    order = [tile.constants for tile in op.tiles("sm_90")]
    lost = []
    for (rows, _), speeds in MEASURED.items():
        for i, tokens in enumerate((257, 512, 1024, 2048)):
            each = [one[i] for one in speeds]
            chosen = op.choose("sm_90", tokens, rows, 132)
            lost.append(max(each) / each[order.index(chosen)] - 1)
    assert max(lost) <= 0.065
    assert np.mean(lost) <= 0.015
