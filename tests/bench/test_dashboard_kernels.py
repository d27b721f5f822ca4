"""kernels.html: what the compiler made of each kernel file, commit by commit."""

from __future__ import annotations

from dashboard_runs import result, run

from rocmforge.bench.dashboard.kernels_data import kernels_data
from rocmforge.bench.results import Direction, Result

SUITE = "kernel_resources.KernelResources."


def vgprs(file: str, value: float | None, architecture: str = "gfx1100") -> Result:
    params = {"file": file, "architecture": architecture}
    return result(f"{SUITE}track_vgprs", params, value, "registers")


def test_a_series_has_a_place_for_every_commit_in_the_order_of_their_dates() -> None:
    later = run("b", vgprs("matmul.hip", 80.0), vgprs("rope.hip", 20.0), day=2)
    first = run("a", vgprs("matmul.hip", 96.0), day=1)
    data = kernels_data([later, first])
    assert [one["commit"] for one in data["commits"]] == ["aaaaaaaa", "bbbbbbbb"]
    values = {one["file"]: one["values"] for one in data["series"]}
    assert values == {"matmul.hip": [96.0, 80.0], "rope.hip": [None, 20.0]}
    assert data["metrics"] == {"VGPRs": {"unit": "registers", "better": "lower"}}
    assert data["changes"] == [
        {
            "metric": "VGPRs",
            "file": "matmul.hip",
            "architecture": "gfx1100",
            "commit": "bbbbbbbb",
            "before": 96.0,
            "after": 80.0,
            "verdict": "better",
        }
    ]


def test_fewer_waves_are_worse_and_a_commit_that_compiled_nothing_hides_no_change() -> None:
    def waves(value: float | None) -> Result:
        params = {"file": "matmul.hip", "architecture": "gfx942"}
        return result(f"{SUITE}track_occupancy", params, value, direction=Direction.HIGHER)

    values = {"a": 8.0, "b": None, "c": 5.0}
    runs = [run(name, waves(value), day=at) for at, (name, value) in enumerate(values.items())]
    (change,) = kernels_data(runs)["changes"]
    assert (change["commit"], change["before"], change["after"]) == ("cccccccc", 8.0, 5.0)
    assert change["verdict"] == "worse"


def test_a_commit_that_two_machines_compiled_is_one_point() -> None:
    one = run("a", vgprs("matmul.hip", 96.0), machine="one")
    other = run("a", vgprs("matmul.hip", 96.0), vgprs("rope.hip", 8.0, "gfx942"), machine="other")
    data = kernels_data([one, other])
    assert len(data["commits"]) == 1
    assert [(s["file"], s["architecture"], s["values"]) for s in data["series"]] == [
        ("matmul.hip", "gfx1100", [96.0]),
        ("rope.hip", "gfx942", [8.0]),
    ]


def test_without_a_compiler_there_is_nothing_and_the_command_that_measures_it() -> None:
    data = kernels_data([run("a", vgprs("matmul.hip", None), result("rope.time_rope"))])
    assert (data["commits"], data["series"], data["metrics"]) == ([], [], {})
    assert data["command"] == "rocmforge bench run --bench kernel_resources"


def test_another_version_of_the_benchmark_changed_nothing() -> None:
    params = {"file": "matmul.hip", "architecture": "gfx1100"}
    values = {"a": (96.0, "1"), "b": (80.0, "2"), "c": (72.0, "2")}
    runs = [
        run(name, result(f"{SUITE}track_vgprs", params, value, version=version), day=at)
        for at, (name, (value, version)) in enumerate(values.items())
    ]
    (change,) = kernels_data(runs)["changes"]
    assert (change["commit"], change["before"], change["after"]) == ("cccccccc", 80.0, 72.0)


def test_without_a_direction_a_change_is_neither_better_nor_worse() -> None:
    params = {"file": "matmul.hip", "architecture": "gfx1100"}
    runs = [
        run(name, result(f"{SUITE}track_vgprs", params, value, direction=None), day=at)
        for at, (name, value) in enumerate({"a": 96.0, "b": 80.0}.items())
    ]
    (change,) = kernels_data(runs)["changes"]
    assert change["verdict"] is None
