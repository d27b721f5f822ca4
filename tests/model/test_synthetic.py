"""The model maker: blocks, mixes, shapes, vocabulary, the file, and llama.cpp's opinion of it."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf_files import write_gguf
from tool_modules import tool_module

from rocmforge.atomic import SUFFIX
from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.quants import dequantize
from rocmforge.gguf.random_blocks import RandomBytes, normal, random_blocks
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.mixes import find_mix, mix_names, tensor_format
from rocmforge.model.presets import PRESETS, find_preset, llama3_freq_factors
from rocmforge.model.synthetic import cached_model, make_model, plan_model
from rocmforge.model.synthetic_vocab import vocabulary_metadata
from rocmforge.model.weights import load_weights
from rocmforge.text.tokenizer import Tokenizer

IN_FILES = [fmt for fmt in FORMATS.values() if fmt.ggml_type is not None]
TEXT = "the rain in Spain, 42 times\n🌧"
FILE_TYPES = [name for name in mix_names() if not name.endswith("-pure")]


@pytest.fixture(scope="session")
def make_model_tool() -> ModuleType:
    module: ModuleType = tool_module("make_model")
    return module


@pytest.mark.parametrize("fmt", IN_FILES, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("columns", [256, 28672])
def test_random_blocks_have_the_deviation_asked_for(fmt: Format, columns: int) -> None:
    std = columns**-0.5
    chunks = list(random_blocks(fmt, 1 << 18, std, RandomBytes(3, "w")))
    weights = dequantize(np.concatenate(chunks).reshape(256, -1), fmt)
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(std, rel=0.03)
    assert abs(weights.mean()) < 0.02 * std
    assert np.abs(weights).max() < 6 * std
    assert len(np.unique(weights, axis=0)) == 256  # no row twice


def test_random_blocks_continue_over_chunks_and_refuse_part_blocks() -> None:
    fmt = FORMATS["F32"]
    chunks = list(random_blocks(fmt, 5 << 20, 1.0, RandomBytes(0, "w")))
    assert [chunk.nbytes for chunk in chunks] == [8 << 20, 8 << 20, 4 << 20]
    assert not np.array_equal(chunks[0], chunks[1])
    with pytest.raises(ValueError, match=r"got 100, wanted a multiple of 256"):
        next(random_blocks(FORMATS["Q4_K"], 100, 1.0, RandomBytes(0, "w")))
    with pytest.raises(ValueError, match=r"got MXFP6_E2M3"):
        next(random_blocks(FORMATS["MXFP6_E2M3"], 256, 1.0, RandomBytes(0, "w")))


def test_random_bytes_depend_on_seed_and_name_alone() -> None:
    first = normal(RandomBytes(1, "a"), 4096)
    np.testing.assert_array_equal(first, normal(RandomBytes(1, "a"), 4096))
    for other in (RandomBytes(2, "a"), RandomBytes(1, "b")):
        assert abs(np.corrcoef(first, normal(other, 4096))[0, 1]) < 0.08
    assert np.mean(np.abs(first) < 1.0) == pytest.approx(0.6827, abs=0.03)


def test_mixes_are_those_of_llama_cpp(reference: Path) -> None:
    for path in sorted((reference / "models").glob("*.gguf")):
        mix = find_mix(path.stem.removeprefix("tiny-").removeprefix("qwen2-").replace("f16", "F16"))
        with GGUFFile(path) as file:
            config = ModelConfig.from_gguf(file)
            for name, info in file.tensors.items():
                expected = tensor_format(mix, config, name, info.shape)
                assert (name, info.format.name) == (name, expected), path.name


def test_columns_that_fill_no_k_block_fall_back() -> None:
    plan = plan_model("0.5B", "Q4_K_M")
    formats = {name: fmt.name for name, (_, fmt) in plan.tensors.items()}
    assert formats["token_embd.weight"] == "Q8_0"  # tied: the output's Q6_K, fallen back
    assert formats["blk.6.attn_q.weight"] == "Q5_0"  # Q4_K, fallen back
    assert formats["blk.0.attn_v.weight"] == "Q8_0"  # Q6_K, fallen back
    assert formats["blk.0.ffn_down.weight"] == "Q6_K"  # 4864 columns
    assert formats["blk.4.ffn_down.weight"] == "Q4_K"
    assert plan.fallbacks == {"Q5_0": 132, "Q8_0": 12}
    assert plan_model("0.5B", "IQ3_S", layers=2).fallbacks == {"IQ4_NL": 10, "Q5_0": 2}
    assert not plan_model("7B", "IQ3_S").fallbacks


def test_columns_that_fill_no_block_at_all_are_halves() -> None:
    config = find_preset("tiny").config
    assert tensor_format(find_mix("Q4_K_M"), config, "blk.0.attn_q.weight", (8, 40)) == "F16"


@pytest.mark.parametrize(
    ("preset", "mix", "part", "expected"),
    [
        ("7B", "Q4_K_M", "ffn_down", "6666" + "446" * 8 + "6666"),
        ("7B", "Q5_K_M", "attn_v", "6666" + "556" * 8 + "6666"),
        ("7B", "Q3_K_M", "attn_v", "55" + "4" * 30),
        ("7B", "Q3_K_M", "ffn_down", "55" + "4" * 30),
        ("7B", "Q3_K_M", "attn_output", "4" * 32),
        ("7B", "Q2_K", "attn_v", "3" * 32),
        ("8B", "Q2_K", "attn_v", "4" * 32),
        ("70B", "Q3_K_M", "attn_v", "5" * 80),
        ("8B", "IQ4_NL", "ffn_down", "5555" + "I" * 28),
    ],
)
def test_layers_that_get_more_bits(preset: str, mix: str, part: str, expected: str) -> None:
    plan = plan_model(preset, mix)
    formats = [plan.tensors[f"blk.{i}.{part}.weight"][1].name for i in range(len(expected))]
    assert "".join(name.lstrip("Q")[0] for name in formats) == expected


@pytest.mark.parametrize("name", ["Q9_Z", "Q4_K_L", "F16-pure-pure", "", "MXFP6_E2M3-pure"])
def test_unknown_mixes_are_refused_with_a_list(name: str) -> None:
    with pytest.raises(ValueError, match=rf"mix: got {re.escape(repr(name))}, .*Q4_K_M.*Q6_K-pure"):
        find_mix(name)


def test_a_mistyped_mix_has_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"; did you mean Q4_K_M\?$"):
        find_mix("q4km")


# Weights of the published models, and the sizes of llama.cpp's own Q4_K_M files of them in GB.
@pytest.mark.parametrize(
    ("preset", "weights", "q4_k_m"),
    [
        ("0.5B", 494_032_768, 0.398),
        ("1.1B", 1_100_048_384, 0.668),
        ("1B", 1_235_814_432, 0.808),
        ("3B", 3_212_749_888, 2.019),
        ("7B", 6_738_415_616, 4.081),
        ("8B", 8_030_261_248, 4.921),
        ("13B", 13_015_864_320, 7.866),
        ("70B", 70_553_706_496, 42.520),
    ],
)
def test_presets_are_as_large_as_what_they_are_named_after(
    preset: str, weights: int, q4_k_m: float
) -> None:
    plan = plan_model(preset, "Q4_K_M")
    assert plan.weights == weights
    header = 0.012e9  # at most: the vocabulary
    assert q4_k_m * 1e9 - header < plan.nbytes < (q4_k_m + 0.0005) * 1e9


def test_preset_configs_need_no_file() -> None:
    config = find_preset("70B").config
    assert 2 * config.n_layers * config.n_kv_heads * config.head_dim * 2 == 327_680
    with pytest.raises(ValueError, match=r"preset: got '9B', wanted one of tiny, tiny-moe, 0\.5B"):
        find_preset("9B")
    with pytest.raises(ValueError, match=r"layers: got 5, wanted 1 to 4"):
        find_preset("tiny", layers=5)
    with pytest.raises(ValueError, match=r"architecture: got 'mamba'"):
        find_preset("tiny", architecture="mamba")
    assert not find_preset("0.5B", architecture="llama").config.biases
    with pytest.raises(ValueError, match="got qwen3moe, wanted one for a model without experts"):
        find_preset("tiny", architecture="qwen3moe")
    assert find_preset("tiny-moe", architecture="qwen3").config.experts is None
    experts = find_preset("tiny-moe", architecture="olmoe").config.experts
    assert experts is not None
    assert not experts.normalized


def test_llama3_factors_follow_the_wavelength() -> None:
    rope = find_preset("8B").config.rope
    factors = llama3_freq_factors(rope, 8.0)
    turns = 8192 * rope.frequencies(None) / (2 * math.pi)
    np.testing.assert_array_equal(factors[turns > 4], 1.0)
    np.testing.assert_array_equal(factors[turns < 1], 8.0)
    between = factors[(turns > 1) & (turns < 4)]
    assert len(between) > 2
    assert (np.diff(between) > 0).all()


@pytest.mark.parametrize("kind", ["llama-spm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("size", [512, 32000])
def test_vocabularies_are_consistent(kind: str, size: int) -> None:
    keys = vocabulary_metadata(kind, size)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(set(tokens)) == len(types) == size
    assert types[keys["tokenizer.ggml.bos_token_id"]] == 3
    if kind == "llama-spm":
        assert types.count(6) == 256
        assert len(keys["tokenizer.ggml.scores"]) == size
    else:
        known = set(tokens)
        for merge in keys["tokenizer.ggml.merges"]:
            left, right = merge.split(" ")
            assert {left, right, left + right} <= known
    with pytest.raises(ValueError, match=r"vocabulary size: got 300"):
        vocabulary_metadata(kind, 300)


@pytest.mark.parametrize("mix", FILE_TYPES)
def test_files_are_what_was_asked_for(tmp_path: Path, mix: str) -> None:
    path = make_model(tmp_path / "model.gguf", "tiny", mix, seed=5)
    plan = plan_model("tiny", mix)
    with GGUFFile(path) as file:
        config = ModelConfig.from_gguf(file)
        expected = find_preset("tiny").config
        assert (config.rope, config.d_ff) == (expected.rope, expected.d_ff)
        assert config.norm_eps == pytest.approx(expected.norm_eps)
        assert {n: (i.shape, i.format) for n, i in file.tensors.items()} == plan.tensors
        weights = load_weights(file, config, lambda info, data, _: dequantize(data, info.format))
        assert file.get("general.file_type", int) == find_mix(mix).file_type
    for layer in weights.layers:
        assert layer.ffn_norm.mean() == pytest.approx(1.0, abs=0.05)
        assert layer.ffn_down.std() == pytest.approx(512**-0.5, rel=0.05)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_tiny_model_carries_what_a_test_needs(tmp_path: Path, architecture: str) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
    path = make_model(
        tmp_path / "model.gguf", "tiny", "Q8_0", architecture=architecture, rope_scaling=scaling
    )
    with GGUFFile(path) as file:
        config = ModelConfig.from_gguf(file)
        weights = load_weights(file, config, lambda info, data, _: info.name)
    assert config.architecture == architecture
    assert (config.rope.scaling, config.rope.factor, config.rope.original_ctx) == ("yarn", 4.0, 512)
    assert (weights.layers[0].attn_q_bias is not None) == (architecture == "qwen2")
    assert (weights.layers[0].attn_q_norm is not None) == (architecture == "qwen3")


@pytest.mark.parametrize("kind", ["llama-spm", "llama-bpe", "qwen2"])
def test_our_tokenizer_loads_the_vocabulary(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", general=vocabulary_metadata(kind, 4000))
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.vocab_size == 4000
    ids = tokenizer.encode(TEXT, add_bos=False)
    assert tokenizer.decode(ids) == TEXT
    assert len(ids) < 0.8 * len(TEXT.encode())
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert prompt.endswith(("assistant|>\n", "assistant\n", "assistant<|end_header_id|>\n\n"))
    special = tokenizer.encode(prompt, parse_special=True)
    assert tokenizer.eos_id in special
    assert tokenizer.decode(special, skip_special=True).count("hi") == 1


def test_rope_factors_are_written_for_llama_only(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model.gguf", "tiny", "F16", rope_factor=8.0)
    with GGUFFile(path) as file:
        weights = load_weights(file, ModelConfig.from_gguf(file), lambda info, data, _: info.name)
    assert weights.rope_freqs is not None
    assert (weights.rope_freqs.min(), weights.rope_freqs.max()) == (1.0, 8.0)
    for architecture, factor in (("qwen2", 8.0), ("llama", 0.0)):
        with pytest.raises(ValueError, match=rf"rope_factor: got {factor}"):
            make_model(path, "tiny", "F16", architecture=architecture, rope_factor=factor)


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    one, same, other, cut = (
        make_model(tmp_path / f"{i}.gguf", "tiny", "Q4_K_M", seed=seed, layers=layers)
        for i, (seed, layers) in enumerate([(7, None), (7, None), (8, None), (7, 2)])
    )
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()
    with GGUFFile(one) as whole, GGUFFile(cut) as part:
        assert "blk.2.attn_q.weight" not in part.tensors
        np.testing.assert_array_equal(
            whole.tensor("blk.1.attn_q.weight"), part.tensor("blk.1.attn_q.weight")
        )
    with pytest.raises(ValueError, match=r"seed: got -1"):
        make_model(tmp_path / "x.gguf", "tiny", "Q4_K_M", seed=-1)


def test_memory_stays_far_below_the_file(tmp_path: Path) -> None:
    tracemalloc.start()
    path = make_model(tmp_path / "model.gguf", "1.1B", "Q8_0", layers=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 180e6
    assert peak < 80e6
    path.unlink()


def test_what_was_there_survives_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("kept")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model(path, "tiny", "F16", progress=fail)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_too_little_room_is_said_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000_000))
    with pytest.raises(ValueError, match=r"got 3\.0 GB free, wanted 4\.1 GB"):
        make_model(tmp_path / "model.gguf", "7B", "Q4_K_M")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20_500))
    with pytest.raises(ValueError, match=r"got 20\.5 kB free, wanted 39\.3 MB for the model"):
        make_model(tmp_path / "model.gguf", "tiny", "F16")
    with pytest.raises(ValueError, match=r"got .*missing, wanted one that exists"):
        make_model(tmp_path / "missing" / "model.gguf", "tiny", "F16")


def test_what_a_killed_run_left_is_removed_before_room_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".model.gguf.0123abcd{SUFFIX}"
    left.touch()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=0 if left.exists() else usage.free)
    )
    make_model(tmp_path / "model.gguf", "tiny", "Q4_0")
    assert not left.exists()


def test_cached_models_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"mix: got"):
        cached_model("tiny", "nothing")
    assert not (tmp_path / "cache").exists()
    with ThreadPoolExecutor(4) as pool:  # races for one name
        paths = set(pool.map(lambda _: cached_model("tiny", "Q4_0", 3), range(4)))
    (path,) = paths
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert re.fullmatch(r"tiny-Q4_0-3-[0-9a-f]{10}\.gguf", path.name)
    before = path.stat().st_mtime_ns
    assert cached_model("tiny", "Q4_0", 3) == path
    assert path.stat().st_mtime_ns == before
    assert cached_model("tiny", "Q4_0", 3, layers=1).name.startswith("tiny-1L-Q4_0-3-")


def test_tool_writes_and_refuses(
    tmp_path: Path,
    make_model_tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.gguf"
    arguments = ["--mix", "Q6_K", "--rope-scaling", "type=linear", "--rope-scaling", "factor=2"]
    assert make_model_tool.main([str(path), *arguments]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    with GGUFFile(path) as file:
        assert ModelConfig.from_gguf(file).rope.factor == 2.0
    before = path.read_bytes()
    assert make_model_tool.main([str(path)]) == 2
    assert f"{path}: is there already; --force replaces it" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert make_model_tool.main([str(path), "--force"]) == 0
    assert path.read_bytes() != before
    assert make_model_tool.main([str(tmp_path / "other.gguf"), "--preset", "tinny"]) == 2
    said = capsys.readouterr().err
    assert "preset: got 'tinny'" in said
    assert said.endswith("; did you mean tiny?\n")
    assert make_model_tool.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PRESETS)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    assert make_model_tool.main(["--cached", "--layers", "1"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
    with pytest.raises(SystemExit, match="2"):
        make_model_tool.main([str(path), "--cached"])
    monkeypatch.setenv("ROCMFORGE_CACHE", str(path))
    assert make_model_tool.main(["--cached"]) == 2
    assert (
        f"make_model: error: ROCMFORGE_CACHE: got '{path}', wanted a dir" in capsys.readouterr().err
    )


def test_tool_says_which_tensors_are_of_another_format_than_the_mix_means(
    tmp_path: Path,
    make_model_tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(make_model_tool, "make_model", lambda path, *_, **__: path)  # 145 MB
    arguments = ["--preset", "0.5B", "--layers", "1", "--mix", "IQ3_S"]
    assert make_model_tool.main([str(tmp_path / "model.gguf"), *arguments]) == 0
    assert capsys.readouterr().err == (
        "make_model: tensors in another format: 5 in IQ4_NL, 1 in Q5_0; "
        "their columns do not fit the blocks that IQ3_S means\n"
    )
    assert make_model_tool.main([str(tmp_path / "model.gguf"), "--mix", "IQ3_S"]) == 0
    assert capsys.readouterr().err == ""


def test_tool_shows_progress_when_it_takes_long(
    tmp_path: Path,
    make_model_tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocmforge.terminal.LINE_SECONDS", 0.0)
    assert make_model_tool.main([str(tmp_path / "model.gguf")]) == 0
    assert re.search(r"writing: [\d.]+ MiB of [\d.]+ MiB", capsys.readouterr().err)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_tool_that_is_ended_leaves_nothing(
    ending: signal.Signals, repo: Path, tmp_path: Path
) -> None:
    command = [sys.executable, str(repo / "tools" / "make_model.py"), "7b.gguf", "--preset", "7B"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as tool:
        while not any(tmp_path.iterdir()):
            assert tool.poll() is None
            time.sleep(0.02)
        tool.send_signal(ending)
        assert tool.communicate()[1] == "make_model: interrupted; nothing is left behind\n"
    assert tool.returncode == 130
    assert not any(tmp_path.iterdir())


def test_tool_helps(repo: Path) -> None:
    command = [sys.executable, str(repo / "tools" / "make_model.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(repo)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "--rope-scaling KEY=VALUE" in done.stdout


PEER_CASES = [
    *(("tiny", mix, {}) for mix in mix_names()),
    *(("tiny", "Q4_K_M", {"architecture": name}) for name in ("qwen2", "qwen3")),
    *(("0.5B", mix, {"layers": 1}) for mix in ("Q4_K_M", "Q2_K")),
    ("1.1B", "Q5_K_M", {"layers": 1}),
    ("1B", "Q4_K_M", {"layers": 1}),
    ("tiny", "Q8_0", {"rope_factor": 8.0}),
    ("tiny", "Q8_0", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
]


@pytest.mark.peer
@pytest.mark.parametrize(
    ("preset", "mix", "options"), PEER_CASES, ids=lambda value: str(value) if value else "-"
)
def test_llama_cpp_loads_and_decodes(
    tmp_path: Path, preset: str, mix: str, options: dict[str, object]
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path = make_model(tmp_path / "model.gguf", preset, mix, **options)
    model = llama_cpp.Llama(
        str(path), n_ctx=64, n_batch=32, n_threads=2, logits_all=True, verbose=False
    )
    ids = model.tokenize(TEXT.encode(), add_bos=False)
    assert ids == Tokenizer.from_gguf(path).encode(TEXT, add_bos=False)
    assert model.detokenize(ids).decode().removeprefix(" ") == TEXT
    model.eval(ids)
    for _ in range(4):
        model.eval([int(np.argmax(model.scores[model.n_tokens - 1]))])
    logits = np.array(model.scores[: model.n_tokens])
    model.close()
    path.unlink()
    assert np.isfinite(logits).all()
    assert 0.8 < logits.std() < 1.3
