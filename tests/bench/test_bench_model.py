"""`rocmforge bench model`: its rows in each form, what it cannot measure, and its errors."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from asv_tree import Bench

from rocmforge.bench.cli import parser_of
from rocmforge.bench.commands import model as command
from rocmforge.bench.model_rows import line, whole
from rocmforge.cli import main
from rocmforge.cpu.backend import available_threads
from rocmforge.demo import demo_model
from rocmforge.profiling import run_environment

SHORT = ("-p", "8", "-n", "3", "-r", "2", "--device", "cpu")
PROVENANCE = ("model", "model_file", "version", "hardware_tag", "date", "device_name")


def cells(table: str) -> list[list[str]]:
    lines = [row.strip("|\n").split("|") for row in table.splitlines()]
    return [[cell.strip() for cell in row] for row in lines]


def test_the_demo_model_is_one_line_a_test(bench: Bench) -> None:
    done = bench("model", *SHORT)
    assert done.returncode == 0, done.stderr
    titles, rule, prompt, generated = cells(done.stdout)
    assert titles[5:] == ["test", "tokens/s", "min … max", "ms/token", "time / ideal"]
    assert all(re.fullmatch("-+:?", cell) for cell in rule)
    assert [row[5] for row in (prompt, generated)] == ["pp8", "tg3"]
    for row in (prompt, generated):
        assert row[0] == "ROCmForge demo"
        low, high = map(float, row[7].split(" … "))
        assert low <= float(row[6]) <= high
        assert float(row[8]) == pytest.approx(1e3 / float(row[6]), rel=2e-3)
        assert float(row[9]) > 0.5


def test_lists_are_combined_and_rows_carry_their_provenance(bench: Bench) -> None:
    lists = ("-d", "0,32", "-b", "1,2", "-t", "1,2")
    done = bench("model", demo_model(), *SHORT, *lists, "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    tests = ["pp8", "tg3", "tg3", "pp8 @ d32", "tg3 @ d32", "tg3 @ d32"]
    assert [row["test"] for row in rows] == 2 * tests
    assert [row["batch"] for row in rows] == 2 * [1, 1, 2, 1, 1, 2]
    assert [row["threads"] for row in rows] == 6 * [1] + 6 * [2]
    for row in rows:
        assert all(row[name] for name in PROVENANCE)
        assert re.fullmatch("[0-9a-f]{40}", row["commit"])
        assert row["model_bytes"] == os.path.getsize(demo_model())
        assert len(row["samples_seconds"]) == 2
        tokens = row["batch"] * (row["n_prompt"] + row["n_gen"])
        rates = [tokens / seconds for seconds in row["samples_seconds"]]
        assert row["tokens_per_second"] == pytest.approx(sum(rates) / 2)
        assert (row["tokens_per_second_min"], row["tokens_per_second_max"]) == (
            pytest.approx(min(rates)),
            pytest.approx(max(rates)),
        )
        assert row["reason"] is None
        if row["n_gen"]:  # the weights are read in each step
            read = row["read_bytes_per_second"] * row["ideal_seconds"]
            assert read > row["n_gen"] * 10e6


def test_csv_and_json_lines_come_row_by_row(bench: Bench) -> None:
    done = bench("model", *SHORT, "-o", "csv")
    prompt, generated = csv.DictReader(done.stdout.splitlines())
    assert (prompt["test"], generated["test"]) == ("pp8", "tg3")
    assert len(generated["samples_seconds"].split()) == 2
    done = bench("model", *SHORT, "-n", "0", "-o", "jsonl")
    (only,) = map(json.loads, done.stdout.splitlines())
    assert (only["test"], only["n_gen"], only["batch"]) == ("pp8", 0, 1)


def test_what_does_not_fit_the_model_is_a_row_with_its_reason(bench: Bench) -> None:
    done = bench("model", *SHORT, "-d", "1020,0", "-n", "0")
    assert done.returncode == 0
    too_long, fits = cells(done.stdout)[2:]
    assert too_long[5:7] == ["pp8 @ d1020", "n/a: 1028 tokens, trained for 1024"]
    assert float(fits[6]) > 0
    done = bench("model", *SHORT, "-d", "1022")
    assert done.returncode == 3
    assert "nothing measured: 1030 tokens, trained for 1024" in done.stderr
    assert done.stdout.count("n/a") == 2
    done = bench("model", *SHORT, "-p", "0", "-b", "1000000000", "-o", "json")
    assert done.returncode == 3
    (row,) = json.loads(done.stdout)
    assert re.fullmatch(r"got [\d.]+ GB of memory, wanted [\d.]+", row["reason"])
    assert row["tokens_per_second"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no.gguf"], 2, "no such file: no.gguf"),
        (["text.gguf"], 2, "text.gguf: not a GGUF file: first bytes: got b'no m'"),
        (["-p", "0", "-n", "0"], 2, "got no test, wanted a prompt or tokens to generate"),
        (["-p", "12,x"], 2, "argument -p/--n-prompt: got 'x', wanted 0 or more"),
        (["-b", "0"], 2, "argument -b/--batch: got '0', wanted 1 or more"),
        (["--device", "cpu,tpu"], 2, "got 'tpu', wanted one of auto, cpu, hip, cuda"),
        (["-o", "sql"], 2, "invalid choice: 'sql'"),
        (["-ngl", "x"], 2, "-ngl/--n-gpu-layers/--gpu-layers: got 'x', wanted 0 or more"),
        (["--device", "hip:0/tpu"], 2, "got 'tpu', wanted one of auto, cpu, hip, cuda"),
        (["-ub", "256"], 2, "got '256', wanted nothing here: `rocmforge profile --prefill"),
        (["-pg", "128,64"], 2, "argument -pg: got '128,64', wanted -p for prompts and -n for"),
    ],
)
def test_errors_are_one_clear_line(
    bench: Bench, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "text.gguf").write_text("no model, but long enough to be looked at")
    done = bench("model", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_missing_is_rows_with_the_reason_beside_those_of_another(
    bench: Bench,
) -> None:
    done = bench("model", *SHORT[:-1], "hip:99,cpu", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["device"], row["test"]) for row in rows] == [
        (device, test) for device in ("hip:99", "cpu") for test in ("pp8", "tg3")
    ]
    for row in rows[:2]:
        assert (row["device_name"], row["tokens_per_second"]) == (None, None)
        assert row["reason"].startswith("device 'hip:99'")
    for row in rows[2:]:
        assert row["reason"] is None
        assert row["tokens_per_second"] > 0


def test_layers_for_a_gpu_that_is_missing_are_rows_with_the_reason(bench: Bench) -> None:
    done = bench("model", *SHORT[:-1], "cpu", "-ngl", "0,2", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["gpu_layers"], row["test"]) for row in rows] == [
        (layers, test) for layers in (None, 2) for test in ("pp8", "tg3")
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows[:2])
    reason = "2 layers on a GPU: got the CPU, which was asked for"
    assert [row["reason"] for row in rows] == [None, None, reason, reason]
    assert bench("model", *SHORT[:-1], "cpu", "-ngl", "2").returncode == 1


def test_no_device_at_all_has_the_exit_code_of_generate(bench: Bench) -> None:
    done = bench("model", *SHORT[:-1], "cuda:99,hip:99")
    assert done.returncode == 1
    assert done.stderr.count("device 'cuda:99'") == done.stderr.count("device 'hip:99'") == 1
    for row, device in zip(cells(done.stdout)[2:], ("cuda:99",) * 2 + ("hip:99",) * 2, strict=True):
        assert row[2] == device
        assert row[6].startswith(f"n/a: device '{device}'")


def test_the_model_may_be_named_as_for_llama_bench(bench: Bench) -> None:
    done = bench("model", "-m", demo_model(), *SHORT, "-o", "jsonl")
    assert [json.loads(row)["model_file"] for row in done.stdout.splitlines()] == ["demo.gguf"] * 2
    done = bench("model", "-m", demo_model(), "other.gguf")
    assert done.returncode == 2
    assert f"model: got other.gguf and -m {demo_model()}, wanted one" in done.stderr


def test_more_threads_than_cores_are_measured_and_said(bench: Bench) -> None:
    most = available_threads() + 1
    done = bench("model", *SHORT, "-n", "0", "-t", f"1,{most}")
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("-t:")]
    assert len(said) == 1
    assert said[0].startswith(f"-t: {most} threads on {most - 1} usable core")


watch_end = run_environment.Watch.end


def busy(watch: run_environment.Watch, share: float) -> run_environment.RunEnvironment:
    """What the watch says at its end, but for this share of other processes."""
    return replace(watch_end(watch), others_share=share)


def test_rows_that_are_there_are_shown_when_the_rest_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> Any:
        yield 1, ROW
        yield 0, {**ROW, "test": "pp8"}
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_measured", interrupted)
    monkeypatch.setattr(run_environment.Watch, "end", partialmethod(busy, 0.5))
    args = parsed("--output", "md")
    with pytest.raises(KeyboardInterrupt):
        command.run(args)
    shown = capsys.readouterr()
    assert [row[-5] for row in cells(shown.out)[2:]] == ["pp8", "tg3"]
    assert shown.err.startswith("rocmforge bench model: other processes used 50% of the CPUs")


def parsed(*arguments: str) -> Any:
    return parser_of("model").parse_args(arguments)


ROW = {
    "model": "a|b\x1b[2J",
    "model_bytes": 1 << 30,
    "device_name": "H200",
    "threads": None,
    "gpu_layers": None,
    "split_mode": None,
    "batch": 1,
    "test": "tg3",
    "tokens_per_second": 1000.0,
    "tokens_per_second_min": 990.0,
    "tokens_per_second_max": 1010.0,
    "ms_per_token": 1.0,
    "time_over_ideal": None,
    "samples_seconds": [0.5, 0.25],
    "reason": None,
}


def test_a_models_name_cannot_break_the_table() -> None:
    _, _, row = whole("md", [ROW]).splitlines()
    assert row.startswith("| a\\|b\ufffd[2J | 1 GiB | H200   |         | 1 ")
    assert row.endswith("|     1000 | 990 … 1010 |        1 |          n/a |")


def test_each_form_is_written_either_whole_or_row_by_row() -> None:
    assert json.loads(whole("json", [ROW])) == [ROW]
    assert json.loads(line("jsonl", ROW, True)) == ROW
    assert line("csv", ROW, True).count("\n") == 2
    assert line("csv", ROW, False).count("\n") == 1
    assert [line(form, ROW, True) for form in ("md", "json")] == ["", ""]
    assert [whole(form, [ROW]) for form in ("csv", "jsonl")] == ["", ""]


def test_other_work_on_the_machine_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for share, told in ((0.61, True), (0.05, False)):
        monkeypatch.setattr(run_environment.Watch, "end", partialmethod(busy, share))
        assert main(["bench", "model", "-p", "4", "-n", "0", "-r", "1", "--device", "cpu"]) == 0
        said = "other processes used 61% of the CPUs: the times are too long"
        assert (said in capsys.readouterr().err) == told
