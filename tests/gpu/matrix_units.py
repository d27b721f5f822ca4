"""Kernels for NVIDIA's matrix units (kernels/mma_sync.h), which the stand-in runs as well."""

from __future__ import annotations

import pytest
from guarded import Gpu

from rocmforge.gpu.ops import attention


def skip_without_mma_sync(gpu: Gpu) -> None:
    """Skip a test where such kernels do not compile: waves of 64, and AMD's GPUs themselves."""
    properties = gpu.runtime.properties
    if properties.wave_size != 32:
        pytest.skip("a tile for another wave size")
    if gpu.runtime.platform == "hip" and "stand-in" not in properties.name:
        pytest.skip("a tile for other matrix units")


def use_matrix_units(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, waves: int = 8, queries: int | None = None
) -> None:
    """Attend as on NVIDIA, of every number of heads; the stand-in of waves of 32 can do it too."""
    skip_without_mma_sync(gpu)
    own = attention.choose

    def choose(_: str, head_dim: int, kv: str, group: int) -> attention.Constants:
        found = queries or min(1 << (group - 1).bit_length(), 8)
        alone = own("sm_90", head_dim, kv, 2).ALONE * waves // 8  # as many rounds as on sm_90
        return attention.Constants(
            head_dim, attention.PAGES[kv], found, 16, waves, 1, 1, 1, 1, alone
        )

    monkeypatch.setattr(attention, "choose", choose)
