"""Fixtures that more than one test file uses: where the reference data lies, and the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
REFERENCE = REPO.parent / "shared" / "reference"


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory of models, logits and vocabularies made by llama.cpp; skips where it is absent."""
    if not REFERENCE.is_dir():
        pytest.skip(f"no reference data: {REFERENCE} does not exist")
    return REFERENCE
