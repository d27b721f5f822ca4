"""What `rocmforge devices` says of sums over several GPUs, on the stand-in's devices."""

from __future__ import annotations

import json
from ctypes import CDLL
from typing import Any

import pytest

from rocmforge import commands
from rocmforge.cli import main
from rocmforge.devices import Sums, measured_sums
from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu import exchange_time


def test_sums_over_cards_that_are_alike_are_measured(
    standin: dict[str, CDLL],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(exchange_time, "CALLS", 2)
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx90a,gfx1100")
    assert main(["devices", "--json"]) == 0
    (sums,) = json.loads(capsys.readouterr().out)["sums"]
    assert (sums["devices"], sums["why_not"]) == (["hip:0", "hip:2"], None)
    assert list(sums["seconds"]) == ["peer access", "host memory"]
    assert min(sums["seconds"].values()) > 0
    seconds = {"peer access": 2e-5, "host memory": 4.2e-6}
    found = [Sums(("hip:0", "hip:2"), seconds), Sums(("hip:1", "hip:3"), {}, "no memory")]
    monkeypatch.setattr(commands, "measured_sums", lambda: found)
    assert main(["devices"]) == 0
    told = capsys.readouterr().out
    assert "(split mode tensor): 16.0 KiB by host memory 4.2 us, peer access 20.0 us\n" in told
    assert "sums over hip:1, hip:3 (split mode tensor): not measured: no memory\n" in told


def test_what_cannot_be_measured_is_told(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OutOfMemoryError("no memory for inboxes")

    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100")
    monkeypatch.setattr(exchange_time, "exchange_seconds", full)
    assert measured_sums() == [Sums(("hip:0", "hip:1"), {}, "no memory for inboxes")]
