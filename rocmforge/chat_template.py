"""Chat templates: Jinja source from a model file, rendered in a sandbox with limits.

A template is foreign code. It sees nothing but its variables and a few functions, may change none
of them, and fails with TokenizerError when it loops, grows or recurses beyond the limits below.
This file does not know vocabularies or tokens.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from types import CodeType, MappingProxyType
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rocmforge.errors import TokenizerError, shorten

MAX_SOURCE = 1 << 16  # characters of a template; real ones have up to 30 thousand
MAX_TEXT = 1 << 23  # characters of one string, the result among them
MAX_ITEMS = 1 << 20  # elements of one list
MAX_BITS = 4096  # of an integer
MAX_WIDTH = 9999  # of padding and indentation
MAX_DATE = 256  # characters of a date's format
MAX_STEPS = 2_500_000  # in all; a step takes half a microsecond at most

# What costs how many steps, beside one for each element or 64 characters of what is handled.
CALL_STEPS = 40
FILTER_STEPS = 8  # a filter, or a test
ACCESS_STEPS = 8  # an attribute, an item, a value that is printed
NODES_A_STEP = 3  # of the source of a loop's or macro's body, each time that it runs

_CONTAINERS = (list, tuple, dict)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "eq": operator.eq,
        "ne": operator.ne,
        "lt": operator.lt,
        "lteq": operator.le,
        "gt": operator.gt,
        "gteq": operator.ge,
        "in": lambda item, where: item in where,
        "notin": lambda item, where: item not in where,
    }
)
# Methods that make a small text or number large, or bytes, whose methods are not watched.
_GROWING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate"})
_TO_BYTES = frozenset({"encode", "to_bytes"})
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})|\{[^{}]*(\{|\d{5})")
# Filters without a use in a prompt, whose time grows faster than their text or very fast.
_SLOW_FILTERS = ("pprint", "striptags", "urlize", "wordcount", "wordwrap")
_CONSTANT_FILTERS = frozenset(  # take the same time for a value of any size
    {"abs", "count", "d", "default", "first", "float", "int", "last", "length", "round"}
)
_FLAT_FILTERS = frozenset(  # do not look into the elements of a list
    {"batch", "items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"}
)
_SORTING_FILTERS = frozenset({"dictsort", "groupby", "sort", "title", "unique"})  # cost double
_COMPARING_TESTS = frozenset(
    {
        *("eq", "equalto", "==", "ne", "!=", "in"),
        *("lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="),
    }
)


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
            _watch(tree, environment)
            self._code: CodeType = environment.compile(tree)
        except (
            *(jinja2.TemplateError, ValueError, SyntaxError),
            *(RecursionError, MemoryError),
        ) as error:
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
        raise TokenizerError(f"{self._name}: tokenizer.chat_template: {shorten(what)}") from cause


class _Generation(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` mark the model's words, which show as is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a budget that everything which can loop or grow draws from.

    It bounds honest mistakes and crude attacks to about a second; it is no hard limit of time.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would evaluate constant expressions without limits
            extensions=[LoopControlExtension, _Generation],
            finalize=self.printed,
        )
        self._steps = 0
        self.filters["tojson"] = _to_json
        for name in _SLOW_FILTERS:
            del self.filters[name]
        self.filters = {name: self._limited(name, f) for name, f in self.filters.items()}
        self.tests = {n: self._limited_test(n, cast(Any, f)) for n, f in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _now

    def printed(self, value: Any) -> Any:
        """Charge for what ``{{ … }}`` shows."""
        self.step(ACCESS_STEPS)
        return self.spend(value)

    def spend(self, value: Any) -> Any:
        """Charge for `value` and all that it holds, as str() or JSON would go through it."""
        pending = [value]
        while pending:
            item = self._charge(pending.pop())
            if isinstance(item, (list, tuple)):
                pending.extend(part for part in item if isinstance(part, (str, *_CONTAINERS)))
            elif isinstance(item, dict):
                pending.extend(item.keys())
                pending.extend(item.values())
        return value

    def _charge(self, item: Any) -> Any:
        """Charge for `item` itself: a string by its length, a list by its elements."""
        if isinstance(item, str):
            self._limit("a string", len(item), MAX_TEXT)
            self.step(1 + len(item) // 64)
        elif isinstance(item, Sized):
            self._limit("a list", len(item), MAX_ITEMS)
            self.step(1 + len(item))
        else:
            self.step(1)
        return item

    def step(self, cost: int) -> None:
        """Draw from the budget; every body of a loop, macro or block begins with it."""
        self._steps += cost
        if self._steps > MAX_STEPS:
            self._limit("the template's steps", self._steps, MAX_STEPS)

    def iterated(self, iterable: Iterable[Any], cost: int) -> Iterable[Any]:
        """Return what a ``for`` iterates over; `cost` is that of its ``if``, for each element."""
        items = iterable if isinstance(iterable, Sized) else list(iterable)
        self._limit("a loop", len(items), MAX_ITEMS)
        self.step(len(items) * cost)
        return cast(Iterable[Any], items)

    def tilde(self, *parts: Any) -> str:
        """Join the operands of ``~``."""
        texts = [str(part) for part in self.spend(parts)]
        self._limit("a string", sum(map(len, texts)), MAX_TEXT)
        return "".join(texts)

    def compared(self, left: Any, *rest: Any) -> Any:
        """Evaluate ``left op right``, or a chain of them; `rest` is op, right, op, right …."""
        result: Any = True
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            self._charge_comparison(name, left, right)
            result = _COMPARISONS[name](left, right)
            if not result:
                break
            left = right
        return result

    def _charge_comparison(self, name: str, left: Any, right: Any) -> None:
        deep = isinstance(left, (str, *_CONTAINERS)) and isinstance(right, _CONTAINERS)
        if name in ("in", "notin"):
            if deep:
                self.spend(left)
                self.spend(right)
            else:
                self._charge(right)
        elif isinstance(left, str) and isinstance(right, str):
            self.step(1 + min(len(left), len(right)) // 64)
        elif deep and not (name in ("eq", "ne") and len(left) != len(right)):
            self.spend(left)
        else:
            self.step(1)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up ``obj[argument]``."""
        self.step(ACCESS_STEPS)
        if isinstance(argument, tuple):
            self.spend(argument)  # to be hashed
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up ``obj.attribute``."""
        self.step(ACCESS_STEPS)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse, beside what Jinja does, the methods that pad a text or make bytes."""
        growing = (attr in _GROWING and isinstance(obj, str)) or attr in _TO_BYTES
        return not growing and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return Jinja's safe stand-in for ``str.format``, None for anything else."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and value.__name__ in ("format", "format_map"):
            self._check_growth("format", owner, ())
        return super().wrap_str_format(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, method or macro of the template: owner, arguments and result cost."""
        __self.step(CALL_STEPS)
        owner = getattr(__obj, "__self__", None)
        given = (*args, *kwargs.values())
        if owner is None:
            for argument in given:
                __self._charge(argument)
        else:  # a method may search its owner, compare or hash
            __self.spend(given)
            if isinstance(owner, str):
                __self._check_growth(__obj.__name__, owner, args)
                __self._charge(owner)
            elif isinstance(owner, (list, tuple)):
                scalar = not any(isinstance(argument, (str, *_CONTAINERS)) for argument in given)
                (__self._charge if scalar else __self.spend)(owner)
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
                self._limit("a number's bits", operand.bit_length(), MAX_BITS)
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
            if name == "sum" and any(isinstance(option, _CONTAINERS) for option in options):
                raise SecurityError("sum: got a list to begin with, wanted a number")
            self.step(FILTER_STEPS)
            if name in _CONSTANT_FILTERS:
                if name in ("int", "float") and isinstance(value, str):
                    self._limit(f"{name}: a string", len(value), MAX_BITS // 4)
                return function(*args, **kwargs)
            self.spend(options)
            (self._charge if name in _FLAT_FILTERS else self.spend)(value)
            if name in _SORTING_FILTERS:
                self.spend(value)
            result = function(*args, **kwargs)
            # A lazy result would do its work later, unseen and as often as it is asked.
            return self._charge(list(result) if isinstance(result, Iterator) else result)

        return limited

    def _limited_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            value, *options = args[hasattr(function, "jinja_pass_arg") :]
            self.step(FILTER_STEPS)
            if name in _COMPARING_TESTS:
                for option in (*options, *kwargs.values()):
                    self._charge_comparison("in" if name == "in" else "lt", value, option)
            elif isinstance(value, str) and name in ("lower", "upper"):
                self._charge(value)
            return function(*args, **kwargs)

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


def _watch(node: nodes.Node, environment: _Environment) -> int:
    """Route what Jinja compiles to plain Python through the environment; return the nodes.

    That is loops, ``~``, comparisons, slices and keys of a dict; and bodies that can run more
    than once begin with a step.
    """
    size = 1 + sum(_watch(child, environment) for child in list(node.iter_child_nodes()))

    def call(method: str, *arguments: nodes.Expr) -> nodes.Call:
        made = nodes.Call(
            nodes.EnvironmentAttribute(method), [*arguments], [], None, None, lineno=node.lineno
        )
        made.set_environment(environment)
        return made

    if isinstance(node, nodes.For):
        tested = sum(1 for _ in node.test.find_all(nodes.Node)) if node.test else 0
        cost = nodes.Const(1 + tested // NODES_A_STEP)
        node.iter = call("iterated", cast(nodes.Expr, node.iter), cost)
    elif isinstance(node, nodes.Concat):
        node.nodes = [call("tilde", *node.nodes)]
    elif isinstance(node, nodes.Compare):
        rest = [part for op in node.ops for part in (nodes.Const(op.op), op.expr)]
        node.expr, node.ops = call("compared", node.expr, *rest), []
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = call("_charge", node.node)
    elif isinstance(node, nodes.Pair) and not isinstance(node.key, nodes.Const):
        node.key = call("spend", node.key)
    elif isinstance(node, nodes.Const) and isinstance(node.value, int):
        environment._limit("a number's bits", node.value.bit_length(), MAX_BITS)
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
        step = call("step", nodes.Const(1 + size // NODES_A_STEP))
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
    return size


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Write JSON for a prompt: plain characters, no HTML escapes, keys in their order."""
    known = {"ensure_ascii", "separators", "sort_keys"}
    if options.keys() - known:
        raise TypeError(f"tojson: got {sorted(options)}, wanted some of {sorted(known)}")
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **options})


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > MAX_DATE:
        raise SecurityError(f"strftime_now: got {len(form)} characters, wanted {MAX_DATE} at most")
    return datetime.now().strftime(form)
