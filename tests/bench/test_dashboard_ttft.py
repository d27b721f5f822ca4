"""ttft.html: the time to the first token by its parts, and over the length of the prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.ttft_data import PARTS, WHOLE, split, ttft_data
from rocmforge.bench.results import Result


def part(name: str, value: float | None, model: str = "1B", device: str = "gpu") -> Result:
    return result(PARTS, {"model": model, "part": name, "device": device}, value)


def test_the_parts_add_up_to_tokenizing_the_prompt_and_choosing() -> None:
    measured = {
        "load": 500.0,
        "tokenize": 1.0,
        "embedding": 2.0,
        "host_to_device": 3.0,
        "prefill": 40.0,
        "device_to_host": 4.0,
        "first_token": 5.0,
    }
    parts = dict(split(measured))
    assert parts["rest of prefill"] == 31.0
    known = [value for value in parts.values() if value is not None]
    assert sum(known) == pytest.approx(1.0 + 40.0 + 5.0)
    assert "load" not in parts


def test_a_part_that_has_no_work_on_a_device_is_unknown_and_noise_makes_no_negative_part() -> None:
    parts = dict(split({"prefill": 1.0, "embedding": 1.5}))
    assert parts["host_to_device"] is None
    assert parts["rest of prefill"] == 0.0


def test_a_split_is_of_one_commit_the_newest_that_has_the_prompts_part() -> None:
    newest = run("c", part("tokenize", 9.0), day=3)
    middle = run("b", part("prefill", 40.0), part("embedding", 4.0), part("load", None), day=2)
    stored = run("a", part("prefill", 90.0), part("prefill", 7.0, device="cpu"), day=1)
    (box,) = ttft_data([machine(newest, earlier=[middle], baseline=stored)])["machines"]
    on_gpu, on_cpu = box["splits"]
    assert (on_gpu["commit"], on_gpu["prefill"], on_gpu["load"]) == ("bbbbbbbb", 40.0, None)
    assert dict(on_gpu["parts"])["tokenize"] is None, "that of another commit does not count"
    assert dict(on_gpu["parts"])["rest of prefill"] == 36.0
    assert (on_cpu["device"], on_cpu["commit"]) == ("cpu", "aaaaaaaa")


def test_a_split_that_a_baseline_keeps_has_its_own_commit() -> None:
    kept = replace(part("prefill", 40.0), commit="b" * 40)
    (box,) = ttft_data([machine(run("a", part("tokenize", 1.0)), baseline=run("a", kept))])[
        "machines"
    ]
    (found,) = box["splits"]
    assert (found["commit"], found["date"], found["prefill"]) == ("bbbbbbbb", None, 40.0)


def test_prompts_have_a_length_and_a_value() -> None:
    params = {"model": "1B", "tokens": "512", "device": "cpu"}
    found = run("a", result(WHOLE, params, 30.0), result(WHOLE, {**params, "tokens": "32"}, None))
    (box,) = ttft_data([machine(found)])["machines"]
    (prompt,) = box["prompts"]
    assert (prompt["model"], prompt["tokens"], prompt["value"]) == ("1B", 512, 30.0)
    assert box["splits"] == []
