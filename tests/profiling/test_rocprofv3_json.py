"""rocprofv3's JSON: totals are those that the json module gives by hand; names come by number."""

from __future__ import annotations

import json
import random
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from mutations import FEW, MANY, MOST_SECONDS, read_all

from rocmforge.errors import ResultFileError, RocmforgeError
from rocmforge.profiling.readers.records import Recording
from rocmforge.profiling.readers.rocprofv3_json import matches, read_rocprofv3_json

MATMUL = "void matmul_q4_k<64, 128>(char const*, float*)"
KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
    {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]},
    {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
    {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
    {"kind": "MEMORY_ALLOCATION", "operations": ["NONE", "MEMORY_ALLOCATION_ALLOCATE"]},
]


def sizes(x: int, y: int, z: int) -> dict[str, int]:
    return {"x": x, "y": y, "z": z}


def info(dispatch: int, kernel: int) -> dict[str, Any]:
    return {
        "size": 72,
        "agent_id": {"handle": 9001},
        "queue_id": {"handle": 2},
        "kernel_id": kernel,
        "dispatch_id": dispatch,
        "private_segment_size": 16,
        "group_segment_size": 4096,
        "workgroup_size": sizes(256, 1, 1),
        "grid_size": sizes(1024 * dispatch, 2, 1),
    }


def record(kind: int, operation: int, start: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "operation": operation,
        "thread_id": 99,
        "correlation_id": {"internal": 11, "external": 0},
        "start_timestamp": start,
        "end_timestamp": start + 50,
        **more,
    }


def counted(dispatch: int, kernel: int, values: dict[int, list[float]]) -> dict[str, Any]:
    records = [
        {"counter_id": {"handle": counter}, "value": value}
        for counter, instances in values.items()
        for value in instances
    ]
    data = record(1, 2, 1000 * dispatch, dispatch_info=info(dispatch, kernel))
    return {"thread_id": 99, "dispatch_data": data, "records": records}


def process(pid: int = 77, dispatches: int = 4) -> dict[str, Any]:
    """One entry as rocprofv3 writes it, with our own kernels and numbers."""
    symbols = [
        {"kernel_id": 5, "formatted_kernel_name": MATMUL, "kernel_name": "_Z11matmul_q4_k.kd"},
        {"kernel_id": 6, "formatted_kernel_name": "", "kernel_name": "rmsnorm.kd"},
    ]
    for symbol in symbols:
        symbol |= {"arch_vgpr_count": 96, "accum_vgpr_count": 8, "sgpr_count": 48}
    agents = [
        {"id": {"handle": 9000}, "type": 1, "name": "Some CPU", "node_id": 0, "cu_count": 16},
        {"id": {"handle": 9001}, "type": 2, "name": "gfx1100", "node_id": 4, "logical_node_id": 1},
    ]
    runs = [
        record(1, 2, 1000 * n, dispatch_info=info(n, 5 + n % 2), stream_id={"handle": 3})
        for n in range(1, dispatches + 1)
    ]
    return {
        "metadata": {"pid": pid, "command": ["rocmforge", "generate"]},
        "agents": agents,
        "counters": [
            {"id": {"handle": 31}, "name": "SQ_WAVES"},
            {"id": {"handle": 32}, "name": "TCC_HIT"},
        ],
        "strings": {
            "buffer_records": KINDS,
            "marker_api": [{"key": 40, "value": "token 7"}],
            "correlation_id": {"external": [{"key": 8, "value": "decode"}]},
        },
        "kernel_symbols": symbols,
        "summary": [],
        "callback_records": {
            "counter_collection": [
                counted(1, 6, {31: [100.0, 28.0], 32: [5.5]}),
                counted(3, 6, {31: [64.0]}),
            ]
        },
        "buffer_records": {
            "kernel_dispatch": runs,
            "hip_api": [record(2, 1, 900), record(2, 0, 800)],
            "marker_api": [record(4, 1, 700, correlation_id={"internal": 40, "external": 0})],
            "memory_copy": [record(3, 1, 600, bytes=8192)],
            "memory_allocation": [record(5, 1, 500, allocation_size=4096)],
            "pc_sample_host_trap": [],
        },
    }


def write(path: Path, *processes: Any) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}), encoding="utf-8")
    return path


def test_a_run_of_a_kernel_and_its_counters(tmp_path: Path) -> None:
    recording = read_rocprofv3_json(write(tmp_path / "results.json", process()))
    assert recording.tool == "rocprofv3"
    assert not recording.partial
    first, second, third, _ = recording.dispatches
    assert (first.kernel, second.kernel) == ("rmsnorm", MATMUL)
    assert (second.start_ns, second.end_ns) == (2000, 2050)
    assert (second.agent, second.queue, second.stream) == ("Agent 1", "2", "3")
    assert (second.dispatch_id, second.grid, second.workgroup) == (2, (2048, 2, 1), (256, 1, 1))
    assert (second.lds_bytes, second.scratch_bytes) == (4096, 16)
    assert (second.vgprs, second.accum_vgprs, second.sgprs) == (96, 8, 48)
    assert first.counters == {"SQ_WAVES": 128, "TCC_HIT": 5.5}
    assert second.counters == {}
    assert third.counters == {"SQ_WAVES": 64}
    assert second.more["Process_Id"] == "77"
    assert second.more["Kernel_Id"] == "5"


def test_copies_calls_and_agents(tmp_path: Path) -> None:
    recording = read_rocprofv3_json(write(tmp_path / "results.json", process()))
    (copy,) = recording.copies
    assert (copy.direction, copy.nbytes, copy.end_ns) == ("host_to_device", 8192, 650)
    assert [(one.domain, one.function, one.start_ns, one.nbytes) for one in recording.calls] == [
        ("HIP_RUNTIME_API", "hipLaunchKernel", 900, None),
        ("HIP_RUNTIME_API", "hipMalloc", 800, None),
        ("MARKER_CORE_RANGE_API", "token 7", 700, None),
        ("MEMORY_ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", 500, 4096),
    ]
    assert {one.thread for one in recording.calls} == {99}
    cpu, gpu = recording.agents
    assert (cpu.name, cpu.kind, gpu.name, gpu.kind) == ("Some CPU", "cpu", "gfx1100", "gpu")
    assert cpu.properties["cu_count"] == "16"


def test_processes_keep_their_own_names(tmp_path: Path) -> None:
    other = process(pid=78, dispatches=2)
    other["kernel_symbols"][0]["formatted_kernel_name"] = "rope(float*)"
    recording = read_rocprofv3_json(write(tmp_path / "results.json", process(), other))
    kernels = [(run.more["Process_Id"], run.kernel) for run in recording.dispatches]
    assert kernels[1] == ("77", MATMUL)
    assert kernels[4:6] == [("78", "rmsnorm"), ("78", "rope(float*)")]
    # The other process has counters of its third run and no record of that run.
    assert [run.counters.get("SQ_WAVES") for run in recording.dispatches[4:]] == [128, None, 64]
    assert len(recording.calls) == 8


def test_one_process_without_a_list(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": process()}), encoding="utf-8")
    assert len(read_rocprofv3_json(path).dispatches) == 4


def test_a_renamed_kernel_says_its_region(tmp_path: Path) -> None:
    entry = process()
    entry["buffer_records"]["kernel_dispatch"][1]["correlation_id"]["external"] = 8
    recording = read_rocprofv3_json(write(tmp_path / "results.json", entry))
    assert recording.dispatches[1].more["Region"] == "decode"
    assert "Region" not in recording.dispatches[0].more


def test_names_that_are_not_in_the_file_are_said(tmp_path: Path) -> None:
    entry = process()
    entry["kernel_symbols"] = []
    entry["counters"] = entry["counters"][:1]
    entry["buffer_records"]["hip_api"][0]["operation"] = 500
    recording = read_rocprofv3_json(write(tmp_path / "results.json", entry))
    assert [run.kernel for run in recording.dispatches[:2]] == ["kernel 6", "kernel 5"]
    assert recording.dispatches[0].counters == {"SQ_WAVES": 128}
    assert recording.calls[0].function == "operation 500"
    assert recording.partial
    remarks = "\n".join(recording.remarks)
    assert "the kernel's name is not in the file" in remarks
    assert "no counter's name or value" in remarks
    assert "the function's name is not in the file" in remarks


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    entry = process()
    entry["buffer_records"]["pc_sample_host_trap"] = [{"inst_index": 1}] * 3
    entry["callback_records"]["spm_counter_collection"] = [{}]
    recording = read_rocprofv3_json(write(tmp_path / "results.json", entry))
    assert any(line.startswith("3 records: pc_sample_host_trap") for line in recording.remarks)
    assert any(line.startswith("1 record: spm_counter") for line in recording.remarks)
    assert not recording.partial


def test_the_summary_is_read_of_what_has_no_single_records(tmp_path: Path) -> None:
    entry = process()
    stats = {"count": 3, "sum": 300, "min": 90, "max": 110, "mean": 100.0}

    def domain(name: str, operation: str) -> dict[str, Any]:
        return {
            "domain": name,
            "stats": {**stats, "operations": [{"key": operation, "value": stats}]},
        }

    entry["summary"] = [
        domain("KERNEL_DISPATCH", MATMUL),
        domain("HIP_API", "hipFree"),
        domain("MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_HOST"),
        domain("RCCL_API", "ncclAllReduce"),
    ]
    (total,) = read_rocprofv3_json(write(tmp_path / "a.json", entry)).totals
    assert (total.domain, total.name, total.calls) == ("RCCL_API", "ncclAllReduce", 3)
    assert (total.total_ns, total.least_ns, total.most_ns) == (300, 90, 110)
    entry["buffer_records"] = {}
    entry["callback_records"] = {}
    totals = read_rocprofv3_json(write(tmp_path / "b.json", entry)).totals
    assert [(one.domain, one.name) for one in totals] == [
        ("kernel", MATMUL),
        ("HIP_API", "hipFree"),
        ("copy", "device_to_host"),
        ("RCCL_API", "ncclAllReduce"),
    ]


def test_broken_parts_cost_themselves(tmp_path: Path) -> None:
    entry = process()
    entry["buffer_records"]["kernel_dispatch"][0] = None
    entry["buffer_records"]["kernel_dispatch"][1]["dispatch_info"]["grid_size"]["x"] = "many"
    entry["buffer_records"]["kernel_dispatch"][2]["end_timestamp"] = 1e300
    entry["buffer_records"]["hip_api"] = {"no": "list"}
    recording = read_rocprofv3_json(write(tmp_path / "results.json", entry, 5))
    assert recording.partial
    by_id = {run.dispatch_id: run for run in recording.dispatches}
    assert by_id[2].grid is None
    assert by_id[3].counters == {"SQ_WAVES": 64}
    assert by_id[4].duration_ns == 50
    remarks = "\n".join(recording.remarks)
    assert "hip_api is no list" in remarks
    assert "no object, left out (first: rocprofiler-sdk-tool[1])" in remarks


BAD = {
    "nothing of it": '{"traceEvents": []}',
    "an empty list": '{"rocprofiler-sdk-tool": []}',
    "a number": '{"rocprofiler-sdk-tool": 5}',
    "cut": '{"rocprofiler-sdk-tool": [{"metadata": {"pid"',
    "deep": '{"rocprofiler-sdk-tool": ' + "[" * 200_000,
    "a list": "[1, 2]",
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_file_that_is_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(BAD[name], encoding="utf-8")
    with pytest.raises(ResultFileError, match=r"bad\.json: .*wanted rocprofv3's JSON"):
        read_rocprofv3_json(path)


def test_it_knows_its_file(tmp_path: Path) -> None:
    assert matches(write(tmp_path / "results.json", process()))
    (tmp_path / "other.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert not matches(tmp_path / "other.json")
    assert not matches(tmp_path / "none.json")
    assert not matches(tmp_path)


def test_the_real_file(samples: Path) -> None:
    (path,) = sorted((samples / "rocprofv3_json").glob("*.json"))
    assert matches(path)
    recording = read_rocprofv3_json(path)
    (entry,) = json.loads(path.read_text())["rocprofiler-sdk-tool"]
    records = entry["buffer_records"]["kernel_dispatch"]
    runs = recording.dispatches
    assert len(runs) == len(records) > 0
    total = sum(one["end_timestamp"] - one["start_timestamp"] for one in records)
    assert sum(run.duration_ns or 0 for run in runs) == total
    threads = sum(one["dispatch_info"]["grid_size"]["x"] for one in records)
    assert sum(run.grid[0] for run in runs if run.grid) == threads
    names = {one["kernel_id"]: one["formatted_kernel_name"] for one in entry["kernel_symbols"]}
    kernels = [names[one["dispatch_info"]["kernel_id"]] for one in records]
    assert [run.kernel for run in runs] == kernels
    assert [one.name for one in recording.agents] == [one["name"] for one in entry["agents"]]
    assert [one.kind for one in recording.agents].count("gpu") == sum(
        one["type"] == 2 for one in entry["agents"]
    )
    assert not recording.partial


STRANGE = (None, -1, 10**30, 1e308, "text", "", [], {}, True, [[]], {"handle": {}}, float("nan"))


def broken(value: Any, rng: random.Random) -> Any:
    """Return a document with one part replaced, removed or doubled."""
    copied = deepcopy(value)
    at = copied
    while True:
        keys: list[Any] = list(at if isinstance(at, dict) else range(len(at)))
        key = rng.choice(keys)
        if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.85:
            at = at[key]
            continue
        way = rng.random()
        if way < 0.7:
            at[key] = rng.choice(STRANGE)
        elif way < 0.85 or isinstance(at, dict):
            del at[key]
        else:
            at.append(at[key])
        return copied


def read_broken(count: int, path: Path) -> int:
    """Read documents with parts of other types; return how many gave a recording."""
    document = {"rocprofiler-sdk-tool": [process(dispatches=3)]}
    recorded = 0
    for seed in range(count):
        rng = random.Random(seed)
        changed: Any = document
        for _ in range(rng.randint(1, 3)):
            changed = broken(changed, rng) if changed else changed
        path.write_text(json.dumps(changed), encoding="utf-8")
        start = time.monotonic()
        recording = None
        message = ""
        try:
            recording = read_rocprofv3_json(path)
        except RocmforgeError as error:
            message = str(error)
        if recording is None:
            assert path.name in message, f"seed {seed}: {message}"
        else:
            assert isinstance(recording, Recording), f"seed {seed}"
            assert not recording.partial or recording.remarks, f"seed {seed}"
            recorded += 1
        assert time.monotonic() - start < MOST_SECONDS, f"seed {seed}"
    return recorded


def test_broken_bytes_and_parts_of_other_types(tmp_path: Path) -> None:
    content = write(tmp_path / "results.json", process()).read_bytes()
    refused, recorded = read_all(content, FEW, tmp_path / "broken.json", read_rocprofv3_json)
    assert refused
    assert recorded
    assert read_broken(FEW, tmp_path / "parts.json") > FEW // 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_broken_files(tmp_path: Path) -> None:
    content = write(tmp_path / "results.json", process()).read_bytes()
    refused, recorded = read_all(content, MANY, tmp_path / "broken.json", read_rocprofv3_json)
    assert refused > 100
    assert recorded > 100
    assert read_broken(MANY, tmp_path / "parts.json") > MANY // 2
