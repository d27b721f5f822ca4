"""What the commands of the command line do: one library call each, and printing.

Each takes the arguments, parsed and checked, and returns the exit code. Results go to standard
output, timings, progress and remarks to standard error. cli.py handles errors and Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rocmforge import env
from rocmforge.chat import Conversation, ReplyToken, opening
from rocmforge.demo import demo_model, held_out_text
from rocmforge.devices import Sums, default_device, list_devices, measured_sums
from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, decoded
from rocmforge.generation import GeneratedToken, GenerationStats
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.reader import GGUFFile
from rocmforge.profiling.process_memory import peak_memory_bytes
from rocmforge.quantities import human_size
from rocmforge.sampling_params import SamplingParams
from rocmforge.suggestions import longer_context
from rocmforge.terminal import (
    Output,
    ProgressBar,
    print_json,
    print_table,
    printable,
    say,
)
from rocmforge.text.tokenizer import Tokenizer

DEFAULT_WINDOW = 512
CHAT_TOKENS = 1024  # of one reply at most, where -n is not given,
CHAT_SHARE = 4  # and at most so much of the context: 1 / CHAT_SHARE
CHAT_SAMPLING: Mapping[str, float] = MappingProxyType(
    {"temperature": 0.5, "min_p": 0.05, "repetition_penalty": 1.1}
)
"""How replies are sampled where neither the user nor the model's file says so. Of the settings that
were tried on the demo model (its card has the table), this one never fell into a loop and kept most
answers right."""

DRAWN = ("top_k", "top_p", "min_p", "seed")
"""Settings that count only where tokens are drawn."""

_FILE_SAMPLING = MappingProxyType(
    {
        "general.sampling.temp": "temperature",
        "general.sampling.top_k": "top_k",
        "general.sampling.top_p": "top_p",
        "general.sampling.min_p": "min_p",
        "general.sampling.penalty_repeat": "repetition_penalty",
    }
)
"""Keys of a GGUF file that recommend a setting, and the settings' names."""

CHAT_HELP = """\
/help    show this
/reset   begin a new conversation; a system message stays
/exit    end the program, as the end of input (Ctrl-D) does
Ctrl-C   stop the reply that is being written
Any other line is a message. `rocmforge chat --help` lists the options for length and sampling."""


def generate(args: argparse.Namespace) -> int:
    """Continue one prompt; after Ctrl-C, report what there is, then raise the interrupt again."""
    params = SamplingParams(**args.sampling)
    idle = [name for name in DRAWN if name in args.sampling] if not params.temperature else []
    if idle:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in idle)
        say(f"{names}: no effect at temperature 0; to draw tokens, add --temperature 0.8")
    tokenizer = Tokenizer.from_gguf(args.model)
    ids = tokenizer.encode(args.prompt, parse_special=args.special)
    tokens: list[GeneratedToken] = []
    with _load(args) as engine:
        if len(ids) > engine.ctx:
            raise ValueError(_too_long(len(ids), engine))
        generation = engine.generate([ids], params, tokenizer)
        out = None if args.json else Output()
        try:
            for token in generation:
                tokens.append(token)
                if out is not None:
                    out.write(token.text)
        except KeyboardInterrupt:
            _report(args, engine, out, tokens, generation.stats)
            raise
        _report(args, engine, out, tokens, generation.stats)
        cut = tokens[-1].finish_reason == "length" and len(tokens) < params.max_tokens
        if cut and out is not None:
            say(f"ended at the end of the context of {engine.ctx} tokens; {_longer(engine)}")
    return 0


def _too_long(tokens: int, engine: Engine) -> str:
    wanted = f"wanted at most the {engine.ctx} of the context; {_longer(engine)}"
    return f"prompt: got {tokens} tokens, {wanted}"


def _longer(engine: Engine) -> str:
    return longer_context(engine.ctx, engine.config.ctx_train)


def _report(
    args: argparse.Namespace,
    engine: Engine,
    out: Output | None,
    tokens: Sequence[GeneratedToken],
    stats: GenerationStats,
) -> None:
    if out is not None:
        out.end()
        say(f"{_model_name(args)} | {_timings(stats)}")
        return
    finish = tokens[-1].finish_reason if tokens else None
    print_json(
        {
            "text": "".join(token.text for token in tokens),
            "ids": [token.id for token in tokens],
            "finish_reason": finish or "interrupted",
            "stats": {
                "prompt_tokens": stats.prompt_tokens,
                "generated_tokens": stats.generated_tokens,
                "ttft_s": stats.ttft,
                "prefill_s": stats.prefill_seconds,
                "decode_s": stats.decode_seconds,
                "prefill_tokens_per_second": stats.prefill_tokens_per_second,
                "decode_tokens_per_second": stats.decode_tokens_per_second,
                "peak_memory_bytes": peak_memory_bytes(),
            },
            "model": args.model,
            "device": "+".join(engine.devices),
        }
    )


def chat(args: argparse.Namespace) -> int:
    """Answer standard input line by line; 1 if piped lines were left without an answer."""
    tokenizer = Tokenizer.from_gguf(args.model)
    sampling = {**_chat_sampling(args.model), **args.sampling}
    # Fail before the weights load if there is no template, or it refuses a system message.
    question = [*opening(args.system), {"role": "user", "content": "?"}]
    tokenizer.apply_chat_template(question, variables=args.template_variables)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    unanswered = False
    with _load(args) as engine:
        longest = max(1, min(CHAT_TOKENS, engine.ctx // CHAT_SHARE))
        params = SamplingParams(**{"max_tokens": longest, **sampling})
        variables = args.template_variables
        conversation = Conversation(engine, tokenizer, params, args.system, variables)
        if interactive:
            say(f"{_model_name(args)}, context {engine.ctx} tokens; /help, /reset, /exit")
        for line in _lines(interactive):
            if line == "/exit":
                break
            if line == "/reset":
                conversation.reset()
                say("(a new conversation)")
            elif line == "/help":
                say(CHAT_HELP)
            elif re.fullmatch(r"/[a-z]+", line):
                say(f"{line}: no such command; /help lists them")
            else:
                try:
                    reply = conversation.ask(line)
                except ValueError as error:
                    say(f"{error}; {_longer(engine)}")
                    unanswered = True
                    continue
                if conversation.dropped:
                    gone = f"the {conversation.dropped} oldest messages are dropped"
                    say(f"(the context is full: {gone})")
                shows_reasoning = args.reasoning == "show"
                _answer(conversation, reply, engine.ctx, interactive, shows_reasoning)
    return int(unanswered and not interactive)


def _chat_sampling(path: str) -> dict[str, Any]:
    """The sampling that a model's file recommends; CHAT_SAMPLING where it names no temperature."""
    found: dict[str, Any] = {}
    with GGUFFile(path) as file:
        for key, field in _FILE_SAMPLING.items():
            value: Any = file.metadata.get(key)
            try:
                if value is not None:
                    SamplingParams(**{field: value})
                    found[field] = value
            except ValueError as error:
                say(f"{key} of the file is ignored: {error}")
    return found if "temperature" in found else {**CHAT_SAMPLING, **found}


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        for number, raw in enumerate(sys.stdin.buffer, 1):
            if line := decoded(raw, f"standard input, line {number}").strip():
                yield line
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() line editing)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            raise
        if line:
            yield line


def _answer(
    conversation: Conversation,
    reply: Generator[ReplyToken, None, None],
    ctx: int,
    interactive: bool,
    shows_reasoning: bool,
) -> None:
    out, remark = Output(), ""
    try:
        with closing(reply):
            for token in reply:
                if shows_reasoning:
                    out.aside(token.reasoning)
                out.write(token.text)
                if token.finish_reason == "length":
                    full = conversation.length >= ctx
                    remark = " | cut: the context is full" if full else " | cut: see -n"
    except KeyboardInterrupt:
        remark = " | stopped"
        if not interactive:
            raise
    finally:
        out.end()
        say(_timings(conversation.stats, conversation.kept_tokens) + remark)


def perplexity(args: argparse.Namespace) -> int:
    """Score a text with the model as it is, then with its matrices in each given format."""
    from rocmforge import perplexity as quality
    from rocmforge.info import read_info

    tokenizer = Tokenizer.from_gguf(args.model)
    text = held_out_text().decode() if args.text is None else args.text
    ids = tokenizer.encode(text, add_bos=False)
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    bits = read_info(args.model).bits_per_weight
    nothing = {"kl_nats": None, "top1_agreement": None}
    with _load(args) as engine:
        window = args.window or min(engine.ctx, DEFAULT_WINDOW)
        with ProgressBar("scoring", counts_bytes=False) as bar:
            score = quality.perplexity(engine, ids, bos, window, bar)
        rows = [{"weights": "as in the file", "bits_per_weight": bits, **score.row(), **nothing}]
        for name in args.weight_format:  # one at a time: a large model fits into memory twice
            other = _load(args, name)
            with other, ProgressBar(f"scoring {name}", counts_bytes=False) as bar:
                (found,) = quality.divergence([other], engine, ids, bos, window, bar)
            own = FORMATS[name].bits_per_weight
            rows.append({"weights": name, "bits_per_weight": own, **found.row()})
    if args.json:
        print_json({"model": args.model, "tokens": score.tokens, "window": window, "rows": rows})
        return 0
    print(f"{score.tokens} tokens in windows of {window}")
    print_table(
        ("weights", "bits/weight", "perplexity", "±", "KL", "same top-1"),
        [[_quality_cell(name, row[name]) for name in row] for row in rows],
    )
    return 0


def _quality_cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return {"bits_per_weight": f"{value:.2f}", "kl_nats": f"{value:.5f}"}.get(name) or (
        f"{100 * value:.1f} %" if name == "top1_agreement" else f"{value:.3f}"
    )


def devices(args: argparse.Namespace) -> int:
    """List the devices, and say which one `auto` is."""
    found = list_devices()
    auto = default_device("auto")
    sums = measured_sums()
    meant = _meant_by_environment()
    if args.json:
        listed = [asdict(device) for device in found]
        document = {
            "devices": listed,
            "sums": [asdict(one) for one in sums],
            "auto": auto.kind,
            "reason": auto.reason,
        }
        print_json({**document, "default": meant} if meant else document)
        return 0
    rows = [(d.kind, "yes" if d.usable else "no", d.name, d.detail) for d in found]
    print_table(("device", "usable", "name", "details"), rows, left=True)
    print(f"\nauto is {auto.reason}")
    for one in sums:
        print(f"sums over {', '.join(one.devices)} (split mode tensor): {_ways(one)}")
    if meant:
        print(f"where no --device is given: ROCMFORGE_DEVICE={env.device()}, which is {meant}")
    return 0


def _ways(sums: Sums) -> str:
    """How long a sum takes each way, the shortest time first."""
    from rocmforge.gpu.exchange_time import TOKEN

    if sums.why_not is not None:
        return f"not measured: {sums.why_not}"
    times = sorted(sums.seconds.items(), key=lambda way: way[1])
    told = ", ".join(f"{way} {1e6 * seconds:.1f} us" for way, seconds in times)
    return f"{human_size(4 * TOKEN)} by {told}"


def _meant_by_environment() -> str | None:
    """Which device ROCMFORGE_DEVICE means, where it is set, or why there is none."""
    if env.device() == "auto":
        return None
    try:
        return default_device().reason
    except DeviceError as error:
        return f"not usable: {error}"


def _load(args: argparse.Namespace, weight_format: str | None = None) -> Engine:
    compiling = ProgressBar("compiling", counts_bytes=False)
    label = f"quantizing to {weight_format}" if weight_format else "loading"
    with ProgressBar(label) as bar, compiling:
        return Engine.from_gguf(
            args.model,
            args.device,
            gpu_layers=args.gpu_layers,
            split_mode=args.split_mode,
            ctx=args.ctx,
            threads=args.threads,
            kv_dtype=args.kv_dtype,
            page_size=args.page_size,
            prefill_chunk=args.prefill_chunk,
            weight_format=weight_format,
            progress=bar,
            compile_progress=compiling,
        )


def _model_name(args: argparse.Namespace) -> str:
    """How lines on standard error name the model."""
    path = Path(args.model)
    return "demo model" if path == demo_model() else printable(path.name)


def _timings(stats: GenerationStats, kept: int = 0) -> str:
    ttft = f"{1e3 * stats.ttft:.1f} ms" if math.isfinite(stats.ttft) else "n/a"
    held = f", {kept} kept" if kept else ""
    return (
        f"TTFT {ttft} | prefill {_rate(stats.prefill_tokens_per_second)} "
        f"({stats.prompt_tokens} tokens{held}) | decode {_rate(stats.decode_tokens_per_second)} "
        f"({stats.generated_tokens} tokens) | peak memory {human_size(peak_memory_bytes())}"
    )


def _rate(value: float) -> str:
    return f"{value:.1f} tokens/s" if math.isfinite(value) else "n/a"
