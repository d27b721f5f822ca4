"""rope against the float64 reference: pairs of both layouts, partial rotation, odd dims."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.gpu.ops import rope as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RopeCase

CHECKS = (
    *cases.ROPE_CHECKS,
    RopeCase(3, 5, 128, 128),
    RopeCase(2, 32, 96, 96),
    RopeCase(5, 2, 256, 64),
    RopeCase(1, 9, 256, 256),
    RopeCase(2, 3, 40, 20),
)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_rope_agrees_with_the_reference(gpu: Gpu, case: RopeCase, interleaved: bool) -> None:
    x, cos, sin = case.inputs()
    positions = np.random.default_rng(0).permutation(case.tokens + 3)[: case.tokens]
    table = np.full((2, case.tokens + 3, case.rotated // 2), np.nan, np.float32)
    table[:, positions] = cos, sin
    address = gpu.upload(x)
    gpu.run(
        op.rope(
            gpu.kernels,
            x=address,
            cos=gpu.upload(table[0]),
            sin=gpu.upload(table[1]),
            positions=gpu.upload(positions.astype(np.int32)),
            tokens=case.tokens,
            heads=case.heads,
            head_dim=case.head_dim,
            rotated=case.rotated,
            interleaved=interleaved,
        )
    )
    got = gpu.download(address, x.shape, np.float32)
    wanted = reference.rope(x, cos, sin, interleaved)
    assert cases.relative_rms(got, wanted) <= case.tolerance
    np.testing.assert_array_equal(got[..., case.rotated :], x[..., case.rotated :])
