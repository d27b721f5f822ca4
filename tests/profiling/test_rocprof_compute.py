"""rocprof-compute's workload folders: every counter of every dispatch, summed by the csv module."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from mutations import FEW, MANY, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.records import Recording
from rocmforge.profiling.readers.rocprof_compute import matches, read_rocprof_compute

KERNEL = '"matmul_q4_k(char const*, float*) [clone .kd]"'
BASE = "Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup"
SHARED = "wave_size_1,obj_1"
PERF = f"""{BASE},Arch_VGPR,wave_size,obj,SQ_WAVES,TCC_HIT[0],{SHARED},TCC_HIT[1],GRBM_COUNT
0,{KERNEL},2,65536,256,4096,40,64,0x7f,1024,10,64,0x7f,20,5000
1,"rmsnorm.kd",2,4096,128,0,12,64,0x7f,32,11,64,0x7f,21,6000
"""
TIMES = f"""{BASE},sig,Start_Timestamp,End_Timestamp
0,{KERNEL},2,65536,256,4096,0x0,1000,3500
1,"rmsnorm.kd",2,4096,128,0,0x0,4000,4250
"""
LEVEL = f"""{BASE},GRBM_COUNT,SQ_LEVEL_WAVES,SQ_ACCUM_PREV_HIRES,Start_Timestamp,End_Timestamp
0,{KERNEL},2,65536,256,4096,5555,7,700,9000,9999
1,"rmsnorm.kd",2,4096,128,0,6666,8,800,10000,10999
"""
SYSTEM = """workload_name,command,version,cpu_model,gpu_model,gpu_arch,cu_per_gpu,wave_size
tiny,./decode,3,EPYC,MI300X,gfx942,304,64
"""
ROOFLINE = "device,HBMBw,FP32Flops\n0,1400.5,20000.25\n"
LONG_BASE = "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Kernel_Name"
LONG = f"""{LONG_BASE},Start_Timestamp,End_Timestamp,Kernel_ID,Counter_Name,Counter_Value
2,1,65536,256,0,"rope(float*)",1000,1500,12,SQ_WAVES,1024.0
2,1,65536,256,0,"rope(float*)",1000,1500,12,SQ_INSTS_VALU,77.0
2,2,4096,128,0,"rmsnorm.kd",2000,2600,13,SQ_WAVES,32.0
2,1,65536,256,0,"rope(float*)",8000,8700,12,TCC_HIT_sum,5.0
"""


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.csv").write_text(text, encoding="utf-8")
    return path


def wide(path: Path) -> Path:
    tables = {"pmc_perf": PERF, "timestamps": TIMES, "SQ_LEVEL_WAVES": LEVEL}
    return folder(path, **tables, sysinfo=SYSTEM, roofline=ROOFLINE)


def test_the_tables_of_one_run_become_one_record_each(tmp_path: Path) -> None:
    recording = read_rocprof_compute(wide(tmp_path / "MI300X"))
    assert not recording.partial
    first, second = recording.dispatches
    assert (first.kernel, second.kernel) == ("matmul_q4_k(char const*, float*)", "rmsnorm")
    assert first.counters == {
        "SQ_WAVES": 1024,
        "TCC_HIT[0]": 10,
        "TCC_HIT[1]": 20,
        "GRBM_COUNT": 5000,  # of pmc_perf.csv, which comes first
        "SQ_LEVEL_WAVES": 7,
        "SQ_LEVEL_WAVES_ACCUM": 700,
    }
    assert (first.threads, first.block_threads, first.lds_bytes, first.vgprs) == (
        65536,
        256,
        4096,
        40,
    )
    assert first.agent == "2"


def test_times_are_those_of_the_run_that_counted_nothing(tmp_path: Path) -> None:
    first, second = read_rocprof_compute(wide(tmp_path / "MI300X")).dispatches
    assert (first.start_ns, first.end_ns) == (1000, 3500)
    assert second.duration_ns == 250


def test_the_card_and_its_measured_peaks(tmp_path: Path) -> None:
    recording = read_rocprof_compute(wide(tmp_path / "MI300X"))
    host, card = recording.agents
    assert (host.name, host.kind) == ("EPYC", "cpu")
    assert (card.name, card.kind, recording.version) == ("gfx942", "gpu", "3")
    assert card.properties["cu_per_gpu"] == "304"
    assert card.properties["roofline.HBMBw"] == "1400.5"


def test_a_long_table_has_a_row_for_each_counter(tmp_path: Path) -> None:
    recording = read_rocprof_compute(folder(tmp_path / "long", pmc_perf=LONG, sysinfo=SYSTEM))
    first, second = recording.dispatches
    assert first.counters == {"SQ_WAVES": 1024, "SQ_INSTS_VALU": 77, "TCC_HIT_sum": 5}
    assert second.counters == {"SQ_WAVES": 32}
    assert (first.start_ns, first.duration_ns, first.dispatch_id) == (1000, 500, 1)
    assert any("another run" in remark for remark in recording.remarks)


def test_a_long_table_for_each_run(tmp_path: Path) -> None:
    head = "GPU_ID,GUID,Correlation_Id,Dispatch_ID,Kernel_Name,Start_Timestamp,End_Timestamp"
    rows = '1,{guid},1,0,"rope(float*)",{start},{end},{name},{value}\n'
    text = f"{head},Counter_Name,Counter_Value\n{rows}"
    first = text.format(guid="a7", start=100, end=150, name="GRBM_COUNT", value=9.0)
    second = text.format(guid="b8", start=900, end=960, name="GL2C_HIT_sum", value=4.0)
    system = SYSTEM.replace("workload_name", "workload_path")
    files = {"results_pmc_perf_0": first, "results_pmc_perf_1": second, "sysinfo": system}
    recording = read_rocprof_compute(folder(tmp_path / "RDNA", **files))
    (one,) = recording.dispatches
    assert one.counters == {"GRBM_COUNT": 9, "GL2C_HIT_sum": 4}
    assert (one.duration_ns, one.more["GUID"]) == (50, "a7")
    assert recording.agents[-1].name == "gfx942"


@pytest.mark.parametrize("value", ["1.0", "1024.0"])
def test_a_second_value_of_a_counter_is_said(tmp_path: Path, value: str) -> None:
    more = f'{LONG}2,1,65536,256,0,"rope(float*)",1000,1500,12,SQ_WAVES,{value}\n'
    recording = read_rocprof_compute(folder(tmp_path / "long", pmc_perf=more))
    assert recording.partial
    assert recording.dispatches[0].counters["SQ_WAVES"] == 1024
    assert any("second value of SQ_WAVES" in remark for remark in recording.remarks)


def test_a_counter_of_two_runs_has_the_first_runs_value(tmp_path: Path) -> None:
    more = f'{LONG}2,1,65536,256,0,"rope(float*)",8000,8700,12,SQ_WAVES,1030.0\n'
    recording = read_rocprof_compute(folder(tmp_path / "long", pmc_perf=more))
    assert not recording.partial
    assert recording.dispatches[0].counters["SQ_WAVES"] == 1024
    assert any("several runs" in remark for remark in recording.remarks)


def test_dispatches_that_are_numbered_otherwise_are_paired_in_order(tmp_path: Path) -> None:
    shifted = TIMES.replace("\n1,", "\n2,").replace("\n0,", "\n1,")
    path = folder(tmp_path / "w", pmc_perf=PERF, timestamps=shifted)
    recording = read_rocprof_compute(path)
    assert not recording.partial
    assert [one.duration_ns for one in recording.dispatches] == [2500, 250]
    assert any("numbered otherwise" in remark for remark in recording.remarks)


def test_another_runs_dispatches_are_not_mixed_in(tmp_path: Path) -> None:
    other = LEVEL.replace("rmsnorm.kd", "softmax.kd")
    recording = read_rocprof_compute(folder(tmp_path / "w", pmc_perf=PERF, SQ_LEVEL_WAVES=other))
    assert recording.partial
    assert "SQ_LEVEL_WAVES" not in recording.dispatches[0].counters
    assert any(
        "SQ_LEVEL_WAVES.csv" in remark and "left out" in remark for remark in recording.remarks
    )


def test_a_table_whose_header_is_broken_is_said(tmp_path: Path) -> None:
    broken = LEVEL.replace("Kernel_Name", "Kernl_Name", 1)
    recording = read_rocprof_compute(folder(tmp_path / "w", pmc_perf=PERF, SQ_LEVEL_WAVES=broken))
    assert recording.partial
    assert any("SQ_LEVEL_WAVES.csv" in remark for remark in recording.remarks)


def test_rounded_times_are_not_known(tmp_path: Path) -> None:
    rounded = TIMES.replace("1000,3500", "8.1097E+14,8.1097E+14")
    recording = read_rocprof_compute(folder(tmp_path / "w", timestamps=rounded))
    assert [one.duration_ns for one in recording.dispatches] == [None, 250]
    assert any("rounded" in remark for remark in recording.remarks)


def test_a_table_by_itself_and_what_is_none(tmp_path: Path) -> None:
    path = wide(tmp_path / "w")
    assert matches(path / "pmc_perf.csv")
    assert len(read_rocprof_compute(path / "pmc_perf.csv").dispatches) == 2
    assert not matches(path / "sysinfo.csv")
    empty = folder(tmp_path / "empty")
    assert not matches(empty)
    with pytest.raises(ResultFileError, match="no table of counters"):
        read_rocprof_compute(empty)


def by_hand(workload: Path) -> tuple[set[str], dict[str, float]]:
    """Ids of dispatches and the sum over them of each counter that only one table has."""
    ids: set[str] = set()
    sums: dict[str, dict[str, float]] = defaultdict(dict)
    for file in sorted(workload.glob("*.csv")):
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        if "Dispatch_ID" not in rows[0] or file.name == "pmc_dispatch_info.csv":
            continue
        if file.name != "timestamps.csv":
            ids |= {row["Dispatch_ID"] for row in rows}
        for row in rows:
            pairs = {row["Counter_Name"]: row["Counter_Value"]} if "Counter_Name" in row else row
            for name, value in pairs.items():
                if name.startswith(("SQ", "TC", "TA_", "TD_", "GRBM", "SPI", "CP")):
                    sums[name][file.name] = sums[name].get(file.name, 0) + float(value)
    alone = {name: next(iter(found.values())) for name, found in sums.items() if len(found) == 1}
    return ids, alone


def summed(recording: Recording) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for one in recording.dispatches:
        for name, value in one.counters.items():
            sums[name] += value
    return sums


@pytest.mark.parametrize("name", ["long_MI300X", "wide_MI200", "wide_MI300X"])
def test_every_sample(samples: Path, name: str) -> None:
    workload = samples / "rocprof_compute" / name
    recording = read_rocprof_compute(workload)
    ids, sums = by_hand(workload)
    assert not recording.partial
    assert {str(one.dispatch_id) for one in recording.dispatches} == ids
    found = summed(recording)
    assert len(sums) >= 29
    assert {counter: found.get(counter) for counter in sums} == pytest.approx(sums)
    assert {one.kernel.partition("(")[0] for one in recording.dispatches} == {"vecCopy"}
    assert recording.agents[-1].name in ("gfx942", "gfx90a")


def test_the_samples_level_sums_keep_apart(samples: Path) -> None:
    workload = samples / "rocprof_compute" / "wide_MI200"
    found = summed(read_rocprof_compute(workload))
    tables = sorted(workload.glob("SQ_*.csv"))
    assert len(tables) == 5
    for table in tables:
        with table.open(newline="") as lines:
            expected = sum(float(row["SQ_ACCUM_PREV_HIRES"]) for row in csv.DictReader(lines))
        assert found[f"{table.stem}_ACCUM"] == expected


FORMS = {"wide": PERF, "long": LONG, "level": LEVEL, "system": SYSTEM, "roofline": ROOFLINE}
NAMES = {"wide": "pmc_perf", "long": "pmc_perf", "level": "SQ_LEVEL_WAVES", "system": "sysinfo"}


def broken(tmp_path: Path, form: str, count: int) -> tuple[int, int]:
    workload = wide(tmp_path / "workload")
    path = workload / f"{NAMES.get(form, form)}.csv"

    return read_all(FORMS[form].encode(), count, path, lambda _: read_rocprof_compute(workload))


@pytest.mark.parametrize("form", FORMS)
def test_broken_files(tmp_path: Path, form: str) -> None:
    refused, recorded = broken(tmp_path, form, FEW)
    assert refused + recorded == FEW
    assert recorded > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_broken_files(tmp_path: Path, form: str) -> None:
    assert sum(broken(tmp_path, form, MANY)) == MANY
