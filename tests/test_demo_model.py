"""The demo model: golden texts on the exact path, agreement of the int8 path, and llama.cpp's view.

demo_golden.json holds the 200 tokens that greedy decoding gives after each prompt, end tokens
ignored. They were taken on prompts where the exact path and llama.cpp agree on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rocmforge.chat import Conversation
from rocmforge.demo import demo_model, held_out_text
from rocmforge.engine import Engine
from rocmforge.perplexity import divergence
from rocmforge.sampling import SamplingParams
from rocmforge.text.tokenizer import Tokenizer

GOLDEN: dict[str, list[int]] = json.loads((Path(__file__).parent / "demo_golden.json").read_text())
TOKENS = 3000  # of the held-out text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(demo_model())


@pytest.fixture(scope="module")
def exact() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMFORGE_CPU_EXACT", "1")
        with Engine.from_gguf(demo_model(), kv_dtype="f32") as engine:
            yield engine


@pytest.fixture(scope="module")
def rounded() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMFORGE_CPU_EXACT", "0")
        with Engine.from_gguf(demo_model()) as engine:
            yield engine


def test_the_file_is_small() -> None:
    assert demo_model().stat().st_size <= 12e6


@pytest.mark.parametrize("prompt", GOLDEN)
def test_greedy_text_is_the_golden_one(exact: Engine, tokenizer: Tokenizer, prompt: str) -> None:
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    got = [token.id for token in exact.generate([tokenizer.encode(prompt)], params)]
    assert got == GOLDEN[prompt]


def test_the_text_makes_sense(rounded: Engine, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("A hammer is")
    text = "".join(t.text for t in rounded.generate([ids], SamplingParams(12), tokenizer))
    assert text.startswith(" a hand tool with a heavy")


def test_a_conversation_keeps_its_context(rounded: Engine, tokenizer: Tokenizer) -> None:
    params = SamplingParams(max_tokens=60)
    conversation = Conversation(rounded, tokenizer, params)
    turns = (
        ("What is a hammer?", "A hammer is a hand tool with a heavy"),
        ("What is the opposite of hot?", "The opposite of hot is cold."),
        ("Thank you!", "You are welcome."),
        ("What is a computer?", "A computer is a machine"),
    )
    held = 0
    for asked, beginning in turns:
        tokens = list(conversation.ask(asked))
        reply = "".join(token.text for token in tokens)
        assert reply.startswith(beginning)
        assert tokens[-1].finish_reason == "stop"  # it ends by itself
        assert conversation.kept_tokens == held
        assert conversation.length > held
        held = conversation.length
    assert len(conversation.messages) == 2 * len(turns)


def test_rounding_to_int8_keeps_the_likeliest_token(
    exact: Engine, rounded: Engine, tokenizer: Tokenizer
) -> None:
    same = [
        exact.logits(ids).argmax(axis=1) == rounded.logits(ids).argmax(axis=1)
        for ids in (tokenizer.encode(prompt) + golden for prompt, golden in GOLDEN.items())
    ]
    assert np.concatenate(same).mean() >= 0.99


def test_rounding_to_int8_keeps_the_perplexity(
    exact: Engine, rounded: Engine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(held_out_text().decode(), add_bos=False)[:TOKENS]
    (found,) = divergence([rounded], exact, ids, tokenizer.bos_id)
    assert found.perplexity.value == pytest.approx(found.reference.value, rel=0.005)
    assert found.reference.value < 40  # uniform guessing would give 4096
    assert 0 <= found.kl < 0.01


@pytest.mark.peer
@pytest.mark.parametrize("prompt", GOLDEN)
def test_llama_cpp_gives_the_same_text(prompt: str, tokenizer: Tokenizer) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(demo_model()), n_ctx=1024, logits_all=True, verbose=False)
    model.eval(tokenizer.encode(prompt))
    got = []
    for _ in GOLDEN[prompt]:
        got.append(int(model.scores[model.n_tokens - 1].argmax()))
        model.eval(got[-1:])
    assert got == GOLDEN[prompt]
