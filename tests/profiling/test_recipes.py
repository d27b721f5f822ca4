"""The command lines of profilers, word by word as their documentation has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import standin_rocprofv3 as standin

from rocmforge.profiling import counters, recipes
from rocmforge.profiling.recipes import build

OUT = Path("/out")
COMMAND = ["/bin/app", "--kernel-trace", "-o", "x y"]


def test_kernels_by_rocprofv3() -> None:
    (run,) = build("rocprofv3", "kernel", None, COMMAND, OUT)
    assert list(run.argv) == [
        *("rocprofv3", "--kernel-trace", "--memory-copy-trace", "--stats"),
        *("--output-format", "rocpd", "--output-directory", "/out/trace"),
        *("--output-file", "run_%pid%", "--", *COMMAND),
    ]
    assert (run.output, run.counters, dict(run.files)) == (OUT / "trace", (), {})


def test_older_rocprofv3_writes_csv() -> None:
    (run,) = build("rocprofv3", "kernel", None, COMMAND, OUT, features=())
    assert run.argv[run.argv.index("--output-format") + 1] == "csv"


@pytest.mark.parametrize("recipe", recipes.RECIPES)
@pytest.mark.parametrize("card", ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_rocprofv3_takes_every_recipe(
    recipe: str, card: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "rocprofv3")])
    trace, *counted = build("rocprofv3", recipe, card, COMMAND, OUT)
    assert bool(counted) == (recipe != "kernel")
    outputs = {trace.output}
    for run in counted:
        args = standin.arguments(list(run.argv[1:]))  # refuses what rocprofv3 would refuse
        assert args.pmc == list(run.counters)
        assert args.program == COMMAND
        assert args.kernel_trace is None  # its kernels run one by one: their times are not used
        assert Path(args.output_directory) == run.output
        assert (args.kernel_include_regex is not None) == (recipe == "matmul-memory")
        counters.check(run.counters, card)
        outputs.add(run.output)
    assert len(outputs) == 1 + len(counted)
    asked = [name for run in counted for name in run.counters]
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("card", ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1151", "gfx1201"])
def test_what_is_divided_by_each_other_is_counted_in_one_run(card: str) -> None:
    pairs = {
        "memory": [{"TCC_HIT_sum", "TCC_MISS_sum"}, {"GL2C_HIT_sum", "GL2C_MISS_sum"}],
        "stall": [{"SQ_WAIT_ANY", "SQ_WAVE_CYCLES"}],
    }
    for recipe, wanted in pairs.items():
        runs = build("rocprofv3", recipe, card, COMMAND, OUT)
        asked = {name for run in runs for name in run.counters}
        for pair in wanted:
            if pair <= asked:
                assert any(pair <= set(run.counters) for run in runs), pair


def test_counters_of_the_users_own() -> None:
    _, run = build("rocprofv3", "kernel", "gfx1100", COMMAND, OUT, names=["SQ_WAVES"])
    assert run.argv[1:3] == ("--pmc", "SQ_WAVES")
    with pytest.raises(ValueError, match="got no AMD GPU"):
        build("rocprofv3", "kernel", None, COMMAND, OUT, names=["SQ_WAVES"])


def test_the_regex_of_matmuls_takes_our_matmuls_only(repo: Path) -> None:
    _, run, *_ = build("rocprofv3", "matmul-memory", "gfx942", COMMAND, OUT)
    pattern = re.compile(run.argv[run.argv.index("--kernel-include-regex") + 1])
    taken = set()
    for file in (repo / "kernels").glob("*.hip"):
        names = re.findall(r"^KERNEL(?:_[A-Z]+)?\((\w+)", file.read_text("utf-8"), re.M)
        taken |= {name for name in names if pattern.search(name)}
    endings = ("", "_batch", "_prompt", "_f16")
    gemms = {f"matmul{ending}" for ending in (*endings, "_rmsnorm", "_dot4")}
    pairs = {f"gate_up_swiglu{ending}" for ending in endings}
    experts = {f"expert_{name}{end}" for name in ("matmul", "gate_up") for end in ("", "_batch")}
    assert taken == gemms | pairs | experts


def test_rocprof_runs_again_by_itself_for_each_line_of_counters() -> None:
    (run,) = build("rocprof", "kernel", None, COMMAND, OUT)
    words = ("rocprof", "--stats", "--timestamp", "on", "-o", "/out/results.csv")
    assert run.argv == (*words, *COMMAND)
    (run,) = build("rocprof", "matmul-memory", "gfx1100", COMMAND, OUT)
    words = ("rocprof", "-i", "/out/counters.txt", "--timestamp", "on", "-o", "/out/results.csv")
    assert run.argv == (*words, *COMMAND)
    *lines, last = run.files[OUT / "counters.txt"].splitlines()
    assert all(line.startswith("pmc: ") for line in lines)
    asked = [name for line in lines for name in line.split()[1:]]
    assert tuple(sorted(asked)) == tuple(sorted(run.counters))
    assert last == "kernel: matmul gate_up_swiglu expert_gate_up"
    assert "WRITE_SIZE" not in asked  # rocprof's table has it on gfx9 only
    with pytest.raises(ValueError, match="no counters for; wanted rocprofv3"):
        build("rocprof", "memory", "gfx1201", COMMAND, OUT)
    with pytest.raises(ValueError, match="which rocprof lacks"):
        build("rocprof", "memory", "gfx1100", COMMAND, OUT, names=["WRITE_SIZE"])


def test_rocprof_compute() -> None:
    (run,) = build("rocprof-compute", "stall", "gfx942", COMMAND, OUT)
    assert list(run.argv) == [
        *("rocprof-compute", "profile", "--name", "rocmforge"),
        *("--output-directory", "/out/workload", "--no-roof", "--format-rocprof-output", "csv"),
        *("--block", "2", "7", "11", "15", "16", "--", *COMMAND),
    ]
    (run,) = build("rocprof-compute", "matmul-memory", "gfx1151", COMMAND, OUT, features=())
    assert list(run.argv) == [
        *("rocprof-compute", "profile", "--name", "rocmforge", "--path", "/out/workload"),
        *("--no-roof", "--kernel", "matmul", "gate_up_swiglu", "expert_gate_up", "--", *COMMAND),
    ]
    with pytest.raises(ValueError, match="takes none by name"):
        build("rocprof-compute", "stall", "gfx942", COMMAND, OUT, names=["SQ_WAVES"])


def test_perf_records_and_then_prints() -> None:
    record, script = build("perf", "kernel", None, COMMAND, OUT)
    assert list(record.argv) == [
        *("perf", "record", "-e", "cpu-clock", "-F", "499", "-g", "-o", "/out/perf.data", "--"),
        *("env", "PYTHONPERFSUPPORT=1", *COMMAND),
    ]
    assert script.argv == ("perf", "script", "--force", "-i", "/out/perf.data")
    assert script.stdout == script.output == OUT / "perf.txt"


def test_a_command_is_shown_as_one_would_type_it() -> None:
    assert recipes.shown(COMMAND) == "/bin/app --kernel-trace -o 'x y'"
    with pytest.raises(ValueError, match="command: got none"):
        build("perf", "kernel", None, [], OUT)
