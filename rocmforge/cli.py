"""The command line: `rocmforge generate | chat | perplexity | info | devices`.

Parses, and turns errors into exit codes.

What a command does stands in commands.py. That is imported only after parsing, so that --help is
instant and Ctrl-C ends cleanly even while libraries load. This file knows no model.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rocmforge import env
from rocmforge.demo import demo_model
from rocmforge.errors import RocmforgeError
from rocmforge.gguf.formats import FORMATS
from rocmforge.kv import PAGE_SIZES

FAILED, INTERRUPTED, BROKEN_PIPE = 1, 130, 141  # the last two as shells count signals
CHAT_TOKENS = 1024  # of one reply, at most

NO_PROMPT = "no PROMPT: give it as an argument, with --prompt-file, or on standard input"

_EXIT_CODES = """
exit codes: 0 done, 1 error, 2 usage, 130 ended by Ctrl-C
"""
_GENERATE_EXAMPLES = """
examples:
  rocmforge generate "A hammer is"
  rocmforge generate model.gguf "Once upon a time"
  rocmforge generate model.gguf -n 32 --temperature 0.8 --top-p 0.95 --seed 1 "Dear diary,"
  rocmforge generate model.gguf --prompt-file prompt.txt --json > result.json
  git diff | rocmforge generate model.gguf --stop $'\\n\\n'

The text goes to standard output as it comes; one line of timings follows on standard error.
"""
_CHAT_EXAMPLES = """
examples:
  rocmforge chat model.gguf --system "Answer in one sentence."
  printf 'Hello\\nWhat did I say?\\n' | rocmforge chat model.gguf

One line is one message. /reset begins anew, /exit or the end of input leaves. At a terminal,
Ctrl-C ends a reply that is being written, and leaves at the prompt.
"""
_PERPLEXITY_EXAMPLES = """
examples:
  rocmforge perplexity
  rocmforge perplexity model.gguf --text wiki.txt
  rocmforge perplexity --weight-format Q4_K --weight-format MXFP6_E2M3

KL is the mean divergence of the predictions from those of the file's own weights, in nats.
"""
_INFO_EXAMPLES = """
examples:
  rocmforge info model.gguf
  rocmforge info model.gguf --json | jq .bits_per_weight

Reads the header only. A file that cannot be run is described as far as it can be read, with
the reason, and that is no error.
"""
_DEVICES_EXAMPLES = """
examples:
  rocmforge devices
  rocmforge devices --json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code. Usage errors and --help leave by SystemExit.

    Parameters
    ----------
    argv
        Arguments without the program's name; None: those of the process.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has left. What is buffered goes nowhere, or Python would complain at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return BROKEN_PIPE
    except (RocmforgeError, ValueError, OSError, ImportError, MemoryError) as error:
        text = str(error) or type(error).__name__
        line = "".join(c if c.isprintable() else " " for c in text)
        print(f"rocmforge: error: {line}", file=sys.stderr)
        return FAILED


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _parse(argv)
        if isinstance(sys.stdout, TextIOWrapper):  # text that its encoding lacks is no error
            sys.stdout.reconfigure(errors="replace")
        from rocmforge import commands

        code: int = getattr(commands, args.command)(args)
    finally:
        sys.stdout.flush()
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args, rest = _parser().parse_known_args(argv)
    left_over = len(rest) == 1 and not rest[0].startswith("-")
    if args.command == "generate" and args.prompt is None and left_over:
        args.prompt = rest.pop()  # argparse of Python < 3.12 cannot take `MODEL -n 8 PROMPT`
    usage: argparse.ArgumentParser = args.parser
    if rest:
        usage.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command == "generate" and _is_prompt(args):
        args.prompt, args.model = args.model, None
    if args.command != "devices" and args.model is None:
        args.model = str(demo_model())
    if args.command == "generate" and args.prompt is not None and args.prompt_file is not None:
        usage.error("got PROMPT and --prompt-file, wanted one of the two")
    if args.command == "generate" and args.prompt is None and args.prompt_file is None:
        if sys.stdin is None or sys.stdin.isatty():
            usage.error(NO_PROMPT)
        args.prompt_file = "-"
    return args


def _is_prompt(args: argparse.Namespace) -> bool:
    """Whether the one argument of `generate` is a prompt for the demo model."""
    alone = args.model is not None and args.prompt is None and args.prompt_file is None
    if not alone or args.model.endswith(".gguf") or os.path.exists(args.model):
        return False
    return os.sep not in args.model or " " in args.model


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocmforge",
        description="Runs GGUF language models.",
        epilog="`rocmforge COMMAND --help` shows a command's options and examples.",
    )
    version = f"rocmforge {importlib.metadata.version('rocmforge')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, brief: str, epilog: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=brief,
            description=f"{brief[0].upper()}{brief[1:]}.",
            epilog=epilog + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(parser=sub)
        return sub

    generate = command("generate", "continue a text", _GENERATE_EXAMPLES)
    _add_model(generate)
    generate.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to continue")
    generate.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="read the prompt from FILE, or from standard input (-); one line end at its end is "
        "not part of it",
    )
    generate.add_argument(
        "--special",
        action="store_true",
        help="take special tokens that the prompt spells out as such, like <|im_start|>",
    )
    generate.add_argument("--json", action="store_true", help="print one JSON document at the end")
    _add_sampling(generate)
    _add_engine(generate)

    chat = command("chat", "talk with a model that has a chat template", _CHAT_EXAMPLES)
    _add_model(chat)
    chat.add_argument("--system", metavar="TEXT", help="system message that opens the conversation")
    _add_sampling(chat)
    chat.set_defaults(max_tokens=CHAT_TOKENS)
    _add_engine(chat)

    perplexity = command(
        "perplexity", "score how well a model predicts a text", _PERPLEXITY_EXAMPLES
    )
    _add_model(perplexity)
    perplexity.add_argument(
        "--text", metavar="FILE", help="UTF-8 text (default: what the demo model was not shown)"
    )
    perplexity.add_argument(
        "--window", type=int, metavar="N", help="tokens of a window (default 512, or the context)"
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

    info = command("info", "describe a GGUF file", _INFO_EXAMPLES)
    _add_model(info)
    info.add_argument("--json", action="store_true", help="print JSON")

    devices = command("devices", "list the devices of this machine", _DEVICES_EXAMPLES)
    devices.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="path of a GGUF file (default: the small demo model that comes with rocmforge)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add options named as the fields of SamplingParams; absent where not given: defaults hold."""
    group = parser.add_argument_group("sampling")

    def option(*names: str, kind: type[int] | type[float], metavar: str, text: str) -> None:
        group.add_argument(*names, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS)

    tokens = CHAT_TOKENS if parser.prog.endswith("chat") else 128
    option(
        *("-n", "--max-tokens"), kind=int, metavar="N", text=f"at most N tokens (default {tokens})"
    )
    option("--temperature", kind=float, metavar="T", text="0 takes the likeliest token (default 0)")
    option("--top-k", kind=int, metavar="K", text="of the K likeliest tokens; 0: all (default 0)")
    option(
        "--top-p", kind=float, metavar="P", text="of the likeliest that hold share P (default 1)"
    )
    option(
        *("--min-p",),
        kind=float,
        metavar="P",
        text="of those at least P times as likely as the likeliest (default 0)",
    )
    option(
        "--repetition-penalty", kind=float, metavar="R", text="above 1: fewer repeats (default 1)"
    )
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
        help="go on past the model's end tokens",
    )


def _device(value: str) -> str:
    try:
        env.split_device(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--ctx",
        type=int,
        metavar="N",
        help="most tokens of prompt and text together (default: what the model was trained for, "
        "at most 4096)",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: the usable cores)"
    )
    group.add_argument(
        "--device",
        type=_device,
        metavar="DEVICE",
        help="auto, cpu, hip or cuda, a GPU also with its number, as hip:1 (default: auto, the "
        "best GPU that there is, else the CPU; see `devices`)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=("f16", "f32", "q8_0"),
        default="f16",
        help="of the KV cache; q8_0 on GPUs only (default f16)",
    )
    group.add_argument(
        "--page-size",
        type=int,
        choices=PAGE_SIZES,
        default=32,
        help="tokens in a page of the KV cache (default 32)",
    )
