"""The command line: `rocmforge generate | chat | perplexity | profile | info | devices | tune`.

It parses arguments, checks all that needs no model, reads texts, and turns errors into exit codes.

commands.py, info_command.py, profile_command.py and tune_command.py do the work. They are imported
after all this, so that --help and wrong arguments are answered at once and Ctrl-C ends cleanly even
while libraries load, or once a driver that is starting has started.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path

from rocmforge import env
from rocmforge.arguments import parser
from rocmforge.bench.exits import BROKEN_PIPE, INTERRUPTED, discard
from rocmforge.demo import demo_model
from rocmforge.errors import NoSuchFileError, RocmforgeError, TextError, decoded
from rocmforge.sampling_params import SamplingParams
from rocmforge.suggestions import did_you_mean

FAILED, USAGE = 1, 2
STDIN = "-"
TEXT_OPTIONS = ("--prompt", "--stop", "--system")

WITHOUT_MODEL = ("devices", "tune")  # where none is named
OPENS_AHEAD = ("generate", "chat", "perplexity")  # not profile, which may run another program
QUOTES = "; a prompt of several words wants quotes"
MODEL_FIRST = "; the model comes first, the prompt behind it"
PROMPT_WANTED = "wanted a text as an argument, with --prompt-file, or on standard input"

# Errors of writing to standard output, which carry no file's name.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code. Usage errors and --help leave by SystemExit.

    Parameters
    ----------
    argv
        Arguments without the program's name; None: those of the process.
    """
    for name, mode in (("stdin", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout, sys.stderr)  # the reader has gone
        return BROKEN_PIPE
    except OSError as error:
        return _fail(FAILED, _told(error))
    except (RocmforgeError, ImportError, MemoryError) as error:
        return _fail(FAILED, str(error) or type(error).__name__)
    except ValueError as error:  # what checks of arguments and variables raise, here and below
        return _fail(USAGE, str(error))


def _told(error: OSError) -> str:
    """Say what an operating system's error is about."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    if error.errno in _LOST:
        discard(sys.stdout)
        return f"standard output: {reason}: text is lost"
    return str(error)


def _fail(code: int, text: str) -> int:
    line = "".join(c if c.isprintable() else " " for c in text)
    with suppress(OSError):  # standard error may be closed
        print(f"rocmforge: error: {line}", file=sys.stderr)
    return code


def _run(argv: Sequence[str] | None) -> int:
    if sys.stdout is None:
        raise OSError("standard output is closed: text would be lost")
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if isinstance(sys.stdout, TextIOWrapper):  # where its encoding lacks a character
            sys.stdout.reconfigure(errors="replace")
        for name, nearest in env.unknown().items():
            warning = f"{name} is set, and nothing reads it; wanted {nearest}?"
            print(f"rocmforge: warning: {warning}", file=sys.stderr)
        if words[:1] == ["bench"]:
            from rocmforge.bench.cli import main as bench

            return bench(words[1:])
        args = _parse(words)
        _check(args)
        if args.command == "info":
            from rocmforge.info_command import info

            return info(args)
        if args.command == "profile":
            from rocmforge.profile_command import profile

            return profile(args)
        if args.command == "tune":
            from rocmforge.tune_command import tune

            return tune(args)
        with _opening_ahead(args):
            from rocmforge import commands

            code: int = getattr(commands, args.command)(args)
    finally:
        sys.stdout.flush()
    return code


def _opening_ahead(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Open the GPU beside the imports of a command that most likely needs it."""
    if args.command not in OPENS_AHEAD:
        return nullcontext()
    from rocmforge.gpu.context_ahead import opening_ahead

    return opening_ahead(args.device)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    profiled: Sequence[str] = ()
    if words[:1] == ["profile"] and "--" in words:
        at = words.index("--")
        words, profiled = words[:at], words[at + 1 :]
    args, rest = parser().parse_known_args(_joined(words))
    left_over = len(rest) == 1 and (rest[0] == STDIN or not rest[0].startswith("-"))
    if args.command == "generate" and args.prompt is None and left_over:
        args.prompt = rest.pop()  # argparse of Python < 3.12 cannot take `MODEL -n 8 PROMPT`
    usage: argparse.ArgumentParser = args.parser
    if rest:
        usage.error(f"unrecognized arguments: {' '.join(rest)}{_hint(args, rest)}")
    if args.command == "generate":
        _settle_prompt(args)
    if args.command == "profile":
        _settle_profile(args, profiled)
    if args.command not in WITHOUT_MODEL and args.model is None:
        args.model = str(demo_model())
    return args


def _joined(words: Sequence[str]) -> list[str]:
    """Join options whose value is text with it: argparse takes no value that begins with a dash."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in TEXT_OPTIONS and "--" not in joined:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _hint(args: argparse.Namespace, rest: Sequence[str]) -> str:
    """Say what was perhaps meant by arguments that are unknown."""
    known = [name for action in args.parser._actions for name in action.option_strings]
    for word in rest:
        if word.startswith("-") and (hint := did_you_mean(word.partition("=")[0], known)):
            return hint
    if args.command != "generate" or any(word.startswith("-") for word in rest):
        return ""
    return _swapped(args.model, rest) or QUOTES


def _hint_of_prompt(args: argparse.Namespace) -> str:
    """Say what was perhaps meant by MODEL of `generate`, which is no file."""
    if args.prompt in (None, STDIN, args.prompt_option):
        return ""
    several = " " in args.model + args.prompt
    quoted = several or os.sep in args.model or args.model.endswith(".gguf")
    return _swapped(args.model, [args.prompt]) or ("" if quoted else QUOTES)


def _swapped(model: str, later: Sequence[str]) -> str:
    """Say that the model comes first, where a later argument of `generate` looks like one."""

    def is_file(word: str) -> bool:
        return word.endswith(".gguf") or os.path.isfile(word)

    return MODEL_FIRST if not is_file(model) and any(map(is_file, later)) else ""


def _settle_prompt(args: argparse.Namespace) -> None:
    """Leave the prompt in `args.prompt`, or the name of its file in `args.prompt_file`."""
    if _is_prompt(args):
        args.prompt, args.model = args.model, None
    sources = {
        "PROMPT": args.prompt,
        "--prompt": args.prompt_option,
        "--prompt-file": args.prompt_file,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        args.parser.error(f"got {' and '.join(given)}, wanted one of them")
    if not given and (sys.stdin is None or sys.stdin.isatty()):
        args.parser.error(f"prompt: got none, {PROMPT_WANTED}")
    if not given or args.prompt == STDIN:
        args.prompt_file = STDIN
    elif args.prompt is None:
        args.prompt = args.prompt_option


def _settle_profile(args: argparse.Namespace, profiled: Sequence[str]) -> None:
    """Leave the command to profile in `args.profiled`; refuse options that need another one."""
    args.profiled = tuple(profiled)
    if args.tool is None:
        given = {
            "-- COMMAND": args.profiled,
            "--recipe": args.recipe,
            "--counter": args.counter,
            "--output": args.output,
            "--limit": args.limit,
        }
        alone = [name for name, value in given.items() if value]
        if alone:
            args.parser.error(f"got {alone[0]} without --with, wanted --with TOOL")
    elif args.tools:
        args.parser.error("got --tools and --with, wanted one of them")
    files = {"--trace": args.trace, "--roofline": args.roofline, "--html": args.html}
    written = [name for name, value in files.items() if value is not None]
    if written and (args.tools or args.tool is not None):
        other = "--tools" if args.tools else "--with"
        args.parser.error(f"got {written[0]} and {other}, wanted one of them")


def _is_prompt(args: argparse.Namespace) -> bool:
    """Whether the one argument of `generate` is a prompt for the demo model."""
    others = (args.prompt, args.prompt_option, args.prompt_file)
    if args.model is None or any(other is not None for other in others):
        return False
    if args.model == STDIN:
        return True
    if args.model.endswith(".gguf") or os.path.exists(args.model):
        return False
    return os.sep not in args.model or " " in args.model


def _check(args: argparse.Namespace) -> None:
    """Check all that needs no model; replace names of text files by their texts."""
    given = {f.name: getattr(args, f.name) for f in fields(SamplingParams) if f.name in args}
    if "stop" in given:
        given["stop"] = tuple(given["stop"])
    args.sampling = given
    try:
        SamplingParams(**given)
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        action = next((one for one in args.parser._actions if one.dest == name), None)
        wrong = argparse.ArgumentError(action, rest.replace("None or ", ""))
        args.parser.error(str(wrong))
    env.check()
    model = getattr(args, "model", None)
    if model is not None and not os.path.exists(model):
        if args.command == "generate" and (hint := _hint_of_prompt(args)):
            args.parser.error(f"no such model: {args.model}{hint}")
        raise NoSuchFileError(model)
    if getattr(args, "prompt_file", None) is not None:
        text = _text(args.prompt_file, "--prompt-file")
        args.prompt = text.removesuffix("\n").removesuffix("\r")
    if args.command == "generate" and not args.prompt:
        where = f" in {args.prompt_file}" if args.prompt_file else ""
        if args.prompt_file == STDIN:
            where = " on standard input"
        raise ValueError(f"prompt: got an empty text{where}, {PROMPT_WANTED}")
    if getattr(args, "text", None) is not None:
        args.text = _text(args.text, "--text")


def _text(path: str, option: str) -> str:
    name = "standard input" if path == STDIN else f"{option} {path}"
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TextError(f"{name}: {reason}, wanted a file of UTF-8 text") from error
    return decoded(data, name)
