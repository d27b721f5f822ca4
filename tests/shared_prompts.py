"""Checks of prompts that share pages, for an engine on a CPU or a GPU.

The prompts begin alike for 40 tokens: two full pages of 16, and half of a third.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.sampling import SamplingParams

COMMON = [3 + (7 * i * i + 11 * i) % 250 for i in range(40)]
PROMPTS = [COMMON + [text + 10] * 5 for text in range(3)]
SHARED = 32  # tokens of COMMON in full pages of 16
GREEDY = SamplingParams(max_tokens=6)

Same = Callable[[NDArray[np.float32], NDArray[np.float32]], None]
"""Asserts that two logits are the same, as exactly as a device computes them."""


def tokens_of(engine: Engine, prompts: list[list[int]], share: bool) -> list[list[int]]:
    """Continuations of prompts that are generated for together."""
    out: list[list[int]] = [[] for _ in prompts]
    for token in engine.generate(prompts, GREEDY, share_prefixes=share):
        out[token.prompt].append(token.id)
    return out


def check_logits(engine: Engine, same: Same) -> None:
    """Those of a prompt in shared pages are those of one that ran in the same two pieces."""
    alone, pages = engine.add_sequence(), engine.cache.table.pages
    engine.prefill(alone, PROMPTS[1][:SHARED])
    wanted = [engine.prefill(alone, PROMPTS[1][SHARED:]), engine.decode([alone], [9])[0]]
    first, held = engine.add_prompt(COMMON[:SHARED])
    assert held == 0
    engine.prefill(first, COMMON[:SHARED])
    second, held = engine.add_prompt(PROMPTS[1])
    assert held == SHARED
    assert pages(second) == pages(first)
    got = [engine.prefill(second, PROMPTS[1][held:]), engine.decode([second], [9])[0]]
    assert not set(pages(second)) & set(pages(alone))
    for one, other in zip(got, wanted, strict=True):
        same(one, other)
    for sequence in (alone, first, second):
        engine.remove_sequence(sequence)


def check_divergence(engine: Engine, same: Same) -> None:
    """A sequence that is cut within a shared page and goes on otherwise changes no other one."""
    table, prompt = engine.cache.table, PROMPTS[0][::-1]  # no other check has run it
    sequences = []
    for _ in range(2):
        sequence, held = engine.add_prompt(prompt)
        engine.prefill(sequence, prompt[held:])
        sequences.append(sequence)
    cut, other = sequences
    table.truncate(cut, 20)
    new = [200 - i for i in range(30)]
    got = engine.prefill(cut, new)
    assert set(table.pages(cut)) & set(table.pages(other)) == {table.pages(other)[0]}
    alone = engine.add_sequence()  # runs in the same pieces
    engine.prefill(alone, prompt)
    table.truncate(alone, SHARED)
    engine.prefill(alone, prompt[SHARED:])
    same(engine.decode([other], [9])[0], engine.decode([alone], [9])[0])
    table.truncate(alone, 20)
    same(got, engine.prefill(alone, new))
    for sequence in (alone, cut, other):
        engine.remove_sequence(sequence)


def check_tokens(engine: Engine) -> None:
    """Greedy tokens are those without sharing, whether earlier prompts run or have ended."""
    wanted = tokens_of(engine, PROMPTS, share=False)
    assert len(set(map(tuple, wanted))) > 1
    for already in (0, 1):
        generation = engine.generate(PROMPTS, GREEDY, share_prefixes=True)
        got: list[list[int]] = [[] for _ in PROMPTS]
        for token in generation:
            got[token.prompt].append(token.id)
        assert got == wanted
        assert generation.stats.prompt_tokens == 3 * 45
        assert generation.stats.cached_tokens == (2 + already) * SHARED
