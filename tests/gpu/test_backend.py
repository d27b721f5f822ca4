"""The public ops on a GPU, or on its stand-in, against the float64 reference; and a table of it.

The same cases as on the CPU. `pytest -s` prints op × format × device with the largest relative RMS.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
from format_kinds import of_each_kind

from rocmforge import ops
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import relative_rms

HALF = 2e-3


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], dict[str, float]]]:
    """Largest errors by (op, format) and device, printed at the end of the module."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    yield found
    devices = list(dict.fromkeys(device for row in found.values() for device in row))
    print("\n\n" + f"{'op':24}{'format':12}" + "".join(f"{device:>16}" for device in devices))
    for (op, name), row in sorted(found.items()):
        values = (f"{row[device]:.1e}" if device in row else "-" for device in devices)
        print(f"{op:24}{name:12}" + "".join(f"{value:>16}" for value in values))


@pytest.fixture(scope="module")
def backend(kernels: Kernels) -> GpuBackend:
    return GpuBackend(kernels)


@pytest.fixture
def check(
    backend: GpuBackend,
    table: dict[tuple[str, str], dict[str, float]],
    request: pytest.FixtureRequest,
) -> object:
    """Compare with the reference, and note the error."""
    device = request.node.callspec.params["kernels"]

    def compare(op: str, name: str, got: np.ndarray, wanted: np.ndarray, bound: float) -> None:
        error = relative_rms(got, wanted)
        row = table.setdefault((op, name), {})
        row[device] = max(row.get(device, 0.0), error)
        assert error <= bound

    return compare


@pytest.mark.parametrize("name", of_each_kind(FORMATS))
def test_matmul(name: str, backend: GpuBackend, check) -> None:
    for case in cases.MATMUL_CHECKS[name]:
        x, matrix = case.inputs()
        got = ops.matmul(x, ops.pack(matrix, backend))
        precision = backend.matmul_precision(name, case.tokens)
        bound = case.tolerance(precision)
        check(f"matmul, {precision}", name, got, reference.matmul(x, matrix), bound)


def test_matmul_with_bias(backend: GpuBackend, check) -> None:
    for tokens in (2, 19):
        x, matrix = cases.MatmulCase(tokens, 37, 96, "Q8_0").inputs()
        bias = np.arange(37, dtype=np.float32)
        got = ops.matmul(x, ops.pack(matrix, backend), bias)
        check("matmul with bias", "Q8_0", got, reference.matmul(x, matrix, bias), 0.012)


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize(name: str, backend: GpuBackend, check) -> None:
    for case in cases.DEQUANTIZE_CHECKS:
        if case.format == name:
            matrix = case.inputs()
            wanted = reference.dequantize(matrix)
            check("dequantize", name, ops.dequantize(matrix, backend), wanted, case.tolerance)


def test_rows(backend: GpuBackend, check) -> None:
    for case in cases.ROWS_CHECKS:
        x, y = case.inputs(2)
        weight = y[0].copy()
        got = ops.rmsnorm(x, weight, 1e-5, backend)
        check("rmsnorm", "F32", got, reference.rmsnorm(x, weight, 1e-5), 1e-6)
        check("softmax", "F32", ops.softmax(x, backend), reference.softmax(x), 3e-6)
        check("swiglu", "F32", ops.swiglu(x, y, backend), reference.swiglu(x, y), 3e-6)


def test_rope(backend: GpuBackend, check) -> None:
    for case in cases.ROPE_CHECKS:
        inputs = case.inputs()
        for interleaved in (False, True):
            got = ops.rope(*inputs, interleaved, backend)
            check("rope", "F32", got, reference.rope(*inputs, interleaved), 1e-6)


def test_kv_append(backend: GpuBackend, check) -> None:
    for case in cases.KV_APPEND_CHECKS:
        inputs = case.inputs()
        arguments = inputs.arguments
        wanted = copy.deepcopy(arguments)
        reference.kv_append(*wanted)
        ops.kv_append(*arguments, backend)
        for got, want in zip(arguments[2:4], wanted[2:4], strict=True):
            np.testing.assert_array_equal(got, want)
            written = ~np.isnan(want)
            check("kv_append", case.dtype, got[written], want[written], 0.0)


def test_attention(backend: GpuBackend, check) -> None:
    for case in cases.ATTENTION_CHECKS:
        inputs = case.inputs()
        arguments = inputs.arguments
        with np.errstate(invalid="ignore"):
            wanted = reference.attention(*arguments)
        single = max(case.queries) == 1
        op = "attention, one query" if single else "attention, prompt"
        got = ops.attention(*arguments, backend)
        precision = backend.attention_precision(max(case.queries))
        assert precision == ("exact" if single else "half")
        check(op, case.dtype, got, wanted, case.tolerance(precision))


@pytest.mark.parametrize("head_dim", [12, 320])
def test_a_head_dim_that_the_kernels_do_not_take_is_refused(
    backend: GpuBackend, head_dim: int
) -> None:
    inputs = cases.AttentionCase((5,), (1,), 1, 1, head_dim, page_size=16).inputs()
    wanted = "wanted a multiple of 8 up to 256 on a GPU"
    with pytest.raises(ValueError, match=f"q: got head dim {head_dim}, {wanted}"):
        ops.attention(*inputs.arguments, backend)
    with pytest.raises(ValueError, match=f"head dim: got {head_dim}, {wanted}"):
        backend.cache(1, 1, head_dim, 1, 16, "f16")


def test_device_time_passes(backend: GpuBackend) -> None:
    before = backend.seconds()
    ops.softmax(np.ones((3, 40), np.float32), backend)
    assert 0 < backend.seconds() - before < 60
