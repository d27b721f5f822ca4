"""rocpd: what is read equals what sqlite3 sums up by hand, and no database takes forever."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from mutations import FEW, MANY, MOST_SECONDS, mutated, read_all
from rocpd_files import KERNELS, START, UUID, VIEWS, VIEWS_4, make

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers import rocpd
from rocmforge.profiling.readers.records import Recording
from rocmforge.profiling.readers.rocpd import matches, read_rocpd


def by_hand(path: Path, query: str) -> list[tuple[object, ...]]:
    """Rows of a query of the tables, with {} for their UUID."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query.replace("{}", UUID)).fetchall()


def change(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement.replace("{}", UUID))
        database.commit()
    return path


def test_totals_are_those_of_the_tables(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db", runs=30)
    recording = read_rocpd(path)
    assert (recording.tool, recording.version) == ("rocprofv3", "rocpd schema 3")
    assert not recording.partial
    sums = 'SELECT COUNT(*), SUM("end" - start), SUM(start) FROM rocpd_kernel_dispatch{}'
    times = [(run.start_ns or 0, run.end_ns or 0) for run in recording.dispatches]
    assert by_hand(path, sums) == [
        (len(times), sum(end - start for start, end in times), sum(start for start, _ in times))
    ]
    sums = 'SELECT COUNT(*), SUM(size), SUM("end" - start) FROM rocpd_memory_copy{}'
    copies = recording.copies
    nbytes = sum(copy.nbytes or 0 for copy in copies)
    assert by_hand(path, sums) == [
        (len(copies), nbytes, sum((one.end_ns or 0) - (one.start_ns or 0) for one in copies))
    ]
    sums = (
        'SELECT COUNT(*), SUM("end" - start) FROM (SELECT start, "end" FROM rocpd_region{}'
        ' UNION ALL SELECT start, "end" FROM rocpd_memory_allocate{})'
    )
    calls = recording.calls
    assert by_hand(path, sums) == [(len(calls), sum(one.end_ns - one.start_ns for one in calls))]
    sums = (
        "SELECT i.name, SUM(value) FROM rocpd_pmc_event{} c JOIN rocpd_info_pmc{} i"
        " ON i.id = c.pmc_id GROUP BY i.name ORDER BY i.name"
    )
    counted = {
        name: sum(run.counters.get(name, 0) for run in recording.dispatches)
        for name in ("SQ_WAVES", "TCC_HIT_sum")
    }
    assert by_hand(path, sums) == sorted(counted.items())


def test_a_run_of_a_kernel(tmp_path: Path) -> None:
    recording = read_rocpd(make(tmp_path / "results.db"))
    first, second = recording.dispatches[:2]
    assert first.kernel == KERNELS[0][0]
    assert second.kernel == KERNELS[1][0]
    assert (second.start_ns, second.duration_ns) == (START + 1000, 107)
    assert (first.agent, first.queue, first.stream, first.dispatch_id) == ("Agent 1", "1", "1", 1)
    assert (second.grid, second.workgroup) == ((512, 2, 1), (256, 1, 1))
    assert (first.lds_bytes, first.scratch_bytes) == (8192, 16)
    assert (first.vgprs, first.accum_vgprs, first.sgprs) == (96, 8, 48)
    assert first.counters == {"SQ_WAVES": 21, "TCC_HIT_sum": 41}
    assert second.counters == {}
    assert first.more["region"] == "decode"
    assert first.more["pid"] == "4711"


def test_copies_calls_and_agents(tmp_path: Path) -> None:
    recording = read_rocpd(make(tmp_path / "results.db"))
    assert [one.direction for one in recording.copies[:2]] == ["host_to_device", "device_to_host"]
    allocation, freed, launch = recording.calls[:3]
    assert (allocation.domain, allocation.function) == ("MEMORY_ALLOCATION", "ALLOC")
    assert (allocation.nbytes, freed.function) == (1 << 20, "FREE")
    assert (launch.domain, launch.function) == ("HIP_RUNTIME_API_EXT", "hipLaunchKernel")
    assert launch.thread == 4712
    assert ("MARKER_CORE_RANGE_API", "token 7") in {
        (one.domain, one.function) for one in recording.calls
    }
    assert [(one.name, one.kind) for one in recording.agents] == [
        ("Some CPU", "cpu"),
        ("gfx1100", "gpu"),
    ]
    assert recording.agents[1].properties["wave_front_size"] == "32"
    assert recording.agents[1].properties["product_name"] == "A card"


def test_samples_of_the_program_counter_are_said_not_to_be_read(tmp_path: Path) -> None:
    recording = read_rocpd(make(tmp_path / "results.db"))
    assert any("samples of the program counter" in line for line in recording.remarks)
    assert "pc_sample" not in {one.function for one in recording.calls}


@pytest.mark.parametrize("version", ["3", "3.0.0", "3.0.1", "3.0.2", "3.0.3", "3.0.4", "3.0.5"])
def test_a_known_schema_needs_no_remark(tmp_path: Path, version: str) -> None:
    recording = read_rocpd(make(tmp_path / "results.db", version=version))
    assert recording.version == f"rocpd schema {version}"
    assert not any("version" in line for line in recording.remarks)


@pytest.mark.parametrize("version", ["4", "3.1.0", "", None])
def test_another_schema_is_read_and_said(tmp_path: Path, version: str | None) -> None:
    recording = read_rocpd(make(tmp_path / "results.db", version=version))
    assert len(recording.dispatches) == 12
    assert any("version" in line for line in recording.remarks)


def test_the_views_of_schema_4(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db", runs=30, version="4.1.0", views=VIEWS_4)
    recording = read_rocpd(path)
    assert len(recording.dispatches) == 30
    second = recording.dispatches[1]
    assert second.grid == (512, 2, 1)
    assert second.workgroup == (256, 1, 1)
    assert second.agent == "Agent 4"
    assert recording.dispatches[0].vgprs == 96
    counted = sum(run.counters.get("SQ_WAVES", 0) for run in recording.dispatches)
    ((total,),) = by_hand(path, "SELECT SUM(value) FROM rocpd_pmc_event{} WHERE pmc_id = 1")
    assert counted == total
    assert any("4.1.0" in line for line in recording.remarks)


def test_a_merged_database_has_each_allocation_once(tmp_path: Path) -> None:
    """AMD's view joins threads without their process, so that merging repeats its rows."""
    path = make(tmp_path / "merged.db")
    change(
        path,
        "DROP VIEW memory_allocations",
        "CREATE VIEW memory_allocations AS SELECT m.id, m.guid, m.category, m.pid, t.tid, m.start,"
        f" m.end, m.type, m.size FROM ({VIEWS['memory_allocations']}) m"
        " JOIN (SELECT 4712 AS tid UNION ALL SELECT 9999) t",
    )
    recording = read_rocpd(path)
    allocations = [call for call in recording.calls if call.function in ("ALLOC", "FREE")]
    assert [(one.function, one.nbytes, one.thread) for one in allocations] == [
        ("ALLOC", 1 << 20, None),
        ("FREE", 0, None),
    ]
    assert not recording.partial
    assert any("an allocation again" in line for line in recording.remarks)


def test_counters_that_a_view_mixes_between_processes_are_not_read(tmp_path: Path) -> None:
    path = make(tmp_path / "merged.db", version="4.1.0", views=VIEWS_4)
    change(path, "UPDATE rocpd_kernel_dispatch{} SET guid = 'another' WHERE id > 6")
    recording = read_rocpd(path)
    assert len(recording.dispatches) == 12
    assert not any(run.counters for run in recording.dispatches)
    assert recording.partial
    assert any("the counters of 2 processes" in line for line in recording.remarks)


def test_counters_without_the_view_of_kernels(tmp_path: Path) -> None:
    path = change(make(tmp_path / "results.db"), "DROP VIEW kernels")
    recording = read_rocpd(path)
    assert len(recording.dispatches) == 4
    assert all(run.counters and run.grid for run in recording.dispatches)
    assert any("no view kernels" in line for line in recording.remarks)


@pytest.mark.parametrize("without", ["rows", "views"])
def test_what_the_database_added_up_is_read_where_there_are_no_single_runs(
    tmp_path: Path, without: str
) -> None:
    path = make(tmp_path / "results.db", runs=10)
    change(path, "DROP VIEW kernels", "DROP VIEW counters_collection")
    if without == "rows":
        change(path, f"CREATE VIEW kernels AS {VIEWS['kernels']} WHERE 0")
    recording = read_rocpd(path)
    sums = (
        'SELECT display_name, COUNT(*), SUM("end" - start) FROM rocpd_kernel_dispatch{} k JOIN'
        " rocpd_info_kernel_symbol{} s ON s.id = k.kernel_id GROUP BY 1 ORDER BY 3 DESC"
    )
    totals = [(one.name, one.calls, one.total_ns) for one in recording.totals]
    assert by_hand(path, sums) == totals
    assert recording.partial == (without == "rows")


def test_runs_that_the_view_leaves_out_are_counted(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db")
    change(path, "UPDATE rocpd_kernel_dispatch{} SET region_name_id = NULL WHERE id > 7")
    recording = read_rocpd(path)
    by_counters = 1  # of every third run, the tenth is among those that the view leaves out
    assert len(recording.dispatches) == 7 + by_counters
    assert recording.partial
    assert any("5 runs of kernels are not in kernels" in line for line in recording.remarks)


def test_wrong_types_cost_their_own_value(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db")
    change(
        path,
        "UPDATE rocpd_kernel_dispatch{} SET grid_size_x = 'many' WHERE id = 1",
        "UPDATE rocpd_kernel_dispatch{} SET start = NULL WHERE id = 2",
        "UPDATE rocpd_kernel_dispatch{} SET \"end\" = x'00ff' WHERE id = 3",
        'UPDATE rocpd_kernel_dispatch{} SET "end" = start - 1 WHERE id = 4',
        "UPDATE rocpd_info_kernel_symbol{} SET display_name = x'00' WHERE id = 2",
        "UPDATE rocpd_pmc_event{} SET value = 'a lot' WHERE id < 3",
    )
    recording = read_rocpd(path)
    assert recording.partial
    assert len(recording.dispatches) == 6
    first, third, _ = recording.dispatches[:3]
    assert first.grid is None
    assert first.duration_ns == 100
    assert third.start_ns is None
    assert any("no kernel's name" in line for line in recording.remarks)


def test_a_view_without_the_columns_is_named(tmp_path: Path) -> None:
    path = change(
        make(tmp_path / "results.db"),
        "DROP VIEW kernels",
        "CREATE VIEW kernels AS SELECT 1 AS start",
    )
    recording = read_rocpd(path)
    assert recording.partial
    assert any("kernels has no column end, name" in line for line in recording.remarks)


HOSTILE = {
    "recursion": (
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r)"
        " SELECT i AS name, i AS start, i AS end FROM r"
    ),
    "itself": "SELECT * FROM kernels",
    "join": (
        "SELECT a.id AS name, b.id AS start, c.id AS end FROM rocpd_event a, rocpd_event b,"
        " rocpd_event c, rocpd_event d, rocpd_event e, rocpd_event f, rocpd_event g"
        " WHERE a.id + b.id + c.id + d.id < 0"
    ),
    "sort": (
        "SELECT a.id AS name, b.id AS start, c.id AS end FROM rocpd_event a, rocpd_event b,"
        " rocpd_event c, rocpd_event d, rocpd_event e, rocpd_event f ORDER BY a.id * f.id DESC"
    ),
    "blob": "SELECT hex(zeroblob(900000000)) AS name, 1 AS start, 2 AS end",
    "wide": "SELECT printf('%900000000d', 1) AS name, 1 AS start, 2 AS end",
    "search": (
        "SELECT instr(printf('%05000000d', 0), printf('%02500000d', 0) || '1') AS name,"
        " 1 AS start, 2 AS end"
    ),
    "extension": "SELECT load_extension('x.so') AS name, 1 AS start, 2 AS end",
    "missing": "SELECT name, start, end FROM no_such_table",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_view_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(rocpd, "MOST_SECONDS", 1.0)
    path = make(tmp_path / "results.db", runs=60)
    change(path, "DROP VIEW kernels", f"CREATE VIEW kernels AS {HOSTILE[name]}")
    start = time.monotonic()
    recording = read_rocpd(path)
    assert time.monotonic() - start < MOST_SECONDS
    assert recording.partial
    assert any("kernels" in line for line in recording.remarks)


def test_names_without_end_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocpd, "_MOST_CHARACTERS", 100_000)
    path = make(tmp_path / "results.db", runs=60)
    change(path, "UPDATE rocpd_info_kernel_symbol{} SET display_name = printf('%09000d', id)")
    recording = read_rocpd(path)
    assert 5 < len(recording.dispatches) < 12
    assert any("the rest of the database" in line for line in recording.remarks)


def test_rows_without_end_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocpd, "MOST_CELLS", 1000)
    recording = read_rocpd(make(tmp_path / "results.db", runs=60))
    assert 10 < len(recording.dispatches) < 60
    assert recording.partial


def test_changes_beside_the_database_are_said(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db")
    (tmp_path / "results.db-journal").write_bytes(b"changes")
    recording = read_rocpd(path)
    assert recording.partial
    assert any("results.db-journal" in line for line in recording.remarks)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.db", "results.db-journal"]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db")
    before = path.read_bytes()
    path.chmod(0o444)
    read_rocpd(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["results.db"]


def test_a_recording_knows_its_database(tmp_path: Path) -> None:
    assert matches(make(tmp_path / "results.db"))
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE KERN (BeginNs INTEGER)")
    assert not matches(other)
    with pytest.raises(ResultFileError, match=r"views: got KERN, wanted .*kernels"):
        read_rocpd(other)
    other.write_bytes(b"SQLite format 3\0" + b"rocpd_" * 500)
    with pytest.raises(ResultFileError, match=r"other\.db"):
        read_rocpd(other)
    assert not matches(tmp_path / "none.db")
    with pytest.raises(ResultFileError, match=r"none\.db: file: got none"):
        read_rocpd(tmp_path / "none.db")


_VALUES = ("NULL", "-1", "9.9e99", "'text'", "x'ff00'", "zeroblob(5000)", "'9' || start", "1e15")
_COLUMNS = {
    "kernel_dispatch": ("start", '"end"', "grid_size_x", "kernel_id", "dispatch_id", "event_id"),
    "memory_copy": ("start", '"end"', "size", "name_id"),
    "region": ("start", '"end"', "tid", "name_id"),
}


def broken(path: Path, seed: int) -> None:
    """Put values of other types into tables, and take columns from views."""
    rng = random.Random(seed)
    with closing(sqlite3.connect(path)) as database:
        for _ in range(rng.randint(1, 4)):
            table = rng.choice(sorted(_COLUMNS))
            column, value = rng.choice(_COLUMNS[table]), rng.choice(_VALUES)
            where = f"id % {rng.randint(1, 9)} = 0"
            database.execute(f"UPDATE rocpd_{table}{UUID} SET {column} = {value} WHERE {where}")
        if rng.random() < 0.3:
            view = rng.choice(sorted(VIEWS))
            names = [row[1] for row in database.execute(f"PRAGMA table_info({view})")]
            kept = ", ".join(f'"{name}"' for name in names if rng.random() < 0.8) or "1"
            database.execute(f"DROP VIEW {view}")
            database.execute(f"CREATE VIEW {view}_ AS {VIEWS[view]}")
            database.execute(f"CREATE VIEW {view} AS SELECT {kept} FROM {view}_")
        database.commit()


def read_broken(path: Path, count: int, work: Path) -> tuple[int, int]:
    """Read databases with wrong values; return how many recordings are partial, and complete."""
    content = path.read_bytes()
    partial = complete = 0
    for seed in range(count):
        work.write_bytes(content)
        broken(work, seed)
        start = time.monotonic()
        recording = read_rocpd(work)
        assert time.monotonic() - start < MOST_SECONDS, f"seed {seed}"
        assert isinstance(recording, Recording)
        if recording.partial:
            assert recording.remarks, f"seed {seed}"
            partial += 1
        else:
            complete += 1
    return partial, complete


def test_broken_bytes_and_wrong_values(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db", runs=6)
    refused, recorded = read_all(path.read_bytes(), FEW // 2, tmp_path / "broken.db", read_rocpd)
    assert refused
    assert recorded
    partial, complete = read_broken(path, FEW // 10, tmp_path / "values.db")
    assert partial > complete


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_broken_databases(tmp_path: Path) -> None:
    path = make(tmp_path / "results.db", runs=6)
    content = path.read_bytes()
    refused, recorded = read_all(content, MANY, tmp_path / "broken.db", read_rocpd)
    assert refused > 100
    assert recorded > 100
    assert mutated(content, 1) == mutated(content, 1) != content
    partial, complete = read_broken(path, MANY // 10, tmp_path / "values.db")
    assert partial > complete
