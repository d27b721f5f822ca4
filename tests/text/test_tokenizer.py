"""Tokenizer: reference vectors, flags, special tokens, decoding and streams, hostile metadata."""

from __future__ import annotations

import lzma
import random
import string
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from tokenizer_vocabularies import (
    MAIN_PRES,
    SPM_TEXTS,
    TEXTS,
    VOCABULARIES,
    bpe_metadata,
    spm_metadata,
    texts_of,
    write_gguf,
)
from tokenizers.pre_tokenizers import Split

from rocmforge.errors import GGUFError, TokenizerError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.text import subwords
from rocmforge.text.pre_tokenizers import PRE_TOKENIZERS
from rocmforge.text.tokenizer import SpecialTokens, Tokenizer
from rocmforge.text.vocabulary import TokenType

SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="session")
def vocabularies() -> dict[str, Tokenizer]:
    return {name: Tokenizer(metadata, name) for name, metadata in VOCABULARIES.items()}


@pytest.fixture(scope="session")
def qwen2_path(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "qwen2.gguf"
    path.write_bytes(lzma.decompress((reference / "vocab/ggml-vocab-qwen2.gguf.xz").read_bytes()))
    return path


@pytest.fixture(scope="session")
def qwen2(qwen2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(qwen2_path)


@pytest.fixture(scope="session")
def llama_spm(reference: Path) -> Tokenizer:
    return Tokenizer.from_gguf(reference / "vocab/ggml-vocab-llama-spm.gguf")


@pytest.fixture(scope="session", params=["qwen2", "llama_spm"])
def real(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ["qwen2", "llama-spm"])
def test_reference_vectors(name: str, reference: Path, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name.replace("-", "_"))
    stem = f"vocab/ggml-vocab-{name}.gguf"
    texts = (reference / f"{stem}.inp").read_bytes().decode().split(SEPARATOR)
    lines = (reference / f"{stem}.out").read_text().split("\n")
    assert len(texts) == len(lines) == 47
    for text, line in zip(texts, lines, strict=True):
        ids = [int(i) for i in line.split()]
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == text


def test_aliases_cut_as_the_name_they_stand_for() -> None:
    wanted = Tokenizer(bpe_metadata("llama-bpe"))
    tokenizer = Tokenizer(bpe_metadata("llama3"))
    assert [tokenizer.encode(text) for text in TEXTS] == [wanted.encode(text) for text in TEXTS]
    assert {"llama-v3", "dbrx", "smaug-bpe", "deepseek-r1-qwen", "phi-2"} <= PRE_TOKENIZERS.keys()


def test_missing_pre_tokenizer_is_default(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = Tokenizer(bpe_metadata(None))
    for text in TEXTS:
        assert tokenizer.encode(text) == vocabularies["default"].encode(text)


def test_unknown_pre_tokenizer_names_itself_and_the_supported_ones() -> None:
    with pytest.raises(TokenizerError, match=r"'of-tomorrow'.*default.*gpt-2.*llama-bpe.*qwen2"):
        Tokenizer(bpe_metadata("of-tomorrow"))


@pytest.mark.parametrize(
    ("metadata", "add_bos", "add_eos"),
    [
        (bpe_metadata("llama-bpe"), True, False),
        (bpe_metadata("qwen2"), False, False),
        (bpe_metadata("qwen2", **{"tokenizer.ggml.add_bos_token": True}), True, False),
        (bpe_metadata("gpt-2", **{"tokenizer.ggml.add_eos_token": True}), False, True),
        (bpe_metadata("llama-bpe", **{"tokenizer.ggml.add_bos_token": False}), False, False),
        (spm_metadata(), True, False),
        (spm_metadata(**{"tokenizer.ggml.add_eos_token": True}), True, True),
        (spm_metadata(**{"tokenizer.ggml.add_bos_token": False}), False, False),
    ],
)
def test_bos_and_eos(metadata: dict[str, Any], add_bos: bool, add_eos: bool) -> None:
    tokenizer = Tokenizer(metadata)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (add_bos, add_eos)
    assert tokenizer.bos_id is not None
    assert tokenizer.eos_id is not None
    bos, eos, bare = [tokenizer.bos_id], [tokenizer.eos_id], tokenizer.encode("hello", False)
    assert tokenizer.encode("hello") == bos * add_bos + bare + eos * add_eos
    assert tokenizer.encode("hello", add_bos=True) == bos + bare + eos * add_eos
    assert tokenizer.encode("") == bos * add_bos + eos * add_eos
    assert tokenizer.encode("", add_bos=False) == []
    assert tokenizer.decode(tokenizer.encode("hello"), skip_special=True) == "hello"


def test_bos_that_is_not_there() -> None:
    metadata = bpe_metadata("llama-bpe")
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer(metadata)
    assert tokenizer.bos_id is None
    assert tokenizer.encode("h") == tokenizer.encode("h", add_bos=False)
    with pytest.raises(TokenizerError, match="no BOS"):
        tokenizer.encode("h", add_bos=True)
    with pytest.raises(TokenizerError, match=r"bos_token_id.*add_bos_token is true"):
        Tokenizer(metadata | {"tokenizer.ggml.add_bos_token": True})


def test_end_ids(qwen2: Tokenizer) -> None:
    tokens = [*bpe_metadata("qwen2")["tokenizer.ggml.tokens"], "<|eot_id|>", "</s>", "<eom>"]
    types = np.ones(len(tokens), np.int32)
    extra = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eom_token_id": tokens.index("<eom>"),
    }
    tokenizer = Tokenizer(bpe_metadata("qwen2", **extra))
    assert {tokens[i] for i in tokenizer.end_ids} == {"<|im_end|>", "<|eot_id|>", "<eom>"}
    assert qwen2.end_ids == {151643, 151645}


def test_special_text_is_text_unless_asked_for(qwen2: Tokenizer) -> None:
    text = "<|im_start|>user"
    assert qwen2.encode(text, parse_special=True) == [151644, 872]
    plain = qwen2.encode(text)
    assert 151644 not in plain
    assert qwen2.decode(plain, skip_special=True) == text
    assert qwen2.decode([151644, 872], skip_special=True) == "user"
    assert qwen2.decode([151644, 872]) == text


def test_phi3_tokens_swallow_blanks() -> None:
    tokenizer = Tokenizer(spm_metadata(**{"general.name": "Phi-3 Mini"}))
    plain = Tokenizer(spm_metadata())
    text = "<|im_end|> \n a<s> a"
    wanted = plain.encode("<|im_end|>a<s> a", parse_special=True)
    assert tokenizer.encode(text, parse_special=True) == wanted
    assert plain.encode(text, parse_special=True) != wanted


def test_spm_decode_takes_one_leading_blank_off(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["spm"]
    ids = tokenizer.encode(" hello")
    assert tokenizer.decode(ids, skip_special=True) == " hello"
    assert tokenizer.decode(ids) == "<s>  hello"
    assert tokenizer.decode(ids[1:], continuation=True) == "  hello"
    no_prefix = vocabularies["spm-no-prefix"]
    assert no_prefix.decode(no_prefix.encode(" hello", add_bos=False)) == " hello"


def test_decode_of_odd_tokens() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<0xe9>", "▁x", "", "b\udcff", "d▁", "u▁"]
    types = np.array([2, 3, 3, 6, 1, 1, 1, 5, 4], np.int32)
    extra = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer(spm_metadata(**extra, **{"tokenizer.ggml.scores": np.zeros(9)}))
    assert tokenizer.decode([4, 4]) == "x x"
    assert tokenizer.decode([3]) == "\ufffd"
    assert tokenizer.decode([6]) == "b\ufffd"
    assert tokenizer.decode([7]) == ""
    assert tokenizer.decode([8]) == "u▁"
    assert tokenizer.decode([0, 4], skip_special=True) == "x"
    for bad in (-1, 9):
        with pytest.raises(ValueError, match=f"token id: got {bad}, wanted 0 to 8"):
            tokenizer.decode([bad])


def test_stream_holds_back_unfinished_characters(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["spm"]
    ids = tokenizer.encode("🙂a", add_bos=False)
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["", "", "", "", "🙂", "a"]
    assert stream.flush() == ""
    stream = tokenizer.stream(continuation=True)
    assert [stream.push(i) for i in ids[:3]] == [" ", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(ids[5]) == "a"


@settings(max_examples=150)
@given(st.data())
def test_stream_is_decode(vocabularies: dict[str, Tokenizer], data: DataObject) -> None:
    tokenizer = vocabularies[data.draw(st.sampled_from(sorted(vocabularies)))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    skip, goes_on = data.draw(st.booleans()), data.draw(st.booleans())
    stream = tokenizer.stream(skip, goes_on)
    parts = [stream.push(i) for i in ids] + [stream.flush()]
    whole = b"".join(tokenizer.piece(i, skip)[0] for i in ids).decode("utf-8", "replace")
    assert "".join(parts) == tokenizer.decode(ids, skip, goes_on)
    assert "".join(parts) in (whole, whole[1:])


@settings(max_examples=200)
@given(st.text() | st.text("h elo\n\t12'sé你<b>|.!▁", max_size=60))
def test_round_trip(vocabularies: dict[str, Tokenizer], text: str) -> None:
    for name in (*MAIN_PRES, "spm-no-prefix"):
        tokenizer = vocabularies[name]
        ids = tokenizer.encode(text, add_bos=False)
        wanted = text.replace("▁", " ") if name.startswith("spm") else text
        assert tokenizer.decode(ids) == wanted


def test_long_texts_are_cut_without_a_trace(
    real: Tokenizer, vocabularies: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    words = [*TEXTS, *SPM_TEXTS, "word ", "end,", "！你", "12\n", "x\n\n", "don't "]
    text = "".join(rng.choices(words, k=3000))
    tokenizers = [real, *vocabularies.values()]
    monkeypatch.setattr(subwords, "CHUNK", 32)
    cut = [tokenizer.encode(text) for tokenizer in tokenizers]
    monkeypatch.setattr(subwords, "CHUNK", len(text))
    assert cut == [tokenizer.encode(text) for tokenizer in tokenizers]


def test_pieces_across_words_switch_the_cutting_off(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.tokens"][-1] = "a▁a"
    metadata["tokenizer.ggml.token_type"][-1] = TokenType.NORMAL
    monkeypatch.setattr(subwords, "CHUNK", 1)
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = ["▁aa" if t == "▁a" else t for t in tokens]
    metadata["tokenizer.ggml.tokens"][-2] = "a▁"
    ids = Tokenizer(metadata).encode("a a", add_bos=False)
    assert [metadata["tokenizer.ggml.tokens"][i] for i in ids] == ["▁", "a▁a"]


def test_tokens_that_no_text_can_spell() -> None:
    metadata = bpe_metadata("gpt-2")
    tokens = [*metadata["tokenizer.ggml.tokens"], "h\udcffe", "a b"]
    del metadata["tokenizer.ggml.token_type"]  # then every token is a normal one
    tokenizer = Tokenizer(metadata | {"tokenizer.ggml.tokens": tokens})
    assert tokenizer.decode(tokenizer.encode("he <b>")) == "he <b>"
    assert tokenizer.decode([len(tokens) - 1]) == "a b"
    assert tokenizer.decode([len(tokens) - 2]) == "h\ufffde"


def test_lone_surrogates_are_replacement_characters(vocabularies: dict[str, Tokenizer]) -> None:
    for tokenizer in vocabularies.values():
        assert tokenizer.encode("h\ud800e\udfff") == tokenizer.encode("h\ufffde\ufffd")


def test_text_must_be_text(vocabularies: dict[str, Tokenizer]) -> None:
    with pytest.raises(TypeError, match="text: got bytes, wanted str"):
        vocabularies["spm"].encode(b"hello")  # type: ignore[arg-type]


def test_bytes_without_a_token() -> None:
    metadata = bpe_metadata("gpt-2")
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("q")] = "q-is-missing"
    ids = Tokenizer(metadata).encode("heqll", add_bos=False)
    assert [tokens[i] for i in ids] == ["he", "ll"]

    metadata = spm_metadata(byte_tokens=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = Tokenizer(metadata).encode("hé🙂你x", add_bos=False)
    assert [tokens[i] for i in ids] == ["▁h", "é", "<unk>", "你", "<unk>"]


def test_blanks_beyond_the_matchers_retry_limit() -> None:
    n = 10_000_001  # a matcher that backtracks gives up at ten million
    for pattern in PRE_TOKENIZERS["qwen2"].patterns:
        split = Split(tokenizers.Regex(pattern), behavior="isolated")
        pieces = split.pre_tokenize_str(" " * n + "h")
        assert pieces[-1][1][1] == n + 1


def test_thousands_of_special_tokens() -> None:
    metadata = spm_metadata()
    names = [f"<unused{i}>" for i in range(5000)]
    n = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += names
    metadata["tokenizer.ggml.scores"] = np.zeros(n + 5000, np.float32)
    kinds = np.full(5000, TokenType.USER_DEFINED, np.int32)
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], kinds)
    tokenizer = Tokenizer(metadata)
    assert tokenizer.encode("<unused4999><unused49>", False) == [n + 4999, n + 49]
    start = time.process_time()
    for _ in range(1000):
        tokenizer.encode("hello <b")
    assert time.process_time() - start < 2


def split_slowly(
    tokens: list[tuple[str, int, TokenType]], strip_right: frozenset[int], text: str, every: bool
) -> list[str | int]:
    """Cut `text` as llama.cpp does: token by token, the longest first, each in every fragment."""
    fragments: list[str | int] = [text]
    for special, i, kind in sorted(tokens, key=lambda t: (-len(t[0].encode()), t[1])):
        if every or kind == TokenType.USER_DEFINED:
            cut: list[str | int] = []
            for fragment in fragments:
                while isinstance(fragment, str) and special in fragment:
                    before, _, fragment = fragment.partition(special)
                    cut += (before, i)
                    if i in strip_right:
                        fragment = fragment.lstrip(" \t\n\v\f\r")
                cut.append(fragment)
            fragments = cut
    return [fragment for fragment in fragments if fragment != ""]


@given(st.data())
@settings(max_examples=500)
def test_special_tokens_are_cut_out_the_longest_first(data: DataObject) -> None:
    letters = "aab \n<é🙂\U0010ffff."
    texts = data.draw(st.lists(st.text(letters, min_size=1, max_size=5), unique=True, max_size=12))
    kinds = st.sampled_from([TokenType.CONTROL, TokenType.USER_DEFINED])
    tokens = [(special, i, data.draw(kinds)) for i, special in enumerate(texts)]
    strip_right = data.draw(st.frozensets(st.integers(0, 11)))
    parts = data.draw(st.lists(st.sampled_from([*texts, *letters]), max_size=20))
    text = "".join(parts)
    for every in (False, True):
        wanted = split_slowly(tokens, strip_right, text, every)
        assert SpecialTokens(tokens, strip_right).split(text, every) == wanted


def test_many_special_tokens_in_a_long_text() -> None:
    rng = random.Random(4)
    names = dict.fromkeys("".join(rng.choices(string.ascii_letters, k=3)) for _ in range(2000))
    special = SpecialTokens(
        [(name, i, TokenType.USER_DEFINED) for i, name in enumerate(names)], frozenset()
    )
    text = " ".join(rng.choices(list(names), k=26_000))
    start = time.process_time()
    assert len(special.split(text, False)) == 2 * 26_000 - 1
    assert time.process_time() - start < 2  # 0.3


def test_speed(real: Tokenizer, qwen2_path: Path) -> None:
    rng = random.Random(2)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 9))) for _ in range(3000)]
    text = " ".join(rng.choices([*words, "\n", "(x)", "12"], k=80_000))
    megabytes_per_second = []
    for _ in range(3):
        start = time.process_time()
        real.encode(text)
        megabytes_per_second.append(len(text) / 1e6 / (time.process_time() - start))
    assert max(megabytes_per_second) > 0.5  # 2.4 (BPE) and 4.7 (SPM) on two cores of Zen 4
    with GGUFFile(qwen2_path) as file:
        start = time.process_time()
        Tokenizer.from_gguf(file)
    assert time.process_time() - start < 3  # 0.4


@pytest.mark.parametrize("name", VOCABULARIES)
def test_from_gguf(name: str, tmp_path: Path, vocabularies: dict[str, Tokenizer]) -> None:
    path = write_gguf(tmp_path / "v.gguf", VOCABULARIES[name])
    by_path = Tokenizer.from_gguf(path)
    with GGUFFile(path) as file:
        by_file = Tokenizer.from_gguf(file)
    for text in texts_of(name):
        ids = vocabularies[name].encode(text)
        assert by_path.encode(text) == by_file.encode(text) == ids
        assert by_path.decode(ids) == vocabularies[name].decode(ids)


@pytest.mark.parametrize("key", ["model", "pre", "tokens"])
def test_what_a_file_holds_does_not_fill_a_message(key: str) -> None:
    text = "x" * 1_000_000
    value: Any = [text, text] if key == "tokens" else text
    with pytest.raises(TokenizerError, match=rf"tokenizer\.ggml\.{key}: got 'xxx") as error:
        Tokenizer(bpe_metadata("qwen2", **{f"tokenizer.ggml.{key}": value}))
    assert len(str(error.value)) < 2000


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(GGUFError):
        Tokenizer.from_gguf(path)


N = len(bpe_metadata(None)["tokenizer.ggml.tokens"])
N_SPM = len(spm_metadata()["tokenizer.ggml.tokens"])
MISSING = object()
HOSTILE: list[tuple[str, str, Any, str]] = [
    ("qwen2", "tokenizer.ggml.model", MISSING, "got None"),
    ("qwen2", "tokenizer.ggml.model", "bert", "got 'bert', wanted 'gpt2' or 'llama'"),
    ("qwen2", "tokenizer.ggml.model", 7, "type int, wanted one of str"),
    ("qwen2", "tokenizer.ggml.pre", 3, "type int"),
    ("qwen2", "tokenizer.ggml.tokens", MISSING, "no such key"),
    ("qwen2", "tokenizer.ggml.tokens", [], "no entries"),
    ("qwen2", "tokenizer.ggml.tokens", "abc", "type str"),
    ("qwen2", "tokenizer.ggml.tokens", 5, "type int"),
    ("qwen2", "tokenizer.ggml.tokens", np.arange(N), "type ndarray"),
    ("qwen2", "tokenizer.ggml.tokens", [["a"]] * N, "type list"),
    ("qwen2", "tokenizer.ggml.tokens", ["a", "b", "a"], "'a' at 0 and 2, wanted distinct"),
    (
        "qwen2",
        "tokenizer.ggml.token_type",
        np.ones(N - 1, np.int32),
        f"{N - 1} entries, wanted {N}",
    ),
    ("qwen2", "tokenizer.ggml.token_type", np.ones(N, np.float32), "type float32"),
    ("qwen2", "tokenizer.ggml.token_type", np.full(N, 7, np.int32), "types from 7 to 7"),
    ("qwen2", "tokenizer.ggml.token_type", np.full(N, -1, np.int32), "types from -1 to -1"),
    ("qwen2", "tokenizer.ggml.token_type", np.full(N, 6, np.int32), "wanted a byte <0xNN>"),
    ("qwen2", "tokenizer.ggml.token_type", ["x"] * N, "type list"),
    ("qwen2", "tokenizer.ggml.merges", MISSING, "no such key"),
    ("qwen2", "tokenizer.ggml.merges", ["h e", "q z"], r"merges\[1\]: got 'q z'"),
    ("qwen2", "tokenizer.ggml.merges", ["nope he"], r"merges\[0\]"),
    ("qwen2", "tokenizer.ggml.merges", ["he"], r"merges\[0\]: got 'he'"),
    ("qwen2", "tokenizer.ggml.merges", ["", "h e"], r"merges\[0\]: got ''"),
    ("qwen2", "tokenizer.ggml.merges", ["h e e"], r"merges\[0\]"),
    ("qwen2", "tokenizer.ggml.merges", ["h \udcff"], r"merges\[0\]"),
    ("qwen2", "tokenizer.ggml.bos_token_id", N, f"got {N}, wanted an id from 0 to {N - 1}"),
    ("qwen2", "tokenizer.ggml.eos_token_id", 2**32 - 1, "got 4294967295"),
    ("qwen2", "tokenizer.ggml.eot_token_id", -1, "got -1"),
    ("qwen2", "tokenizer.ggml.bos_token_id", True, "type bool, wanted one of int"),
    ("qwen2", "tokenizer.ggml.add_bos_token", 1, "type int, wanted one of bool"),
    ("qwen2", "tokenizer.chat_template", 1, "type int, wanted one of str"),
    ("qwen2", "general.name", 1, "type int"),
    ("spm", "tokenizer.ggml.scores", np.zeros(3, np.float32), "3 entries"),
    ("spm", "tokenizer.ggml.scores", np.full(N_SPM, np.nan), "NaN or infinity"),
    ("spm", "tokenizer.ggml.scores", np.full(N_SPM, 1e300), "NaN or infinity"),
    ("spm", "tokenizer.ggml.scores", "high", "type str"),
    ("spm", "tokenizer.ggml.scores", np.zeros((2, 2)), "type float64"),
    ("spm", "tokenizer.ggml.unknown_token_id", 10**6, "got 1000000"),
    ("spm", "tokenizer.ggml.add_space_prefix", "yes", "type str"),
]


@pytest.mark.parametrize(("name", "key", "value", "message"), HOSTILE)
def test_hostile_metadata(name: str, key: str, value: Any, message: str) -> None:
    metadata = VOCABULARIES[name] | {key: value}
    if value is MISSING:
        del metadata[key]
    if key == "tokenizer.ggml.tokens":
        metadata.pop("tokenizer.ggml.token_type")
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(metadata, "bad.gguf")
    assert str(caught.value).startswith(f"bad.gguf: {key.removesuffix('_type')}")


@settings(max_examples=150)
@given(st.data())
def test_mutated_metadata_builds_or_is_a_tokenizer_error(data: DataObject) -> None:
    metadata = dict(VOCABULARIES[data.draw(st.sampled_from(["gpt-2", "spm"]))])
    key = data.draw(st.sampled_from(sorted(metadata)))
    value = metadata[key]
    if isinstance(value, list):
        value = list(value)
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.binary(max_size=5)).decode(
            "utf-8", "surrogateescape"
        )
        metadata[key] = value[: data.draw(st.integers(0, len(value)))] or value
    elif isinstance(value, np.ndarray):
        value = value.copy()
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(-9, 2**31 - 1))
        metadata[key] = value
    else:
        metadata[key] = data.draw(st.none() | st.integers(-9, 2**32) | st.text(max_size=5))
    try:
        tokenizer = Tokenizer(metadata)
    except TokenizerError as error:
        assert "metadata: " in str(error)  # noqa: PT017
        return
    for text in (*TEXTS, *SPM_TEXTS):
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert isinstance(tokenizer.decode(ids), str)
