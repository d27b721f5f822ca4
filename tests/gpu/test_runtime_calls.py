"""Every call of hip-python that gpu/hip.py makes was made by some test before this one.

It runs last of all tests, in one process with those of the runtime (tests/conftest.py), prints call
and test under `-s`, and skips where they were not selected. `make test-hip-versions` runs it under
each supported version.
"""

from __future__ import annotations

import pytest
from hip_calls import HipCalls

NEEDED = {"test_runtime.py", "test_hip_runtime.py", "test_standin.py"}


def test_every_call_of_hip_python_is_exercised(
    request: pytest.FixtureRequest, hip_calls: HipCalls
) -> None:
    if not {item.path.name for item in request.session.items} >= NEEDED:
        pytest.skip(f"wants the tests of {', '.join(sorted(NEEDED))} before it")
    if request.config.option.keyword or request.config.option.markexpr == "gpu":
        pytest.skip("only some of the tests were selected")
    print()
    for name in sorted(hip_calls.names):
        print(f"{name:32} {hip_calls.first_caller.get(name, 'no test')}")
    assert len(hip_calls.names) > 30
    assert set(hip_calls.first_caller) == hip_calls.names
