"""Series of a branch: their order, their gaps, and where a new one begins."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from asv_tree import MACHINE, report
from history_tree import HistoryTree

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.history import History, _gap_notes, first_parents, read_history
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError, ResultFileError

NAN = float("nan")


@pytest.fixture
def branch(tmp_path: Path) -> HistoryTree:
    tree = HistoryTree(tmp_path, 8)
    tree.benchmark("rope.track_us", "us")
    tree.benchmark("decode.track_rate", "tokens/s")
    tree.benchmark("memory.track_bytes", "bytes", {"größe": ["'µ'", "'7B'"]})
    return tree


def read(
    tree: HistoryTree,
    commits: Sequence[str] | None = None,
    environment: str | None = None,
    select: str = "",
) -> History:
    wanted = tree.commits if commits is None else commits
    results = ResultsDirectory(tree.results)
    return read_history(results, wanted, environment, re.compile(select).search)


def values(history: History) -> dict[str, list[tuple[int, float]]]:
    return {one.label: [(p.position, p.value) for p in one.points] for one in history.series}


def test_series_follow_the_branch_whatever_the_dates_say(branch: HistoryTree) -> None:
    for position in (5, 0, 3):
        branch.run(branch.commits[position], {"rope.track_us": 10.0 + position}, date=9 - position)
    history = read(branch)
    assert values(history) == {"rope.track_us": [(0, 10.0), (3, 13.0), (5, 15.0)]}
    assert history.measured == (0, 3, 5)
    assert history.latest.commit == branch.commits[5]


def test_failed_skipped_and_unmeasured_are_gaps(branch: HistoryTree) -> None:
    branch.measure({"rope.track_us": [1.0, None, NAN, ..., 5.0, 6.0, 7.0, 8.0]})
    assert [at for at, _ in values(read(branch))["rope.track_us"]] == [0, 4, 5, 6, 7]


def test_parameters_are_series_of_their_own(branch: HistoryTree) -> None:
    branch.run(branch.commits[0], {"memory.track_bytes": [1, 2]})
    branch.run(branch.commits[1], {"memory.track_bytes": [3, None]})
    assert values(read(branch)) == {
        "memory.track_bytes('7B')": [(0, 2.0)],
        "memory.track_bytes('µ')": [(0, 1.0), (1, 3.0)],
    }


def test_marked_measurements_are_gaps_and_counted(branch: HistoryTree) -> None:
    branch.measure({"rope.track_us": [1.0] * 8, "memory.track_bytes": [[1, 2]] * 8})
    for name in ("rope.track_us", "memory.track_bytes"):
        report(branch.result_file(6), name, None, None, {"others_share": 0.5})
    history = read(branch)
    assert [at for at, _ in values(history)["rope.track_us"]] == [0, 1, 2, 3, 4, 5, 7]
    assert len(values(history)["memory.track_bytes('µ')"]) == 8  # counted: load does not matter
    assert "1 measurement left out: other work took 50 % of the CPU time" in history.notes


def test_measurements_left_out_are_one_line_for_each_kind_of_reason() -> None:
    busy = [f"other work took {share} % of the CPU time" for share in (44, 21, 90)]
    assert _gap_notes([*busy, "below 0", busy[0]]) == [
        "4 measurements left out: other work took 21 to 90 % of the CPU time",
        "1 measurement left out: below 0",
    ]


def test_another_version_begins_a_new_series(branch: HistoryTree) -> None:
    for position, commit in enumerate(branch.commits):
        version = "new" if position > 4 else "old"
        branch.run(commit, {"rope.track_us": float(position)}, version=version)
    old, new = read(branch).series
    assert (old.version, old.current, [p.position for p in old.points]) == (
        "old",
        False,
        [1, 2, 3, 4],
    )
    assert (new.version, new.current, [p.position for p in new.points]) == ("new", True, [5, 6, 7])


def test_throughputs_are_worse_the_lower(branch: HistoryTree) -> None:
    branch.run(branch.commits[0], {"rope.track_us": 4.0, "decode.track_rate": 4.0})
    rate, time = read(branch).series
    assert (rate.direction, rate.worse()) == (Direction.HIGHER, [0.25])
    assert (time.direction, time.worse()) == (Direction.LOWER, [4.0])


def test_zero_and_negative_values(branch: HistoryTree) -> None:
    zero = {"rope.track_us": 0.0, "decode.track_rate": 0.0, "memory.track_bytes": [0, -1]}
    branch.run(branch.commits[0], zero)
    history = read(branch)
    assert values(history) == {"memory.track_bytes('µ')": [(0, 0.0)]}
    assert "2 measurements left out: 0, of which there is no ratio" in history.notes
    assert "1 measurement left out: below 0" in history.notes


def test_points_carry_the_interval_of_their_samples(branch: HistoryTree) -> None:
    samples = {"rope.track_us": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]}
    branch.run(branch.commits[0], {"rope.track_us": 5.0}, samples=samples)
    branch.run(branch.commits[1], {"rope.track_us": 5.0})
    one, other = read(branch).series[0].points
    assert (one.low, one.high) == (1.0, 9.0)
    assert (other.low, other.high) == (-math.inf, math.inf)


def test_commits_of_other_branches_do_not_count(branch: HistoryTree) -> None:
    branch.measure({"rope.track_us": [1.0] * 8})
    branch.git("checkout", "-q", "-b", "side", "HEAD~3")
    branch.git("commit", "-q", "--allow-empty", "-m", "aside")
    aside = branch.git("rev-parse", "HEAD")
    branch.run(aside, {"rope.track_us": 9.0})
    branch.git("checkout", "-q", "main")
    branch.git("merge", "-q", "--no-ff", "-m", "merged", "side")
    merged = branch.git("rev-parse", "HEAD")
    commits = first_parents("main", None, branch.root)
    assert commits == [*branch.commits, merged]
    assert "1 result files are of commits outside this range" in read(branch, commits).notes
    assert first_parents("side", None, branch.root) == [*branch.commits[:5], aside]


def test_since_is_the_first_that_counts(branch: HistoryTree) -> None:
    commits = first_parents("main", "HEAD~2", branch.root)
    assert commits == branch.commits[-3:]
    with pytest.raises(ValueError, match="since: got main, wanted a commit of HEAD~2"):
        first_parents("HEAD~2", "main", branch.root)
    for names in (("nowhere", None), ("main", "nowhere"), ("--all", None), ("main", "--all")):
        with pytest.raises(ValueError, match=r"nowhere|--all"):
            first_parents(*names, branch.root)


def test_outside_a_repository(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="git: got 'fatal: not a git repository"):
        first_parents("HEAD", None, tmp_path)


def test_of_several_environments_the_newest_counts_or_the_one_named(branch: HistoryTree) -> None:
    branch.run(branch.commits[0], {"rope.track_us": 1.0}, environment="py3.11")
    branch.run(branch.commits[1], {"rope.track_us": 2.0}, environment="py3.12")
    history = read(branch)
    assert values(history) == {"rope.track_us": [(1, 2.0)]}
    assert "1 results left out: this is asv's environment py3.12" in history.notes[0]
    with pytest.raises(ValueError, match=r"got py3.13, wanted one of py3.11, py3.12"):
        read(branch, environment="py3.13")
    assert values(read(branch, environment="py3.11")) == {"rope.track_us": [(0, 1.0)]}


def test_results_of_other_hardware_are_left_out(branch: HistoryTree) -> None:
    branch.run(branch.commits[0], {"rope.track_us": 1.0}, machine={**MACHINE, "num_cpu": "64"})
    branch.run(branch.commits[1], {"rope.track_us": 2.0})
    history = read(branch)
    assert values(history) == {"rope.track_us": [(1, 2.0)]}
    assert "1 commits left out: measured on other hardware than the newest one" in history.notes


def test_only_what_is_selected(branch: HistoryTree) -> None:
    branch.run(branch.commits[0], {"rope.track_us": 1.0, "memory.track_bytes": [1, 2]})
    assert list(values(read(branch, select="bytes.*µ"))) == ["memory.track_bytes('µ')"]


def test_a_truncated_file_is_named(branch: HistoryTree) -> None:
    paths = branch.measure({"rope.track_us": [1.0] * 8})
    paths[3].write_text(paths[3].read_text()[:-40])
    with pytest.raises(ResultFileError, match=re.escape(paths[3].name)):
        read(branch)


def test_a_branch_without_results_is_nothing_measured(branch: HistoryTree) -> None:
    branch.run("f" * 40, {"rope.track_us": 1.0})
    said = "nothing measured here yet, no commit of this branch on box"
    with pytest.raises(MeasurementError, match=said):
        read(branch)
