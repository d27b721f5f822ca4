"""GEMVs on NVIDIA's matrix units, for five to eight tokens.

Weights become float16 there, so the results are as close as those of matmul_batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_kinds import of_each_kind
from guarded import Gpu
from matrix_units import skip_without_mma_sync
from test_matmul_batch_kernel import LARGE_SCALES, assert_close_by_rows, matrix_beyond_float16
from test_matmul_kernel import (
    FORMAT_OF,
    Exact,
    columns_of,
    gate_and_up,
    gaussian,
    matrix_of,
    multiply,
    product,
)
from test_matmul_prompt_kernel import TOLERANCE

from rocmforge.gpu.arrays import F16, F32
from rocmforge.gpu.matrix import LAYOUTS
from rocmforge.gpu.ops import matmul as op
from rocmforge.gpu.ops.dot_rows import MAX_TOKENS, Constants
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES, Cut, row_classes
from rocmforge.ops.cases import relative_rms

CUTS = sorted(
    {
        (op_name, name, one.constants(kind)[-1])
        for op_name in ("matmul", "gate_up_swiglu")
        for one in row_classes("sm_90", op_name)
        for kind, name in FORMAT_OF.items()
    }
)

Use = Callable[[Cut], None]


@pytest.fixture
def use(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes the ops take a cut, also where the device has no such units."""
    skip_without_mma_sync(gpu)
    own = op.choose

    def use(cut: Cut) -> None:
        waves, rows, units, lanes, _ = cut
        cuts = {"WAVES": waves, "ROWS": rows, "UNITS": units, "LANES": lanes}

        def chosen(*given: Any, **named: Any) -> Constants:
            return replace(own(*given, **named), TOKENS=MAX_TOKENS, SLOTS=0, BUFFERS=1, **cuts)

        monkeypatch.setattr(op, "choose", chosen)

    use(Cut(8, 2, 2, MATRIX_LANES))
    return use


def activations(gpu: Gpu, tokens: int, columns: int) -> tuple[F16, Exact]:
    """On the device, and as numbers."""
    x = gaussian(tokens, tokens, columns).astype(np.float16)
    return F16(gpu.upload(x)), x.astype(np.float64)


def check_matmul(gpu: Gpu, name: str, tokens: int, rows: int, blocks: int) -> None:
    matrix = matrix_of(name, rows, columns_of(name, blocks))
    x, exact = activations(gpu, tokens, matrix.columns)
    (got,) = multiply(gpu, x, tokens, [matrix])
    assert relative_rms(got, product(exact, matrix)) < TOLERANCE


@pytest.mark.every_format
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format(gpu: Gpu, use: Use, name: str) -> None:
    """Rows that fill no tile, columns that fill no step."""
    for tokens, rows, blocks in ((5, 17, 1), (6, 3, 5), (7, 16, 2), (8, 50, 3)):
        check_matmul(gpu, name, tokens, rows, blocks)


@pytest.mark.parametrize(("op_name", "name", "cut"), CUTS, ids=str)
def test_every_way_to_cut(gpu: Gpu, use: Use, op_name: str, name: str, cut: Cut) -> None:
    use(cut)
    for columns in (256, 4096 + 256):
        blocks = columns // columns_of(name, 1)
        if op_name == "matmul":
            check_matmul(gpu, name, 8, 37, blocks)
        else:
            check_gate_up(gpu, (name, name), 8, 37, columns, F16)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "IQ4_NL"])
def test_four_lanes_that_have_no_four_units_left(gpu: Gpu, use: Use, name: str) -> None:
    for blocks in (1, 2, 3, 5, 39):
        check_matmul(gpu, name, 8, 16, blocks)


@pytest.mark.parametrize(
    "names", [("Q4_K", "Q4_K", "Q6_K"), ("Q4_0", "Q8_0", "MXFP4"), ("Q8_0", "Q2_K")], ids="-".join
)
def test_several_matrices_bias_and_accumulation(gpu: Gpu, use: Use, names: tuple[str, ...]) -> None:
    rows, tokens = (33, 16, 2), 6
    matrices = [matrix_of(name, n, 256, seed=n) for name, n in zip(names, rows, strict=False)]
    biases = [gaussian(9 + i, m.rows) if i != 1 else None for i, m in enumerate(matrices)]
    before = [gaussian(50 + i, tokens, m.rows) for i, m in enumerate(matrices)]
    x, exact = activations(gpu, tokens, 256)
    for start in (None, before):
        got = multiply(gpu, x, tokens, matrices, biases, start)
        for i, (one, matrix, bias) in enumerate(zip(got, matrices, biases, strict=True)):
            wanted = product(exact, matrix) + (0 if bias is None else bias)
            wanted = wanted + (0 if start is None else before[i])
            assert relative_rms(one, wanted) < TOLERANCE


@pytest.mark.parametrize("name", LARGE_SCALES)
def test_rows_beyond_float16_leave_their_neighbours_alone(gpu: Gpu, use: Use, name: str) -> None:
    """Lanes whose weights are clipped and lanes whose are not multiply together."""
    matrix, weights = matrix_beyond_float16(name, 50, 320, seed=0)
    x, exact = activations(gpu, 8, 320)
    (got,) = multiply(gpu, x, 8, [matrix])
    assert_close_by_rows(got, exact @ weights.T)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_comes_out_as_such(gpu: Gpu, use: Use, bad: float) -> None:
    matrix = matrix_of("Q4_K", 5, 768)
    x, _ = activations(gpu, 8, 768)
    (clean,) = multiply(gpu, x, 8, [matrix])
    gpu.runtime.copy_to_device(x.address + 2 * 767, np.array([bad], np.float16))
    (got,) = multiply(gpu, x, 8, [matrix])
    assert not np.isfinite(got[0]).any()
    np.testing.assert_array_equal(got[1:], clean[1:])


@pytest.mark.parametrize("name", of_each_kind(LAYOUTS))
def test_gate_up_swiglu(gpu: Gpu, use: Use, name: str) -> None:
    for dtype, rows in ((F32, 37), (F16, 64)):
        check_gate_up(gpu, (name, name), 7, rows, columns_of(name, 2), dtype)


@pytest.mark.parametrize("names", [("Q4_K", "Q8_0"), ("MXFP6_E2M3", "Q6_K")])
def test_gate_and_up_of_two_formats(gpu: Gpu, use: Use, names: tuple[str, str]) -> None:
    check_gate_up(gpu, names, 6, 64, 512, F16)


def check_gate_up(
    gpu: Gpu, names: tuple[str, str], tokens: int, rows: int, columns: int, dtype: type
) -> None:
    x, exact = activations(gpu, tokens, columns)
    out, wanted = gate_and_up(gpu, names, x, exact, rows, dtype)
    number = np.float16 if dtype is F16 else np.float32
    got = gpu.download(out.address, (tokens, rows), number)
    assert relative_rms(got.astype(np.float32), wanted) < TOLERANCE
