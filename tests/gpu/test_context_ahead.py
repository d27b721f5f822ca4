"""A GPU that is opened in a thread, by a stand-in of the driver's library."""

import ctypes
from typing import Any

import pytest

from rocmforge.gpu import context_ahead
from rocmforge.gpu.context_ahead import STACK_BYTES, open_ahead, opened_ahead


class Driver:
    """Notes which calls are made; `refuses` fails, and `active` devices are open already."""

    def __init__(self, devices: int, active: int = 0, refuses: str = "") -> None:
        self.devices, self.active, self.refuses = devices, active, refuses
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name == self.refuses:
                return 2
            own = getattr(type(self), f"_{name}", None)
            return own(self, *arguments) if own else 0

        return call

    def _cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.devices
        return 0

    def _cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 40 + index
        return 0

    def _cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, active: Any) -> int:  # noqa: N802
        assert device.value >= 40
        active._obj.value = self.active
        return 0

    def _cuCtxSetLimit(self, limit: int, value: ctypes.c_size_t) -> int:  # noqa: N802
        assert (limit, value.value) == (0, STACK_BYTES)
        return 0

    def _cuDevicePrimaryCtxRelease(self, device: Any) -> int:  # noqa: N802
        self.calls.append(f"of {device.value - 40}")
        return 0


FOUND = ["cuInit", "cuDeviceGetCount"]
RETAINED = ["cuDeviceGet", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain"]
LIMITED = ["cuCtxSetCurrent", "cuCtxSetLimit"]


def calls(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, name: str | None, amd: bool = False
) -> tuple[list[str], list[str]]:
    """What is called until the device is opened, and behind that."""
    monkeypatch.setattr(context_ahead, "has_amd_driver", lambda: amd)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    open_ahead(name)
    with opened_ahead():
        before = list(driver.calls)
    return before, driver.calls[len(before) :]


@pytest.mark.parametrize(
    ("name", "devices", "index"),
    [(None, 1, 0), ("auto", 1, 0), ("cuda", 1, 0), ("cuda:0", 4, 0), ("cuda:3", 4, 3)],
)
def test_a_device_is_open_until_the_caller_has_opened_it(
    name: str | None, devices: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    before, after = calls(monkeypatch, Driver(devices), name)
    assert before == [*FOUND, *RETAINED, *LIMITED]
    assert after == ["cuDevicePrimaryCtxRelease", f"of {index}"]


def test_a_device_that_was_open_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = calls(monkeypatch, Driver(1, active=1), "cuda")
    assert before == [*FOUND, *RETAINED]
    assert after == ["cuDevicePrimaryCtxRelease", "of 0"]


def test_of_several_devices_only_the_driver_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(monkeypatch, Driver(2), "cuda") == (FOUND, [])


@pytest.mark.parametrize("refuses", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_what_the_driver_refuses_is_left_alone(
    refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = calls(monkeypatch, Driver(1, refuses=refuses), "cuda")
    assert before == [*FOUND, *RETAINED][: len(before)]
    assert before[-1] == refuses
    assert after == []


def test_a_missing_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    open_ahead("cuda")
    with opened_ahead():
        pass


@pytest.mark.parametrize(
    ("name", "amd"),
    [
        ("cpu", False),
        ("hip", False),
        ("hip:0", False),
        ("cuda:0,cuda:1", False),
        ("auto", True),
        (None, True),
    ],
)
def test_other_devices_are_not_opened(
    name: str | None, amd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    assert calls(monkeypatch, Driver(1), name, amd) == ([], [])


def test_the_environment_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")
    assert calls(monkeypatch, Driver(1), None) == ([], [])
