"""rocprof v1's files: totals are those that the csv, sqlite3 and json modules give by hand."""

from __future__ import annotations

import csv
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mutations import FEW, MANY, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.rocprof_v1 import matches, read_rocprof_v1

HEADER = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,"
    "wave_size,sig,obj"
)
MATMUL = '"matmul_q4_k(char const*, float*) [clone .kd]"'
COUNTED = f"""{HEADER},SQ_WAVES,L2CacheHit,TCC_HIT[0],DispatchNs,BeginNs,EndNs,CompleteNs
0,{MATMUL},1,0,0,7,8,65536,256,4096,16,40,8,32,64,0x0,0x7f,1024,93.25,512,1000,2000,5500,6000
1,"rmsnorm.kd",1,2,2,7,8,4096,128,0,0,12,0,16,64,0x0,0x7f,32.000,None,8,6100,7000,7250,7300
2,{MATMUL},1,0,4,7,8,65536,256,4096,16,40,8,32,64,0x0,0x7f,1024,91.5,520,8000,9000,12400,12500
"""
STATS = """"Name","Calls","TotalDurationNs","AverageNs","Percentage"
"matmul_q4_k(char const*, float*) [clone .kd]",3,301,100,75.25
"rmsnorm.kd",2,99,49,24.75
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_with_counters(tmp_path: Path) -> None:
    recording = read_rocprof_v1(write(tmp_path / "results.csv", COUNTED))
    assert recording.tool == "rocprof"
    assert not recording.partial
    first, second, _ = recording.dispatches
    assert first.kernel == "matmul_q4_k(char const*, float*)"
    assert second.kernel == "rmsnorm"
    assert (first.start_ns, first.end_ns, first.duration_ns) == (2000, 5500, 3500)
    assert (first.agent, first.queue, first.dispatch_id) == ("1", "0", 0)
    assert (first.threads, first.block_threads, first.grid) == (65536, 256, None)
    assert (first.lds_bytes, first.scratch_bytes) == (4096, 16)
    assert (first.vgprs, first.accum_vgprs, first.sgprs) == (40, 8, 32)
    assert first.counters == {"SQ_WAVES": 1024, "L2CacheHit": 93.25, "TCC_HIT[0]": 512}
    assert second.counters == {"SQ_WAVES": 32, "TCC_HIT[0]": 8}
    assert first.more["wave_size"] == "64"
    assert first.more["DispatchNs"] == "1000"


def test_the_end_of_support_is_said_once(tmp_path: Path) -> None:
    recording = read_rocprof_v1(write(tmp_path / "results.csv", COUNTED))
    assert len([remark for remark in recording.remarks if "rocprofv3" in remark]) == 1


def test_a_table_without_times_has_none(tmp_path: Path) -> None:
    text = f'{HEADER}\n0,"rope.kd",0,0,0,1,1,64,64,0,0,8,0,16,64,0x0,0x0\n'
    (one,) = read_rocprof_v1(write(tmp_path / "results.csv", text)).dispatches
    assert (one.start_ns, one.end_ns, one.duration_ns) == (None, None, None)
    assert one.counters == {}


def test_a_duration_alone_is_no_time_and_that_is_said(tmp_path: Path) -> None:
    text = f'{HEADER},DurationNs\n0,"rope.kd",0,0,0,1,1,64,64,0,0,8,0,16,64,0x0,0x0,250\n'
    found = read_rocprof_v1(write(tmp_path / "results.csv", text))
    assert found.dispatches[0].duration_ns is None
    assert any("DurationNs alone, wanted BeginNs and EndNs" in said for said in found.remarks)


def test_an_older_header_with_banner_lines_and_empty_last_column(tmp_path: Path) -> None:
    text = (
        "RPL: on '190101' from '/opt/rocm'\n"
        "Index,KernelName,gpu-id,queue-id,grd,wgr,lds,scr,vgpr,sgpr,fbar,BeginNs,EndNs,\n"
        '0,"softmax.kd",0,0,128,64,512,0,24,48,0,100,350,\n'
    )
    (one,) = read_rocprof_v1(write(tmp_path / "results.csv", text)).dispatches
    assert (one.kernel, one.vgprs, one.accum_vgprs, one.duration_ns) == ("softmax", 24, None, 250)


def test_rocprofv2_with_an_empty_line_and_times_that_it_did_not_take(tmp_path: Path) -> None:
    text = (
        "Dispatch_ID,GPU_ID,Queue_ID,Queue_Index,PID,TID,GRD,WGR,LDS,SCR,Arch_VGPR,ACCUM_VGPR,SGPR,"
        "Wave_Size,SIG,OBJ,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID,GRBM_COUNT\n\n"
        '1,4,1,1,15,15,10,10,0,0,8,0,16,64,14,1,"swiglu(char*) (.kd)",0,140469300947216,3,12637.0\n'
    )
    recording = read_rocprof_v1(write(tmp_path / "results.csv", text))
    (one,) = recording.dispatches
    assert recording.tool == "rocprofv2"
    assert (one.kernel, one.start_ns, one.agent) == ("swiglu(char*)", None, "4")
    assert one.counters == {"GRBM_COUNT": 12637}
    assert any("without times" in remark for remark in recording.remarks)


@pytest.mark.parametrize(
    ("name", "rows", "domain", "first"),
    [
        ("results.stats.csv", STATS, "kernel", "matmul_q4_k(char const*, float*)"),
        ("r.hip_stats.csv", STATS.replace("rmsnorm.kd", "hipMalloc"), "HIP_API", None),
        ("r.hsa_stats.csv", STATS.replace("rmsnorm.kd", "hsa_init"), "HSA_API", None),
    ],
)
def test_sums(tmp_path: Path, name: str, rows: str, domain: str, first: str | None) -> None:
    recording = read_rocprof_v1(write(tmp_path / name, rows))
    assert [(total.calls, total.total_ns) for total in recording.totals] == [(3, 301), (2, 99)]
    assert {total.domain for total in recording.totals} == {domain}
    assert first is None or recording.totals[0].name == first


def test_sums_without_a_telling_name_are_told_by_what_they_list(tmp_path: Path) -> None:
    head = STATS.splitlines()[0]
    copies = f'{head}\n"CopyHostToDevice",2,50,25,71.4\n"CopyDeviceToHost",1,20,20,28.6\n'
    totals = read_rocprof_v1(write(tmp_path / "a.csv", copies)).totals
    named = [(total.domain, total.name) for total in totals]
    assert named == [("copy", "host_to_device"), ("copy", "device_to_host")]
    calls = f'{head}\n"hipMemcpy",2,50,25,71.4\n"__hipPushCallConfiguration",1,20,20,28.6\n'
    totals = read_rocprof_v1(write(tmp_path / "b.csv", calls)).totals
    assert {total.domain for total in totals} == {"HIP_API"}


def test_a_total_that_is_not_its_calls_is_said(tmp_path: Path) -> None:
    recording = read_rocprof_v1(write(tmp_path / "r.stats.csv", STATS.replace("301", "801")))
    assert recording.partial
    assert any("calls times its average" in remark for remark in recording.remarks)


def test_rocprofv3s_sums_are_not_taken_for_ours(tmp_path: Path) -> None:
    text = STATS.replace('"Percentage"', '"Percentage","MinNs","MaxNs","StdDev"')
    assert not matches(write(tmp_path / "kernel_stats.csv", text))


def test_broken_rows_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    text = COUNTED.replace('1,"rmsnorm.kd",1', '1,"rmsnorm.kd"').replace(
        ",9000,12400,", ",9000,20,"
    )
    recording = read_rocprof_v1(write(tmp_path / "results.csv", text))
    assert recording.partial
    assert [one.duration_ns for one in recording.dispatches] == [3500, None]
    assert any("line 3" in remark for remark in recording.remarks)


TRACE = {
    "traceEvents": [
        {},
        {"args": {"name": "CPU HIP API"}, "ph": "M", "pid": 2, "name": "process_name"},
        {"args": {"name": "COPY"}, "ph": "M", "pid": 1, "name": "process_name"},
        {"args": {"name": "Markers and Ranges"}, "ph": "M", "pid": 0, "name": "process_name"},
        {"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name": "process_name"},
        {"args": {"name": "GPU Barriers0"}, "ph": "M", "pid": 518, "name": "process_name"},
    ],
    "otherData": {"Version": "1"},
}


def event(pid: int, name: str, begin: int, end: int, **args: str) -> dict[str, object]:
    """An event as rocprof writes it: all values are strings, and a duration of 0 µs is 1."""
    times = {"BeginNs": str(begin), "EndNs": str(end), "Name": name, "pid": "5", "tid": "9"}
    duration = str(max((end - begin) // 1000, 1))
    where = {"ph": "X", "name": name, "pid": pid, "tid": 0, "ts": str(begin // 1000)}
    return {**where, "dur": duration, "args": {**times, **args}}


def trace(*events: dict[str, object]) -> str:
    return json.dumps({**TRACE, "traceEvents": [*TRACE["traceEvents"], *events]})


def test_a_trace_is_read_at_its_exact_times(tmp_path: Path) -> None:
    text = trace(
        event(2, "hipLaunchKernel", 1000, 1900),
        event(1, "CopyHostToDevice", 2000, 2300, **{"dev-id": "0"}),
        event(
            6, "matmul_q4_k.kd", 3001, 3999, **{"dev-id": "0", "queue-id": "1", "stream-id": "2"}
        ),
        event(518, "<barrier packet>", 4000, 4100, **{"dev-id": "0"}),
        event(0, "layer 3", 900, 4200),
        {"ts": 3, "ph": "s", "cat": "DataFlow", "id": 0, "pid": 2, "tid": 9, "name": "dep"},
    )
    recording = read_rocprof_v1(write(tmp_path / "results.json", text))
    assert not recording.partial
    (one,) = recording.dispatches
    assert (one.kernel, one.duration_ns) == ("matmul_q4_k", 998)
    assert (one.agent, one.queue, one.stream) == ("0", "1", "2")
    (copy,) = recording.copies
    assert (copy.direction, copy.start_ns, copy.end_ns) == ("host_to_device", 2000, 2300)
    found = [(call.domain, call.function, call.thread) for call in recording.calls]
    assert found == [("HIP_API", "hipLaunchKernel", 9), ("MARKER", "layer 3", 9)]


def test_runs_that_a_trace_has_twice_are_read_once(tmp_path: Path) -> None:
    counted = {"KernelName": "rope.kd", "gpu-id": "0", "grd": "64", "SQ_WAVES": "7"}
    text = trace(
        event(6, "rope.kd", 3000, 3500, **{"dev-id": "0"}),
        event(6, "rope.kd", 3000, 3500, **counted),
    )
    recording = read_rocprof_v1(write(tmp_path / "results.json", text))
    (one,) = recording.dispatches
    assert (one.threads, one.counters["SQ_WAVES"], one.duration_ns) == (64, 7, 500)
    assert any("again" in remark for remark in recording.remarks)


def test_another_tools_trace_is_none_of_rocprofs(tmp_path: Path) -> None:
    events = {"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2, "args": {}}]}
    assert not matches(write(tmp_path / "pytorch.json", json.dumps(events)))


def database(path: Path) -> Path:
    """A database of rocprof's shape: KERN with a counter, OPS, HIP, COPY, rocTX."""
    api = '("BeginNs" INT, "EndNs" INT, "pid" INT, "tid" INT, "Name" TEXT, "args" TEXT)'
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'CREATE TABLE KERN ("Index" INT, "KernelName" TEXT, "gpu-id" INT, "grd" INT,'
            ' "SQ_WAVES" INT, "BeginNs" INT, "EndNs" INT, "DurationNs" INT)'
        )
        connection.execute(f"CREATE TABLE HIP {api}")
        connection.execute(f"CREATE TABLE rocTX {api}")
        connection.execute(f'CREATE TABLE COPY {api[:-1]}, "dev-id" INT)')
        for index in range(20):
            begin = 10_000 * (index + 1)
            kernel = '"matmul_q4_k.kd"' if index % 2 else '"rmsnorm.kd"'
            row = (index, kernel, 0, 64 * index, index + 1, begin, begin + 17 * index, 17 * index)
            connection.execute("INSERT INTO KERN VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            call = (begin - 500, begin - 100 + index, 1, 2, "hipLaunchKernel", "()")
            connection.execute("INSERT INTO HIP VALUES (?, ?, ?, ?, ?, ?)", call)
        connection.execute("INSERT INTO rocTX VALUES (5, 90, 1, 2, 'a layer', '')")
        connection.execute("INSERT INTO COPY VALUES (9, 70, 1, 2, 'CopyDeviceToHost', '', 0)")
        connection.commit()
    return path


def test_a_database_sums_up_to_what_sqlite_says(tmp_path: Path) -> None:
    path = database(tmp_path / "results.db")
    recording = read_rocprof_v1(path)
    assert not recording.partial
    with closing(sqlite3.connect(path)) as connection:
        kernels = connection.execute(
            "SELECT SUM(EndNs - BeginNs), SUM(SQ_WAVES) FROM KERN"
        ).fetchone()
        calls = connection.execute("SELECT SUM(EndNs - BeginNs), COUNT(*) FROM HIP").fetchone()
    durations = [one.duration_ns or 0 for one in recording.dispatches]
    waves = [one.counters["SQ_WAVES"] for one in recording.dispatches]
    assert (sum(durations), sum(waves)) == kernels
    hip = [call for call in recording.calls if call.domain == "HIP_API"]
    assert (sum(call.end_ns - call.start_ns for call in hip), len(hip)) == calls
    assert {one.kernel for one in recording.dispatches} == {"matmul_q4_k", "rmsnorm"}
    assert [copy.direction for copy in recording.copies] == ["device_to_host"]
    assert [call.function for call in recording.calls if call.domain == "MARKER"] == ["a layer"]


def test_a_database_is_not_written_to(tmp_path: Path) -> None:
    path = database(tmp_path / "with space #1.db")
    before = path.read_bytes()
    assert len(read_rocprof_v1(path).dispatches) == 20
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_wrong_types_in_a_database_are_left_out(tmp_path: Path) -> None:
    path = database(tmp_path / "results.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE KERN SET BeginNs = 'soon' WHERE \"Index\" = 3")
        connection.execute('UPDATE KERN SET KernelName = NULL WHERE "Index" = 4')
        connection.execute("UPDATE KERN SET SQ_WAVES = x'00ff' WHERE \"Index\" = 5")
        connection.commit()
    recording = read_rocprof_v1(path)
    assert recording.partial
    assert len(recording.dispatches) == 19
    assert recording.dispatches[3].duration_ns is None
    assert "SQ_WAVES" not in recording.dispatches[4].counters


STRANGE = (None, "", "soon", -5, 2**62, 1.5, b"\x00\xff", "1e400", "9" * 50)


@pytest.mark.parametrize("table", ["KERN", "HIP", "COPY", "rocTX"])
def test_any_value_in_a_database_may_be_of_another_type(tmp_path: Path, table: str) -> None:
    path = database(tmp_path / "results.db")
    whole = len(read_rocprof_v1(path).dispatches) + len(read_rocprof_v1(path).calls)
    rng = random.Random(table)
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for _ in range(60):
            change = f'UPDATE {table} SET "{rng.choice(names)}" = ? WHERE rowid = ?'
            connection.execute(change, (rng.choice(STRANGE), rng.randrange(1, 21)))
            connection.commit()
            recording = read_rocprof_v1(path)
            assert len(recording.dispatches) + len(recording.calls) <= whole
            assert all((one.duration_ns or 0) >= 0 for one in recording.dispatches)


def test_every_sample(samples: Path) -> None:
    files = sorted((samples / "rocprof_v1").iterdir())
    assert files
    for path in files:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        recording = read_rocprof_v1(path)
        assert not recording.partial
        assert sum(total.calls for total in recording.totals) == sum(int(r["Calls"]) for r in rows)
        spent = sum(int(row["TotalDurationNs"]) for row in rows)
        assert sum(total.total_ns for total in recording.totals) == spent
        assert not [total for total in recording.totals if total.name.endswith((".kd", ".kd]"))]


@pytest.mark.parametrize("got", ["missing", "empty", "folder"])
def test_no_file_is_an_error_that_names_it(tmp_path: Path, got: str) -> None:
    path = tmp_path / "results.csv"
    if got == "empty":
        path.touch()
    elif got == "folder":
        path.mkdir()
    assert not matches(path)
    with pytest.raises(ResultFileError, match=r"results\.csv"):
        read_rocprof_v1(path)


def forms(tmp_path: Path) -> dict[str, bytes]:
    """One whole file of each form."""
    events = (event(2, "hipMalloc", 1, 2), event(6, "rope.kd", 3, 5, **{"dev-id": "0"}))
    return {
        "results.csv": COUNTED.encode(),
        "results.stats.csv": STATS.encode(),
        "results.json": trace(*events).encode(),
        "results.db": database(tmp_path / "whole.db").read_bytes(),
    }


NAMES = ("results.csv", "results.stats.csv", "results.json", "results.db")


@pytest.mark.parametrize("name", NAMES)
def test_broken_files(tmp_path: Path, name: str) -> None:
    refused, recorded = read_all(forms(tmp_path)[name], FEW, tmp_path / name, read_rocprof_v1)
    assert refused + recorded == FEW
    assert min(refused, recorded) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_broken_files(tmp_path: Path, name: str) -> None:
    assert sum(read_all(forms(tmp_path)[name], MANY, tmp_path / name, read_rocprof_v1)) == MANY
