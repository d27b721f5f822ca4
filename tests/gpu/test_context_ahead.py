"""A GPU that is opened in a thread, by a stand-in of the driver's library."""

import ctypes
import threading
from typing import Any

import pytest

from rocmforge import cli, commands, devices
from rocmforge.gpu import context_ahead
from rocmforge.gpu.choose_device import Choice
from rocmforge.gpu.context_ahead import STACK_BYTES, opened_ahead, opening_ahead
from rocmforge.gpu.runtime import DeviceProperties


class Driver:
    """Notes its calls. That of `refuses` fails. It has `count` devices, open if `active`."""

    def __init__(self, count: int, active: int = 0, refuses: str = "") -> None:
        self.count, self.active, self.refuses = count, active, refuses
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            shown = [str(getattr(one, "value", one)) for one in arguments if _is_number(one)]
            self.calls.append(" ".join([name, *shown]))
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.count
            elif name == "cuDeviceGet":
                arguments[0]._obj.value = 40 + arguments[1]
            elif name == "cuDevicePrimaryCtxGetState":
                arguments[2]._obj.value = self.active
            elif name == "cuDevicePrimaryCtxRetain":
                arguments[0]._obj.value = 7
            return 2 if name == self.refuses else 0

        return call


def _is_number(argument: Any) -> bool:
    return isinstance(argument, int | ctypes._SimpleCData)


def calls_of(index: int) -> list[str]:
    """What opens a device."""
    return [
        "cuInit 0",
        "cuDeviceGetCount",
        f"cuDeviceGet {index}",
        f"cuDevicePrimaryCtxGetState {40 + index}",
        f"cuDevicePrimaryCtxRetain {40 + index}",
        "cuCtxSetCurrent 7",
        f"cuCtxSetLimit 0 {STACK_BYTES}",
    ]


def released(index: int) -> list[str]:
    return [f"cuDevicePrimaryCtxRelease_v2 {40 + index}"]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    monkeypatch.setattr(context_ahead, "has_amd_driver", lambda: False)


def loaded(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return driver


def calls(driver: Driver, name: str | None) -> tuple[list[str], list[str]]:
    """What is called until someone takes the device over, and when he has opened it."""
    with opening_ahead(name):
        with opened_ahead():
            before = list(driver.calls)
        after = driver.calls[len(before) :]
    assert driver.calls == before + after  # nothing is let go twice
    return before, after


@pytest.mark.parametrize(
    ("name", "count", "index"),
    [(None, 1, 0), ("auto", 1, 0), ("cuda", 1, 0), ("cuda:0", 4, 0), ("cuda:3", 4, 3)],
)
def test_a_device_is_open_until_the_caller_has_opened_it(
    name: str | None, count: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = loaded(monkeypatch, Driver(count))
    assert calls(driver, name) == (calls_of(index), released(index))


def test_a_device_that_was_open_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = loaded(monkeypatch, Driver(1, active=1))
    assert calls(driver, "cuda") == (calls_of(0)[:5], released(0))


def test_of_several_devices_only_the_driver_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(loaded(monkeypatch, Driver(2)), "cuda") == (calls_of(0)[:2], [])


@pytest.mark.parametrize(
    ("refuses", "held"),
    [
        ("cuInit", False),
        ("cuDeviceGet", False),
        ("cuDevicePrimaryCtxRetain", False),
        ("cuCtxSetCurrent", True),
        ("cuCtxSetLimit", True),
    ],
)
def test_what_the_driver_refuses_is_left_alone(
    refuses: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = calls(loaded(monkeypatch, Driver(1, refuses=refuses)), "cuda")
    assert before == calls_of(0)[: len(before)]
    assert before[-1].startswith(refuses)
    assert after == (released(0) if held else [])


@pytest.mark.parametrize("error", [OSError("no such file"), AttributeError("undefined symbol")])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_missing_driver_is_left_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def missing(name: str) -> None:
        asked.append(name)
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with opening_ahead("cuda"), opened_ahead():
        assert asked == ["libcuda.so.1"]


def test_a_machine_without_more_threads_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    driver = loaded(monkeypatch, Driver(1))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert calls(driver, "cuda") == ([], [])


@pytest.mark.parametrize("name", ["cpu", "hip", "hip:0", "cuda:0,cuda:1"])
def test_other_devices_are_not_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(loaded(monkeypatch, Driver(1)), name) == ([], [])


def test_an_amd_gpu_comes_first_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = loaded(monkeypatch, Driver(1))
    monkeypatch.setattr(context_ahead, "has_amd_driver", lambda: True)
    assert calls(driver, None) == calls(driver, "auto") == ([], [])
    assert calls(driver, "cuda") == (calls_of(0), released(0))


def test_the_environment_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")
    assert calls(loaded(monkeypatch, Driver(1)), None) == ([], [])


def test_what_nobody_takes_over_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = loaded(monkeypatch, Driver(1))
    with pytest.raises(ZeroDivisionError), opening_ahead("cuda"):
        raise ZeroDivisionError
    assert driver.calls == calls_of(0) + released(0)


def test_a_backend_of_the_cpu_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = loaded(monkeypatch, Driver(1))
    with opening_ahead("auto"):
        devices.open_chosen(Choice("cpu", None, "layers"), threads=1).close()
        assert driver.calls == calls_of(0) + released(0)


def test_a_gpu_is_opened_before_it_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = loaded(monkeypatch, Driver(1))

    class OpenedError(Exception):
        """Ends `open_chosen` where a runtime would be open."""

    def runtime(index: int) -> Any:
        driver.calls.append(f"runtime {index}")
        raise OpenedError

    monkeypatch.setattr(devices, "_RUNTIMES", {"cuda": runtime})
    card = DeviceProperties(0, "X", "sm_90", 32, 132, 140 << 30, 49152, False)
    with opening_ahead("cuda"), pytest.raises(OpenedError):
        devices.open_chosen(Choice("cuda", card, "alone"))
    assert driver.calls == [*calls_of(0), "runtime 0", *released(0)]


@pytest.mark.parametrize(
    ("words", "opens"),
    [
        (["generate", "Hi", "--device", "cuda:1"], ["cuda:1"]),
        (["perplexity"], [None]),
        (["chat"], [None]),
        (["devices"], []),
    ],
)
def test_commands_that_run_a_model_open_its_device(
    words: list[str], opens: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str | None] = []

    class Opening:
        def __init__(self, device: str | None) -> None:
            opened.append(device)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(context_ahead, "opening_ahead", Opening)
    monkeypatch.setattr(commands, words[0], lambda args: 0)
    assert cli.main(words) == 0
    assert opened == opens
