"""Text traces of roctracer: every record that the file holds, counted by hand."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from mutations import FEW, MANY, MOST_SECONDS, read_all

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.api_traces import matches, read_api_traces

TRACE = """ROCTracer (pid=77):
0x55aa agent cpu
0x55bb agent gpu
1000000000
    HIP-trace()
loading a model ...
1000000100:1000000900 77:78 hipMemcpy(dst=0x7f, src=0x6f, sizeBytes=4096, kind=1) :3
1000001000:1000001400 77:78 hipLaunchKernel(args=0x1, stream=0) kernel=matmul_q4_k(float*) :4
1000001500:1000001600 77:79 hsa_signal_create(1, 0) = 0 :5
1000000200:1000000700 0:1 CopyHostToDevice:3:77
1000001700:1000002950 0:2 KernelExecution:4:77
1000003000:1000003500 0:2 rmsnorm(float*, int):6:77
1000003600:1000003700 0:2 Marker:7:77
1000004000:1000004250 async-copy:8:77
"""
RANGES = """1000000100 5:6 1:0:"prefill"
1000000200 5:6 1:0:"layer 0"
1000000300 5:6 2:0:""
1000000350 5:7 3:1:"copying"
1000000360 5:6 0:0:"a moment"
1000000400 5:6 2:0:""
1000000900 5:8 4:1:""
"""
ACTIVITY = """<hipLaunchKernel id(107)\tcorrelation_id(9) on-enter pid(5) tid(6)>
<hipLaunchKernel id(107)\tcorrelation_id(9) on-exit pid(5) tid(6)>
\thipLaunchKernel\tcorrelation_id(9) time_ns(1000:1500)
\trope(float*)\tcorrelation_id(9) time_ns(2000:2750) device_id(0) queue_id(3)
\tCopyDeviceToHost\tcorrelation_id(10) time_ns(3000:3100) device_id(0) queue_id(3) bytes(0x1000)
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_long_line_is_read_in_time(tmp_path: Path) -> None:
    words = "1000000100:1000000900 77:78 hipLaunchKernel() kernel=" + "x :a" * 50_000 + ";"
    path = write(tmp_path / "trace.txt", f"{TRACE} a{' ' * 200_000}b\n{words}\n")
    start = time.monotonic()
    assert matches(path)
    assert len(read_api_traces(path).calls) == 4
    assert time.monotonic() - start < MOST_SECONDS


def test_calls_kernels_and_copies(tmp_path: Path) -> None:
    recording = read_api_traces(write(tmp_path / "hip_api_trace.txt", TRACE))
    assert not recording.partial
    calls = [(c.domain, c.function, c.end_ns - c.start_ns, c.thread) for c in recording.calls]
    assert calls == [
        ("HIP_API", "hipMemcpy", 800, 78),
        ("HIP_API", "hipLaunchKernel", 400, 78),
        ("HSA_API", "hsa_signal_create", 100, 79),
    ]
    kernels = [(d.kernel, d.duration_ns, d.agent, d.queue) for d in recording.dispatches]
    assert kernels == [
        ("matmul_q4_k(float*)", 1250, "0", "2"),
        ("rmsnorm(float*, int)", 500, "0", "2"),
    ]
    copies = [(c.direction, c.start_ns, c.end_ns) for c in recording.copies]
    assert copies == [
        ("host_to_device", 1000000200, 1000000700),
        ("async-copy", 1000004000, 1000004250),
    ]
    assert [(a.name, a.kind) for a in recording.agents] == [("0x55aa", "cpu"), ("0x55bb", "gpu")]
    assert any("barrier" in remark for remark in recording.remarks)


def test_a_kernel_without_its_launch_keeps_the_name_of_the_file(tmp_path: Path) -> None:
    text = "1000001700:1000002950 0:2 KernelExecution:4:77\n"
    recording = read_api_traces(write(tmp_path / "hcc_ops_trace.txt", text))
    assert [one.kernel for one in recording.dispatches] == ["KernelExecution"]
    assert any("name is not in the file" in remark for remark in recording.remarks)


def test_ranges_nest_by_thread_and_pair_by_their_number(tmp_path: Path) -> None:
    recording = read_api_traces(write(tmp_path / "roctx_trace.txt", RANGES))
    assert not recording.partial
    found = {call.function: (call.start_ns, call.end_ns, call.thread) for call in recording.calls}
    assert found == {
        "layer 0": (1000000200, 1000000300, 6),
        "a moment": (1000000360, 1000000360, 6),
        "prefill": (1000000100, 1000000400, 6),
        "copying": (1000000350, 1000000900, 7),
    }
    assert {call.domain for call in recording.calls} == {"MARKER"}


def test_a_range_that_never_ends_is_said(tmp_path: Path) -> None:
    text = "".join(RANGES.splitlines(keepends=True)[:2])
    recording = read_api_traces(write(tmp_path / "roctx_trace.txt", text))
    assert recording.partial
    assert not recording.calls
    assert any("prefill" in remark for remark in recording.remarks)


def test_activities_with_callbacks(tmp_path: Path) -> None:
    recording = read_api_traces(write(tmp_path / "trace.txt", ACTIVITY))
    (call,) = recording.calls
    assert (call.function, call.start_ns, call.end_ns, call.thread) == (
        "hipLaunchKernel",
        1000,
        1500,
        6,
    )
    (one,) = recording.dispatches
    assert (one.kernel, one.duration_ns, one.queue) == ("rope(float*)", 750, "3")
    (copy,) = recording.copies
    assert (copy.direction, copy.nbytes) == ("device_to_host", 4096)


def test_a_record_that_was_cut_off_is_counted(tmp_path: Path) -> None:
    recording = read_api_traces(write(tmp_path / "trace.txt", TRACE[:-20]))
    assert recording.partial
    assert any("line 14" in remark for remark in recording.remarks)
    assert len(recording.copies) == 1


def test_a_trace_without_records_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.txt", "ROCTracer (pid=1):\n    KFD-trace()\n1000000000\ndone\n")
    assert matches(path)
    assert read_api_traces(path).remarks == ("the trace has no records",)


def test_other_text_is_no_trace(tmp_path: Path) -> None:
    assert not matches(write(tmp_path / "log.txt", "12:34 started\nloading a model\n"))
    with pytest.raises(ResultFileError, match=r"none\.txt"):
        read_api_traces(tmp_path / "none.txt")


# Counted and summed line by line, with expressions of this test's own.
TIMED_CALL = re.compile(r"^(\d+):(\d+) \d+:\d+ (?:hip|hsa|__hip)\w*\(", re.M)
TIMED_COPY = re.compile(r"^(\d+):(\d+) \d+:\d+ Copy\w+:\d+:\d+$", re.M)
ACTIVITY_LINE = re.compile(r"^\t\S+\t.*time_ns\((\d+):(\d+)\)", re.M)
PUSH_OR_START = re.compile(r"^\d+ \d+:\d+ [13]:", re.M)


def test_every_sample(samples: Path) -> None:
    files = sorted((samples / "roctracer").iterdir())
    assert files
    for path in files:
        text = path.read_text(errors="replace")
        recording = read_api_traces(path)
        assert matches(path)
        assert not recording.partial, path.name
        spans = TIMED_CALL.findall(text) + ACTIVITY_LINE.findall(text)
        calls = [call for call in recording.calls if call.domain != "MARKER"]
        assert len(calls) == len(spans), path.name
        spent = sum(call.end_ns - call.start_ns for call in calls)
        assert spent == sum(int(end) - int(start) for start, end in spans), path.name
        copies = TIMED_COPY.findall(text)
        copied = sum((copy.end_ns or 0) - (copy.start_ns or 0) for copy in recording.copies)
        assert len(recording.copies) == len(copies), path.name
        assert copied == sum(int(end) - int(start) for start, end in copies), path.name
        ranges = [call for call in recording.calls if call.domain == "MARKER"]
        assert len(ranges) == len(PUSH_OR_START.findall(text)), path.name
        untimed = sum(line.startswith("rocTX <") for line in text.splitlines())
        said = [remark for remark in recording.remarks if remark.startswith(f"{untimed} lines")]
        assert bool(said) == bool(untimed), path.name


FORMS = {"api": TRACE, "ranges": RANGES, "activity": ACTIVITY}


@pytest.mark.parametrize("form", FORMS)
def test_broken_files(tmp_path: Path, form: str) -> None:
    content = FORMS[form].encode()
    refused, recorded = read_all(content, FEW, tmp_path / "trace.txt", read_api_traces)
    assert refused + recorded == FEW
    assert recorded > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_broken_files(tmp_path: Path, form: str) -> None:
    content = FORMS[form].encode()
    assert sum(read_all(content, MANY, tmp_path / "trace.txt", read_api_traces)) == MANY
