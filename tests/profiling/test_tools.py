"""Which profilers are here: versions as they print them; those that hang, fail or are missing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from rocmforge.profiling import tools

SAID = {
    "rocprofv3": "             version: 1.1.0\n    git_revision: abc\n    rocm_version: 7.2.0",
    "rocprof": "ROCm version: 6.4.1-83\nROCProfiler version: 2.0",
    "rocprof-compute": "rocprofiler-compute version: 3.4.0 (release)",
    "amd-smi": "AMDSMI Tool: 26.2.0+021c61fc | AMDSMI Library version: 26.2.0 | ROCm version: 7",
    "rocm-smi": "ROCM-SMI version: 4.0.0+e6a9d51\nROCM-SMI-LIB version: 7.8.0",
    "perf": "perf version 6.1.187",
    "nsys": "NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0",
    "ncu": "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.2.1.0 (build 35987062)",
}
VERSIONS = {
    "rocprofv3": "1.1.0",
    "rocprof": "6.4.1-83",
    "rocprof-compute": "3.4.0",
    "amd-smi": "26.2.0+021c61fc",
    "rocm-smi": "4.0.0+e6a9d51",
    "perf": "6.1.187",
    "nsys": "2025.3.1.90-253135822126v0",
    "ncu": "2025.2.1.0",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "FOLDERS", ())
    return tmp_path


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_versions_are_those_that_the_tools_print(folder: Path) -> None:
    for name, said in SAID.items():
        put(folder, name, f"print({said!r})")
    found = {tool.name: tool for tool in tools.find_tools()}
    assert {name: tool.version for name, tool in found.items()} == VERSIONS
    assert {tool.path for tool in found.values()} == {str(folder / name) for name in SAID}
    assert "support ended" in found["rocprof"].remark
    assert found["rocprofv3"].remark == ""
    json.dumps([tool.to_json() for tool in found.values()])


def test_missing_tools_say_how_to_get_them() -> None:
    for tool in tools.find_tools():
        assert (tool.path, tool.version) == (None, None)
        assert tool.install
        assert tool.purpose
    assert "sudo apt install linux-perf" in tools.find_tool("perf").install.values()


def test_a_tool_outside_the_path_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "rocm").mkdir()
    put(folder / "rocm", "amd-smi", "print('AMDSMI Tool: 26.2.0')")
    monkeypatch.setattr(tools, "FOLDERS", (str(folder / "rocm"),))
    assert tools.find_tool("amd-smi").version == "26.2.0"


def test_a_tool_that_hangs_is_left_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "LIMIT_SECONDS", 0.3)
    put(folder, "perf", "import time; time.sleep(60)")
    start = time.monotonic()
    tool = tools.find_tool("perf")
    assert time.monotonic() - start < 5
    assert (tool.path, tool.version) == (str(folder / "perf"), None)
    assert "no answer within 0.3 s" in tool.remark


def test_a_tool_that_fails_says_why(folder: Path) -> None:
    put(folder, "rocprof-compute", "import sys; sys.exit('No module named pandas')")
    tool = tools.find_tool("rocprof-compute")
    assert tool.version is None
    assert "exit code 1: No module named pandas" in tool.remark
    (folder / "ncu").write_bytes(b"\x7fELF no program")
    (folder / "ncu").chmod(0o755)
    assert "Exec format error" in tools.find_tool("ncu").remark


@pytest.mark.parametrize("name", ["rocperf", "omniperf", "omnitrace", "rocprofv2", "Omniperf"])
def test_names_of_the_past_are_answered(name: str) -> None:
    said = tools.answer(name)
    assert said is not None
    with pytest.raises(ValueError, match=said[:20]):
        tools.find_tool(name)


def test_another_name_is_refused() -> None:
    assert tools.answer("gdb") is None
    with pytest.raises(ValueError, match="tool: got 'gdb', wanted rocprofv3, rocprof"):
        tools.find_tool("gdb")


def test_perf_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    if shutil.which("perf") is None:
        pytest.skip("perf is not here")
    tool = tools.find_tool("perf")
    assert tool.version is not None
    assert "record" in tools.help_text(tool)
