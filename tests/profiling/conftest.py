"""Where the outputs of real profilers lie, for the readers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples(reference: Path) -> Path:
    """Directory of profilers' outputs, as makers and users published them; skips without it."""
    folder = reference / "profilers"
    if not folder.is_dir():
        pytest.skip(f"no outputs of real profilers: {folder} does not exist")
    return folder
