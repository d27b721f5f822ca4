"""rocprofv3's CSV: totals are those that the csv module gives by hand; broken rows are said."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from mutations import FEW, MANY, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.read import read
from rocmforge.profiling.readers.rocprofv3_csv import matches, read_rocprofv3_csv

MATMUL = "void matmul_q4_k<64, 128>(char const*, float*)"
OLD = f"""Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,\
End_Timestamp,Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,Workgroup_Size_Y,\
Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z
"KERNEL_DISPATCH",4,1,2,"{MATMUL}",11,7000,7900,16,8192,256,2,1,4096,8,2
"KERNEL_DISPATCH",4,1,3,"rmsnorm.kd",12,8000,8040,0,512,128,1,1,1024,1,1
"""
THREADED = f"""Kind,Agent_Id,Queue_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,\
Start_Timestamp,End_Timestamp,Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,\
Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z
"KERNEL_DISPATCH",4,1,99,1,2,"{MATMUL}",11,7000,7900,16,8192,256,2,1,4096,8,2
"KERNEL_DISPATCH",4,1,99,2,3,"rmsnorm.kd",12,8000,8040,0,512,128,1,1,1024,1,1
"""
NEW = f"""Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,\
Correlation_Id,Start_Timestamp,End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,\
Accum_VGPR_Count,SGPR_Count,\
Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z
"KERNEL_DISPATCH","Agent 4",1,3,99,1,2,"{MATMUL}",11,7000,7900,8192,16,96,8,48,256,2,1,4096,8,2
"KERNEL_DISPATCH","Agent 4",1,3,99,2,3,"rmsnorm.kd",12,8000,8040,512,0,24,0,16,128,1,1,1024,1,1
"""
CONVERTED = f"""Guid,Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,\
Correlation_Id,Start_Timestamp,End_Timestamp,Duration,Lds_Block_Size,Scratch_Size,Vgpr_Count,\
Accum_Vgpr_Count,Sgpr_Count,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,\
Grid_Size_Y,Grid_Size_Z
g-1,KERNEL_DISPATCH,Agent 4,1,3,99,1,2,"{MATMUL}",11,7000,7900,900,8192,16,96,8,48,256,2,1,4096,8,2
g-1,KERNEL_DISPATCH,Agent 4,1,3,99,2,3,rmsnorm.kd,12,8000,8040,40,512,0,24,0,16,128,1,1,1024,1,1
"""
GENERATIONS = {"old": OLD, "threaded": THREADED, "new": NEW, "converted": CONVERTED}
COUNTED_HEADER = """Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,\
Kernel_Id,Kernel_Name,Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,\
SGPR_Count,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp
"""


def counted(correlation: int, dispatch: int, kernel: str, counter: str, value: object) -> str:
    times = "9000,9100"
    registers = "64,8192,16,96,8,48"
    return (
        f'{correlation},{dispatch},"Agent 4",1,77,99,65536,2,"{kernel}",{registers},"{counter}",'
        f"{value},{times}\n"
    )


COUNTED = COUNTED_HEADER + "".join(
    (
        counted(11, 1, MATMUL, "SQ_WAVES", "1024.000000"),
        counted(11, 1, MATMUL, "TCC_HIT", "100.5"),
        counted(12, 2, "rmsnorm.kd", "SQ_WAVES", 8),
        counted(11, 1, MATMUL, "TCC_HIT", 50),
    )
)
CALLS = """"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",\
"End_Timestamp"
"HIP_RUNTIME_API","hipLaunchKernel",77,99,11,6000,6100
"HIP_RUNTIME_API","hipStreamSynchronize",77,98,12,6200,8100
"""
STATS_HEADER = (
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("generation", sorted(GENERATIONS))
def test_each_generation_of_headers(tmp_path: Path, generation: str) -> None:
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", GENERATIONS[generation]))
    assert recording.tool == "rocprofv3"
    assert not recording.partial
    assert recording.remarks == ()
    first, second = recording.dispatches
    assert (first.kernel, second.kernel) == (MATMUL, "rmsnorm")
    assert (first.start_ns, first.end_ns, second.duration_ns) == (7000, 7900, 40)
    assert first.agent == ("4" if generation in ("old", "threaded") else "Agent 4")
    assert first.queue == "1"
    assert first.stream == ("3" if generation in ("new", "converted") else None)
    assert first.dispatch_id == (None if generation == "old" else 1)
    assert (first.grid, first.workgroup) == ((4096, 8, 2), (256, 2, 1))
    assert (first.lds_bytes, first.scratch_bytes) == (8192, 16)
    registers = (first.vgprs, first.accum_vgprs, first.sgprs)
    assert registers == ((96, 8, 48) if generation in ("new", "converted") else (None, None, None))
    assert first.more["Correlation_Id"] == "11"
    assert "Duration" not in first.more


def test_unknown_columns_are_kept(tmp_path: Path) -> None:
    lines = NEW.splitlines()
    text = "\n".join((f"{lines[0]},Graph_Node_Id", f"{lines[1]},5", f"{lines[2]},"))
    first, second = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", text)).dispatches
    assert first.more["Graph_Node_Id"] == "5"
    assert "Graph_Node_Id" not in second.more


def test_counters_of_a_dispatch_become_one(tmp_path: Path) -> None:
    recording = read_rocprofv3_csv(write(tmp_path / "counter_collection.csv", COUNTED))
    first, second = recording.dispatches
    assert first.counters == {"SQ_WAVES": 1024, "TCC_HIT": 150.5}
    assert second.counters == {"SQ_WAVES": 8}
    assert (first.threads, first.block_threads, first.grid) == (65536, 64, None)
    assert (first.start_ns, first.duration_ns) == (9000, 100)
    assert any("another instance of a counter" in line for line in recording.remarks)
    assert not recording.partial


def test_replayed_passes_are_not_added_up(tmp_path: Path) -> None:
    lines = COUNTED.splitlines()
    passes = ("Replay_Pass", 0, 0, 0, 1)
    text = "\n".join(f"{line},{one}" for line, one in zip(lines, passes, strict=True))
    recording = read_rocprofv3_csv(write(tmp_path / "counter_collection.csv", text))
    assert recording.dispatches[0].counters["TCC_HIT"] == 100.5
    assert any("several passes" in line for line in recording.remarks)


def test_the_counters_of_a_replayed_dispatch_are_those_of_one_run(tmp_path: Path) -> None:
    replay = NEW.splitlines()[1].replace("7000,7900", "9000,9100")
    write(tmp_path / "run_kernel_trace.csv", f"{NEW}{replay}\n")
    write(tmp_path / "run_counter_collection.csv", COUNTED)
    first, _, again = read_rocprofv3_csv(tmp_path).dispatches
    assert (first.start_ns, first.counters) == (7000, {})
    assert (again.start_ns, again.counters) == (9000, {"SQ_WAVES": 1024, "TCC_HIT": 150.5})


@pytest.mark.parametrize("generation", sorted(GENERATIONS))
def test_trace_and_counters_of_a_run_are_joined(tmp_path: Path, generation: str) -> None:
    write(tmp_path / "out" / "host" / "77_kernel_trace.csv", GENERATIONS[generation])
    write(tmp_path / "out" / "host" / "77_counter_collection.csv", COUNTED)
    recording = read_rocprofv3_csv(tmp_path / "out")
    first, second = recording.dispatches
    assert first.counters == {"SQ_WAVES": 1024, "TCC_HIT": 150.5}
    assert second.counters == {"SQ_WAVES": 8}
    assert (first.start_ns, first.grid, first.vgprs) == (7000, (4096, 8, 2), 96)
    assert first.more["Process_Id"] == "77"


def test_processes_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "1_kernel_trace.csv", NEW)
    write(tmp_path / "2_kernel_trace.csv", NEW)
    write(tmp_path / "2_counter_collection.csv", COUNTED)
    recording = read_rocprofv3_csv(tmp_path)
    assert len(recording.dispatches) == 4
    assert [bool(run.counters) for run in recording.dispatches] == [False, False, True, True]
    by_name = read_rocprofv3_csv(tmp_path / "2")
    assert len(by_name.dispatches) == 2
    assert matches(tmp_path / "2")
    assert read(tmp_path / "2") == by_name
    assert not matches(tmp_path / "3")


def test_sums_are_left_out_where_the_single_records_are(tmp_path: Path) -> None:
    write(tmp_path / "run_kernel_trace.csv", NEW)
    write(tmp_path / "run_kernel_stats.csv", f'{STATS_HEADER}"{MATMUL}",1,900,900,95,900,900,0\n')
    hip = f'{STATS_HEADER}"hipLaunchKernel",2,100,50,100,40,60,0\n'
    write(tmp_path / "run_hip_api_stats.csv", hip)
    domains = f'{STATS_HEADER}"KERNEL_DISPATCH",1,900,900,90,9,9,0\n"HIP_API",2,100,50,10,4,6,0\n'
    write(tmp_path / "run_domain_stats.csv", domains)
    copies = f'{STATS_HEADER}"MEMORY_COPY_HOST_TO_DEVICE",3,300,100,100,90,110,0\n'
    write(tmp_path / "run_memory_copy_stats.csv", copies)
    write(tmp_path / "notes.txt", "not a table")
    recording = read_rocprofv3_csv(tmp_path)
    assert {(one.domain, one.name, one.total_ns) for one in recording.totals} == {
        ("HIP_API", "hipLaunchKernel", 100),
        ("domain", "HIP_API", 100),
        ("copy", "host_to_device", 300),
    }
    assert any("not read beside them: notes.txt" in line for line in recording.remarks)
    write(tmp_path / "run_hip_api_trace.csv", CALLS)
    names = {one.name for one in read_rocprofv3_csv(tmp_path).totals}
    assert names == {"host_to_device"}


def test_what_a_table_of_sums_is_of_without_its_name(tmp_path: Path) -> None:
    rows = {
        "kernel": f'"{MATMUL}",1,900,900,95,900,900,0\n',
        "HIP_API": '"hipMalloc",1,900,900,95,900,900,0\n"__hipRegisterFunction",1,9,9,5,9,9,0\n',
        "HSA_API": '"hsa_queue_create",1,900,900,95,900,900,0\n',
        "copy": '"MEMORY_COPY_DEVICE_TO_HOST",1,900,900,95,900,900,0\n',
        "domain": '"KERNEL_DISPATCH",1,900,900,95,900,900,0\n',
    }
    for domain, row in rows.items():
        (first, *_) = read_rocprofv3_csv(write(tmp_path / "x.csv", STATS_HEADER + row)).totals
        assert (first.domain, first.calls, first.total_ns) == (domain, 1, 900)
        assert (first.least_ns, first.most_ns) == (900, 900)


def test_a_sum_that_is_not_its_calls_times_its_average_is_said(tmp_path: Path) -> None:
    text = f'{STATS_HEADER}"rmsnorm",10,900,9000,95,9,9,0\n'
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_stats.csv", text))
    assert recording.partial
    assert any("its calls times its average" in line for line in recording.remarks)


def test_copies_allocations_scratch_and_calls(tmp_path: Path) -> None:
    write(
        tmp_path / "memory_copy_trace.csv",
        "Kind,Direction,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,"
        "End_Timestamp\nMEMORY_COPY,HOST_TO_DEVICE,0,4,1,100,350\n",
    )
    write(
        tmp_path / "memory_allocation_trace.csv",
        "Kind,Operation,Agent_Id,Allocation_Size,Address,Correlation_Id,Start_Timestamp,"
        'End_Timestamp\nMEMORY_ALLOCATION,MEMORY_ALLOCATION_ALLOCATE,"Agent 4",4096,0x1,1,10,20\n',
    )
    write(
        tmp_path / "scratch_memory_trace.csv",
        "Kind,Operation,Agent_Id,Queue_Id,Thread_Id,Alloc_Flags,Start_Timestamp,End_Timestamp\n"
        'SCRATCH_MEMORY,SCRATCH_MEMORY_ALLOC,"Agent 4",1,99,0,30,45\n',
    )
    write(tmp_path / "hip_api_trace.csv", CALLS)
    recording = read_rocprofv3_csv(tmp_path)
    (copy,) = recording.copies
    assert (copy.direction, copy.start_ns, copy.end_ns) == ("host_to_device", 100, 350)
    by_name = {one.function: one for one in recording.calls}
    assert by_name["MEMORY_ALLOCATION_ALLOCATE"].nbytes == 4096
    assert by_name["SCRATCH_MEMORY_ALLOC"].domain == "SCRATCH_MEMORY"
    assert by_name["hipStreamSynchronize"].thread == 98
    assert by_name["hipStreamSynchronize"].end_ns == 8100


def test_agents(tmp_path: Path) -> None:
    header = "Node_Id,Logical_Node_Id,Agent_Type,Cu_Count,Name"
    text = f"{header}\n0,0,CPU,16,Some CPU\n4,1,GPU,96,gfx1100\n"
    cpu, gpu = read_rocprofv3_csv(write(tmp_path / "agent_info.csv", text)).agents
    assert (cpu.name, cpu.kind, gpu.name, gpu.kind) == ("Some CPU", "cpu", "gfx1100", "gpu")
    assert gpu.properties["Cu_Count"] == "96"


NOT_READ = {
    "pc_sampling_host_trap.csv": (
        """Sample_Timestamp,Exec_Mask,Dispatch_Id,Instruction,Instruction_Comment,Correlation_Id
1,65535,1,"s_endpgm","",1
""",
        "program counter",
    ),
    "spm_counter_collection.csv": (
        """Guid,Dispatch_Id,Agent_Id,Kernel_Name,Counter_Name,Counter_Value,Timestamp
g,1,Agent 4,rmsnorm,"SQ_WAVES[XCC: 0]",5,100
""",
        "counters over time",
    ),
    "hip_event.csv": (
        """Guid,Kind,Operation,Agent_Id,Event_Handle,Start_Timestamp,End_Timestamp
g,HIP_EVENT,RECORD,Agent 4,7,1,2
""",
        "HIP events",
    ),
}


@pytest.mark.parametrize("name", sorted(NOT_READ))
def test_what_is_not_read_is_said(tmp_path: Path, name: str) -> None:
    text, words = NOT_READ[name]
    recording = read_rocprofv3_csv(write(tmp_path / name, text))
    assert recording.dispatches == ()
    (remark,) = recording.remarks
    assert remark.startswith("1 row: ")
    assert words in remark


def test_kernels_with_commas_quotes_and_templates(tmp_path: Path) -> None:
    names = (
        'void attention<128, "causal">(float*, int)',
        "std::enable_if<(4 > 2), void>::type rope<float, 64>(float*, long)",
        "lambda {lambda(int)#1}::operator()(int) const [clone .kd]",
    )
    lines = NEW.splitlines()
    rows = (lines[1].replace(MATMUL, name.replace('"', '""')) for name in names)
    text = "\n".join((lines[0], *rows))
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", text))
    kernels = [run.kernel for run in recording.dispatches]
    assert kernels == [names[0], names[1], "lambda {lambda(int)#1}::operator()(int) const"]
    assert not recording.partial


def test_an_unclosed_quote_costs_its_own_row(tmp_path: Path) -> None:
    lines = NEW.splitlines()
    broken = lines[1].replace('float*)"', "float*)")
    text = "\n".join((*lines, broken, lines[1], lines[2]))
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", text))
    assert len(recording.dispatches) == 4
    assert {run.kernel for run in recording.dispatches} == {MATMUL, "rmsnorm"}
    assert recording.partial
    assert recording.remarks == (
        "1 row: a quote that is not closed, or a broken field (first: kernel_trace.csv, line 4)",
    )


def test_a_message_of_two_lines_is_one_row(tmp_path: Path) -> None:
    marker = '"MARKER_CORE_API","token 7\nof the answer",77,99,13,9000,9500'
    text = f'{CALLS}{marker}\n"HIP_RUNTIME_API","hipFree",77,99,14,9600,9700\n'
    recording = read_rocprofv3_csv(write(tmp_path / "marker_api_trace.csv", text))
    assert recording.calls[2].function == "token 7\nof the answer"
    assert recording.calls[2].end_ns == 9500
    assert recording.calls[3].function == "hipFree"
    assert not recording.partial


def test_rows_of_another_length_and_wrong_values(tmp_path: Path) -> None:
    lines = NEW.splitlines()
    text = "\n".join(
        (
            *lines,
            lines[1] + ",1",
            lines[1].rpartition(",")[0],
            lines[1].replace("7000", "-5"),
            lines[1].replace("7900", "6900"),
            lines[1].replace("8192", "some"),
            lines[1].replace(f'"{MATMUL}"', ""),
        )
    )
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", text))
    assert recording.partial
    assert len(recording.dispatches) == 5
    assert [run.duration_ns for run in recording.dispatches] == [900, 40, None, None, 900]
    assert recording.dispatches[4].lds_bytes is None
    remarks = "\n".join(recording.remarks)
    assert "2 rows: another number of fields than the header" in remarks
    assert "2 rows: its times are no span of nanoseconds" in remarks
    assert "1 row: LDS_Block_Size is no whole number" in remarks
    assert "1 row: no kernel's name" in remarks


def test_a_cut_header_gives_the_columns_before_the_cut(tmp_path: Path) -> None:
    header, *rows = THREADED.splitlines()
    cut = ",".join(f'"{name}"' for name in header.split(",")[:12]) + ',"Workgroup'
    recording = read_rocprofv3_csv(write(tmp_path / "kernel_trace.csv", "\n".join((cut, *rows))))
    first, second = recording.dispatches
    assert (first.duration_ns, second.duration_ns) == (900, 40)
    assert (first.lds_bytes, first.workgroup, first.grid) == (8192, None, None)
    assert recording.partial


def test_tables_without_rows_and_files_that_are_none(tmp_path: Path) -> None:
    empty = write(tmp_path / "kernel_trace.csv", NEW.splitlines()[0] + "\n")
    assert read_rocprofv3_csv(empty).remarks == ("kernel_trace.csv has no rows",)
    other = write(tmp_path / "a" / "other.csv", "a,b\n1,2\n")
    assert not matches(other)
    with pytest.raises(ResultFileError, match=r"other\.csv: header"):
        read_rocprofv3_csv(other)
    with pytest.raises(ResultFileError, match=r"files: got other\.csv, wanted a table"):
        read_rocprofv3_csv(tmp_path / "a")
    with pytest.raises(ResultFileError, match="got no files"):
        read_rocprofv3_csv(tmp_path / "b" / "run")


def test_a_broken_table_of_a_folder_costs_itself(tmp_path: Path) -> None:
    write(tmp_path / "77_hip_api_trace.csv", CALLS)
    broken = write(tmp_path / "77_kernel_trace.csv", NEW.replace("Stream_Id", "Queue_Id"))
    recording = read_rocprofv3_csv(tmp_path)
    assert len(recording.calls) == 2
    assert recording.partial
    (remark,) = (line for line in recording.remarks if line.startswith("not read: "))
    assert "77_kernel_trace.csv: header: got column 'Queue_Id' twice" in remark
    with pytest.raises(ResultFileError, match="twice"):
        read_rocprofv3_csv(broken)
    with pytest.raises(ResultFileError, match="twice"):
        read_rocprofv3_csv(tmp_path / "77_kernel")


def test_passes_are_said(tmp_path: Path) -> None:
    write(tmp_path / "pass_1" / "77_counter_collection.csv", COUNTED)
    write(tmp_path / "pass_2" / "78_counter_collection.csv", COUNTED)
    recording = read_rocprofv3_csv(tmp_path)
    assert len(recording.dispatches) == 4
    assert any("each a process or a pass: pass_1, pass_2" in line for line in recording.remarks)


def test_a_folder_with_a_database_is_read_by_its_reader(tmp_path: Path) -> None:
    write(tmp_path / "77_kernel_trace.csv", NEW)
    assert matches(tmp_path)
    (tmp_path / "77_results.db").write_bytes(b"SQLite format 3\0 rocpd_metadata")
    assert not matches(tmp_path)


def by_hand(path: Path) -> list[dict[str, str]]:
    """Rows by column in small letters; of a cut header, the columns before the cut."""
    text = path.read_text(encoding="utf-8-sig")
    header, _, rest = text.partition("\n")
    names = next(csv.reader([header]))
    if header.count('"') % 2:
        names.pop()
    rows = [row for row in csv.reader(rest.splitlines()) if row]
    return [dict(zip((name.lower() for name in names), row, strict=False)) for row in rows]


TRACES = (
    *("counter_collection", "hip_compile_trace", "hip_runtime_trace", "hip_trace"),
    *("hsa_api_trace", "hsa_core_api_trace", "kernel_trace", "kernel_trace_truncated"),
    *("marker_api_trace", "memory_allocation_trace", "memory_copy_trace", "mi300a_hip_api_trace"),
    *("mi300a_hip_kernel_trace_threadid", "mi300a_omp_kernel_trace_old", "rccl_trace"),
    *("mi300a_rocpd_converted_kernel_trace", "rocpd-to-csv", "scratch_memory_trace"),
)


@pytest.mark.parametrize("name", TRACES)
def test_real_traces(samples: Path, name: str) -> None:
    path = samples / "rocprofv3_csv" / f"{name}.csv"
    recording = read_rocprofv3_csv(path)
    rows = by_hand(path)
    begins = [int(row["start_timestamp"]) for row in rows]
    ends = [int(row["end_timestamp"]) for row in rows]
    single = (*recording.dispatches, *recording.copies, *recording.calls)
    assert len(single) == len(rows) > 0
    assert [one.start_ns for one in single] == begins
    assert sum(one.end_ns or 0 for one in single) == sum(ends)
    assert matches(path)
    assert recording.partial == ("threadid" in name)
    for column, field in (("lds_block_size", "lds_bytes"), ("vgpr_count", "vgprs")):
        if column in rows[0]:
            total = sum(getattr(run, field) for run in recording.dispatches)
            assert total == sum(int(row[column]) for row in rows)


@pytest.mark.parametrize("name", ["counter_collection", "kernel_names"])
def test_real_counters(samples: Path, name: str) -> None:
    path = samples / "rocprofv3_csv" / f"{name}.csv"
    rows = by_hand(path)
    recording = read_rocprofv3_csv(path)
    total = sum(value for run in recording.dispatches for value in run.counters.values())
    assert total == sum(float(row["counter_value"]) for row in rows)
    assert [run.kernel for run in recording.dispatches] == [row["kernel_name"] for row in rows]


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("hip_api_stats", "HIP_API"),
        ("mi300a_hip_api_stats", "HIP_API"),
        ("hip_domain_stats", "domain"),
        ("mi300a_hip_domain_stats", "domain"),
        ("mi300a_hip_kernel_stats", "kernel"),
        ("mi300a_omp_kernel_stats", "kernel"),
    ],
)
def test_real_sums(samples: Path, name: str, domain: str) -> None:
    path = samples / "rocprofv3_csv" / f"{name}.csv"
    rows = by_hand(path)
    recording = read_rocprofv3_csv(path)
    assert {one.domain for one in recording.totals} == {domain}
    assert sum(one.calls for one in recording.totals) == sum(int(row["calls"]) for row in rows)
    total = sum(one.total_ns for one in recording.totals)
    assert total == sum(int(row["totaldurationns"]) for row in rows)
    assert sum(one.most_ns or 0 for one in recording.totals) == sum(int(r["maxns"]) for r in rows)
    assert not recording.partial


def test_real_agents_and_samples(samples: Path) -> None:
    path = samples / "rocprofv3_csv" / "mi300a_omp_agent_info.csv"
    agents = read_rocprofv3_csv(path).agents
    rows = by_hand(path)
    assert [one.name for one in agents] == [row["name"] for row in rows]
    assert sum(one.kind == "gpu" for one in agents) == [r["agent_type"] for r in rows].count("GPU")
    path = samples / "rocprofv3_csv" / "pc_sampling_host_trap.csv"
    (remark,) = read_rocprofv3_csv(path).remarks
    assert remark.startswith(f"{len(by_hand(path))} rows: samples of the program counter")


def test_the_folder_of_all_real_tables(samples: Path) -> None:
    recording = read_rocprofv3_csv(samples / "rocprofv3_csv")
    names = (*TRACES, "kernel_names")
    rows = {name: len(by_hand(samples / "rocprofv3_csv" / f"{name}.csv")) for name in names}
    single = (*recording.dispatches, *recording.copies, *recording.calls)
    assert 0 <= sum(rows.values()) - len(single) <= rows["counter_collection"]


FORMS = {"dispatches": NEW, "counters": COUNTED, "calls": CALLS}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_broken_tables(tmp_path: Path, form: str) -> None:
    content = FORMS[form].encode()
    refused, recorded = read_all(content, FEW, tmp_path / "broken.csv", read_rocprofv3_csv)
    assert refused
    assert recorded


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_many_broken_tables(tmp_path: Path, form: str) -> None:
    content = FORMS[form].encode()
    refused, recorded = read_all(content, MANY, tmp_path / "broken.csv", read_rocprofv3_csv)
    assert refused > 100
    assert recorded > 100
