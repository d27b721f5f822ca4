"""gpu/upload.py gives back what it took, whichever call of the runtime fails."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest

from rocmforge.errors import DeviceError
from rocmforge.gpu.runtime import Runtime
from rocmforge.gpu.upload import Uploader

FREES = {"destroy_stream": "stream", "destroy_event": "event", "free_pinned": "pinned"}


class FakeRuntime:
    """Counts what is held; the named call fails the second time."""

    def __init__(self, failing: str) -> None:
        self.held: Counter[str] = Counter()
        self._failing, self._calls = failing, 0

    def _take(self, kind: str, name: str, value: Any) -> Any:
        self._fail(name)
        self.held[kind] += 1
        return value

    def _fail(self, name: str) -> None:
        self._calls += name == self._failing
        if name == self._failing and self._calls == 2:
            raise DeviceError(f"{name} failed")

    def create_stream(self) -> Any:
        return self._take("stream", "create_stream", 1)

    def create_event(self) -> Any:
        return self._take("event", "create_event", 2)

    def allocate_pinned(self, nbytes: int) -> Any:
        return self._take("pinned", "allocate_pinned", np.empty(nbytes, np.uint8))

    def synchronize(self, stream: Any) -> None:
        self._fail("synchronize")

    def __getattr__(self, name: str) -> Any:
        def free(_: Any) -> None:
            self.held[FREES[name]] -= 1
            self._fail(name)

        return free


@pytest.mark.parametrize("failing", ["create_event", "allocate_pinned"])
def test_what_was_taken_before_a_failure_is_given_back(failing: str) -> None:
    runtime = FakeRuntime(failing)
    with pytest.raises(DeviceError, match=f"{failing} failed"):
        Uploader(cast(Runtime, runtime))
    assert runtime.held.total() == 0


@pytest.mark.parametrize("failing", ["destroy_event", "free_pinned"])
def test_closing_goes_on_where_one_release_fails(failing: str) -> None:
    runtime = FakeRuntime(failing)
    uploader = Uploader(cast(Runtime, runtime))
    assert runtime.held == {"stream": 1, "event": 2, "pinned": 2}
    with pytest.raises(DeviceError, match=f"{failing} failed"):
        uploader.close()
    assert runtime.held.total() == 0
