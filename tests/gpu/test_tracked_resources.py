"""A planted loss of waves, or of wide loads, moves what benchmarks/kernel_resources.py tracks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chosen_builds import rdna_and_cdna
from suite_caches import nothing_prepared

from rocmforge.bench.compare import compare
from rocmforge.bench.decision import Verdict
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.errors import DeviceError
from rocmforge.gpu import cross_compile
from rocmforge.gpu.compiler import Build
from rocmforge.gpu.cross_compile import ARCHITECTURES
from rocmforge.hardware import Hardware

pytestmark = pytest.mark.either_wave

KERNELS = """#include "device.h"
struct Args {
    const unsigned char* x;
    float* out;
    int n;
};
DEVICE float whole(u32x4 v) { return float(v.x ^ v.y ^ v.z ^ v.w); }
DEVICE float whole(float v) { return v; }
KERNEL(planted, Args, 64) {
    const unsigned char* x = a.x + LANE_BYTES * thread_x();
    float sum = 0;
    SHARED float shared[LDS_FLOATS];
    float kept[KEPT];
    UNROLL for (int i = 0; i < KEPT; ++i) kept[i] = whole(load<LOADED>(x + i * a.n));
    shared[thread_x()] = kept[0];
    block_sync();
    UNROLL for (int i = 0; i < KEPT; ++i) sum = sum * kept[KEPT - 1 - i] + kept[i];
    a.out[thread_x()] = sum + shared[a.n % LDS_FLOATS];
}
"""
USUAL = {"LOADED": "u32x4", "LANE_BYTES": "16", "KEPT": "4", "LDS_FLOATS": "64"}
BYTES = {"LOADED": "unsigned char", "LANE_BYTES": "1"}
FLOATS = {"LOADED": "float", "LANE_BYTES": "4"}

Tracked = Callable[..., dict[str, float]]


@pytest.fixture
def tracked(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracked:
    """What the benchmarks say of a file that holds the planted kernel alone, changed as asked."""
    try:
        cross_compile.clang_version()
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import kernel_resources as suite

    (tmp_path / "device.h").write_text((repo / "kernels" / "device.h").read_text())
    monkeypatch.setattr(cross_compile, "kernels_folder", lambda: tmp_path)
    monkeypatch.setattr(cross_compile, "all_builds", lambda architecture: [Build("p.hip", {})])
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))

    def track(architecture: str, **changes: str) -> dict[str, float]:
        source = KERNELS
        for name, text in {**USUAL, **changes}.items():
            source = source.replace(name, text)
        (tmp_path / "p.hip").write_text(source)
        with nothing_prepared([suite]):
            kept, loads = suite.KernelResources(), suite.Loads()
            kept.setup("p.hip", architecture)
            loads.setup("p.hip", architecture)
            return {
                "occupancy": kept.track_occupancy("p.hip", architecture),
                "bytes/load": loads.track_bytes_per_load("p.hip", architecture),
            }

    return track


def verdict(metric: str, before: dict[str, float], after: dict[str, float]) -> Verdict:
    """What `bench compare` says of two commits, each with one value of a metric."""
    from benchmarks import kernel_resources as suite

    tracks = {
        "occupancy": suite.KernelResources.track_occupancy,
        "bytes/load": suite.Loads.track_bytes_per_load,
    }
    unit, direction = (getattr(tracks[metric], name) for name in ("unit", "direction"))
    found = []
    for commit, value in (("a" * 40, before[metric]), ("b" * 40, after[metric])):
        result = Result(
            *("kernel_resources.Loads.track", ("file",), ("p.hip",), Status.OK, value),
            *(summarize([value]), (), unit, Direction(direction), "1", None),
        )
        known = Hardware(cpu_name="AMD EPYC", cpu_arch="x86_64", cpu_count=2, os="Linux")
        found.append(ResultSet(Path("r.json"), "box", commit, None, "env", known, (result,)))
    (row,) = compare(*found, 0.10).rows
    return row.verdict


@pytest.mark.parametrize("architecture", rdna_and_cdna(ARCHITECTURES))
def test_loads_in_smaller_pieces_are_seen(architecture: str, tracked: Tracked) -> None:
    whole = tracked(architecture)
    assert whole["bytes/load"] == 16
    assert tracked(architecture, **FLOATS)["bytes/load"] == 4
    pieces = tracked(architecture, **BYTES)
    assert pieces["bytes/load"] == 1
    assert verdict("bytes/load", whole, pieces) is Verdict.REGRESSION
    assert verdict("bytes/load", pieces, whole) is Verdict.IMPROVED
    assert pieces["occupancy"] == whole["occupancy"]


@pytest.mark.parametrize("architecture", rdna_and_cdna(ARCHITECTURES))
@pytest.mark.parametrize("waste", [{"LDS_FLOATS": "8192"}, {"KEPT": "192"}])
def test_fewer_waves_are_seen(architecture: str, waste: dict[str, str], tracked: Tracked) -> None:
    many, few = tracked(architecture), tracked(architecture, **waste)
    assert many["occupancy"] >= 8
    assert few["occupancy"] <= many["occupancy"] / 2
    assert verdict("occupancy", many, few) is Verdict.REGRESSION
    assert verdict("occupancy", few, many) is Verdict.IMPROVED
    assert few["bytes/load"] == many["bytes/load"] == 16


def test_the_least_of_all_kernels_counts_and_all_loads(
    tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [Build("p.hip", {}, {"KEPT": 4}), Build("p.hip", {}, {"KEPT": 192})]
    monkeypatch.setattr(cross_compile, "all_builds", lambda architecture: builds)
    both = tracked("gfx1100", KEPT="KEPT")
    assert both["occupancy"] <= 8
    monkeypatch.setattr(cross_compile, "all_builds", lambda architecture: builds[:1])
    assert tracked("gfx1100", KEPT="KEPT")["occupancy"] == 16


@pytest.mark.parametrize(
    ("instruction", "width"),
    [
        ("global_load_dwordx4", 16),
        ("global_load_b128", 16),
        ("flat_load_dwordx3", 12),
        ("flat_load_b64", 8),
        ("global_load_dword", 4),
        ("global_load_lds_dwordx4", 16),
        ("global_load_tr_b64", 8),
        ("global_load_short_d16_hi", 2),
        ("global_load_d16_hi_b16", 2),
        ("global_load_d16_u8", 1),
        ("global_load_ubyte_d16", 1),
        ("global_load_sbyte", 1),
        ("s_load_dwordx4", 0),
        ("s_buffer_load_b128", 0),
        ("buffer_load_dword", 0),
        ("scratch_load_b128", 0),
        ("ds_load_b128", 0),
        ("global_store_b128", 0),
    ],
)
def test_every_spelling_of_a_load_has_its_width(instruction: str, width: int) -> None:
    assert cross_compile._load_width(instruction) == width


def test_a_load_of_unknown_width_is_an_error() -> None:
    with pytest.raises(DeviceError, match="got global_load_block, wanted a load of known width"):
        cross_compile._load_width("global_load_block")


def test_what_loads_nothing_has_no_width() -> None:
    assert cross_compile.bytes_per_load([]) is None
