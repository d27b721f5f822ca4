"""An architecture that differs in what a row of the table says needs only the row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model import config, presets, synthetic
from rocmforge.model.architectures import ARCHITECTURES, Architecture
from rocmforge.testing import check_close, reference_logits

IDS = [1, 5, 300, 7, 42]


def test_rows_go_by_their_names() -> None:
    assert {name: row.name for name, row in ARCHITECTURES.items()} == {n: n for n in ARCHITECTURES}


def test_a_new_row_is_all_that_a_relative_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Architecture(
        "relative", "Relatives", "halves", required_biases=("attn_q",), qk_norm="head"
    )
    for module in (config, presets, synthetic):
        monkeypatch.setattr(module, "ARCHITECTURES", {**ARCHITECTURES, row.name: row})
    path = synthetic.make_model(tmp_path / "m.gguf", "tiny", "Q8_0", architecture=row.name)
    with GGUFFile(path) as file:
        assert file.metadata["general.architecture"] == "relative"
        assert {"blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"} <= file.tensors.keys()
    with Engine.from_gguf(path, "cpu", ctx=32) as engine:
        assert engine.config.rope.layout == "halves"
        logits = engine.logits(IDS)
    check_close("logits", logits, np.asarray(reference_logits(path, IDS)), 0.05)
