"""Gathering, merging and retention: doing any of it again, or in another order, changes nothing."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asv_tree import A, B
from fleet_bundles import bundle, provenance

from rocmforge.bench.fleet.parts import Part
from rocmforge.bench.fleet.store import Store, expired
from rocmforge.errors import ResultFileError, RocmforgeError

ONE, TWO = Part(A, "cpu", "quick"), Part(B, "cpu", "quick")
COPY = Part(A, "cpu", "quick", copy=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "fleet", tmp_path / "fleet" / "results")


def never(error: ResultFileError) -> None:
    raise error


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_gathering_twice_is_gathering_once(store: Store) -> None:
    path = bundle(store.inbox, provenance(ONE))
    again = path.read_bytes()
    assert [found.part for found in store.collect(never)] == [ONE]
    store.merge()
    before = files(store.root)
    path.write_bytes(again)
    bundle(store.inbox, provenance(ONE, "0000000b", "n1"), values={"matmul.track_ms": 9.0})
    store.collect(never)
    store.merge()
    assert files(store.root) == before
    assert store.known()[ONE].box == "n0"
    assert "inbox" not in {name.partition("/")[0] for name in before}


def test_the_tree_is_the_same_in_whatever_order_bundles_come(tmp_path: Path) -> None:
    trees = []
    made = [
        (provenance(ONE), {"a.time_a": 1.0, "b.time_b": 2.0}, 1_000),
        (provenance(COPY, "0000000b", "n1"), {"a.time_a": 3.0, "b.time_b": 4.0}, 1_000),
        (provenance(TWO, "0000000c"), {"a.time_a": 5.0}, 2_000),
    ]
    for number, order in enumerate(itertools.permutations(made)):
        store = Store(tmp_path / str(number), tmp_path / str(number) / "results")
        for one, values, date in order:
            bundle(store.inbox, one, values=values, date=date)
            store.collect(never)
            store.merge()
        trees.append(files(store.results))
    assert all(tree == trees[0] for tree in trees)
    assert len(trees[0]) == 6
    stored = json.loads(trees[0]["box/aaaaaaaa-virtualenv-py3.11.json"])
    assert stored["results"]["a.time_a"][0] == [1.0]
    assert {*json.loads(trees[0]["benchmarks.json"])} == {"a.time_a", "b.time_b", "version"}


def test_of_two_selections_the_one_with_more_values_counts(store: Store) -> None:
    chosen = Part(A, "cpu", "quick", ("a",))
    bundle(store.inbox, provenance(chosen), values={"a.time_a": 1.0})
    bundle(store.inbox, provenance(ONE, "0000000b"), values={"a.time_a": 2.0, "b.time_b": 2.0})
    store.collect(never)
    store.merge()
    text = (store.results / "box/aaaaaaaa-virtualenv-py3.11.json").read_text()
    assert json.loads(text)["results"]["a.time_a"][0] == [2.0]


def test_other_results_of_the_tree_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "fleet", tmp_path / "results")
    bundle(store.inbox, provenance(ONE))
    store.collect(never)
    old = {"version": 2, "old.time_old": {"unit": "seconds", "param_names": []}}
    (tmp_path / "results" / "other").mkdir(parents=True)
    (tmp_path / "results" / "benchmarks.json").write_text(json.dumps(old))
    (tmp_path / "results" / "other" / "x.json").write_text("{}")
    store.merge()
    assert (tmp_path / "results" / "other" / "x.json").exists()
    names = {*json.loads((tmp_path / "results" / "benchmarks.json").read_text())}
    assert names == {"version", "old.time_old", "matmul.track_ms"}


def test_the_log_of_a_failure_is_kept_and_its_part_is_missing(store: Store) -> None:
    bundle(store.inbox, provenance(ONE, exit_code=2, why="it fell over"))
    (found,) = store.collect(never)
    assert found.why == "it fell over"
    assert store.known() == {}
    (folder,) = (store.root / "failures").iterdir()
    assert (folder / "log.txt").read_text() == "said\n"


def test_a_broken_bundle_is_named_and_moved_aside_and_the_others_come(store: Store) -> None:
    bundle(store.inbox, provenance(ONE))
    (store.inbox / "broken.00000000.zip").write_text("x")
    (store.inbox / ".half.zip").write_text("x")  # still written
    said: list[str] = []
    assert [found.part for found in store.collect(lambda error: said.append(str(error)))] == [ONE]
    assert len(said) == 1
    assert said[0].startswith(f"{store.inbox}/broken.00000000.zip: file: got ")
    assert [path.name for path in (store.root / "refused").iterdir()] == ["broken.00000000.zip"]
    assert [path.name for path in store.inbox.iterdir()] == [".half.zip"]


def test_a_bundle_that_cannot_be_written_stays_in_the_inbox(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle(store.inbox, provenance(ONE))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", _only_reading(Path.open, full))
        with pytest.raises(RocmforgeError, match="No space left on device") as error:
            store.collect(never)
    assert not isinstance(error.value, ResultFileError)
    assert [*store.inbox.iterdir()] == [path]
    assert not (store.root / "refused").exists()
    assert [found.part for found in store.collect(never)] == [ONE]


def _only_reading(real: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return (real if "r" in mode else refuse)(path, mode, *arguments, **options)

    return opened


def test_retention_keeps_the_newest_commits_and_what_is_wanted(store: Store) -> None:
    commits = [f"{number}" * 40 for number in range(4)]
    parts = [Part(commit, "cpu", "quick") for commit in commits]
    for number, part in enumerate(parts):
        bundle(store.inbox, provenance(part, f"0000000{number}"), date=number + 1)
    store.collect(never)
    (store.results / "box").mkdir(parents=True)
    (store.results / "box" / "foreign.json").write_text("{}")
    merged = store.merge()
    dropped = expired(merged, 2, [parts[0]])
    assert dropped == [parts[1]]
    for _ in range(2):  # the second time changes nothing
        store.drop(merged, dropped)
        merged = store.merge()
        assert sorted(merged) == [parts[0], parts[2], parts[3]]
        names = {path.name[:8] for path in (store.results / "box").iterdir()}
        assert names == {"00000000", "22222222", "33333333", "foreign.", "machine."}
        dropped = expired(merged, 2, [parts[0]])
        assert dropped == []


RESULT = "box/aaaaaaaa-virtualenv-py3.11.json"


@pytest.fixture
def shared(tmp_path: Path) -> Store:
    """A store whose tree has a result that somebody else measured."""
    made = Store(tmp_path / "fleet", tmp_path / "results")
    bundle(made.inbox, provenance(ONE))
    bundle(made.inbox, provenance(TWO, "0000000b"))
    made.collect(never)
    (made.results / "box").mkdir(parents=True)
    return made


def test_a_result_of_somebody_else_is_not_replaced_and_named(shared: Store) -> None:
    (shared.results / RESULT).write_text("theirs")
    for _ in range(2):
        merged = shared.merge()
        assert (shared.results / RESULT).read_text() == "theirs"
        assert shared.in_the_way(merged) == [RESULT]
    assert (shared.results / RESULT.replace("aaaaaaaa", "bbbbbbbb")).exists()


def test_a_result_of_somebody_else_is_not_dropped_though_it_is_the_same(shared: Store) -> None:
    (measured,) = (shared.root / "parts").glob(f"*aaaaaaaa*/results/{RESULT}")
    shutil.copy(measured, shared.results / RESULT)
    merged = shared.merge()
    assert shared.in_the_way(merged) == []
    assert shared.drop(merged, [ONE, TWO]) == [RESULT]
    names = {path.name for path in (shared.results / "box").iterdir()}
    assert names == {Path(RESULT).name, "machine.json"}


def test_what_was_written_into_one_tree_is_not_the_stores_in_another(shared: Store) -> None:
    other = Store(shared.root, shared.root / "results")
    other.merge()
    (shared.results / RESULT).write_text("theirs")
    shared.merge()
    assert (shared.results / RESULT).read_text() == "theirs"
    other.drop(other.merge(), [ONE, TWO])
    assert {path.name for path in (other.results / "box").iterdir()} == {"machine.json"}


def test_a_store_that_is_only_looked_at_makes_no_folder(tmp_path: Path) -> None:
    assert Store(tmp_path / "fleet", tmp_path / "results").known() == {}
    assert [*tmp_path.iterdir()] == []


def test_a_dropped_copy_leaves_the_file_of_the_part_that_stays(store: Store) -> None:
    bundle(store.inbox, provenance(ONE))
    bundle(store.inbox, provenance(COPY, "0000000b", "n1"))
    store.collect(never)
    merged = store.merge()
    store.drop(merged, [COPY])
    assert (store.results / "box" / "aaaaaaaa-virtualenv-py3.11.json").exists()
    assert [*store.known()] == [ONE]


def test_a_part_that_somebody_moved_is_an_error(store: Store) -> None:
    bundle(store.inbox, provenance(ONE))
    store.collect(never)
    (folder,) = (store.root / "parts").iterdir()
    shutil.move(folder, folder.with_name("other"))
    with pytest.raises(ResultFileError, match=r"part: got aaaaaaaa-cpu-.*, wanted other"):
        store.known()


def test_two_commands_do_not_write_into_one_folder(store: Store) -> None:
    with store.alone():
        other = Store(store.root, store.results)
        with pytest.raises(ValueError, match="in use by another bench fleet"), other.alone():
            pass
    with store.alone():
        pass
