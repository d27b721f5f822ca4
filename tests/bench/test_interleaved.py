"""Two processes that take turns with a benchmark: what they compare, and how they end."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from interpreters import write_interpreter

from rocmforge.bench import interleaved
from rocmforge.bench.interleaved import OTHER_CODE, Pair, interleaved_slowdown, measure_pair
from rocmforge.bench.interleaved_worker import FEWEST, SHORTEST_S, Turns
from rocmforge.bench.results import Direction

pytest.importorskip("asv_runner")

SUITE = '''\
"""Which of two interpreters runs it is known by its name: `later` is slower by half."""
import sys
import time
from pathlib import Path

from rocmforge.timing import collect, seconds_per_call

LATER = Path(sys.executable).name == "later"
LOG = Path(__file__).with_name("log")
spent = 0.0


def clock():
    return spent


def work():
    """Two or three milliseconds of a clock that no other work on the machine moves."""
    global spent
    spent += 0.003 if LATER else 0.002
    with LOG.open("a") as log:
        log.write("ab"[LATER])
    time.sleep(60 if LATER and "hangs" in sys.argv[2] and LOG.stat().st_size > 9 else 0.001)


class Suite:
    params = (["one", "two"], [4])
    timer = staticmethod(clock)

    def setup(self, name, number):
        if name == "two" and LATER:
            raise NotImplementedError("not here")

    def time_it(self, name, number):
        work()

    def track_rate(self, name, number):
        return {"samples": [1 / s for s in seconds_per_call(work, clock=clock)], "number": 1}

    def track_few(self, name, number):
        def measure():
            begin = clock()
            work()
            return clock() - begin
        return {"samples": [1e3 * s for s in collect(measure, most=5)], "number": 1}


def time_without_setup():
    global spent
    spent += 0.0005
    with LOG.open("a") as log:
        log.write("ab"[LATER])


time_without_setup.timer = clock


def time_share():
    """A replay of 4 ms, of which the clock has one call's share."""
    global spent
    spent += 5e-6
    time.sleep(0.004)
    with LOG.open("a") as log:
        log.write("ab"[LATER])


time_share.timer = clock


def track_bytes():
    return 300 if LATER else 200


def track_wrong():
    if LATER:
        print("begins")
        raise ValueError("a wrong result")
    return 1


def track_full():
    if LATER:
        raise type("OutOfMemoryError", (Exception,), {})("got no 9 bytes of device memory")
    return 1


def track_exclusive():
    if LATER:
        raise ValueError("cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE: busy")
    return 1


def track_skipped():
    if LATER:
        raise NotImplementedError("it's not here")
    return 1


def track_exits():
    import os
    os._exit(9) if LATER else time.sleep(0.2)
    return 1


def track_for_ever():
    time.sleep(60) if LATER else None
    return 1


def track_hangs_in_its_turn():
    samples = seconds_per_call(work, clock=clock)
    return {"samples": samples, "number": 1}


def track_takes_no_turns():
    return 1 if LATER else track_hangs_in_its_turn()


def track_nothing():
    return 0 if LATER else None


track_for_ever.timeout = track_hangs_in_its_turn.timeout = 0.5
'''


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder of benchmarks; beside it two interpreters, `earlier` and `later`."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "suite.py").write_text(SUITE)
    for name in ("earlier", "later"):
        write_interpreter(tmp_path / name)
    return folder


def pair(suite: Path, label: str, later_leads: bool = False, seconds: float = 0.1) -> Pair:
    pythons = suite.parent / "earlier", suite.parent / "later"
    return measure_pair(pythons, (suite, suite), label, Direction.LOWER, later_leads, seconds)


@pytest.mark.parametrize("later_leads", [False, True])
@pytest.mark.parametrize("name", ["time_it", "track_rate", "track_few"])
def test_calls_of_two_builds_alternate_and_the_later_is_slower(
    suite: Path, name: str, later_leads: bool
) -> None:
    found = pair(suite, f"suite.Suite.{name}('one', 4)", later_leads)
    assert found.slowdown == pytest.approx(1.5)
    wanted = {"time_it": (2e-3, 3e-3), "track_rate": (500, 1000 / 3), "track_few": (2, 3)}[name]
    assert (found.before, found.after) == pytest.approx(wanted)
    turns = [len(list(group)) for _, group in itertools.groupby((suite / "log").read_text())]
    assert len(turns) >= 2 * (FEWEST + 1) + 1  # warming up, and the leader's last
    assert (suite / "log").read_text()[-1] == "ab"[later_leads]


def test_what_is_no_time_is_compared_by_its_value(suite: Path) -> None:
    assert pair(suite, "suite.track_bytes") == Pair(1.5, 200, 300)
    pythons = suite.parent / "earlier", suite.parent / "later"
    found = measure_pair(pythons, (suite, suite), "suite.track_bytes", Direction.HIGHER, True)
    assert found.slowdown == pytest.approx(2 / 3)


def test_each_build_may_have_benchmarks_of_its_own(suite: Path) -> None:
    pythons = suite.parent / "earlier", suite.parent / "later"
    own = suite.parent / "own" / "benchmarks"
    shutil.copytree(suite, own)
    (own / "suite.py").write_text(f"import json\n{SUITE}")

    def measured(label: str) -> Pair:
        return measure_pair(pythons, (own, suite), label, Direction.LOWER, False, 0.1)

    assert measured("suite.track_bytes") == Pair(1.5, 200, 300)
    assert measured("suite.Suite.time_it('one', 4)").slowdown == pytest.approx(1.5)
    assert (own / "log").exists()
    (own / "suite.py").write_text(SUITE.replace("else 200", "else 201"))
    assert measured("suite.track_bytes").without == (0, OTHER_CODE)


def test_short_calls_are_repeated(suite: Path) -> None:
    found = pair(suite, "suite.time_without_setup")
    assert (found.slowdown, found.before, found.after) == pytest.approx((1.0, 5e-4, 5e-4))
    turns = [len(list(group)) for _, group in itertools.groupby((suite / "log").read_text())]
    assert min(turns[-2 * FEWEST :]) >= SHORTEST_S / 5e-4  # a sample


def test_calls_that_the_wall_sees_are_not_repeated(suite: Path) -> None:
    found = pair(suite, "suite.time_share")
    assert (found.slowdown, found.before) == pytest.approx((1.0, 5e-6))
    turns = [len(list(group)) for _, group in itertools.groupby((suite / "log").read_text())]
    assert max(turns) < 50  # of 4 ms in a turn of 50 ms, or of 150 ms at first


def test_the_first_call_of_a_turn_is_told_apart(suite: Path) -> None:
    text = (suite / "suite.py").read_text(encoding="utf-8")
    slow = "    spent += 0.001 if time.perf_counter() - woken > 0.02 else 0.0\n"
    slow += "    woken = time.perf_counter()\n"
    text = text.replace("    global spent\n", f"    global spent, woken\n{slow}", 1)
    (suite / "suite.py").write_text(text.replace("spent = 0.0", "spent = woken = 0.0", 1))
    found = pair(suite, "suite.Suite.time_it('one', 4)")
    assert found.first_of_turn is not None
    assert 1.2 < found.first_of_turn < 1.6  # a millisecond more of two or of three
    assert found.slowdown == pytest.approx(1.5)


def test_what_is_not_available_is_no_failure(suite: Path) -> None:
    found = pair(suite, "suite.Suite.time_it('two', 4)")
    assert found.slowdown is None
    assert found.without == (1, "n/a: not here")


@pytest.mark.parametrize(
    ("label", "without"),
    [
        ("suite.track_wrong", (1, "ValueError: a wrong result")),
        ("suite.track_full", (1, "n/a: the device's memory does not hold two processes")),
        ("suite.track_exclusive", (1, "n/a: the device takes one process at a time")),
        ("suite.track_skipped", (1, "n/a: it's not here")),
        ("suite.track_exits", (1, "exit 9")),
        ("suite.track_for_ever", (1, "time-out")),
        ("suite.track_hangs_in_its_turn", (1, "time-out")),
        ("suite.track_takes_no_turns", (0, "the other build takes no turns")),
        ("suite.track_nothing", (0, "a value of 0, or none, has no ratio")),
        ("suite.Suite.time_it('three', 4)", (0, "ValueError: suite.Suite.time_it: got no parame")),
        ("suite.time_nothing", (0, "ValueError: Could not find benchmark 'suite.time_nothing'")),
    ],
)
@pytest.mark.parametrize("later_leads", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_process_that_ends_is_named_and_the_other_does_not_wait(
    suite: Path, label: str, without: tuple[int, str], later_leads: bool
) -> None:
    begin = time.monotonic()
    found = pair(suite, label, later_leads)
    assert found.slowdown is None, label
    side, why = found.without
    assert side == without[0]
    assert why.startswith(without[1])
    assert time.monotonic() - begin < 30


def test_an_interpreter_that_is_missing_leaves_no_process(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    popen = interleaved.subprocess.Popen

    def spy(*arguments: object, **more: object) -> object:
        started.append(popen(*arguments, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(interleaved.subprocess, "Popen", spy)
    pythons = suite.parent / "earlier", suite.parent / "none"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="none"):
        measure_pair(pythons, (suite, suite), "suite.track_bytes", Direction.LOWER, False)
    assert [process.returncode for process in started] == [-9]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_burst_that_both_see_is_not_in_the_quotient() -> None:
    """By hand: a machine that is three times slower from the second turn of the follower on."""
    leader = [[1.0, 1.1, 1.0, 1.0], [1.0] * 4, [3.0] * 4, [3.0] * 4, [3.0] * 4]
    follower = [[1.2] * 4, [3.6, 3.6, 9.9, 3.6], [3.6] * 4, [3.6] * 4]
    assert interleaved_slowdown(leader, follower, False) == pytest.approx(1.2)
    assert interleaved_slowdown(follower, leader, True) == pytest.approx(1 / 1.2)
    drifting = [[math.exp(0.1 * i)] for i in range(0, 9, 2)]
    between = [[1.3 * math.exp(0.1 * i)] for i in range(1, 8, 2)]
    assert interleaved_slowdown(drifting, between, False) == pytest.approx(1.3)


def test_a_follower_whose_leader_is_gone_says_so() -> None:
    (to_us, theirs), (back, ours) = os.pipe(), os.pipe()
    follower = Turns(to_us, ours, leads=False, seconds=1.0)
    os.write(theirs, b"g")
    assert follower.begin()
    assert os.read(back, 1) == b"r"
    os.close(theirs)
    follower._mine = False
    with pytest.raises(EOFError, match="the other process has ended"):
        follower.begin()
    for end in (to_us, back, ours):
        os.close(end)


def test_the_script_imports_nothing_of_this_package_but_timing() -> None:
    text = interleaved.SCRIPT.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:import|from) (rocmforge[\w.]*)", text)) == {"rocmforge.timing"}
