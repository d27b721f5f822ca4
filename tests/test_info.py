"""What `info` reads of a file: sizes that add up, and files that cannot be run."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from model.gguf_files import write_gguf
from model.small_models import written

from rocmforge.cli import main
from rocmforge.engine import Engine
from rocmforge.errors import GGUFError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.info import ContextSize, read_info
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.synthetic import make_model, plan_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q4_K_M")


def test_sizes_add_up(model: Path) -> None:
    info, plan = read_info(model), plan_model("tiny", "Q4_K_M")
    assert info.problems == ()
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


def test_layers_with_a_window_need_memory_for_it_alone(tmp_path: Path) -> None:
    keys = {"context_length": 8192, "block_count": 7, "attention.sliding_window": 512}
    info = read_info(write_gguf(tmp_path / "m.gguf", architecture="gemma3", keys=keys))
    per_layer = 2 * 2 * 16 * 2  # each sixth layer has none
    assert [size.kv_bytes for size in info.contexts] == [
        7 * 1024 * per_layer,
        7 * 2048 * per_layer,
        (6 * (512 + 2048) + 4096) * per_layer,
        (6 * (512 + 2048) + 8192) * per_layer,
    ]


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
    (problem,) = info.problems
    assert problem.startswith("architecture 'mamba' is not supported; supported: llama, qwen2, ")
    assert info.stated["layers"] == 2
    assert info.config is None
    assert info.parameters == 32 * 64
    assert info.bits_per_weight == 32
    assert info.kv_bytes_per_token is None
    assert info.contexts == ()


def test_every_reason_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = gguf.GGMLQuantizationType.Q1_0
    rows = np.zeros((96, 36), np.uint8)
    tensors = {
        "blk.0.ffn_up.weight": rows,
        "blk.1.ffn_up.weight": rows,
        "strange": np.zeros(3, "f4"),
    }
    general = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "of-tomorrow",
        "tokenizer.ggml.tokens": ["a"] * 32,
    }
    formats = dict.fromkeys(("blk.0.ffn_up.weight", "blk.1.ffn_up.weight"), kind)
    file = write_gguf(tmp_path / "m.gguf", general=general, tensors=tensors, formats=formats)
    info = read_info(file)
    missing, unknown, wrong, form, pre, merges = info.problems
    assert missing.startswith("missing tensors: token_embd.weight")
    assert unknown.startswith("unknown tensors: strange")
    assert "blk.0.ffn_up.weight (got (96, 256)" in wrong
    assert form == "Q1_0 in 2 tensors"
    assert pre == "pre-tokenizer of-tomorrow"
    assert merges == "tokenizer.ggml.merges: no such key"
    assert {share.format: share.nbytes for share in info.formats}["Q1_0"] == 2 * rows.size
    assert main(["info", str(file)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^runs here +no$", out, re.M)
    shown = re.findall(r"^ +- (.*)$", out, re.M)
    assert tuple(shown) == info.problems
    with pytest.raises(GGUFError, match=r"41 \(Q1_0\).*wanted one of .*`rocmforge info`"):
        GGUFFile(file)


LAYERS_DIFFER = {
    "attention.head_count": [4, 2],
    "attention.head_count_kv": [2, 1],
    "feed_forward_length": [96, 64],
}


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_layers_that_differ_are_all_named(tmp_path: Path, architecture: str) -> None:
    general = {"tokenizer.ggml.model": "bert"}
    file = write_gguf(
        tmp_path / "m.gguf", architecture=architecture, keys=LAYERS_DIFFER, general=general
    )
    problems = list(read_info(file).problems)
    if architecture == "mamba":
        assert problems.pop(0).startswith("architecture 'mamba' is not supported")
    alike = "is not supported; supported: the same value in every layer"
    wanted = [f"{architecture}.{key} = {value} {alike}" for key, value in LAYERS_DIFFER.items()]
    assert sorted(problems) == sorted([*wanted, "tokenizer bert"])


def test_heads_and_keys_are_named_beside_what_else_is_missing(tmp_path: Path) -> None:
    keys = {
        "attention.key_length": 640,
        "attention.causal": False,
        "flux_capacitor": 3,
        "final_logit_softcapping": 30.0,
    }
    general = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "of-tomorrow"}
    problems = read_info(write_gguf(tmp_path / "m.gguf", keys=keys, general=general)).problems
    named = {problem.partition(" = ")[0] for problem in problems}
    assert named == {f"llama.{key}" for key in keys} | {
        "pre-tokenizer of-tomorrow",
        "tokenizer.ggml.merges: no such key",
    }
    assert len(problems) == len(named)


def test_a_fault_of_each_part_is_named(tmp_path: Path) -> None:
    wrong = {
        "context_length": 0,
        "attention.layer_norm_rms_epsilon": 2.0,
        "vocab_size": 1 << 30,
        "final_logit_softcapping": -1.0,
    }
    turned = {"rope.dimension_count": 1 << 24, "attn_logit_softcapping": -1.0}
    window = {"attention.sliding_window": -4, "vocab_size": 0}
    for keys in (wrong, turned, window):
        file = write_gguf(tmp_path / "m.gguf", architecture="gemma2", keys=keys, tensors={})
        named = [problem.partition(": got")[0] for problem in read_info(file).problems]
        assert sorted(named) == sorted(f"gemma2.{key}" for key in keys)


def test_a_list_of_problems_ends(tmp_path: Path) -> None:
    keys = {f"unheard_of_{i}": 1 for i in range(500)}
    problems = read_info(write_gguf(tmp_path / "m.gguf", keys=keys)).problems
    assert len(problems) == 21
    assert problems[-1] == "and 480 more"


@pytest.mark.parametrize(
    ("head_dim", "runs"), [(64, "yes"), (320, "CPUs alone"), (20, "CPUs alone")]
)
def test_heads_that_gpus_do_not_take_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head_dim: int, runs: str
) -> None:
    keys = {"attention__key_length": head_dim, "attention__value_length": head_dim}
    file = written("llama", **keys)(tmp_path / "m.gguf")
    info = read_info(file)
    assert info.problems == ()
    assert (info.cpu_only is None) == (runs == "yes")
    assert main(["info", str(file)]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("runs here"))
    assert runs in line
    assert runs == "yes" or f"head dim {head_dim}, wanted a multiple of 8 up to 256" in line


def test_a_type_that_nobody_knows_has_a_number_and_no_size(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", tensors={"t": np.zeros((2, 32), "f4")})
    data = file.read_bytes()
    at = data.rindex((32).to_bytes(8, "little") + (2).to_bytes(8, "little")) + 16
    file.write_bytes(data[:at] + (77).to_bytes(4, "little") + data[at + 4 :])
    info = read_info(file)
    assert [(s.format, s.tensors, s.nbytes) for s in info.formats] == [("type 77", 1, None)]
    assert info.bits_per_weight is None
    assert main(["info", str(file)]) == 0


def test_experts_are_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny-moe", "Q4_K_M", layers=1)
    assert read_info(path).problems == ()
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "8 a layer, 2 of them for each token" in out


def test_what_is_supported_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--supported", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["architecture"] for row in found["architectures"]] == list(ARCHITECTURES)
    assert {"format": "Q4_K", "bits_per_weight": 4.5} in found["formats"]
    assert main(["info", "--supported"]) == 0
    out = capsys.readouterr().out
    assert "Mixtral" in out
    assert "llama-bpe" in out


@pytest.mark.parametrize("seed", range(4))
def test_a_broken_header_is_described_or_named(tmp_path: Path, seed: int) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny-moe", "Q4_K_M", layers=1)
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    header = bytes(data[:4000])
    for _ in range(100):
        for at in rng.integers(0, len(header), rng.integers(1, 4)):
            data[at] = rng.choice([0, 1, 0x7F, 0xFF, int(rng.integers(256))])
        path.write_bytes(data)
        with suppress(GGUFError):
            read_info(path).as_json()
        data[: len(header)] = header


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
    general = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    info = read_info(write_gguf(tmp_path / "m.gguf", general=general, tensors={}))
    assert info.problems == ("the file has no tensors, only a vocabulary",)
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
    path.write_bytes(b"<!DOCTYPE html>" + bytes(64))
    told = r"m\.gguf: not a GGUF file: first bytes: got b'<!DO', wanted b'GGUF'$"
    with pytest.raises(GGUFError, match=told):
        read_info(path)
