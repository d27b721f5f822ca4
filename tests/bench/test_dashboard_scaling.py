"""scaling.html: tokens per second over sequences and over the depth of the context."""

from __future__ import annotations

from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.scaling_data import RATE, scaling_data

PER_TOKEN = "inference.Decode.track_decode_ms_per_token"
DEPTH = "inference.Context.track_decode_ms_per_token"
ONE = {"model": "1B", "batch": "1", "device": "cpu"}


def test_milliseconds_become_tokens_per_second_with_their_interval() -> None:
    samples = [9.5 + at / 10 for at in range(11)]
    found = run("a", result(PER_TOKEN, {**ONE, "batch": "8"}, 10.0, "ms", samples))
    (box,) = scaling_data([machine(found)])["machines"]
    (point,) = box["batches"]
    assert (point["at"], point["value"]) == (8, 100.0)
    assert point["low"] < 100.0 < point["high"]


def test_the_newest_commit_counts_and_of_one_commit_the_rate() -> None:
    older = run("a", result(RATE, ONE, 500.0, "tokens/s"), day=1)
    newest = run("b", result(PER_TOKEN, ONE, 10.0), day=2)
    (box,) = scaling_data([machine(newest, earlier=[older])])["machines"]
    assert [(one["commit"], one["value"]) for one in box["batches"]] == [("bbbbbbbb", 100.0)]
    both = run("c", result(PER_TOKEN, ONE, 10.0), result(RATE, ONE, 101.0, "tokens/s"))
    (box,) = scaling_data([machine(both)])["machines"]
    assert [one["value"] for one in box["batches"]] == [101.0]


def test_depths_are_in_order_and_say_the_dtype_of_the_cache() -> None:
    params = {"model": "1B", "kv": "q8_0", "device": "gpu"}
    found = [result(DEPTH, {**params, "context": at}, 2.0) for at in ("4096", "0", "1024")]
    (box,) = scaling_data([machine(run("a", *found))])["machines"]
    assert [one["at"] for one in box["depths"]] == [0, 1024, 4096]
    assert {one["kv"] for one in box["depths"]} == {"q8_0"}
    assert {one["value"] for one in box["depths"]} == {500.0}


def test_nonsense_is_no_point() -> None:
    odd = run("a", result(PER_TOKEN, {**ONE, "batch": "many"}), result(PER_TOKEN, ONE, 0.0))
    (box,) = scaling_data([machine(odd)])["machines"]
    assert box["batches"] == []
