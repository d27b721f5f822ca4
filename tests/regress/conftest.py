"""Fixtures of the regression tests: an empty asv tree, one with two commits, and the tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from asv_tree import A, AsvTree, B, Tools


@pytest.fixture
def tree(tmp_path: Path) -> AsvTree:
    return AsvTree(tmp_path / "results")


@pytest.fixture
def tools(repo: Path, tmp_path: Path) -> Tools:
    return Tools(repo, tmp_path)


@pytest.fixture
def two_commits(tree: AsvTree) -> AsvTree:
    """Commit B: one op 15 % slower, its tokens/s 15 % lower, one failed, one n/a, one unchanged."""
    grid = {"format": ["'Q4_0'", "'Q8_0'"], "tokens": ["1", "8"]}
    tree.benchmark("matmul.track_ms", "ms/token", grid)
    tree.benchmark("matmul.track_tokens", "tokens/s", direction="higher")
    tree.benchmark("rope.time_rope")
    tree.benchmark("gpu.time_gpu")
    nine = [0.002 + i * 1e-5 for i in range(9)]
    samples = {"rope.time_rope": [nine]}
    common = {"rope.time_rope": nine[4], "gpu.time_gpu": float("nan")}
    slow = {"matmul.track_ms": [1.0, 2.3, None, 4.0], "matmul.track_tokens": 85.0, **common}
    fast = {"matmul.track_ms": [1.0, 2.0, None, 4.0], "matmul.track_tokens": 100.0, **common}
    tree.run(A, fast, samples=samples, date=1_700_000_000_000)
    tree.run(B, slow, samples=samples, date=1_700_000_100_000)
    return tree
