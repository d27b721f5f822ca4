"""The parser of the command line: commands, options, examples, help.

It checks each value on its own; cli.py checks how they fit together. It imports nothing slow, so
that a wrong option is answered at once.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, NoReturn

from rocmforge import env
from rocmforge.env import SPLIT_MODES
from rocmforge.gguf.formats import FORMATS
from rocmforge.kv import KV_DTYPES, PAGE_SIZES
from rocmforge.sampling_params import SamplingParams
from rocmforge.suggestions import Parser

_EXIT_CODES = """
exit codes: 0 done; 1 failed (a file, a device, memory, the output); 2 a wrong argument or
environment variable; 130 ended by Ctrl-C; 141 the reader of the output has gone
"""
_GENERATE_EXAMPLES = """
examples:
  rocmforge generate "A hammer is"
  rocmforge generate model.gguf "Once upon a time"
  rocmforge generate model.gguf -n 32 --temperature 0.8 --top-p 0.95 --seed 1 "Dear diary,"
  rocmforge generate model.gguf --prompt-file prompt.txt --json > result.json
  git diff | rocmforge generate model.gguf - --stop $'\\n\\n'

A single argument is the prompt, unless it is a file or looks like one's path.
The text goes to standard output as it comes; one line of timings follows on standard error. With
--json, finish_reason is "stop" (an end token, or --stop), "length" (-n, or the end of the context)
or "interrupted".
"""
_CHAT_EXAMPLES = """
examples:
  rocmforge chat model.gguf --system "Answer in one sentence."
  printf 'Hello\\nWhat did I say?\\n' | rocmforge chat model.gguf

One line is one message. /reset begins a new conversation, /help lists all commands, /exit or the
end of input ends the program. At a terminal, Ctrl-C stops a reply; at the prompt, it ends the
program. When the context is full, the oldest messages are dropped; the system message stays.

Reasoning that a model marks (<think>, [THINK], channels) is shown dimmed, or on
standard error where the output is no terminal. Answers go to later prompts; reasoning goes only
where the chat template has a place for it.

Sampling options that are not given come from the model's file (general.sampling.*). If it has none,
they are --temperature 0.5 --min-p 0.05 --repetition-penalty 1.1.
"""
_PERPLEXITY_EXAMPLES = """
examples:
  rocmforge perplexity
  rocmforge perplexity model.gguf --text wiki.txt
  rocmforge perplexity --weight-format Q4_K --weight-format MXFP6_E2M3

KL is the mean KL divergence of the predictions from those of the file's own weights, in nats.
"""
_INFO_EXAMPLES = """
examples:
  rocmforge info model.gguf
  rocmforge info model.gguf --json | jq .bits_per_weight
  rocmforge info --supported

Reads only the header. For a model that cannot be run it says why; the exit code is still 0.
"""
_PROFILE_EXAMPLES = """
examples:
  rocmforge profile
  rocmforge profile model.gguf --prompt-tokens 1024 --tokens 64 --target-ms 150
  rocmforge profile model.gguf --device hip --json > profile.json
  rocmforge profile model.gguf --html profile.html --trace profile.trace.json
  rocmforge profile --tools
  rocmforge profile model.gguf --with rocprofv3 --recipe memory
  rocmforge profile --with perf -- python my_program.py

It runs a request and the tokens behind it, several times, and says first what limits the speed and
what to try. The time to the first token does not include loading, which is shown beside it.
"""
_TUNE_EXAMPLES = """
examples:
  rocmforge tune
  rocmforge tune model.gguf
  rocmforge tune --device hip:1 --only gemv --only fusions
  rocmforge tune --reset

It tries other block sizes, rows a block, tiles and fusions on your GPU. Whole decode steps are
timed, of your model or of random ones of common shapes. What makes a step 0.5 % faster in two runs
is kept, and later commands use it. The parts are gemv (1 to 8 tokens at once), experts (the same,
of mixtures), batch (9 to 64), tile (longer prompts) and fusions. `rocmforge bench` and asv use no
table: they measure the constants that a commit has. Stop other work on the GPU first.
ROCMFORGE_TUNING=off sets the table aside for one command, and ROCMFORGE_TUNING=FILE takes another
one of the same GPU.
"""
_DEVICES_EXAMPLES = """
examples:
  rocmforge devices
  rocmforge devices --json
"""


TUNED = ("gemv", "experts", "batch", "tile", "fusions")
"""The parts of `rocmforge.speed.tune.tune`."""


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib import metadata  # 15 ms, and nothing else here needs it

        print(f"rocmforge {metadata.version('rocmforge')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser. After parsing, `args.parser` is the parser of the command."""
    parser = Parser(
        prog="rocmforge",
        description="Runs GGUF language models.",
        epilog="`rocmforge COMMAND --help` shows a command's options and examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, brief: str, epilog: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=brief,
            description=f"{brief[0].upper()}{brief[1:]}.",
            epilog=epilog + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(parser=sub)
        return sub

    generate = command("generate", "continue a text", _GENERATE_EXAMPLES)
    _add_model(generate)
    generate.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="the text to continue; -: standard input"
    )
    generate.add_argument(
        "--prompt",
        dest="prompt_option",
        metavar="TEXT",
        help="the text to continue; it may begin with a dash",
    )
    generate.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="read the prompt from FILE, or from standard input (-), without a line break at its "
        "end",
    )
    generate.add_argument(
        "--special",
        action="store_true",
        help="read special tokens in the prompt, such as <|im_start|>, as tokens, not as text",
    )
    generate.add_argument("--json", action="store_true", help="print one JSON document at the end")
    _add_sampling(generate)
    _add_engine(generate)

    chat = command("chat", "talk with a model that has a chat template", _CHAT_EXAMPLES)
    _add_model(chat)
    chat.add_argument("--system", metavar="TEXT", help="system message that opens the conversation")
    chat.add_argument(
        "--template-variables",
        type=_json_object,
        metavar="JSON",
        help="what the chat template reads besides: '{\"enable_thinking\": false}' for Qwen 3",
    )
    chat.add_argument(
        "--reasoning",
        choices=("show", "hide"),
        default="show",
        help="what becomes of the reasoning before an answer: show it, dimmed at a terminal, "
        "else on standard error (default), or hide it",
    )
    _add_sampling(chat)
    _add_engine(chat)

    perplexity = command(
        "perplexity", "score how well a model predicts a text", _PERPLEXITY_EXAMPLES
    )
    _add_model(perplexity)
    perplexity.add_argument(
        "--text",
        metavar="FILE",
        help="UTF-8 text; -: standard input (default: text that the demo model was not trained on)",
    )
    perplexity.add_argument(
        "--window",
        type=_whole(4),
        metavar="N",
        help="tokens of a window (default 512, or the context if that is smaller)",
    )
    perplexity.add_argument(
        "--weight-format",
        action="append",
        default=[],
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help=f"also quantize the matrices to FORMAT and compare (repeatable): {', '.join(FORMATS)}",
    )
    perplexity.add_argument("--json", action="store_true", help="print one JSON document")
    _add_engine(perplexity)

    profile = command("profile", "say where the time of a model goes, and why", _PROFILE_EXAMPLES)
    _add_profile(profile)
    _add_engine(profile, "The whole model has to lie on one device, unless --with TOOL is given.")

    info = command("info", "describe a GGUF file", _INFO_EXAMPLES)
    _add_model(info)
    info.add_argument(
        "--supported",
        action="store_true",
        help="list the architectures, formats and tokenizers that run here, and no file",
    )
    info.add_argument("--json", action="store_true", help="print JSON")

    tune = command("tune", "find the fastest constants of the kernels on a GPU", _TUNE_EXAMPLES)
    tune.set_defaults(parts=TUNED)
    _add_model(tune, "random models of common shapes")
    which = "auto, hip, cuda, or a GPU by its number, as hip:1 (default auto: the best GPU)"
    tune.add_argument("--device", **{**_DEVICE, "help": which})
    tune.add_argument(
        "--only",
        action="append",
        choices=TUNED,
        metavar="PART",
        help=f"tune this part alone (repeatable): {', '.join(TUNED)}",
    )
    tune.add_argument("--reset", action="store_true", help="delete the table of the GPU, and end")
    tune.add_argument("--json", action="store_true", help="print one JSON document")

    devices = command("devices", "list the devices of this machine", _DEVICES_EXAMPLES)
    devices.add_argument("--json", action="store_true", help="print JSON")
    bench = "measure a model, or measure, compare and gate the speed of commits"
    commands.add_parser("bench", help=bench, allow_abbrev=False)
    return parser


def _add_model(
    parser: argparse.ArgumentParser, default: str = "the small demo model that comes with rocmforge"
) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"path of a GGUF file (default: {default})"
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument(
        "--prompt-tokens",
        type=_whole(2),
        metavar="N",
        help="tokens of the prompt (default 512, or what the context leaves)",
    )
    parser.add_argument(
        "--tokens", type=_whole(1), default=32, metavar="N", help="tokens to generate (default 32)"
    )
    parser.add_argument(
        "--target-ms",
        type=_positive,
        default=200.0,
        metavar="MS",
        help="wanted time to the first token, without loading (default 200)",
    )
    parser.add_argument("--all", action="store_true", help="show all rows, and kernels")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    files = parser.add_argument_group("files")
    files.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing"
    )
    files.add_argument(
        "--roofline", metavar="FILE", help="write a picture of the ops under the roofline, as SVG"
    )
    files.add_argument("--html", metavar="FILE", help="write all of it as one page")
    group = parser.add_argument_group("other profilers")
    group.add_argument(
        "--tools", action="store_true", help="list the profilers of this machine, and end"
    )
    group.add_argument(
        "--with",
        dest="tool",
        metavar="TOOL",
        help="run under rocprofv3, rocprof, rocprof-compute or perf: the COMMAND behind --, or "
        "`rocmforge generate` with this model",
    )
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help="what TOOL measures: kernel, memory, stall, matmul-memory or compute-unit "
        "(default kernel)",
    )
    group.add_argument(
        "--counter",
        action="append",
        metavar="NAME",
        help="count NAME instead of the recipe's counters (repeatable)",
    )
    group.add_argument(
        "--output", metavar="FOLDER", help="keep what TOOL writes in FOLDER (default: a new one)"
    )
    group.add_argument(
        "--limit", type=_positive, metavar="SECONDS", help="end each run of TOOL after SECONDS"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add options named as the fields of SamplingParams; one that is not given is not set."""
    group = parser.add_argument_group("sampling")
    chat = parser.prog.endswith("chat")
    defaults = {f.name: f.default for f in fields(SamplingParams)}

    def option(*names: str, kind: type[int] | type[float], metavar: str, text: str) -> None:
        default = defaults[names[-1][2:].replace("-", "_")]
        shown = text if chat or default is None else f"{text} (default {default:g})"
        group.add_argument(
            *names, type=kind, metavar=metavar, help=shown, default=argparse.SUPPRESS
        )

    most = "at most N tokens"
    if chat:
        most += " in a reply (default: a quarter of the context, at most 1024)"
    option("-n", "--max-tokens", kind=int, metavar="N", text=most)
    option("--temperature", kind=float, metavar="T", text="0: always the likeliest token")
    option("--top-k", kind=int, metavar="K", text="sample from the K likeliest tokens; 0: from all")
    share = "sample from the likeliest tokens whose probabilities add up to P"
    option("--top-p", kind=float, metavar="P", text=share)
    least = "sample from tokens at least P times as likely as the likeliest"
    option("--min-p", kind=float, metavar="P", text=least)
    option("--repetition-penalty", kind=float, metavar="R", text="above 1: fewer repeats")
    option("--seed", kind=int, metavar="S", text="the same seed gives the same text")
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="end before TEXT (repeatable)",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=argparse.SUPPRESS,
        help="do not stop at the model's end tokens",
    )


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return the reader of an option that is a whole number."""
    wanted = f"an integer from {low}" if high is None else f"{low} to {high}"

    def read(text: str) -> int:
        with suppress(ValueError):
            number = int(text)
            if low <= number and (high is None or number <= high):
                return number
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")

    return read


def _positive(text: str) -> float:
    with suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"got {text!r}, wanted a number above 0")


def _json_object(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise argparse.ArgumentTypeError(f"got {text!r}, wanted a JSON object, as '{{\"a\": true}}'")


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Of a value that stays as it is, unless `check` raises ValueError."""

    def parse(value: str) -> str:
        try:
            check(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    return parse


def _layers(text: str) -> int | list[int]:
    """One number, or one for each GPU."""
    numbers = [_whole(0)(part.strip()) for part in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


_DEVICE: dict[str, Any] = {
    "type": _checked(env.split_device),
    "metavar": "DEVICE",
    "help": "auto, cpu, hip, cuda, or a GPU by its number, as hip:1 (default auto: the best GPU, "
    "or the CPU if there is none; see `rocmforge devices`)",
}


def _add_engine(parser: argparse.ArgumentParser, limits: str | None = None) -> None:
    group = parser.add_argument_group("engine", limits)
    group.add_argument(
        "--ctx",
        type=_whole(1),
        metavar="N",
        help="the most tokens that the model reads, prompt and generated text together; the last "
        "token of the text is not read (default: the context that the model was trained for, at "
        "most 4096)",
    )
    group.add_argument(
        "--threads",
        type=_whole(1, env.MAX_THREADS),
        metavar="N",
        help="CPU threads (default: the usable cores)",
    )
    several = f"{_DEVICE['help']}; several GPUs, as hip:0,hip:1, share the model"
    group.add_argument(
        "--device", **{**_DEVICE, "type": _checked(env.split_devices), "help": several}
    )
    group.add_argument(
        "-ngl",
        "--gpu-layers",
        type=_layers,
        metavar="N",
        help="the last N layers and the output lie on the GPU, the others on the CPU, for a model "
        "that does not fit; 0: all on the CPU; as many as the model has, or more: all on the GPU "
        "(default); N,M: so many on each of two GPUs; with --split-mode stream the weights of the "
        "others stay in the host's memory instead",
    )
    group.add_argument(
        "-sm",
        "--split-mode",
        choices=SPLIT_MODES,
        default=SPLIT_MODES[0],
        help="how devices share a model: layer: some layers each, one device after another; "
        "tensor: a part of every matrix each, all at the same time, on GPUs that are alike; "
        "stream: one GPU computes all layers; weights of those that --gpu-layers leaves out stay "
        "in the host's memory; without it, all lie on the GPU (default layer)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        default="f16",
        help="dtype of the KV cache; q8_0 takes half of f16, and so does fp8_e4m3, which is less "
        "accurate and for GPUs only (default f16)",
    )
    group.add_argument(
        "--page-size",
        type=int,
        choices=PAGE_SIZES,
        default=32,
        help="tokens in a page of the KV cache (default 32)",
    )
    group.add_argument(
        "--prefill-chunk",
        type=_whole(1),
        metavar="N",
        help="run at most N tokens of a prompt in one pass: shorter passes take less memory and "
        "more time (default, and the most: 512 on the CPU, 512 to 2048 on a GPU by its memory)",
    )
