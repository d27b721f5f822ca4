"""What `info` reads of a file: sizes that add up, and files that cannot be run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model.gguf_files import write_gguf

from rocmforge.cli import main
from rocmforge.engine import Engine
from rocmforge.errors import GGUFError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.info import ContextSize, read_info
from rocmforge.model.synthetic import make_model, plan_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q4_K_M")


def test_sizes_add_up(model: Path) -> None:
    info, plan = read_info(model), plan_model("tiny", "Q4_K_M")
    assert info.problem is None
    assert (info.architecture, info.name) == ("llama", "synthetic tiny Q4_K_M")
    assert info.file_bytes == model.stat().st_size
    assert (info.parameters, info.weight_bytes) == (plan.weights, plan.nbytes)
    assert info.tensors == len(plan.tensors)
    assert [share.format for share in info.formats] == ["Q4_K", "Q6_K", "F32"]
    assert info.formats[2].tensors == 9  # two norms a layer, and the last
    assert info.bits_per_weight == pytest.approx(8 * plan.nbytes / plan.weights)
    assert 4.5 < info.bits_per_weight < 6.6


def test_kv_memory_is_what_the_cache_takes(model: Path) -> None:
    info = read_info(model)
    with Engine.from_gguf(model, "cpu", threads=1) as engine:
        assert info.kv_bytes_per_token == engine.cache.bytes_per_token
        assert info.contexts[-1].kv_bytes == engine.cache.nbytes
    per_token, weights = 2 * 4 * 2 * 64 * 2, info.weight_bytes
    assert info.contexts == (
        ContextSize(1024, 1024 * per_token, 1024 * per_token + weights),
        ContextSize(2048, 2048 * per_token, 2048 * per_token + weights),  # what it was trained for
    )


def test_vocabulary_and_template(model: Path) -> None:
    info = read_info(model)
    assert (info.vocab_size, info.tokenizer, info.chat_template) == (1024, "llama", True)


def test_a_longer_context_is_listed_last(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", keys={"context_length": 100_000})
    assert [c.tokens for c in read_info(file).contexts] == [1024, 2048, 4096, 100_000]
    file = write_gguf(tmp_path / "m.gguf", keys={"context_length": 1024})
    assert [c.tokens for c in read_info(file).contexts] == [1024]


def test_no_tensor_is_touched(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: GGUFFile, name: str) -> None:
        raise AssertionError(f"read {name}")

    monkeypatch.setattr(GGUFFile, "tensor", refuse)
    assert read_info(model).parameters > 0


def test_an_unsupported_architecture_is_described(tmp_path: Path) -> None:
    info = read_info(write_gguf(tmp_path / "m.gguf", architecture="mamba"))
    assert info.architecture == "mamba"
    assert info.problem == "architecture 'mamba' is not supported; supported: llama, qwen2, qwen3"
    assert info.config is None
    assert info.parameters == 32 * 64
    assert info.bits_per_weight == 32
    assert info.kv_bytes_per_token is None
    assert info.contexts == ()


def test_a_hostile_name_does_not_fill_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    general = {"general.name": "n" * 3_000_000}
    file = write_gguf(tmp_path / "m.gguf", architecture="m" * 50_000, general=general)
    for option in ([], ["--json"]):
        assert main(["info", str(file), *option]) == 0
        out = capsys.readouterr().out
        assert "nnn" in out
        assert len(out) < 8000


def test_a_vocabulary_alone_is_described(tmp_path: Path) -> None:
    general = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "c"]}
    info = read_info(write_gguf(tmp_path / "m.gguf", general=general, tensors={}))
    assert info.problem == "the file has no tensors, only a vocabulary"
    assert (info.vocab_size, info.tokenizer, info.pre_tokenizer) == (3, "gpt2", None)
    assert (info.parameters, info.bits_per_weight, info.formats) == (0, None, ())
    assert info.chat_template is False


def test_metadata_of_the_wrong_type_counts_as_missing(tmp_path: Path) -> None:
    general = {"general.name": 7, "tokenizer.ggml.tokens": "abc"}
    info = read_info(write_gguf(tmp_path / "m.gguf", general=general))
    assert (info.name, info.vocab_size) == (None, 0)


def test_json_holds_it_all(model: Path) -> None:
    document = json.loads(json.dumps(read_info(model).as_json()))
    assert document["supported"] is True
    assert document["config"]["n_layers"] == 4
    assert document["config"]["rope"]["scaling"] == "none"
    assert document["formats"][0]["format"] == "Q4_K"
    assert document["contexts"][0]["tokens"] == 1024
    assert document["kv_bytes_per_token"] == 2048
    assert document["bits_per_weight"] == pytest.approx(
        8 * document["weight_bytes"] / document["parameters"]
    )


def test_no_gguf_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(np.arange(64, dtype=np.uint8).tobytes())
    with pytest.raises(GGUFError, match="magic"):
        read_info(path)
