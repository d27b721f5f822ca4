"""`rocmforge profile --with`: a stand-in plays rocprofv3; its kernels are joined and judged."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from rocmforge.cli import main
from rocmforge.model.synthetic import make_model

TOOL = """\
#!{python}
import pathlib, sys
if "--version" in sys.argv or "-V" in sys.argv:
    print("    version: 1.1.0")
    raise SystemExit
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--output-directory") + 1])
folder.mkdir(parents=True, exist_ok=True)
pathlib.Path({noted!r}).write_text("\\n".join(words[words.index("--") + 1 :]))
sizes = ",0,0,32,0,64,64,1,1,4096,1,1"
rows = [
    '"KERNEL_DISPATCH","Agent 0",1,0,7,1,1,"matmul",1,1000,36000' + sizes,
    '"KERNEL_DISPATCH","Agent 0",1,0,7,2,1,"rmsnorm",1,90000,100000' + sizes,
]
titles = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
    '"VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)
(folder / "run_7_kernel_trace.csv").write_text("\\n".join([titles, *rows]) + "\\n")
"""


@pytest.fixture
def rocprofv3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for rocprofv3 on the PATH; returns where it notes the program that it ran."""
    noted = tmp_path / "noted"
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text(TOOL.format(python=sys.executable, noted=str(noted)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return noted


def test_another_profilers_run_is_judged_and_joined(
    rocprofv3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--with", "rocprofv3", "--output", str(tmp_path / "kept"), "--", "true", "-x"]
    assert main(["profile", *words]) == 0
    text = capsys.readouterr().out
    program, option = rocprofv3.read_text().splitlines()
    assert (Path(program).name, option) == ("true", "-x")
    assert "The run is launch-bound." in text  # 54 of 99 microseconds without a kernel
    assert "No kernel runs in 54.5% of the time" in text
    assert re.search(r"^matmul +matmul +1 +0\.035", text, re.M)
    assert f"kept in {tmp_path / 'kept'}" in text


def test_a_long_name_is_cut_unless_all_is_wanted(
    rocprofv3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "bin" / "rocprofv3"
    name = "Cijk_" + 80 * "long"
    tool.write_text(tool.read_text().replace('"rmsnorm"', f'"{name}"'))
    words = ["profile", "--with", "rocprofv3", "--output"]
    assert main([*words, str(tmp_path / "kept"), "--", "true"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 160
    assert main([*words, str(tmp_path / "whole"), "--all", "--", "true"]) == 0
    assert name in capsys.readouterr().out


def test_without_a_command_the_model_is_run(
    rocprofv3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(make_model(tmp_path / "tiny.gguf", "tiny", "Q4_K_M", seed=5, layers=2))
    words = ["--with", "rocprofv3", "--output", str(tmp_path / "kept"), "--json"]
    assert main(["profile", model, "--device", "cpu", "--tokens", "3", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdicts"][0]["bound"] == "launch"
    ran = rocprofv3.read_text().splitlines()
    assert ran[1:5] == ["-m", "rocmforge", "generate", model]
    assert ran[ran.index("-n") + 1] == "3"
    assert ran[ran.index("--device") + 1] == "cpu"
