"""Two processes in turns on one GPU: each keeps its context, and the slower build is found."""

from __future__ import annotations

from ctypes import CDLL
from pathlib import Path

import build_standin
import pytest
from interpreters import write_interpreter

from rocmforge.bench.interleaved import measure_pair
from rocmforge.bench.results import Direction

pytestmark = pytest.mark.either_wave

pytest.importorskip("asv_runner")

SUITE = '''\
"""RMSNorm on the stand-in, where a kernel of the later build takes a quarter longer."""
import sys
from ctypes import CDLL, c_double
from functools import partial
from pathlib import Path

import numpy as np

from rocmforge import ops
from rocmforge.devices import open_backend
from rocmforge.timing import seconds_per_call

LATER = Path(sys.executable).name == "later"
LOG = Path(__file__).with_name("log")
backend = open_backend("hip:0")
plant = CDLL("libamdhip64.so").standin_plant
plant.argtypes = c_double, c_double


class Norm:
    def setup(self):
        x = np.random.default_rng(0).standard_normal((2, 64), np.float32)
        call = partial(ops.rmsnorm, x, np.ones(64, np.float32), 1e-5, backend)
        plant(250e-6 if LATER else 200e-6, 30e-6)
        self.replay = backend.timed([call] * 4)

    def call(self):
        self.replay()
        with LOG.open("a") as log:
            log.write("ab"[LATER])

    def time_norm(self):
        self.call()

    time_norm.timer = staticmethod(backend.seconds)

    def track_norm_us(self):
        samples = seconds_per_call(self.call, clock=backend.seconds)
        return {"samples": [1e6 * s for s in samples], "number": 1}
'''


@pytest.fixture
def builds(standin: dict[str, CDLL], tmp_path: Path) -> tuple[Path, Path]:
    """Interpreters `earlier` and `later` that find the stand-in in place of ROCm."""
    rocm = build_standin.build()
    places = {"LD_LIBRARY_PATH": rocm / "lib", "ROCM_PATH": rocm}
    for name in ("earlier", "later"):
        write_interpreter(
            tmp_path / name, {**places, "ROCMFORGE_CACHE": build_standin.KERNEL_CACHE.parent}
        )
    return tmp_path / "earlier", tmp_path / "later"


@pytest.mark.parametrize("later_leads", [False, True])
@pytest.mark.parametrize("name", ["time_norm", "track_norm_us"])
def test_two_builds_in_turns_on_one_device(
    builds: tuple[Path, Path], tmp_path: Path, name: str, later_leads: bool
) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "suite.py").write_text(SUITE)
    label = f"suite.Norm.{name}"
    found = measure_pair(builds, (folder, folder), label, Direction.LOWER, later_leads, 0.2)
    assert found.slowdown == pytest.approx(1.25, rel=1e-3), found.without
    unit = 1e6 if name == "track_norm_us" else 1
    assert (found.before, found.after) == pytest.approx((200e-6 * unit, 250e-6 * unit), rel=1e-3)
    turns = (folder / "log").read_text()
    assert turns.count("ab") >= 3
    assert turns.count("ba") >= 3
