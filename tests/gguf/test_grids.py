"""kernels/grids.h holds the grids that the `gguf` package has, in its own packing."""

from __future__ import annotations

import re
from pathlib import Path

import gguf.quants
import numpy as np
import pytest


@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S"])
def test_the_header_has_the_packages_grid(name: str, repo: Path) -> None:
    chosen = getattr(gguf.quants, name)
    chosen.init_grid()
    grid = chosen.grid.reshape(chosen.grid_shape)
    bits = 16 // grid.shape[1] - (grid.shape[1] == 4)
    table = f"k{name.replace('_', '')}Grid"
    text = (repo / "kernels" / "grids.h").read_text()
    found = re.search(rf"{table}\[(\d+)\] = \{{(.*?)\}};", text, re.S)
    assert found
    entries = np.array([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", found[2])])
    assert len(entries) == int(found[1]) == len(grid)
    places = entries[:, None] >> bits * np.arange(grid.shape[1]) & ((1 << bits) - 1)
    np.testing.assert_array_equal(np.array(chosen.grid_map)[places], grid)
