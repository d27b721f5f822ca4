"""The process that renders one chat template: the template may kill it, not the program.

A template is code from outside. Jinja's sandbox gives it only its variables and a few functions,
and the kernel limits memory and time of this process, so that loops, recursion and long strings
need no rules of their own. `chat_template.py` runs this file by its path; it imports nothing of the
package.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` mark the model's words, which show as is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> jinja2.Environment:
    """Return the sandbox, with what Hugging Face adds to Jinja for chat templates."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # or compiling would evaluate what is constant
        extensions=[LoopControlExtension, _Generation],
    )
    made.filters["tojson"] = to_json
    del made.globals["lipsum"]
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _now
    return made


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON for a prompt: plain characters, no HTML escapes, keys in their order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _limit_memory(nbytes: int) -> None:
    """Let this process map `nbytes` more than it has now."""
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + nbytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _compiled(source: str) -> jinja2.Template:
    try:
        return environment().from_string(source)
    except (jinja2.TemplateError, ValueError, SyntaxError, RecursionError) as error:
        raise ValueError(f"cannot be compiled: {error}") from error


def _answer(template: jinja2.Template, variables: dict[str, Any], characters: int) -> bytes:
    text = template.render(variables)
    if len(text) > characters:
        raise ValueError(f"its text: got {len(text)} characters, wanted at most {characters}")
    return text.encode("utf-8", "surrogatepass")


def main(nbytes: int, seconds: float, characters: int) -> None:
    """Compile the template of the first line, render it with the variables of each further one.

    Lines are JSON. An answer is a line of "ok" or "failed" and a number of bytes, then these: text
    in UTF-8. Processor time beyond `seconds` for one line kills.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # last words of an interpreter without memory
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    _limit_memory(nbytes)
    template = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        word = "ok"
        try:
            if template is None:
                template, answer = _compiled(json.loads(line)), b""
            else:
                answer = _answer(template, json.loads(line), characters)
        except MemoryError:
            word, answer = "failed", b"needs more than %d MiB of memory" % (nbytes >> 20)
        except Exception as error:  # a template may provoke any exception in Python
            what = str(error)[:1000] or type(error).__name__
            word, answer = "failed", what.encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(f"{word} {len(answer)}\n".encode())
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
        if template is None:
            return


if __name__ == "__main__":
    main(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
