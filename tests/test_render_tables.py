"""tools/render_tables.py: the committed tables are what the files say; stale ones show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.bench import project


@pytest.fixture
def tool(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, over a copy of the files that it reads and writes."""
    module = tool_module("render_tables")
    shutil.copytree(repo / "baselines", tmp_path / "baselines")
    shutil.copytree(repo / "docs", tmp_path / "docs")
    shutil.copy(repo / "README.md", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(repo / "benchmarks" / "coverage.txt", tmp_path / "benchmarks")
    monkeypatch.setattr(module, "REPO", tmp_path)
    return module


def test_the_committed_tables_are_current(tool: Any) -> None:
    assert tool.main(["--check"]) == 0


def git(folder: Path, *words: str) -> str:
    said = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", *said, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_measurement_of_a_commit_that_is_not_there_is_named(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool._commits_exist()
    assert "not checked, this is no clone" in capsys.readouterr().out
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "measured")
    commit = git(tmp_path, "rev-parse", "HEAD")
    shutil.rmtree(tmp_path / "baselines")
    made = tmp_path / "baselines" / "box" / "trials.json"
    made.parent.mkdir(parents=True)
    both = {"before": commit[:8], "after": "f" * 40, "rows": [{"before": "1.5", "after": "x"}]}
    made.write_text(json.dumps(both))
    entry = {"metadata": {"commit": "e" * 40, "samples": [1.0]}}
    stored = {"baselines": {"m.time": entry}, "metadata": {"commit": commit}}
    (made.parent / "more.json").write_text(json.dumps(stored))
    assert tool.lost_commits(tmp_path) == []  # not committed: nobody else has them
    git(tmp_path, "add", "baselines")
    lost = [
        f"baselines/box/more.json: commit {'e' * 40} is not in this repository",
        f"baselines/box/trials.json: commit {'f' * 40} is not in this repository",
    ]
    assert tool.lost_commits(tmp_path) == lost
    assert not tool._commits_exist()
    assert capsys.readouterr().out.splitlines() == lost
    git(tmp_path, "commit", "-q", "-m", "stored")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}", "shallow")
    assert tool.lost_commits(tmp_path / "shallow") is None


def test_a_changed_measurement_changes_its_row_alone(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (tmp_path / "baselines").glob("*/formats.json")
    report = json.loads(path.read_text())
    report["formats"]["Q4_K"]["kl_nats"] = 7.25
    path.write_text(json.dumps(report))
    page = tmp_path / "docs" / "PERFORMANCE.md"
    before = page.read_text()
    assert tool.main(["--check"]) == 1
    assert "PERFORMANCE.md: stale" in capsys.readouterr().out
    assert page.read_text() == before
    assert tool.main([]) == 0
    lines = zip(before.splitlines(), page.read_text().splitlines(), strict=True)
    ((old, new),) = [(a, b) for a, b in lines if a != b]
    assert old.startswith("| Q4_K | 4.50 |")
    assert "| 7.2500 |" in new
    assert tool.main(["--check"]) == 0


def test_the_header_names_the_reference(tool: Any, tmp_path: Path) -> None:
    (path,) = (tmp_path / "baselines").glob("*/formats.json")
    report = json.loads(path.read_text())
    assert f"KL to {report['reference']}, nats" in (tmp_path / "docs/PERFORMANCE.md").read_text()


def test_a_page_without_the_place_is_refused(tool: Any, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "PERFORMANCE.md"
    page.write_text(page.read_text().replace("<!-- formats:begin -->", ""))
    with pytest.raises(SystemExit, match="no place for the table 'formats'"):
        tool.main([])


def test_feed_forward_parts_are_shown_where_they_were_measured(tool: Any, tmp_path: Path) -> None:
    (path,) = (tmp_path / "baselines").glob("*/gpu_speed.json")
    page = tmp_path / "docs" / "PERFORMANCE.md"
    report = json.loads(path.read_text())
    ways = {("7B", "a, b"): 31.25, ("1.1B", "a, b"): 9.0, ("7B", "c"): 30.0, ("1.1B", "c"): 8.0}
    report["feed_forward"] = [
        {"model": model, "way": way, "microseconds": us} for (model, way), us in ways.items()
    ]
    path.write_text(json.dumps(report))
    assert tool.main([]) == 0
    shown = page.read_text()
    assert "| kernels | 7B | 1.1B |" in shown
    assert "| a, b | 31.2 | 9.0 |" in shown
    del report["feed_forward"]
    path.write_text(json.dumps(report))
    assert tool.main([]) == 0
    assert "| kernels |" not in page.read_text()


def test_ops_of_a_gpu_stand_beside_gpu_speed_and_the_roofline(tool: Any) -> None:
    def entry(name: str, value: float) -> dict[str, Any]:
        return {"metrics": {name: value}}

    baseline = {
        "metadata": {
            "hardware_tag": "sm-90-x",
            "commit": "a" * 40,
            "hardware": {"gpu_architecture": "sm_90"},
        },
        "baselines": {
            "matmul.Quantized.time_matmul('Q8_0', 1, 'gpu')": entry("p50_ms", 8e-3),
            "roofline.Matmul.track_inverse_roofline_fraction('Q8_0', 1, 'gpu')": entry(
                "p50_x", 2.5
            ),
            "steps.OnGpu.track_us('attention', 'decode at 128', 'gpu')": entry("p50_ms", 5e-3),
            "steps.Pass.track_parts_over_whole('decode at 128', 'gpu')": entry("p50_times", 0.9),
        },
    }
    rate = 4096 * 4096 / 32 * 34 / 10e-6 / 1e9  # GB/s of 10 µs
    gemv = {"format": "Q8_0", "rows": 4096, "columns": 4096, "gb_per_second": rate}
    shown = tool.op_tables(baseline, {"commit": "b" * 40, "gemv": [gemv]})
    assert "asv aaaaaaaa, gpu_speed bbbbbbbb" in shown
    assert "| Q8_0 | 8.00 | 10.00 | 0.80 | 2.50 |" in shown
    assert "| `attention` | 5.00 |" in shown
    assert "| all steps over the whole pass | 0.90 |" in shown
    assert "| Q8_0 | 8.00 | n/a | n/a | 2.50 |" in tool.op_tables(baseline, None)
    step = "steps.OnGpu.track_us('attention', 'decode at 128', 'gpu')"
    baseline["baselines"][step]["metadata"] = {"commit": "d" * 40}
    shown = tool.op_tables(baseline, None)
    assert "asv aaaaaaaa. 4096" in shown
    assert "at dddddddd, device time" in shown
    assert "| all steps over the whole pass | n/a |" in shown
    gone = "steps.OnGpu.track_us('rope', 'decode at 128', 'gpu')"
    baseline["baselines"][gone] = entry("p50_ms", 1e-3) | {"timestamp": "2026-11-26"}
    baseline["baselines"][step]["timestamp"] = "2026-11-28"
    assert "`rope`" not in tool.op_tables(baseline, None)  # of an older commit than its pass
    del baseline["baselines"][gone]
    roofline = "roofline.Matmul.track_inverse_roofline_fraction('Q8_0', 1, 'gpu')"
    baseline["baselines"][roofline]["metadata"] = {"commit": "e" * 40}
    assert "| Q8_0 | 8.00 | n/a | n/a | n/a |" in tool.op_tables(baseline, None)
    newer = tool_module("gpu_tables").Measured(
        "c" * 8, {"matmul.Quantized.time_matmul('Q8_0', 1, 'gpu')": 7e-3}
    )
    shown = tool.op_tables(baseline, None, newer)
    assert "asv cccccccc. 4096" in shown
    assert "| Q8_0 | 7.00 | n/a | n/a | n/a |" in shown
    assert "at dddddddd, device time" in shown
    baseline["metadata"]["hardware"] = {"gpu_architecture": None}
    assert tool.op_tables(baseline, None) == ""


def test_a_value_of_the_suites_stands_with_its_unit_and_mark(tool: Any, tmp_path: Path) -> None:
    def entry(unit: str, metric: str, value: float, marked: str | None = None) -> dict[str, Any]:
        return {"metrics": {metric: value}, "metadata": {"unit": unit, "marked": marked}}

    def machine(gpu: str | None, entries: dict[str, Any]) -> dict[str, Any]:
        hardware = {"gpu_architecture": gpu}
        meta = {"hardware_tag": gpu or "cpu", "commit": "c" * 40, "hardware": hardware}
        return {"baselines": entries, "metadata": meta}

    time, small, rate = "m.time_x('Q4_K', 'cpu')", "m.track_us('cpu')", "m.track_x('cpu')"
    entries = {
        time: entry("seconds", "p50_ms", 2.5),
        small: entry("us", "p50_ms", 0.25),
        rate: entry("GB/s", "p50_gb_per_s", 7.0),
    }
    cpu = machine(None, entries)
    gpu = machine("sm_90", {time.replace("cpu", "gpu"): entry("seconds", "p50_ms", 0.01, "load")})
    wanted = [("a time", time), ("a small one", small), ("a rate", rate)]
    rows = tool._suites_table([cpu, gpu], wanted).splitlines()
    assert rows[0] == "| what | benchmark | `cpu`, cccccccc | `sm_90`, cccccccc |"
    assert rows[2] == f"| a time | `{time}` | 2.5 ms | ! 10 µs |"
    assert rows[3] == f"| a small one | `{small}` | 250 µs | n/a |"
    assert rows[4] == f"| a rate | `{rate}` | 7 GB/s | n/a |"
    for older in (time, small):  # as `bench baseline refresh` keeps them
        entries[older]["metadata"]["commit"] = "d" * 40
    rows = tool._suites_table([cpu, gpu], wanted).splitlines()
    assert rows[0] == "| what | benchmark | `cpu`, dddddddd | `sm_90`, cccccccc |"
    assert rows[2] == f"| a time | `{time}` | 2.5 ms | ! 10 µs |"
    assert rows[4] == f"| a rate | `{rate}` | 7 GB/s (cccccccc) | n/a |"


def test_the_slowest_is_found_in_the_results(tool: Any) -> None:
    def entry(unit: str, metric: str, value: float) -> dict[str, Any]:
        return {"metrics": {metric: value}, "metadata": {"unit": unit}}

    rates = {"Q4_0": 7.0, "MXFP4": 3.0, "F16": 9.0}
    entries = {
        **{
            f"m.track_x('{f}', 1, 'gpu')": entry("GB/s", "p50_gb_per_s", v)
            for f, v in rates.items()
        },
        **{f"m.track_y('{f}', 'gpu')": entry("us", "p50_ms", v) for f, v in rates.items()},
        "m.track_x('Q2_K', 2, 'gpu')": entry("GB/s", "p50_gb_per_s", 1.0),
        "m.track_x('Q2_K', 1, 'cpu')": entry("GB/s", "p50_gb_per_s", 1.0),
    }
    entries["m.track_y('F16', 'gpu')"]["metadata"]["commit"] = "d" * 40
    meta = {"commit": "c" * 40, "hardware": {"gpu_architecture": "sm_90"}}
    machine = {"baselines": entries, "metadata": meta}
    slowest = "3 GB/s (MXFP4)", "cccccccc"
    assert tool._measured(machine, "m.track_x(<slowest>, 1, 'cpu')") == slowest
    assert tool._measured(machine, "m.track_y(<slowest>, 'cpu')") == ("9000 µs (F16)", "dddddddd")
    assert tool._measured(machine, "m.track_z(<slowest>, 'cpu')") == ("n/a", None)


def test_formats_stand_beside_the_median_of_all(tool: Any) -> None:
    entries = {
        tool.ROOFLINE.format(name, tokens): {"metrics": {"p50_times_ideal": 1.2 * tokens}}
        for name in tool.WEIGHT_FORMATS
        for tokens in (1, 128)
    }
    entries[tool.ROOFLINE.format("Q4_K", 1)] = {"metrics": {"p50_times_ideal": 1.8}}
    meta = {"hardware_tag": "cpu", "commit": "c" * 40, "hardware": {"gpu_architecture": None}}
    rows = tool._rooflines({"baselines": entries, "metadata": meta}).splitlines()
    assert "| Q4_0 | 1.20 | +0 % | 153.60 | +0 % |" in rows
    assert "| Q4_K | 1.80 | +50 % | 153.60 | +0 % |" in rows
    assert rows[0] == "`cpu`, commit cccccccc:"
    entries[tool.ROOFLINE.format("Q4_K", 1)]["metadata"] = {"commit": "d" * 40}
    older = tool._rooflines({"baselines": entries, "metadata": meta}).splitlines()
    assert older == ["`cpu`, commits cccccccc, dddddddd:", *rows[1:]]
    rows = older
    del entries[tool.ROOFLINE.format("Q8_0", 128)]
    others = tool._rooflines({"baselines": entries, "metadata": meta}).splitlines()
    assert [row for row in rows if "Q8_0" not in row] == others
    few = {label: entry for label, entry in entries.items() if "_K" in label}
    assert tool._rooflines({"baselines": few, "metadata": meta}) == ""


def test_lesser_instruction_sets_stand_beside_the_best(tool: Any) -> None:
    entries = {
        tool.ISA.format("Q4_0", tokens, isa): {"metrics": {"p50_ms": factor * tokens**power}}
        for tokens in (1, 128)
        for isa, factor, power in (("avx512", 2.0, 1), ("avx2", 3.0, 1), ("portable", 8.0, 2))
    }
    meta = {"hardware_tag": "cpu", "commit": "c" * 40, "hardware": {"gpu_architecture": None}}
    rows = tool._isas({"baselines": entries, "metadata": meta}).splitlines()
    assert rows[0] == "`cpu`, commit cccccccc:"
    assert rows[-1] == "| Q4_0 | 1.50 | 1.50 | 4.00 | 512.00 |"
    entries[tool.ISA.format("Q4_0", 1, "portable")]["metadata"] = {"commit": "d" * 40}
    older = tool._isas({"baselines": entries, "metadata": meta}).splitlines()
    assert older == ["`cpu`, commits cccccccc, dddddddd:", *rows[1:]]
    del entries[tool.ISA.format("Q4_0", 128, "avx2")]
    assert tool._isas({"baselines": entries, "metadata": meta}) == ""


def test_what_differs_most_between_runs_is_listed(tool: Any, tmp_path: Path) -> None:
    quiet = {"unit": "ms", "version": None, "medians": [1.0, 1.0, 1.01], "marked": 0}
    loud = {"unit": "ms", "version": None, "medians": [1.0, 1.2, 1.4], "marked": 2}
    document = {
        "version": 1,
        "hardware_tag": "t",
        "commit": "c" * 40,
        "benchmarks": {"a": quiet, "b": loud},
    }
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(document))
    lines = tool._noise_table(path).splitlines()
    assert "3 runs of 2 benchmarks: median spread 8.6 %, 1 above 5 %." in lines[0]
    assert lines[-1] == "| `b` | 16.7 % | 40.0 % | 2 |"
    assert not any("`a`" in line for line in lines)


def test_what_no_machine_has_is_named_once_and_is_no_row(tool: Any) -> None:
    rows = [("here", "m.time(1, 'cpu')"), ("nowhere", "m.time(2, 'cpu')"), ("there", "n.track(3)")]

    def baseline(tag: str, **values: float) -> dict[str, Any]:
        entry = {"metadata": {"unit": "bits"}}
        stored = {name: {**entry, "metrics": {"p50_bits": v}} for name, v in values.items()}
        machine = {"hardware_tag": tag, "commit": "c" * 40, "hardware": {"gpu_architecture": None}}
        return {"metadata": machine, "baselines": stored}

    first = baseline("one", **{"m.time(1, 'cpu')": 4.5})
    text = tool._suites_table([first, baseline("two", **{"n.track(3)": 8.0})], rows)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:4]] == ["here", "there"]
    assert "| nowhere |" not in text
    assert text.endswith("\n\nIn no baseline yet: `m.time(2, 'cpu')`.\n")
    assert "In no baseline" not in tool._suites_table([first], rows[:1])


def test_each_line_of_the_coverage_names_a_benchmark(tool: Any, repo: Path) -> None:
    pytest.importorskip("asv_runner.discovery")
    known = set(project.labels(repo))
    for _, label in tool.coverage():
        pattern = re.escape(label).replace(re.escape(tool.SLOWEST), "'[^']*'")
        assert any(re.fullmatch(pattern, name) for name in known), label
    suites = {label.partition(".")[0] for _, label in tool.coverage()}
    assert suites == {label.partition(".")[0] for label in known} - {"kernel_resources"}


def beside_llama_cpp(gpu: str, day: int, *rows: dict[str, Any]) -> dict[str, Any]:
    """A report of compare_table.py."""
    return {
        "gpu": gpu,
        "hardware_tag": "gfx1100-card",
        "commit": "a" * 40,
        "date": f"2026-01-0{day}T03:04:05+00:00",
        "rounds": 3,
        "versions": {"llama.cpp": {"build_commit": "abc1234"}},
        "rows": rows,
    }


FASTER = {"rocmforge": 1234.5, "llama.cpp": 617.25, "ratio": 2.0, "ratio_min": 1.9}
FASTER |= {"ratio_max": 2.123}


def test_cases_beside_llama_cpp_on_a_gpu_are_rows(tool: Any) -> None:
    report = beside_llama_cpp(
        "Card",
        2,
        {"case": "decode 128 of 7B:Q4_0 at 128", **FASTER},
        {"case": "prefill 32 of 7B:Q4_0 at 0", "error": "llama-bench: took more than 5 s"},
    )
    text = tool.peer_table(report)
    assert text.startswith(
        "Card (`gfx1100-card`), commit aaaaaaaa, 2026-01-02, beside llama.cpp abc1234 in turns, "
        "median of 3 rounds:\n"
    )
    assert "| decode 128 of 7B:Q4_0 at 128 | 1,234 | 617 | **2.00** | 1.90 … 2.12 |" in text
    assert (
        "| prefill 32 of 7B:Q4_0 at 0 | n/a | n/a | n/a | llama-bench: took more than 5 s |" in text
    )


def test_the_readme_has_a_part_of_the_newest_comparison_on_a_gpu(tool: Any) -> None:
    def case(name: str, prompt: int, depth: int, sequences: int) -> dict[str, Any]:
        shape = {"prompt": prompt, "depth": depth, "sequences": sequences}
        return {"case": name, **shape, **FASTER}

    newest = beside_llama_cpp(
        "New",
        3,
        case("one", 0, 128, 1),
        case("deep", 0, 4096, 1),
        case("eight", 0, 128, 8),
        case("many", 0, 128, 64),
        case("short", 32, 0, 1),
        case("long", 2048, 0, 1),
    )
    text = tool.readme_peer([beside_llama_cpp("Old", 2), newest, beside_llama_cpp("Older", 1)])
    assert text.startswith("One New, commit aaaaaaaa, 2026-01-03, beside llama.cpp abc1234 ")
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert names == ["case", "---", "one", "many", "long"]
