"""The one door to profilers' files: which reader takes a file or folder, and what errors say."""

from __future__ import annotations

import gzip
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import rocpd_files
from mutations import FEW, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.read import read

RESULTS = """Index,KernelName,gpu-id,queue-id,queue-index,grd,wgr,sig,BeginNs,EndNs
0,"matmul_q4_k.kd",0,0,0,64,64,0x0,100,350
"""
STATS = """"Name","Calls","TotalDurationNs","AverageNs","Percentage"
"matmul_q4_k.kd",1,250,250,100.0
"""
HIP_STATS = STATS.replace("matmul_q4_k.kd", "hipMalloc")
LONG = """GPU_ID,Dispatch_ID,Kernel_Name,Counter_Name,Counter_Value
0,1,"rope.kd",SQ_WAVES,3.0
"""
TRACE = "1000000100:1000000900 77:78 hipMalloc(ptr=0x7f, size=4096) :3\n"
KERNEL_TRACE = """"Kind","Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp","End_Timestamp"
"KERNEL_DISPATCH","Agent 4",1,"rope.kd",100,350
"""
SMI = '{"card0": {"GPU use (%)": "5"}}'


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (RESULTS, "rocprof"),
        (STATS, "rocprof"),
        (KERNEL_TRACE, "rocprofv3"),
        (LONG, "rocprof-compute"),
        (TRACE, "roctracer"),
        (SMI, "rocm-smi"),
    ],
)
def test_the_reader_is_picked_by_content_and_not_by_name(
    tmp_path: Path, text: str, tool: str
) -> None:
    assert read(write(tmp_path / "output.data", text)).tool == tool


def test_a_folder_of_rocprof_is_one_run(tmp_path: Path) -> None:
    write(tmp_path / "results.csv", RESULTS)
    write(tmp_path / "results.stats.csv", STATS)
    write(tmp_path / "results.hip_stats.csv", HIP_STATS)
    write(tmp_path / "results.sysinfo.txt", "ROCk module is loaded\n")
    recording = read(tmp_path)
    assert [one.duration_ns for one in recording.dispatches] == [250]
    assert [(total.domain, total.name) for total in recording.totals] == [("HIP_API", "hipMalloc")]
    assert len([remark for remark in recording.remarks if "rocprofv3" in remark]) == 1
    assert any("results.sysinfo.txt" in remark for remark in recording.remarks)


def test_of_one_run_in_several_forms_the_fullest_is_read(tmp_path: Path) -> None:
    write(tmp_path / "results.csv", RESULTS)
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        database.execute(
            'CREATE TABLE KERN ("Index" INT, "KernelName" TEXT, "BeginNs" INT, "EndNs" INT)'
        )
        database.executemany("INSERT INTO KERN VALUES (?, 'rope.kd', 10, 20)", [(0,), (1,)])
        database.commit()
    recording = read(tmp_path)
    assert [one.kernel for one in recording.dispatches] == ["rope", "rope"]
    assert any("results.csv" in remark for remark in recording.remarks)


def test_a_folders_files_of_other_tools_are_named(tmp_path: Path) -> None:
    for name, text in (("first.csv", LONG), ("trace.csv", KERNEL_TRACE), ("results.csv", RESULTS)):
        folder = tmp_path / name.partition(".")[0]
        write(folder / name, text)
        write(folder / "smi.json", SMI)
        assert any("smi.json" in remark for remark in read(folder).remarks), name


def test_runs_that_are_added_up_are_said_to_be(tmp_path: Path) -> None:
    for text in (KERNEL_TRACE, RESULTS):
        folder = tmp_path / f"{len(text)}"
        write(folder / "1_kernel_trace.csv", text)
        assert not any("added up" in remark for remark in read(folder).remarks)
        write(folder / "2_kernel_trace.csv", text)
        recording = read(folder)
        assert len(recording.dispatches) == 2
        assert any(remark.startswith("2 runs or processes") for remark in recording.remarks)


def test_a_column_of_durations_is_no_counter_and_named(tmp_path: Path) -> None:
    text = "Index,KernelName,gpu-id,DurationUs,SQ_WAVES\n0,rope,0,12,3\n"
    recording = read(str(write(tmp_path / "results.csv", text)))  # a path as text too
    (run,) = recording.dispatches
    assert (run.duration_ns, run.counters) == (None, {"SQ_WAVES": 3})
    assert any("has DurationUs alone, wanted BeginNs and" in said for said in recording.remarks)


def test_files_directly_below_a_folder_are_found(tmp_path: Path) -> None:
    write(tmp_path / "host" / "results.csv", RESULTS)
    assert len(read(tmp_path).dispatches) == 1


def test_passes_have_folders_for_their_hosts(tmp_path: Path) -> None:
    for name in ("pass_1", "pass_2"):
        (tmp_path / name).mkdir()
        rocpd_files.make(write(tmp_path / name / "host/7_results.db", ""), runs=5)
    assert len(read(tmp_path).dispatches) == 10


def test_a_workload_below_a_folder_and_several_of_them(tmp_path: Path) -> None:
    write(tmp_path / "MI300X" / "pmc_perf.csv", LONG)
    assert read(tmp_path).tool == "rocprof-compute"
    write(tmp_path / "MI200" / "pmc_perf.csv", LONG)
    with pytest.raises(ResultFileError, match="MI200, MI300X"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "an empty file"),
        (gzip.compress(RESULTS.encode()), "unpack it first"),
        (b"PERFILE2\0\0", "perf script"),
        (b"\x7fELF\x02\0", "a program or library"),
        (b"\x01\x02\0\x03", "binary data, which begins with 01 02 00 03"),
        (b"a,b,c\n1,2,3\n", "'a,b,c'"),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, content: bytes, seen: str) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    with pytest.raises(ResultFileError) as caught:
        read(path)
    assert seen in str(caught.value)
    assert "rocprof-compute" in str(caught.value)


@pytest.mark.parametrize("text", [RESULTS, STATS, KERNEL_TRACE, LONG, TRACE, SMI])
def test_broken_files(tmp_path: Path, text: str) -> None:
    """A broken file may look like another tool's; whichever reader takes it, it ends in words."""
    assert sum(read_all(text.encode(), FEW // 2, tmp_path / "output.data", read)) == FEW // 2


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ResultFileError, match="pipe"):
        read(tmp_path / "pipe")


def test_another_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cookies.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE cookies (name TEXT)")
    with pytest.raises(ResultFileError, match="none of the profilers' tables"):
        read(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match="got none"):
        read(tmp_path / "none")
    with pytest.raises(ResultFileError, match="too long"):
        read(tmp_path / ("n" * 5000))
    with pytest.raises(ResultFileError, match="no files"):
        read(tmp_path)


def test_every_sample_is_read_or_refused_by_name(samples: Path) -> None:
    """Files that belong to a folder, and notes, are no recordings by themselves."""
    beside = {"SOURCES.txt", "sysinfo.csv", "roofline.csv", "profiling_config.yaml"}
    folders = sorted(
        one.name for one in samples.iterdir() if one.is_dir() and one.name != "counters"
    )
    files = [
        file for name in folders for file in sorted((samples / name).rglob("*")) if file.is_file()
    ]
    assert len(files) > 50
    for file in files:
        if file.name in beside:
            with pytest.raises(ResultFileError, match=re.escape(file.name)):
                read(file)
        else:
            recording = read(file)
            assert recording.tool
            assert not recording.partial or recording.remarks
