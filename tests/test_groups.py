"""tests/groups.py: what the processes of `pytest -n` share out."""

from __future__ import annotations

import pytest
from groups import DEVICES, group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/gpu/test_backend.py::test_it[cuda]", DEVICES),
        ("tests/gpu/test_backend.py::test_it[hip-Q4_K_M]", DEVICES),
        ("tests/gpu/test_backend.py::test_it[3-cuda-Q4_K_M]", DEVICES),
        ("tests/gpu/test_runtime.py::test_it[standin-wave32]", DEVICES),
        ("tests/gpu/test_runtime_calls.py::test_it", DEVICES),
        ("tests/gpu/test_backend.py::test_it[standin-wave32]", "tests/gpu/test_backend.py"),
        ("tests/gpu/test_cuda_runtime.py::test_it[allocate]", "tests/gpu/test_cuda_runtime.py"),
        ("tests/test_engine.py::test_it", "tests/test_engine.py"),
    ],
)
def test_what_runs_on_a_gpu_is_one_group(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
