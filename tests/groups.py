"""Which group of tests a process of `pytest -n` takes as a whole."""

from __future__ import annotations

import re

HIP_RUNTIME = ("test_runtime.py", "test_hip_runtime.py", "test_standin.py", "test_runtime_calls.py")
DEVICES = "devices"
_ON_A_GPU = re.compile(r"\[(.*-)?(cuda|hip)(-.*)?\]$")


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file, or that of all that run on a GPU.

    Those go one after another, since many watch how much memory of the device is free, or time it.
    Those of the HIP runtime go with them: test_runtime_calls.py sums up what the others did.

    Parameters
    ----------
    nodeid
        As pytest names the test: ``tests/gpu/test_backend.py::test_it[cuda-3]``.
    """
    file = nodeid.split("::", 1)[0]
    return DEVICES if file.endswith(HIP_RUNTIME) or _ON_A_GPU.search(nodeid) else file
