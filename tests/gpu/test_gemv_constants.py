"""Constants of the GEMV kernels: within the limits of the kernels, and compiled ahead."""

from __future__ import annotations

import itertools

import pytest

from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import matmul as op
from rocmforge.gpu.ops import products
from rocmforge.gpu.ops.dot_rows import (
    COMMON,
    KERNEL_FORMATS,
    MAX_TOKENS,
    choose,
    defines,
    reads_f16,
)
from rocmforge.gpu.ops.gemv_constants import row_classes

OPS = ("matmul", "gate_up_swiglu", "matmul_rmsnorm")
ARCHITECTURES = ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx90a", "gfx942", "sm_80", "sm_90")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_constants_keep_to_the_kernels_limits(architecture: str) -> None:
    wave = wave_size(architecture)
    classes = [one for kind in OPS for one in row_classes(architecture, kind)]
    shapes = ((1, 32), (32000, 4096), *(one.shape for one in classes))
    for name, tokens, shape, kind in itertools.product(
        KERNEL_FORMATS, range(1, MAX_TOKENS + 1), shapes, OPS
    ):
        c = choose(architecture, name, shape, tokens, kind)
        assert tokens <= c.TOKENS
        assert c.WAVES * wave <= 1024
        group_rows = c.group_rows(wave)
        assert group_rows % c.pass_rows(wave) == 0
        assert group_rows % 32 == 0 or c.matrix_units
        assert c.matrix_units == (kind != OPS[2] and reads_f16(architecture, name, tokens))
        if c.matrix_units:
            assert c.ROWS % 2 == 0
            assert c.TOKENS * c.pass_rows(wave) <= c.WAVES * wave
            activations = min(32 << 10, 4096 * c.WAVES)
            lds = max(8 * c.WAVES * c.TOKENS * (c.pass_rows(wave) + 4), activations)
        else:
            assert c.TOKENS * c.ROWS <= c.LANES <= wave
            assert c.LANES * c.UNITS * c.TOKENS <= c.SLOTS
            lds = 48 * c.SLOTS
        assert lds + 4 * group_rows * c.TOKENS <= 48 * 1024


def test_common_formats_are_compiled_ahead_for_any_number_of_tokens() -> None:
    for architecture in ("gfx1100", "gfx942", "sm_90"):
        listed = [(b.file, dict(b.defines or {})) for b in op.builds(architecture)]
        assert len(listed) == len({str(entry) for entry in listed})
        shapes = [one.shape for one in row_classes(architecture, "matmul")]
        for name, tokens, shape in itertools.product(COMMON, (1, 2, 3, 8), shapes):
            constants = choose(architecture, name, shape, tokens)
            macros = defines(constants, [name] * products.MOST)
            reads_q8 = name not in DENSE and not reads_f16(architecture, name, tokens)
            for scale in (0, 1) if reads_q8 else (0,):
                assert (op.FILE, {**macros, "SCALED": scale}) in listed
