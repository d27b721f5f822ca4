"""Chat templates: Jinja source from a model file, rendered in a sandbox with limits.

A template is foreign code. It sees nothing but its variables and a few functions, may change none
of them, and fails with TokenizerError when it loops, grows or recurses beyond the limits below.
This file does not know vocabularies or tokens.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from types import CodeType
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rocmforge.errors import TokenizerError

MAX_SOURCE = 1 << 20  # characters of a template; real ones have up to 30 thousand
MAX_TEXT = 1 << 24  # characters of one string, the result among them
MAX_ITEMS = 1 << 20  # elements of one list
MAX_STEPS = 10_000_000  # list elements and pieces of 64 characters that are handled, and calls
CALL_STEPS = 16  # that a call counts as
MAX_WIDTH = 9999  # of padding and indentation

_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})  # methods of str
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})|\{[^{}]*(\{|\d{5})")


class ChatTemplate:
    """One template, compiled once.

    Parameters
    ----------
    source
        Jinja source; blocks take their own line and indentation with them, as Hugging Face has it.
    name
        What error messages call it: the file's path.

    Raises
    ------
    TokenizerError
        The source is too long or no Jinja.
    """

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        if len(source) > MAX_SOURCE:
            self._fail(f"got {len(source)} characters, wanted at most {MAX_SOURCE}", None)
        environment = _Environment()
        try:
            tree = environment.parse(source)
            _limit_growth(tree, environment)
            self._code: CodeType = environment.compile(tree)
        except (jinja2.TemplateError, ValueError, RecursionError, MemoryError) as error:
            self._fail(f"cannot be compiled: {error}", error)

    def render(self, **variables: object) -> str:
        """Return the text that the template makes of `variables`.

        Raises
        ------
        TokenizerError
            The template fails, calls `raise_exception`, or exceeds a limit.
        """
        environment = _Environment()  # holds the count of steps, so one for each rendering
        template = jinja2.Template.from_code(environment, self._code, environment.make_globals({}))
        try:
            text = template.render(**variables)
            environment.spend(text)
        except Exception as error:  # a template may provoke any exception in Python
            self._fail(str(error) or type(error).__name__, error)
        return text

    def _fail(self, what: str, cause: BaseException | None) -> NoReturn:
        raise TokenizerError(f"{self._name}: tokenizer.chat_template: {what}") from cause


class _Generation(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` mark the model's words, which show as is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a budget that everything which can loop or grow draws from.

    It bounds honest mistakes and crude attacks; it is no hard limit of time.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would evaluate constant expressions without limits
            extensions=[LoopControlExtension, _Generation],
            finalize=self.spend,
        )
        self._steps = 0
        self.filters["tojson"] = _to_json
        self.filters = {name: self._limited(name, f) for name, f in self.filters.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _now

    def spend(self, value: Any) -> Any:
        """Charge for `value` and all that it holds, as str() or JSON would go through it."""
        pending = [value]
        while pending:
            item = pending.pop()
            self._charge(item)
            if isinstance(item, (list, tuple)):
                pending.extend(item)
            elif isinstance(item, Mapping):
                pending.extend(item.values())
        return value

    def _charge(self, item: Any) -> Any:
        cost = 1
        if isinstance(item, str):
            self._limit("a string", len(item), MAX_TEXT)
            cost += len(item) // 64
        elif isinstance(item, Sized):
            self._limit("a list", len(item), MAX_ITEMS)
            cost += len(item)
        self._steps += cost
        self._limit("the template's steps", self._steps, MAX_STEPS)
        return item

    def iterated(self, iterable: Iterable[Any]) -> Iterable[Any]:
        """Return what a ``for`` iterates over; call() has charged for it unless it is lazy."""
        return iterable if isinstance(iterable, Sized) else self._charge(list(iterable))

    def tilde(self, *parts: Any) -> str:
        """Join the operands of ``~``."""
        texts = [str(part) for part in self.spend(parts)]
        self._limit("a string", sum(map(len, texts)), MAX_TEXT)
        return "".join(texts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse, beside what Jinja does, the methods that pad a text to any width."""
        padding = attr in _PADDING and isinstance(obj, str)
        return not padding and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return Jinja's safe stand-in for ``str.format``, None for anything else."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and value.__name__ in ("format", "format_map"):
            self._check_growth("format", owner, ())
        return super().wrap_str_format(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, method or macro of the template: arguments and result cost."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_growth(__obj.__name__, owner, args)
        __self._steps += CALL_STEPS
        for argument in (*args, *kwargs.values()):
            __self._charge(argument)
        return __self._charge(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an operator whose result may be far larger than its operands."""
        if operator == "%" and isinstance(left, str):
            self._check_growth("format", left, (right,))
        elif operator == "*" and (isinstance(left, Sized) or isinstance(right, Sized)):
            sequence, count = (left, right) if isinstance(left, Sized) else (right, left)
            self._limit("a product", len(sequence) * max(0, int(count)), MAX_ITEMS)
        elif operator == "**":
            self._limit("an exponent", abs(right), 64)
        for operand in (left, right):
            if isinstance(operand, int):
                self._limit("a number's bits", operand.bit_length(), 4096)
        return self._charge(super().call_binop(context, operator, left, right))

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the marks by which Jinja passes context or environment
        def limited(*args: Any, **kwargs: Any) -> Any:
            value, *options = args[hasattr(function, "jinja_pass_arg") :]
            options += kwargs.values()
            if name not in ("default", "d", "int", "float"):
                for option in options:
                    if isinstance(option, int):
                        self._limit(f"{name}: an argument", abs(option), MAX_WIDTH)
            if name == "join":
                self._check_growth(name, str(options[0]) if options else "", (value,))
            elif isinstance(value, str):
                self._check_growth(name, value, options)
            self.spend((value, options))
            return self._charge(function(*args, **kwargs))

        return limited

    def _check_growth(self, name: str, text: str, args: Sequence[Any]) -> None:
        if name == "format":
            if _WIDE_FORMAT.search(text):
                raise SecurityError("format: got a width of five digits or a computed one")
            self.spend(args)
        elif name == "replace" and len(args) > 1:
            grown = len(text) + text.count(str(args[0])) * len(str(args[1]))
            self._limit("a string", grown, MAX_TEXT)
        elif name == "join" and args and isinstance(args[0], (list, tuple, str)):
            parts = sum(len(part) for part in args[0] if isinstance(part, str))
            self._limit("a string", parts + len(args[0]) * len(text), MAX_TEXT)

    @staticmethod
    def _limit(what: str, got: float, limit: int) -> None:
        if got > limit:
            raise SecurityError(f"{what}: got {got:g}, wanted at most {limit}")


def _limit_growth(tree: nodes.Template, environment: _Environment) -> None:
    """Route loops and ``~``, which Jinja compiles to plain Python, through the environment."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _call("iterated", [cast(nodes.Expr, loop.iter)], environment)
    for concat in list(tree.find_all(nodes.Concat)):
        concat.nodes = [_call("tilde", concat.nodes, environment)]


def _call(method: str, arguments: list[nodes.Expr], environment: _Environment) -> nodes.Call:
    target = nodes.EnvironmentAttribute(method)
    call = nodes.Call(target, arguments, [], None, None, lineno=arguments[0].lineno)
    call.set_environment(environment)
    return call


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Write JSON for a prompt: plain characters, no HTML escapes, keys in their order."""
    known = {"ensure_ascii", "separators", "sort_keys"}
    if options.keys() - known:
        raise TypeError(f"tojson: got {sorted(options)}, wanted some of {sorted(known)}")
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **options})


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
