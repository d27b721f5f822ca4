"""llama-bench's JSON as a baseline: what becomes of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asv_tree import Bench

from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.llama_bench import read_llama_bench
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, hardware_tag

HOST = Hardware(cpu_name="x")
TOOL, CHECK = "baseline", "compare"


def test(**changes: Any) -> dict[str, Any]:
    """One test in the form of llama-bench of build 6000 and later."""
    return {
        "build_commit": "0c21677e",
        "build_number": 6700,
        "cpu_info": "AMD EPYC",
        "gpu_info": "AMD Radeon RX 7900 XT",
        "backends": "ROCm",
        "model_filename": "/models/llama-7b.Q4_K_M.gguf",
        "model_type": "llama 7B Q4_K - Medium",
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_threads": 8,
        "type_k": "f16",
        "type_v": "f16",
        "n_gpu_layers": 99,
        "flash_attn": True,
        "n_prompt": 512,
        "n_gen": 0,
        "n_depth": 0,
        "test_time": "2026-05-01T10:00:00Z",
        "avg_ts": 2000.0,
        "stddev_ts": 10.0,
        "samples_ns": [256000000, 256500000],
        "samples_ts": [2000.0 + i for i in range(8)],
        **changes,
    }


test.__test__ = False  # type: ignore[attr-defined]


def write(path: Path, *rows: Any) -> Path:
    path.write_text(json.dumps(list(rows)), encoding="utf-8")
    return path


def test_each_test_is_a_record(tmp_path: Path) -> None:
    generated = test(n_prompt=0, n_gen=128, n_depth=4096, samples_ts=[60.0, 61.0, 59.0])
    found = read_llama_bench(write(tmp_path / "x.json", test(), generated), HOST)
    assert found.commit == "0c21677e"
    prompt, tokens = found.results
    assert prompt.value == 2003.5
    assert (prompt.unit, prompt.direction) == ("tokens/s", Direction.HIGHER)
    params = dict(zip(prompt.param_names, prompt.params, strict=True))
    assert (params["model"], params["test"]) == ("'llama-7b.Q4_K_M.gguf'", "'pp512'")
    assert (params["backend"], params["flash_attention"]) == ("'ROCm'", "True")
    assert prompt.started_at == 1777629600000
    assert dict(zip(tokens.param_names, tokens.params, strict=True))["test"] == "'tg128 @ 4096'"
    assert "/models" not in found.results[0].label


def test_lines_are_read_like_a_list(tmp_path: Path) -> None:
    rows = [test(), test(n_prompt=128)]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    wanted = read_llama_bench(write(tmp_path / "x.json", *rows), HOST)
    assert read_llama_bench(path, HOST).results == wanted.results


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples_ts": []}, "samples_ts of test 0"),
        ({"samples_ts": [1.0, None]}, "samples_ts of test 0"),
        ({"samples_ts": [1.0, 0.0]}, "above 0"),
        ({"samples_ts": 3.0}, "a list in test 0"),
        ({"n_prompt": 0}, "wanted one above 0"),
        ({"n_prompt": -1}, "n_prompt of test 0"),
        ({"n_gen": True}, "n_gen of test 0"),
        ({"n_depth": "x"}, "n_depth of test 0"),
        ({"model_filename": None}, "a string in test 0"),
        ({"build_commit": 3}, "build_commit"),
        ({"test_time": "yesterday"}, "test_time of test 0"),
    ],
)
def test_a_broken_test_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "x.json", test(**change))
    with pytest.raises(ResultFileError, match=message) as raised:
        read_llama_bench(path, HOST)
    assert "x.json" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[", "3", '["a"]', '{"build_commit": 1', "\x00"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultFileError, match=r"x\.json"):
        read_llama_bench(path, HOST)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ResultFileError, match="each test once"):
        read_llama_bench(write(path, test(), test()), HOST)
    with pytest.raises(ResultFileError, match="wanted one build"):
        read_llama_bench(write(path, test(), test(n_prompt=1, build_commit="0")), HOST)
    with pytest.raises(MeasurementError, match="no test"):
        read_llama_bench(write(path), HOST)
    with pytest.raises(ResultFileError, match="got none"):
        read_llama_bench(tmp_path / "missing.json", HOST)


def test_two_builds_are_compared(bench: Bench, tmp_path: Path) -> None:
    slower = test(build_commit="ffff0000", samples_ts=[1700.0 + i for i in range(8)])
    for name, row in (("before", test()), ("after", slower)):
        write(tmp_path / f"{name}.json", row)
        done = bench(TOOL, "import", f"{name}.json")
        assert done.returncode == 0, done.stderr
        assert f"llama-bench/{name}.json: 1 tests of llama.cpp {row['build_commit']}" in done.stdout
    folder = tmp_path / "baselines" / hardware_tag() / "llama-bench"
    assert len(load_baseline(folder / "before.json").results[0].samples) == 8
    sides = ("--baseline", folder / "before.json", "--against", folder / "after.json")
    done = bench(CHECK, *sides)
    assert done.returncode == 1, done.stderr
    assert "regression  llama_bench.track_tokens_per_second" in done.stdout
    assert bench(CHECK, *sides, "aaaa").returncode == 2
    assert bench(CHECK, "--against", folder / "after.json").returncode == 2
    assert bench(TOOL, "import", "missing.json").returncode == 2
    assert bench(TOOL, "import", write(tmp_path / "empty.json")).returncode == 3
