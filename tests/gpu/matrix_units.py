"""Attention of decode as it runs on NVIDIA's matrix units, for any number of heads."""

import pytest
from guarded import Gpu

from rocmforge.gpu.ops import attention


def use_matrix_units(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attend as on NVIDIA, of every number of heads."""
    if gpu.runtime.properties.wave_size != 32:
        pytest.skip("a tile for another wave size")
    monkeypatch.setattr(
        attention,
        "choose",
        lambda _, head_dim, kv, group: attention.Constants(
            head_dim, attention.PAGES[kv], min(group, 8), 16, 8, 1, TILES=1
        ),
    )
