"""add_scale against float64, in place too."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.gpu.ops import add_scale as op


@pytest.mark.parametrize("count", [1, 3, 4, 1023, 1025, 4096])
def test_add_scale_adds(gpu: Gpu, count: int) -> None:
    random = np.random.default_rng(count)
    x, y = random.standard_normal((2, count), np.float32)
    for scale in (1.0, -0.125, 3.7):
        wanted = x + np.float64(np.float32(scale)) * y
        for place in ("out", "x", "y"):
            at = {"x": gpu.upload(x), "y": gpu.upload(y), "out": gpu.empty(x.nbytes)}
            at["out"] = at[place]
            gpu.run(op.add_scale(gpu.kernels, **at, scale=scale, count=count))
            got = gpu.download(at["out"], count, np.float32)
            np.testing.assert_allclose(got, wanted, 0, 4e-7 * (1 + abs(scale)))
