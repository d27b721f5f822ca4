"""Fixtures of the regression tests: an empty asv tree, one with two commits, and the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asv_tree import A, AsvTree, B, Bench, BenchHere
from tiny_project import inside
from tool_modules import tool_module


@pytest.fixture
def tree(tmp_path: Path) -> AsvTree:
    return AsvTree(tmp_path / "results")


@pytest.fixture
def bench(repo: Path, tmp_path: Path) -> Bench:
    return BenchHere(repo, tmp_path)


@pytest.fixture
def two_commits(tree: AsvTree) -> AsvTree:
    """Commit B: one op 15 % slower, its tokens/s 15 % lower, one failed, one n/a, one unchanged."""
    grid = {"format": ["'Q4_0'", "'Q8_0'"], "tokens": ["1", "8"]}
    tree.benchmark("matmul.track_ms", "ms/token", grid)
    tree.benchmark("matmul.track_tokens", "tokens/s", direction="higher")
    tree.benchmark("rope.time_rope")
    tree.benchmark("gpu.time_gpu")
    nine = [0.002 + i * 1e-5 for i in range(9)]
    common = {"rope.time_rope": nine[4], "gpu.time_gpu": float("nan")}

    def samples(values: dict[str, Any]) -> dict[str, Any]:
        spread = [1 + i / 1000 for i in range(-4, 5)]
        return {
            "rope.time_rope": [nine],
            "matmul.track_ms": [v and [v * x for x in spread] for v in values["matmul.track_ms"]],
            "matmul.track_tokens": [[values["matmul.track_tokens"] * x for x in spread]],
        }

    slow = {"matmul.track_ms": [1.0, 2.3, None, 4.0], "matmul.track_tokens": 85.0, **common}
    fast = {"matmul.track_ms": [1.0, 2.0, None, 4.0], "matmul.track_tokens": 100.0, **common}
    tree.run(A, fast, samples=samples(fast), date=1_700_000_000_000)
    tree.run(B, slow, samples=samples(slow), date=1_700_000_100_000)
    return tree


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, without a window; skips where it or playwright is absent.

    A process can have one at a time: it ends with the file that uses it.
    """
    pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")
    load = tool_module("dashboard_load", "studies")
    if load.CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    with load.browser() as started:
        yield started


@pytest.fixture(scope="session")
def own_pages(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    """The folder of the pages of what is committed in results/ and baselines/."""
    pytest.importorskip("asv")
    from rocmforge.bench.dashboard.publish import publish

    folder = tmp_path_factory.mktemp("own")
    config, log = repo / "asv.conf.json", folder / "log"
    publish(config, repo / "results", folder / "html", repo / "baselines", log, lambda _: None)
    return folder / "html"


@pytest.fixture
def project(repo: Path, tmp_path: Path) -> Iterator[Path]:
    """A project where nothing was measured yet."""
    with inside(repo, tmp_path / "project"):
        yield tmp_path / "project"
