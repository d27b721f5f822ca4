"""The time to the first token, split into its parts: what a user waits for after a request.

tokenizer = Tokenizer.from_gguf(path)
with Engine.from_gguf(path) as engine:
    prompt = prompt_of(tokenizer, 512)
    cold = request(engine, tokenizer, prompt)  # fills caches, touches new memory
    engine.remove_sequence(cold.sequence)
    warm = request(engine, tokenizer, prompt, telemetry=Telemetry())
    found = first_token(warm, cold_seconds=cold.seconds)
print(found.seconds, found.dominant, found.advice)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from rocmforge.demo import held_out_text
from rocmforge.engine import Engine
from rocmforge.plan.observation import ObservedPass
from rocmforge.profiling.profile import FirstToken, Part, longest
from rocmforge.profiling.telemetry import Telemetry
from rocmforge.profiling.turns import Turn, take_turn
from rocmforge.sampling import Sampler, SamplingParams
from rocmforge.text.tokenizer import StreamDecoder, Tokenizer

TARGET_S = 0.2
NOTHING_COPIED = "nothing is copied: the CPU computes in the host's memory"

_ADVICE = {
    "tokenize": "Splitting the prompt into tokens takes longest. Keep the tokens of parts that "
    "come again, such as a system message.",
    "setup": "Making a sequence and its sampler takes longest: the prompt is very short for this "
    "model, or other load held the process up.",
    "embedding": "Reading the embedding rows takes longest, which is unusual: memory may be short, "
    "so that rows come from disk.",
    "host_to_device": "Copying the inputs takes longest. Look at the card's link (PCIe lanes and "
    "generation), and at other traffic on it.",
    "prefill": "The prompt's pass takes longest: its table of ops says where, its verdict why. A "
    "shorter prompt helps in proportion. Prompts that begin alike can share the beginning: "
    "`Engine.generate` with `share_prefixes=True`.",
    "device_to_host": "Copying the logits takes longest. Look at the card's link, and whether "
    "another process uses it.",
    "first_token": "Choosing the token takes longest: penalties and top-p read the whole "
    "vocabulary. Compare with --temperature 0.",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text, and how many of its first tokens are used."""

    text: str
    tokens: int


@dataclass
class Request:
    """One request, until its first token.

    Parameters
    ----------
    begin, tokenized
        When the text came, and when it was token ids.
    turn
        The prompt's, up to the token's text.
    sequence
        In the engine; it goes on until the caller removes it.
    history
        Ids so far, the first token included.
    sampler, stream
        To go on with.
    """

    begin: float
    tokenized: float
    turn: Turn
    sequence: int
    history: list[int]
    sampler: Sampler
    stream: StreamDecoder

    @property
    def seconds(self) -> float:
        """From the text to the first token, without the time of reading stamps."""
        return self.turn.end - self.begin - self.turn.parts().get("observing", 0.0)


def prompt_of(tokenizer: Tokenizer, tokens: int) -> Prompt:
    """Return a prompt of so many tokens: the beginning of an English text, as short as it can be.

    Raises
    ------
    ValueError
        The tokenizer makes nothing of the text.
    """
    text = held_out_text().decode()
    while len(tokenizer.encode(text)) < tokens:
        if len(tokenizer.encode(text + text)) <= len(tokenizer.encode(text)):
            raise ValueError(f"prompt: wanted {tokens} tokens, got a tokenizer that makes none")
        text += text
    low, high = 0, len(text)  # characters: too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        if len(tokenizer.encode(text[:middle])) < tokens:
            low = middle
        else:
            high = middle
    return Prompt(text[:high], tokens)


def request(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Prompt,
    room: int = 0,
    telemetry: Telemetry | None = None,
) -> Request:
    """Run a request until its first token, the likeliest one.

    Parameters
    ----------
    engine, tokenizer
        Of one model.
    prompt
        From `prompt_of`.
    room
        Tokens that the sequence will have room for, without the prompt.
    telemetry
        Observes the pass; None: it is not observed.
    """
    begin = time.perf_counter()
    ids = tokenizer.encode(prompt.text)[: prompt.tokens]
    tokenized = time.perf_counter()
    sequence = engine.add_sequence(len(ids) + room)
    try:
        sampler = Sampler(SamplingParams())
        stream = tokenizer.stream(skip_special=True, continuation=True)
        history = list(ids)

        with nullcontext() if telemetry is None else engine.observed(telemetry):
            made = take_turn(
                lambda: engine.prefill(sequence, ids),
                sampler,
                history,
                stream,
                () if telemetry is None else telemetry.passes,
            )
    except BaseException:  # Ctrl-C too
        engine.remove_sequence(sequence)
        raise
    return Request(begin, tokenized, made, sequence, history, sampler, stream)


def first_token(
    observed: Request,
    *,
    load_seconds: float = 0.0,
    cold_seconds: float | None = None,
    target_seconds: float = TARGET_S,
) -> FirstToken:
    """Split an observed request's time into its parts.

    Parameters
    ----------
    observed
        From `request`, with telemetry.
    load_seconds
        That opening the model took.
    cold_seconds
        Of the first such request after loading; None: this one was the first.
    target_seconds
        What is wanted.

    Raises
    ------
    ValueError
        The request was not observed.
    """
    turn = observed.turn
    if not turn.passes:
        raise ValueError("request: got one that was not observed, wanted one with telemetry")
    times = turn.parts()
    embedding = _steps(turn.passes, "embed")
    copies = [_copies(turn.passes, way) for way in ("host_to_device", "device_to_host")]
    called = turn.returned - turn.begin - times["observing"]
    prefill = called - embedding - sum(seconds or 0.0 for seconds in copies)
    reason = NOTHING_COPIED if copies[0] is None else ""
    tokenize = observed.tokenized - observed.begin
    chosen = times["sampling"] + times["detokenize"]
    parts = (
        Part("load", "loading the model, once", load_seconds),
        Part("tokenize", "text to tokens", tokenize),
        Part("setup", "a sequence and its sampler", turn.begin - observed.tokenized),
        Part("embedding", "embedding rows", embedding),
        Part("host_to_device", "inputs to the device", copies[0], reason),
        Part("prefill", "the rest of the prompt's pass", prefill),
        Part("device_to_host", "logits to the host", copies[1], reason),
        Part("first_token", "choosing the token, its text", chosen),
    )
    dominant = longest(parts[1:])
    met = observed.seconds <= target_seconds
    return FirstToken(
        parts=parts,
        seconds=observed.seconds,
        load_seconds=load_seconds,
        cold_seconds=observed.seconds if cold_seconds is None else cold_seconds,
        dominant=dominant,
        target_seconds=target_seconds,
        met=met,
        advice=tuple(_advice(dominant, met, load_seconds, observed, prefill, target_seconds)),
    )


def _advice(
    dominant: str, met: bool, load: float, observed: Request, prefill: float, target: float
) -> Iterator[str]:
    if not met:
        yield _ADVICE[dominant]
    left = target - (observed.seconds - prefill)
    fitting = int((len(observed.history) - 1) * left / prefill)
    if not met and dominant == "prefill" and fitting > 0:
        yield f"At this speed about {fitting} tokens of prompt meet the target."
    if load > observed.seconds:
        yield "Loading takes longer than the request: keep the process running."


def _steps(passes: tuple[ObservedPass, ...], prefix: str) -> float:
    steps = (step for seen in passes for step in seen.steps)
    return sum(step.seconds for step in steps if step.name.startswith(prefix))


def _copies(passes: tuple[ObservedPass, ...], way: str) -> float | None:
    found = [copy.seconds for seen in passes for copy in seen.copies if copy.name == way]
    return sum(found) if found else None
