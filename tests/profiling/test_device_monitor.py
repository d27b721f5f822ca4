"""A monitor of devices: what each source shows, the log, and sources that fail or hang."""

from __future__ import annotations

import csv
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_cards import card, smi

from rocmforge.gpu import cuda
from rocmforge.profiling import amdgpu, monitor, polling
from rocmforge.profiling.amdgpu import amdsmi_readings
from rocmforge.profiling.cpu_readings import CpuReadings, Spent, busy_share
from rocmforge.profiling.gpu_environment import GpuSample
from rocmforge.profiling.gpu_watch import open_amdgpu
from rocmforge.profiling.monitor import COLUMNS, DeviceMonitor, Monitored
from rocmforge.profiling.polling import Poller
from rocmforge.profiling.run_environment import CpuTicks

EVERYTHING = {
    "seconds",
    "clock_mhz",
    "memory_clock_mhz",
    "power_watts",
    "temperature_celsius",
    "utilization",
    "memory_used_bytes",
    "load_average",
    "throttle",
}


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither amdsmi nor nvidia-ml-py is installed, unless a test puts a stand-in there."""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)


def watched(device: str, root: Path, seconds: float = 0.15) -> DeviceMonitor:
    with DeviceMonitor(device, 0.02, root) as made:
        time.sleep(seconds)
    return made


def test_a_card_by_the_drivers_files(tmp_path: Path) -> None:
    card(tmp_path)
    made = watched("hip:0", tmp_path)
    found = made.result()
    assert (found.device, found.source, found.remarks) == ("hip:0", "sysfs", ())
    assert len(found.samples) >= 3
    for look in found.samples:
        assert (look.clock_mhz, look.memory_clock_mhz) == (2371.0, 1249.0)
        assert (look.power_watts, look.temperature_celsius) == (287.0, 83.0)
        assert (look.utilization, look.memory_used_bytes) == (0.97, 8 << 30)
        assert (look.load_average, look.throttle) == (None, None)
    assert found.summary["power_watts"] == (287.0, pytest.approx(287.0), 287.0)
    assert found.summary["load_average"] is None


def test_samples_are_in_order_from_the_begin_to_the_end(tmp_path: Path) -> None:
    device = card(tmp_path)
    begin = time.perf_counter()
    with DeviceMonitor("hip:0", 0.02, tmp_path) as made:
        time.sleep(0.1)
        (device / "gpu_busy_percent").write_text("12\n", encoding="utf-8")
        time.sleep(0.1)
        so_far = len(made.result().samples)
        (device / "gpu_busy_percent").unlink()
    whole = time.perf_counter() - begin
    assert begin <= made.began <= begin + whole
    looks = made.result().samples
    assert len(looks) > so_far > 2  # the last one is of the end
    seconds = [look.seconds for look in looks]
    assert seconds == sorted(seconds)
    assert seconds[0] < whole - 0.1  # at once: a busy machine makes the whole late too
    assert 0.2 <= seconds[-1] <= whole
    assert [look.utilization for look in (looks[0], looks[so_far - 1], looks[-1])] == [
        0.97,
        0.12,
        None,
    ]
    assert made.result().summary["utilization"] == (0.12, pytest.approx(0.5, abs=0.45), 0.97)
    time.sleep(0.05)
    assert made.result().samples == looks


def amdsmi(address: str, metrics: Callable[[], dict[str, Any]]) -> types.ModuleType:
    fake: Any = types.ModuleType("amdsmi")
    fake.AmdSmiException = type("AmdSmiException", (Exception,), {})
    fake.amdsmi_init = lambda: None
    fake.amdsmi_get_processor_handles = lambda: ["mine"]
    fake.amdsmi_get_gpu_device_bdf = {"mine": address}.get
    fake.amdsmi_get_gpu_metrics_info = lambda handle: metrics()
    made: types.ModuleType = fake
    return made


def test_amdsmi_comes_before_the_drivers_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "current_gfxclk": 2100,
        "current_uclk": 65535,
        "average_socket_power": 301,
        "current_socket_power": "N/A",
        "average_gfx_activity": 40,
        "temperature_hotspot": 91,
        "indep_throttle_status": 1 | 1 << 32,
    }
    address = card(tmp_path).resolve().name
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(address, lambda: told))
    found = watched("hip:0", tmp_path).result()
    assert found.source == "sysfs, amdsmi"
    look = found.samples[0]
    assert (look.clock_mhz, look.power_watts, look.utilization) == (2100.0, 301.0, 0.4)
    assert look.temperature_celsius == 91.0
    assert (look.memory_clock_mhz, look.memory_used_bytes) == (1249.0, 8 << 30)  # of the files
    assert look.throttle == found.throttle == ("power cap", "temperature")


def test_readings_of_amdsmi() -> None:
    assert amdsmi_readings({}) == {}
    assert amdsmi_readings({"current_gfxclk": "N/A", "average_gfx_activity": 65535}) == {}
    dies = {"current_gfxclk": 65535, "current_gfxclks": [1900, 2100, 65535, "N/A"]}
    assert amdsmi_readings(dies) == {"clock_mhz": 2100.0}
    assert amdsmi_readings({"current_uclk": True, "average_socket_power": -1}) == {}
    assert amdsmi_readings({"average_gfx_activity": 0}) == {"utilization": 0.0}
    edge = {"temperature_hotspot": 65535, "temperature_edge": 61}
    assert amdsmi_readings(edge) == {"temperature_celsius": 61.0}


def test_an_amdsmi_that_fails_leaves_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("planted\nover two lines")

    address = card(tmp_path).resolve().name
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(address, fail))
    found = watched("hip:0", tmp_path).result()
    assert found.samples == ()
    (remark,) = found.remarks
    assert remark.startswith("sysfs, amdsmi: ")
    assert remark.endswith("looks failed, the first with RuntimeError: planted over two lines")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for nvidia-ml-py, whose card does not tell its memory's clock."""
    monkeypatch.setattr(cuda, "pci_address", {1: "0000:19:00.0"}.get)
    fake: Any = types.ModuleType("pynvml")
    fake.NVMLError = type("NVMLError", (Exception,), {})

    def clock(handle: str, of: int) -> int:
        if of != 1:
            raise fake.NVMLError("not supported")
        return 1980

    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetHandleByPciBusId = {b"0000:19:00.0": "card"}.__getitem__
    fake.nvmlDeviceGetClockInfo = clock
    fake.nvmlDeviceGetPowerUsage = lambda handle: 512_250
    fake.nvmlDeviceGetTemperatureV = lambda handle, of: 51
    fake.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=98, memory=40)
    fake.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=8123 << 20)
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x4 | 0x20
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_card_by_nvidia_ml_py(tmp_path: Path, nvml: Any) -> None:
    found = watched("cuda:1", tmp_path).result()
    assert (found.source, found.remarks) == ("nvidia-ml-py", ())
    assert len(found.samples) >= 3
    look = found.samples[0]
    assert (look.clock_mhz, look.memory_clock_mhz, look.power_watts) == (1980, None, 512.25)
    assert (look.temperature_celsius, look.utilization) == (51, 0.98)
    assert look.memory_used_bytes == 8123 << 20
    assert found.throttle == ("power cap", "temperature")


def test_an_older_driver_or_package(tmp_path: Path, nvml: Any) -> None:
    def refuse(handle: str, of: int) -> int:
        raise nvml.NVMLError("function not found")

    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    nvml.nvmlDeviceGetTemperatureV = refuse
    found = watched("cuda:1", tmp_path).result()
    assert (found.throttle, found.samples[0].temperature_celsius) == (None, None)
    assert found.samples[0].power_watts == 512.25
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x40
    nvml.nvmlDeviceGetTemperature = lambda handle, of: 52
    found = watched("cuda:1", tmp_path).result()
    assert found.throttle == ("hardware temperature",)
    assert found.samples[0].temperature_celsius == 52


def test_a_card_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch)
    found = watched("cuda:1", tmp_path, 0.5).result()
    assert (found.source, found.remarks) == ("nvidia-smi", ())
    assert len(found.samples) >= 2
    assert found.samples[0].power_watts == 512.25
    assert found.throttle == ("hardware temperature",)
    seconds = [look.seconds for look in found.samples]
    assert 0 < seconds[0] < seconds[-1] < 5
    (call,) = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert "--loop-ms=20" in call
    assert "-i 0000:19:00.0" in call


def test_an_nvidia_smi_that_tells_nothing_is_remarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nsleep 30\n", encoding="utf-8")
    begin = time.perf_counter()
    found = watched("cuda:1", tmp_path).result()
    assert time.perf_counter() - begin < 20  # its child goes on for longer
    assert (found.source, found.samples, found.remarks) == (
        "nvidia-smi",
        (),
        ("nvidia-smi told nothing",),
    )


@pytest.mark.parametrize(
    ("device", "wanted"),
    [("hip:0", "/sys/class/kfd"), ("cuda:0", "nvidia-ml-py, or nvidia-smi")],
)
def test_a_card_that_is_not_there_is_remarked(
    device: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "pci_address", lambda index: None)
    found = watched(device, tmp_path, 0.05).result()
    assert (found.source, found.samples, found.throttle) == ("none", (), None)
    (remark,) = found.remarks
    assert remark.startswith("no source of readings, wanted")
    assert wanted in remark
    assert set(found.summary.values()) == {None}


def test_a_search_that_fails_is_remarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str, root: Path) -> None:
        raise PermissionError("planted")

    monkeypatch.setattr(monitor, "open_amdgpu", fail)
    found = watched("hip:0", tmp_path, 0.05).result()
    assert (found.source, found.remarks) == ("none", ("PermissionError: planted",))


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets what hangs go on when the test is over."""
    monkeypatch.setattr(polling, "PATIENCE_S", 0.1)
    event = threading.Event()
    yield event
    event.set()


def test_a_source_that_hangs_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    card(tmp_path)
    looks = iter([GpuSample(power_watts=100.0)] * 2)

    def hang(folder: Path) -> GpuSample:
        if (look := next(looks, None)) is None:
            released.wait(60)
        return look or GpuSample()

    monkeypatch.setattr(amdgpu, "amdgpu_sample", hang)
    begin = time.perf_counter()
    found = watched("hip:0", tmp_path, 0.2).result()
    assert time.perf_counter() - begin < 20  # not 60
    assert [look.power_watts for look in found.samples] == [100.0, 100.0]
    assert found.remarks == ("sysfs: no answer for 0.1 s, left to itself",)


def test_a_search_that_hangs_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    monkeypatch.setattr(monitor, "open_amdgpu", lambda device, root: released.wait(60) and None)
    begin = time.perf_counter()
    found = watched("hip:0", tmp_path, 0.05).result()
    assert time.perf_counter() - begin < 20  # not 60
    assert found.remarks == ("the search for a source: no answer for 0.1 s, left to itself",)


def test_what_the_block_raises_comes_through(tmp_path: Path) -> None:
    card(tmp_path)
    made = DeviceMonitor("hip:0", 0.02, tmp_path)
    with pytest.raises(ZeroDivisionError), made:
        _ = 1 / 0
    assert made.result().samples


def test_the_cpu_and_this_process() -> None:
    with DeviceMonitor("cpu", 0.05) as made:
        ballast = bytearray(b"x") * 60_000_000
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            pass
    found = made.result()
    assert (found.source, found.remarks, found.throttle) == ("/proc", (), None)
    memory = found.summary["memory_used_bytes"]
    assert memory is not None
    assert memory.max > len(ballast)
    assert found.summary["power_watts"] is None
    assert found.samples[0].utilization is None  # nothing to compare with yet
    busy = found.summary["utilization"]
    assert busy is None or 0.3 / 1024 < busy.max <= 1  # at least one of the CPUs


def test_what_a_machine_does_not_show_is_none(tmp_path: Path) -> None:
    found = watched("cpu", tmp_path, 0.1).result()
    assert len(found.samples) >= 3
    assert set(found.summary.values()) == {None}


def spent(wall: float, own: float, busy: float | None) -> Spent:
    return Spent(wall, own, None if busy is None else CpuTicks(busy, 0.0))


@pytest.mark.parametrize(
    ("last", "now", "share"),
    [
        (spent(10.0, 0, 5.0), spent(10.1, 0, 5.1), 0.5),
        (spent(10.0, 0, 5.0), spent(10.1, 0, 5.0), 0.0),
        (spent(10.0, 0, 5.0), spent(10.1, 0.01, 5.3), 1.0),
        (spent(10.0, 0, 5.0), spent(10.1, 0.05, 5.0), None),  # counters stand still
        (spent(10.0, 0, None), spent(10.1, 0, 5.1), None),
        (spent(10.0, 0, 5.0), spent(10.1, 0, None), None),
        (spent(10.0, 0, 5.0), spent(10.0, 0, 5.0), None),
    ],
)
def test_the_busy_share_of_two_cpus(last: Spent, now: Spent, share: float | None) -> None:
    assert busy_share(last, now, 2) == (share if share is None else pytest.approx(share))


def test_the_log(tmp_path: Path, nvml: Any) -> None:
    made = watched("cuda:1", tmp_path)
    path = tmp_path / "logs" / "monitor.csv"
    made.write_csv(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    looks = made.result().samples
    assert set(COLUMNS) == EVERYTHING == set(rows[0])
    assert len(rows) == len(looks)
    for row, look in zip(rows, looks, strict=True):
        assert float(row["seconds"]) == look.seconds
        assert row["power_watts"] == "512.25"
        assert row["memory_used_bytes"] == str(8123 << 20)
        assert row["throttle"] == "power cap;temperature"
        assert (row["memory_clock_mhz"], row["load_average"]) == ("", "")


def test_a_log_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card(tmp_path)
    made = watched("hip:0", tmp_path, 0.05)
    path = tmp_path / "monitor.csv"
    path.write_text("older", encoding="utf-8")

    def refuse(*arguments: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="planted"):
        made.write_csv(path)
    assert path.read_text(encoding="utf-8") == "older"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


@pytest.mark.parametrize("kind", ["cpu", "sysfs"])
def test_a_look_costs_less_than_a_hundredth_of_the_period(kind: str, tmp_path: Path) -> None:
    card(tmp_path)
    source = CpuReadings(Path("/")) if kind == "cpu" else open_amdgpu("hip:0", tmp_path)
    assert source is not None
    seconds = []
    for _ in range(30):
        begin = time.thread_time()
        (sample,) = source.samples()
        seconds.append(time.thread_time() - begin)
        assert sample.utilization is None or sample.utilization <= 1
        time.sleep(0.02)
    source.end()
    # The least: on a busy machine the same look takes up to four times as much CPU time.
    assert 0 < min(seconds) < 0.01 * monitor.PERIOD_S


@pytest.mark.parametrize("kind", ["cpu", "sysfs"])
def test_the_cost_of_looking_is_in_the_result(kind: str, tmp_path: Path) -> None:
    card(tmp_path)
    device, root = ("cpu", Path("/")) if kind == "cpu" else ("hip:0", tmp_path)
    begin = time.process_time()
    with DeviceMonitor(device, root=root) as made:
        time.sleep(0.5)
    spent = time.process_time() - begin
    found = made.result()
    assert found.period_seconds == monitor.PERIOD_S == 0.1
    assert found.samples
    assert 0 < found.cpu_seconds <= spent


class Burning:
    """A source that computes for 10 ms at each look."""

    name = "burning"

    def samples(self) -> list[float]:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.01:
            pass
        return [begin]

    def end(self) -> None:
        pass


def test_a_costly_source_is_looked_at_less_often() -> None:
    poller = Poller(Burning, 0.01)
    time.sleep(1.2)
    poller.close()
    # at once, after 0.5 s, and at the end: the next would be 1.5 s after the first
    assert len(poller.take()) == 3
    assert poller.cpu_seconds == pytest.approx(0.03, abs=0.015)


def test_a_costly_search_makes_looks_no_rarer() -> None:
    class Cheap(Burning):
        def __init__(self) -> None:
            super().samples()

        def samples(self) -> list[float]:
            return [time.perf_counter()]

    poller = Poller(Cheap, 0.02)
    time.sleep(0.5)
    poller.close()
    assert len(poller.take()) >= 5
    assert poller.cpu_seconds >= 0.01


@pytest.mark.parametrize(
    ("device", "period", "message"),
    [
        ("tpu", 0.1, "device: got 'tpu', wanted one of"),
        ("auto", 0.1, "monitor: got device 'auto', wanted cpu, hip:0, cuda:0"),
        ("cpu", 0.0, "monitor: got a period of 0 s, wanted 0.01 or more"),
        ("cpu", float("nan"), "monitor: got a period of nan s, wanted 0.01 or more"),
    ],
)
def test_bad_arguments(device: str, period: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeviceMonitor(device, period)


def test_a_monitor_is_used_once(tmp_path: Path) -> None:
    made = DeviceMonitor("cpu", 0.02, tmp_path)
    for call in (made.result, lambda: made.write_csv(tmp_path / "x.csv")):
        with pytest.raises(ValueError, match="monitor of cpu: got no `with` block yet"):
            call()
    with made:
        assert isinstance(made.result(), Monitored)
    with pytest.raises(ValueError, match="monitor of cpu: got a second block, wanted one"), made:
        pass
