"""Reading asv's result files: every status, every order, and a corpus of broken files."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asv_tree import MACHINE, A, AsvTree, B

from rocmforge.bench.asv_results import (
    MEASURE,
    ResultsDirectory,
    read_benchmarks,
    read_result_file,
)
from rocmforge.bench.results import Direction, Result, Status
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import hardware_tag


def load(tree: AsvTree, commit: str = A) -> dict[str, Result]:
    return {r.label: r for r in ResultsDirectory(tree.results).load(commit).results}


def test_params_in_product_order_and_statuses(two_commits: AsvTree) -> None:
    results = load(two_commits)
    assert [label for label in results if label.startswith("matmul.track_ms")] == [
        "matmul.track_ms('Q4_0', 1)",
        "matmul.track_ms('Q4_0', 8)",
        "matmul.track_ms('Q8_0', 1)",
        "matmul.track_ms('Q8_0', 8)",
    ]
    assert results["matmul.track_ms('Q4_0', 8)"].value == 2.0
    assert results["matmul.track_ms('Q8_0', 1)"].status is Status.FAILED
    assert results["gpu.time_gpu"].status is Status.SKIPPED
    assert results["gpu.time_gpu"].value is None
    assert results["matmul.track_ms('Q4_0', 1)"].param_names == ("format", "tokens")
    rope = results["rope.time_rope"]
    assert rope.summary is not None
    assert (rope.summary.iterations, rope.summary.p50) == (9, rope.value)
    assert rope.summary.ci_low == rope.samples[0]


def test_a_column_of_null_means_that_all_failed(tree: AsvTree) -> None:
    tree.benchmark("m.track_x", "ms", {"n": ["1", "2"]})
    tree.run(A, {"m.track_x": None})
    assert [r.status for r in load(tree).values()] == [Status.FAILED, Status.FAILED]


@pytest.mark.parametrize(
    ("unit", "attributes", "expected"),
    [
        ("seconds", {}, Direction.LOWER),
        ("GB/s", {}, Direction.HIGHER),
        ("ms/token", {}, Direction.LOWER),
        ("score", {"direction": "higher"}, Direction.HIGHER),
        ("errors/s", {"direction": "lower"}, Direction.LOWER),
    ],
)
def test_direction(
    tree: AsvTree, unit: str, attributes: dict[str, str], expected: Direction
) -> None:
    tree.benchmark("m.track_x", unit, **attributes)
    tree.run(A, {"m.track_x": 1.0})
    assert load(tree)["m.track_x"].direction is expected


def test_a_benchmark_that_left_the_suite_has_no_direction(tree: AsvTree) -> None:
    tree.benchmark("m.track_x")
    tree.run(A, {"m.track_x": 1.0, "m.track_gone": 2.0})
    gone = load(tree)["m.track_gone"]
    assert (gone.value, gone.unit, gone.direction) == (2.0, None, None)


def test_changed_number_of_parameters_gets_numbered_names(tree: AsvTree) -> None:
    tree.benchmark("m.track_x", "ms", {"n": ["1", "2"], "k": ["3"]})
    tree.run(A, {"m.track_x": [1.0, 2.0]})
    tree.benchmark("m.track_x", "ms", {"n": ["1", "2"]})
    assert load(tree)["m.track_x(1, 3)"].param_names == ("param1", "param2")


def test_without_samples_only_what_asv_kept(tree: AsvTree) -> None:
    tree.benchmark("m.time_x")
    path = tree.run(A, {"m.time_x": 0.5})
    data = json.loads(path.read_text())
    data["results"]["m.time_x"] += [[0.4], [math.inf], [0.4], [0.6], [3], [12]]
    path.write_text(json.dumps(data))
    summary = load(tree)["m.time_x"].summary
    assert summary is not None
    assert (summary.p50, summary.mean, summary.iterations) == (0.5, None, 12)
    assert (summary.ci_low, summary.ci_high) == (0.4, math.inf)


def test_lone_number_is_one_sample(tree: AsvTree) -> None:
    tree.benchmark("m.peakmem_x", "bytes")
    tree.run(A, {"m.peakmem_x": 1000})
    summary = load(tree)["m.peakmem_x"].summary
    assert summary is not None
    assert (summary.mean, summary.iterations, summary.ci_high) == (1000.0, 1, math.inf)


def test_unknown_columns_of_a_later_asv_are_ignored(tree: AsvTree) -> None:
    tree.benchmark("m.track_x")
    path = tree.run(A, {"m.track_x": 1.5})
    data = json.loads(path.read_text())
    data["result_columns"].insert(0, "weather")
    data["results"]["m.track_x"].insert(0, ["rain"])
    path.write_text(json.dumps(data))
    assert load(tree)["m.track_x"].value == 1.5


class TestResolve:
    def test_prefix_and_newest(self, two_commits: AsvTree, tmp_path: Path) -> None:
        results = ResultsDirectory(two_commits.results)
        assert results.resolve("bbbb", tmp_path) == "bbbbbbbb"
        assert results.resolve(B, tmp_path) == B
        assert results.load(results.resolve(B, tmp_path)).commit == B
        assert results.newest() == B

    def test_unknown_name_lists_what_is_there(self, two_commits: AsvTree, tmp_path: Path) -> None:
        for name in ("cccc", "bbb", "--help", ""):
            with pytest.raises(ValueError, match="aaaaaaaa, bbbbbbbb"):
                ResultsDirectory(two_commits.results).resolve(name, tmp_path)

    def test_ambiguous_prefix(self, two_commits: AsvTree, tmp_path: Path) -> None:
        two_commits.run("bbbbb" + "c" * 35, {})
        with pytest.raises(ValueError, match="bbbbbbbb, bbbbbccc"):
            ResultsDirectory(two_commits.results).resolve("bbbb", tmp_path)

    def test_hash_that_only_begins_alike(self, two_commits: AsvTree, tmp_path: Path) -> None:
        results = ResultsDirectory(two_commits.results)
        with pytest.raises(ResultFileError, match="commit: got bbbb"):
            results.load(results.resolve("b" * 8 + "c" * 32, tmp_path))

    def test_commit_that_git_knows_but_was_never_measured(
        self, two_commits: AsvTree, tmp_path: Path
    ) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
        commit = ["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"]
        subprocess.run(commit, cwd=tmp_path, check=True)
        with pytest.raises(MeasurementError, match=r"HEAD .* nothing measured"):
            ResultsDirectory(two_commits.results).resolve("HEAD", tmp_path)

    def test_without_git(
        self, two_commits: AsvTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "")
        assert ResultsDirectory(two_commits.results).resolve("aaaa", tmp_path) == "aaaaaaaa"


class TestChoice:
    def test_machines(self, two_commits: AsvTree) -> None:
        two_commits.run(A, {}, machine={**MACHINE, "machine": "other"})
        with pytest.raises(MeasurementError) as raised:
            ResultsDirectory(two_commits.results)
        said = f"nothing measured here yet, no result file of {hardware_tag()}: {MEASURE}"
        assert said in str(raised.value)
        assert "box" not in str(raised.value)
        two_commits.run(A, {}, machine={**MACHINE, "machine": hardware_tag()})
        assert ResultsDirectory(two_commits.results).machine == hardware_tag()
        with pytest.raises(ValueError, match="machine: got third"):
            ResultsDirectory(two_commits.results, "third")
        assert ResultsDirectory(two_commits.results, "other").load(A).results == ()

    def test_environments(self, two_commits: AsvTree) -> None:
        two_commits.run(B, {"rope.time_rope": 9.0}, environment="virtualenv-py3.12")
        results = ResultsDirectory(two_commits.results)
        with pytest.raises(ValueError, match=r"py3\.11, virtualenv-py3\.12"):
            results.load(B)
        assert results.load(B, "virtualenv-py3.12").results[0].value == 9.0
        old, new = results.load_pair(A, B)
        assert old.asv_environment == new.asv_environment == "virtualenv-py3.11"
        with pytest.raises(ValueError, match="environment of bbbbbbbb"):
            results.load(B, "conda")

    def test_twice_the_same_commit(self, two_commits: AsvTree) -> None:
        with pytest.raises(ValueError, match="twice"):
            ResultsDirectory(two_commits.results).load_pair(A, "aaaaaaaa")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ResultFileError, match="results directory"):
            ResultsDirectory(tmp_path / "results")
        (tmp_path / "results" / "box").mkdir(parents=True)
        with pytest.raises(MeasurementError, match="no result file"):
            ResultsDirectory(tmp_path / "results")


def _change(**changes: Any) -> Any:
    return lambda data: {**data, **changes}


def _row(*row: Any) -> Any:
    return lambda data: {**data, "results": {"matmul.track_ms": list(row)}}


GRID = [["'Q4_0'"], ["1", "8"]]
BROKEN = {
    "version 1": (_change(version=1), "version: got 1, wanted 2"),
    "no version": (_change(version=None), "version: got None"),
    "other commit": (_change(commit_hash="c" * 40), "commit_hash"),
    "other machine": (_change(params={"machine": "elsewhere"}), "params.machine: got elsewhere"),
    "no params": (_change(params=None), "params: got nothing"),
    "no columns": (_change(result_columns=["params"]), "result_columns"),
    "results a list": (_change(results=[]), "results: got list"),
    "date a string": (_change(date="today"), "date: got today"),
    "date far away": (_change(date=10**30), "date: got 1000"),
    "row a number": (_change(results={"x": 1.0}), "row of x: got float"),
    "row too long": (_row(*range(20)), "row of matmul.track_ms"),
    "too few values": (_row([1.0], GRID), "got 1 values, wanted 2 values"),
    "value a string": (_row([1.0, "fast"], GRID), r"matmul.track_ms\('Q4_0', 8\): got str"),
    "value infinite": (_row([1.0, math.inf], GRID), "got inf, wanted a finite number"),
    "value a bool": (_row([1.0, True], GRID), "got bool"),
    "value huge": (_row([1.0, 10**400], GRID), "got inf"),
    "params numbers": (_row([1.0], [[1]]), "params of matmul.track_ms"),
    "params twice": (_row([1.0, 2.0], [["1", "1"]]), "no value twice"),
    "samples NaN": (_row([1.0], [], *[None] * 9, [[1.0, math.nan]]), "sample 1 of .* got nan"),
    "samples a number": (_row([1.0], [], *[None] * 9, [1.0]), "samples of .* got float"),
    "repeat zero": (_row([1.0], [], *[None] * 8, [0]), "stats_repeat"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_result_file(two_commits: AsvTree, name: str) -> None:
    change, message = BROKEN[name]
    path = two_commits.results / "box" / "bbbbbbbb-virtualenv-py3.11.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ResultFileError, match=message) as caught:
        ResultsDirectory(two_commits.results).load(B)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":1'])
@pytest.mark.parametrize("file", ["benchmarks.json", "box/machine.json", "box/bbbbbbbb-e.json"])
def test_no_json_object(two_commits: AsvTree, file: str, content: bytes) -> None:
    path = two_commits.results / file
    path.write_bytes(content)
    (two_commits.results / "box" / "bbbbbbbb-virtualenv-py3.11.json").unlink()
    with pytest.raises(ResultFileError, match="content: got") as caught:
        ResultsDirectory(two_commits.results).load("bbbbbbbb")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("file", ["benchmarks.json", "box/machine.json"])
def test_an_empty_file_is_called_so(two_commits: AsvTree, file: str) -> None:
    (two_commits.results / file).write_text(" \n")
    with pytest.raises(ResultFileError, match="content: got an empty file, wanted a complete JSON"):
        ResultsDirectory(two_commits.results)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n", "text that is no JSON at line 1, column 1 (expecting value), wanted a"),
        ('{"a": 1,\n "b" 2}', "at line 2, column 6 (expecting ':' delimiter), wanted a"),
    ],
)
def test_text_that_is_no_json_is_called_so(two_commits: AsvTree, text: str, said: str) -> None:
    (two_commits.results / "benchmarks.json").write_text(text)
    with pytest.raises(ResultFileError, match=re.escape(said)):
        ResultsDirectory(two_commits.results)


@pytest.mark.parametrize("file", ["benchmarks.json", "box/machine.json"])
def test_missing_file(two_commits: AsvTree, file: str) -> None:
    (two_commits.results / file).unlink()
    with pytest.raises(ResultFileError, match=f"{file}: file: got none"):
        ResultsDirectory(two_commits.results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "up"}, "direction of m.track_x: got up"),
        ({"direction": ["higher"]}, "direction of m.track_x"),
        ({"unit": None}, "unit of m.track_x: got nothing"),
        ({"param_names": None}, "param_names of m.track_x"),
    ],
)
def test_broken_benchmarks_json(tree: AsvTree, change: dict[str, Any], message: str) -> None:
    tree.benchmark("m.track_x", **{"unit": "ms", **change})
    with pytest.raises(ResultFileError, match=message):
        read_benchmarks(tree.results / "benchmarks.json")


def test_other_machine_json(two_commits: AsvTree) -> None:
    (two_commits.results / "box" / "machine.json").write_text('{"machine": "x", "version": 1}')
    with pytest.raises(ResultFileError, match="machine: got x, wanted box"):
        ResultsDirectory(two_commits.results)


def test_every_truncation_is_refused(two_commits: AsvTree) -> None:
    results = ResultsDirectory(two_commits.results)
    path = results.files(A)[0]
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ResultFileError):
            read_result_file(path, results.benchmarks)


def _places(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in items:
        yield (*above, key)
        if isinstance(child, (dict, list)):
            yield from _places(child, (*above, key))


def test_any_value_replaced_by_nonsense_is_read_or_refused(two_commits: AsvTree) -> None:
    """Never another exception, and what is read holds finite numbers only."""
    results = ResultsDirectory(two_commits.results)
    path = results.files(A)[0]
    whole = json.loads(path.read_text())
    nonsense = [None, True, -1, math.nan, "x", [None]]
    read, refusals = 0, []
    for place, value in itertools.product(_places(whole), nonsense):
        data = copy.deepcopy(whole)
        node = data
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = value
        path.write_text(json.dumps(data))
        try:
            found = read_result_file(path, results.benchmarks).results
        except ResultFileError as error:
            refusals.append(str(error))
        else:
            read += 1
            measured = [r.value for r in found if r.status is Status.OK]
            assert all(v is not None and math.isfinite(v) for v in measured)
    assert all(str(path) in refusal for refusal in refusals)
    assert len(refusals) > 200
    assert read > 50


def test_a_product_of_parameters_without_bound_is_refused(tmp_path: Path) -> None:
    tree = AsvTree(tmp_path)
    many = {f"p{at}": [str(value) for value in range(200)] for at in range(5)}
    tree.benchmark("suite.time_it", params=many)
    path = tree.run(A, {"suite.time_it": None})
    with pytest.raises(ResultFileError, match=r"got 320,000,000,000, wanted at most 131,072"):
        read_result_file(path, read_benchmarks(tmp_path / "benchmarks.json"))
