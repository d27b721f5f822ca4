"""A profiler of another maker from its command to the table: run under a stand-in of rocprofv3."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
import standin_rocprofv3 as standin

from rocmforge.errors import ProfilerError
from rocmforge.profiling import external, tools
from rocmforge.profiling.external import profile_with, table
from rocmforge.profiling.join import op_of

PROGRAM = [sys.executable, "-c", "open('ran', 'a').write('x')"]
MEMORY = ("FETCH_SIZE", "WRITE_SIZE", "GL2C_HIT_sum", "GL2C_MISS_sum")

Play = Callable[..., None]


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Put the stand-in on the PATH as rocprofv3; called with its behaviour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def play(**behaviour: Any) -> None:
        path = tmp_path / "bin/rocprofv3"
        run = f"exec(compile(open({standin.__file__!r}).read(), 'rocprofv3', 'exec'))\n"
        executable(path, f"#!{sys.executable}\n{run}")
        path.with_name("behaviour.json").write_text(json.dumps(behaviour))

    return play


def sysfs(root: Path, level: str | None, version: int = 110000) -> Path:
    """The driver's files of one card of AMD."""
    node = root / "sys/class/kfd/kfd/topology/nodes/1"
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    node.mkdir(parents=True)
    device.mkdir(parents=True)
    lines = f"gfx_target_version {version}\nlocation_id 768\ndomain 0\n"
    (node / "properties").write_text(lines)
    if level is not None:
        (device / "power_dpm_force_performance_level").write_text(f"{level}\n")
    return root


@pytest.mark.parametrize("form", ["rocpd", "csv"])
def test_kernels_of_rocprofv3_are_joined_with_our_ops(
    tmp_path: Path, play: Play, form: str
) -> None:
    play(forms=[form])
    root = sysfs(tmp_path / "root", "profile_standard")
    found = profile_with("rocprofv3", "memory", PROGRAM, tmp_path / "out", root=root)
    assert found.version == "1.1.0"
    assert found.architecture == "gfx1100"
    assert (tmp_path / "ran").read_text() == "x" * len(found.commands)  # once for each run
    assert all(form in argv for argv in found.commands)
    rows = {(row.kernel, row.vgprs): row for row in found.kernels}
    total = sum(calls * each for _, calls, each, *_ in standin.KERNELS)
    for number, (name, calls, each, _, lds, vgprs, sgprs) in enumerate(standin.KERNELS):
        row = rows[name, vgprs]
        assert (row.calls, row.total_ns, row.sgprs) == (calls, calls * each, sgprs)
        assert row.lds_bytes == lds
        assert row.mean_ns == each
        assert row.share == pytest.approx(calls * each / total)
        for counter in MEMORY:
            assert row.counters[counter] == 1000.0 * (number + 1) + len(counter)
    assert len(rows) == len(standin.KERNELS)
    assert found.kernels[0].op == "matmul"
    assert found.kernels[0].file == "kernels/matmul.hip"
    assert rows["attention_prompt", 120].op == "attention"
    assert rows["__amd_rocclr_copyBuffer", 16].op is None
    titles, *cells = table(found)
    assert titles[:3] == ["op", "kernel", "calls"]
    assert cells[0][:4] == ["matmul", "matmul", "64", "1.344"]
    kept = json.loads((tmp_path / "out/profile.json").read_text())
    assert kept["kernels"][0]["counters"]["FETCH_SIZE"] == 1010.0
    assert kept["commands"] == [list(argv) for argv in found.commands]


def test_the_kernel_recipe_needs_no_card_and_one_run(tmp_path: Path, play: Play) -> None:
    play()
    found = profile_with("rocprofv3", "kernel", PROGRAM, tmp_path / "out", root=tmp_path)
    assert (found.architecture, len(found.commands)) == (None, 1)
    assert [copy.nbytes for copy in found.recordings[0].copies] == [4096]
    assert found.kernels[0].counters == {}


def test_counters_that_were_dropped_or_are_zero_are_said(tmp_path: Path, play: Play) -> None:
    play(drop=["SQ_WAIT_ANY"], zero=["SQ_WAVES", "SQ_WAIT_INST_ANY"])
    root = sysfs(tmp_path / "root", "auto")
    asked = ["SQ_WAIT_ANY", "SQ_WAVES", "SQ_WAIT_INST_ANY", "SQ_WAVE_CYCLES"]
    found = profile_with("rocprofv3", "stall", PROGRAM, tmp_path / "out", counters=asked, root=root)
    values = found.kernels[0].counters
    assert values["SQ_WAVES"] is None
    assert values["SQ_WAIT_INST_ANY"] is None
    assert values["SQ_WAVE_CYCLES"] == 1014.0
    assert "SQ_WAIT_ANY" not in values
    said = "\n".join(found.remarks)
    assert "was asked for SQ_WAIT_ANY, and returned no value" in said
    assert "performance level is 'auto'" in said
    assert "sudo amd-smi set --perf-level STABLE_STD" in said
    titles, first, *_ = table(found)
    assert first[titles.index("SQ_WAVES")] == "invalid"
    # At the level that profilers ask for, a zero of what may be zero is one.
    steady = sysfs(tmp_path / "steady", "profile_standard")
    again = profile_with(
        "rocprofv3", "stall", PROGRAM, tmp_path / "out2", counters=asked, root=steady
    )
    assert again.kernels[0].counters["SQ_WAIT_INST_ANY"] == 0.0
    assert again.kernels[0].counters["SQ_WAVES"] is None


def test_a_run_whose_counters_were_all_dropped_counts_no_kernel_twice(
    tmp_path: Path, play: Play
) -> None:
    play(drop=["SQ_WAVES"])
    root = sysfs(tmp_path / "root", "profile_standard")
    found = profile_with(
        "rocprofv3", "stall", PROGRAM, tmp_path / "out", counters=["SQ_WAVES"], root=root
    )
    assert {row.kernel: row.calls for row in found.kernels}["rmsnorm"] == 65
    assert any("returned no value" in line for line in found.remarks)


ROCPROF = """
import sys
words = sys.argv[1:]
lines = open(words[words.index("-i") + 1]).read().splitlines() if "-i" in words else []
names = [name for line in lines if line.startswith("pmc: ") for name in line.split()[1:]]
titles = ["Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr"]
titles += ["lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", *names]
titles += ["DispatchNs", "BeginNs", "EndNs", "CompleteNs", "DurationNs"]
with open(words[words.index("-o") + 1], "w") as file:
    print(",".join(titles), file=file)
    for index in range(4):
        row = [index, '"matmul_dot4.kd"', 0, 0, index, 7, 7, 4096, 64, 512, 0, 72, 0, 32, 64]
        row += ["0x0", "0x7f", *(100 for name in names)]
        begin = 1000 * (index + 1)
        print(*row, begin, begin, begin + 250, begin + 260, 250, sep=",", file=file)
"""


@pytest.mark.parametrize("recipe", ["kernel", "compute-unit"])
def test_rocprof_is_run_and_read_too(tmp_path: Path, play: Play, recipe: str) -> None:
    play()
    executable(tmp_path / "bin/rocprof", f"#!{sys.executable}\n{ROCPROF}")
    found = profile_with("rocprof", recipe, PROGRAM, tmp_path / "out", architecture="gfx906")
    (row,) = found.kernels
    assert (row.op, row.kernel, row.file) == ("matmul", "matmul_dot4", "kernels/matmul_dot4.hip")
    assert (row.calls, row.total_ns, row.vgprs, row.lds_bytes) == (4, 1000, 72, 512)
    assert set(row.counters.values()) == (set() if recipe == "kernel" else {100.0})
    assert any("support ended" in remark for remark in found.remarks)


COMPUTE = """
import pathlib, sys
words = sys.argv[1:]
if "--help" in words:
    print("--output-directory  --block metric id(s) from --list-metrics")
    sys.exit()
folder = pathlib.Path(words[words.index("--output-directory") + 1])
folder.mkdir(parents=True)
rows = ["Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,"
        "Arch_VGPR,Accum_VGPR,SGPR,Kernel_Name,Start_Timestamp,End_Timestamp,Kernel_ID,"
        "SQ_WAVES,CPC_CPC_STAT_BUSY"]
for index in range(3):
    begin = 900 * (index + 1)
    rows.append(f"{index},0,4096,256,0,0,40,0,32,rmsnorm,{begin},{begin + 70},1,16,5")
(folder / "pmc_perf.csv").write_text("\\n".join(rows) + "\\n")
"""


def test_rocprof_compute_is_run_and_read_too(tmp_path: Path, play: Play) -> None:
    play()
    executable(tmp_path / "bin/rocprof-compute", f"#!{sys.executable}\n{COMPUTE}")
    found = profile_with(
        "rocprof-compute", "stall", PROGRAM, tmp_path / "out", architecture="gfx942"
    )
    assert "--block" in found.commands[0]
    assert "--format-rocprof-output" not in found.commands[0]  # its help does not have it
    (row,) = found.kernels
    assert (row.op, row.calls, row.total_ns, row.mean_ns) == ("rmsnorm", 3, 210, 70.0)
    assert dict(row.counters) == {"SQ_WAVES": 16.0, "CPC_CPC_STAT_BUSY": 5.0}
    titles, _ = table(found)
    assert titles[-1] == "SQ_WAVES"  # of the hundreds that it returns, those that we know


@pytest.mark.parametrize(
    ("tool", "recipe", "options", "message"),
    [
        ("rocperf", "kernel", {}, "there is no tool called rocperf"),
        ("omniperf", "kernel", {}, "is called rocprof-compute since"),
        ("gdb", "kernel", {}, "got 'gdb'; wanted one of rocprofv3, rocprof"),
        ("rocprofv3", "everything", {}, "got 'everything', wanted one of kernel, memory"),
        ("rocprofv3", "memory", {}, "got no AMD GPU"),
        ("rocprofv3", "memory", {"architecture": "sm_90"}, "got architecture 'sm_90'"),
        (
            "rocprofv3",
            "kernel",
            {"architecture": "gfx1100", "counters": ["SQ_LDS_BANK_CONFLICT"]},
            r"which gfx1100 does not have \(it is on gfx906.*wanted SQC_LDS_BANK_CONFLICT",
        ),
        ("perf", "memory", {}, "recipe kernel only"),
        ("rocprof-compute", "memory", {"architecture": "gfx1100"}, "rocprofv3 knows this card"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(
    tmp_path: Path, play: Play, tool: str, recipe: str, options: dict[str, Any], message: str
) -> None:
    play()
    with pytest.raises(ValueError, match=message):
        profile_with(tool, recipe, PROGRAM, tmp_path / "out", root=tmp_path, **options)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_stays_as_it_is(tmp_path: Path, play: Play) -> None:
    play()
    kept = tmp_path / "out/mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(ValueError, match="wanted a new or an empty folder"):
        profile_with("rocprofv3", "kernel", PROGRAM, kept.parent, root=tmp_path)
    assert kept.read_text() == "mine"
    with pytest.raises(ValueError, match="got a file"):
        profile_with("rocprofv3", "kernel", PROGRAM, kept, root=tmp_path)


def test_a_program_that_is_not_there_is_named(tmp_path: Path, play: Play) -> None:
    play()
    with pytest.raises(ValueError, match="got 'no-such-program', wanted a program"):
        profile_with("rocprofv3", "kernel", ["no-such-program"], tmp_path / "out", root=tmp_path)


def test_a_missing_tool_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "where", lambda name: None)
    with pytest.raises(ProfilerError, match=r"not installed.*apt .* install rocprofiler-sdk"):
        profile_with("rocprofv3", "kernel", PROGRAM, tmp_path / "out", root=tmp_path)


def test_a_failure_has_the_exit_code_and_the_last_lines(tmp_path: Path, play: Play) -> None:
    play()
    program = [sys.executable, "-c", "import sys; print('it broke', file=sys.stderr); sys.exit(3)"]
    with pytest.raises(ProfilerError, match=r"exit code 3.*it broke \| Fatal error"):
        profile_with("rocprofv3", "kernel", program, tmp_path / "out", root=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]  # nothing is left over


def test_a_full_disk_is_named(tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play()
    program = [sys.executable, "-c", "import sys, os; sys.exit(os.strerror(28))"]
    with pytest.raises(ProfilerError, match=r"exit code 1; a disk is full \(not that of /"):
        profile_with("rocprofv3", "kernel", program, tmp_path / "out", root=tmp_path)
    monkeypatch.setattr(external, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(ProfilerError, match=f"the disk of {re.escape(str(tmp_path))} is full"):
        profile_with("rocprofv3", "kernel", program, tmp_path / "out", root=tmp_path)


def test_a_tool_that_writes_nothing_is_an_error(tmp_path: Path, play: Play) -> None:
    play(silent=True)
    with pytest.raises(ProfilerError, match="ended, but wrote nothing"):
        profile_with("rocprofv3", "kernel", PROGRAM, tmp_path / "out", root=tmp_path)


def test_a_crash_names_the_signal(tmp_path: Path, play: Play) -> None:
    play()
    executable(tmp_path / "bin/rocprofv3", "#!/bin/sh\n[ $1 = --help ] || kill -SEGV $$\n")
    with pytest.raises(ProfilerError, match="killed by SIGSEGV"):
        profile_with("rocprofv3", "kernel", PROGRAM, tmp_path / "out", root=tmp_path)


STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
)


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody has waited for has."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_the_limit_ends_the_program_too(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play()
    monkeypatch.setattr(external, "PATIENCE_SECONDS", 0.2)
    program = [sys.executable, "-c", STUBBORN]
    with pytest.raises(ProfilerError, match="stopped after 3 s, the limit"):
        profile_with(
            "rocprofv3", "kernel", program, tmp_path / "out", root=tmp_path, limit_seconds=3
        )
    assert gone(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_program_too(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play()
    monkeypatch.setattr(external, "PATIENCE_SECONDS", 0.2)

    def interrupt() -> None:
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        profile_with(
            "rocprofv3",
            "kernel",
            [sys.executable, "-c", STUBBORN],
            tmp_path / "out",
            root=tmp_path,
            limit_seconds=60,
        )
    assert gone(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "out").exists()


def test_every_kernel_of_ours_has_an_op(repo: Path) -> None:
    for file in (repo / "kernels").glob("*.hip"):
        names = re.findall(r"^KERNEL(?:_[A-Z]+)?\((\w+)", file.read_text("utf-8"), re.M)
        assert names, file
        for name in names:
            found = op_of(name)
            assert found is not None
            assert found[1] == f"kernels/{file.name}"
    assert [op_of(name)[0] for name in ("matmul_dot4", "argmax_parts")] == ["matmul", "argmax"]
    assert op_of("Cijk_Ailk_Bljk") is None


def test_perf_makes_a_flame_graph(tmp_path: Path) -> None:
    probe = ["perf", "record", "-e", "cpu-clock", "-o", str(tmp_path / "probe"), "true"]
    if shutil.which("perf") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("perf is not here, or may not record")
    busy = "import time\nend = time.time() + 1\nwhile time.time() < end: sum(range(1000))"
    program = [sys.executable, "-c", busy]
    found = profile_with("perf", "kernel", program, tmp_path / "out", limit_seconds=60)
    assert found.stacks is not None
    assert found.stacks.event == "cpu-clock"
    assert found.stacks.total > 50
    titles, *rows = table(found)
    assert titles == ["function", "samples", "share"]
    assert sum(int(row[1]) for row in rows) == found.stacks.total
    minidom.parse(str(tmp_path / "out/flame_graph.svg"))
    lines = (tmp_path / "out/stacks.txt").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == found.stacks.total
