"""tools/gpu_tables.py: products by asv are of the newest run that has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from asv_tree import AsvTree
from tool_modules import tool_module

from rocmforge.bench.asv_results import read_benchmarks

GEMV = "matmul.Quantized.time_matmul"
SINCE = 1_700_000_000_000


def test_the_newest_run_that_has_products_gives_them(tmp_path: Path) -> None:
    newest_products = tool_module("gpu_tables").newest_products
    tree = AsvTree(tmp_path)
    tree.benchmark(GEMV, params={"format": ["'Q4_K'"], "tokens": ["1"], "device": ["'gpu'"]})
    tree.benchmark("suite.time_other")
    for number, values in enumerate(({GEMV: [1e-6]}, {GEMV: [2e-6]}, {"suite.time_other": 1.0}), 1):
        tree.run(str(number) * 40, values, date=SINCE + number)
    benchmarks = read_benchmarks(tmp_path / "benchmarks.json")
    found = newest_products(tmp_path / "box", benchmarks, "2023-11-14T22:13:20+00:00")
    assert found is not None
    assert found.commit == "2" * 8
    assert found.medians == {f"{GEMV}('Q4_K', 1, 'gpu')": pytest.approx(2e-3)}
    assert newest_products(tmp_path / "box", benchmarks, "2024-01-01T00:00:00+00:00") is None
    assert newest_products(tmp_path / "none", benchmarks, "2023-01-01T00:00:00+00:00") is None
