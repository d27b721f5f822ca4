"""Limits of chat templates: memory, time, and what they leave behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocmforge.errors import TokenizerError
from rocmforge.text import chat_template
from rocmforge.text.chat_template import ChatTemplate


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, "model.gguf").render(**variables)


DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}%s"
LIST = "{% set r = range(99999) | list %}"
TEXT = "{% set t = 'a' * 1000000 %}{% set u = t ~ 'b' %}"
NESTED = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
TUPLES = "{% set ns.x = (ns.x, ns.x) %}"


def each(body: str) -> str:
    return LIST + TEXT + "{% for i in r %}" + body + "{% endfor %}"


def deep(step: str, use: str) -> str:
    begin = "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}"
    return begin + step + "{% endfor %}" + use


# Each wants gigabytes at least.
LARGE = [
    "{{ '%1000000000d' % 1 }}",
    "{{ '%(a)2000000000d' % {'a': 1} }}",
    "{{ '%.2000000000d' % 1 }}",
    "{{ '%.2000000000f' % 1 }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '%.*d' % (10 ** 9, 1) }}",
    "{{ '%#+-1000000000x' % 1 }}",
    "{{ ('%9999d' * 1000000) % ((1,) * 1000000) }}",
    "{{ ('%(a)s' * 1000000) % {'a': 'b' * 100000} }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%(a)1000000000s' | format(a=1) }}",
    "{{ ('%s' * 10000) | format(*['b' * 1000000] * 10000) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:.1000000000f}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "{{ '{a:{b}}'.format(a=1, b=10 ** 9) }}",
    "{{ '{a:{b}}'.format_map({'a': 1, 'b': 10 ** 9}) }}",
    "{{ '{0[a][0]:1000000000}'.format({'a': [1]}) }}",
    "{{ ('{a:9999}' * 90000).format(a=1) }}",
    "{{ ('{a}' * 300000).format(a='b' * 100000) }}",
    "{{ ('{a!r:>999999}' * 90000).format(a=1) }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * [1] }}",
    "{{ 10 ** 9 * (1,) }}",
    "{{ '\U0001f642' * 10 ** 8 }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ 'a'.zfill(10 ** 9) }}",
    "{{ ('\t' * 1000000).expandtabs(9999) }}",
    "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "{{ 'a'.encode().zfill(10 ** 9) }}",
    "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "{{ 'a' | indent(10 ** 9, true) }}",
    "{{ ('a\n' * 1000000) | indent(9999) }}",
    "{{ ('a\n' * 1000000) | indent('b' * 9999) }}",
    "{{ [[1] * 100000] | tojson(indent=9999) }}",
    "{{ [1] | tojson(indent=10 ** 9) }}",
    "{{ [1, 1] | tojson(separators=('a' * 10 ** 9, '')) }}",
    "{{ (['a' * 1000000] * 1000) | tojson }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).join('b' * 1000000) }}",
    "{{ (['a' * 1000000] * 1000) | join }}",
    "{{ ([1] * 10000) | join('a' * 1000000) }}",
    "{{ ''.join(['a' * 1000000] * 1000) }}",
    "{{ ('&' * 50000000) | escape }}",
    "{{ ('&' * 50000000) | forceescape }}",
    "{{ ('&' * 50000000) | urlencode }}",
    "{{ {'a': '&' * 50000000} | xmlattr }}",
    "{{ ('ΐ' * 60000000).upper() }}",
    "{{ ('a ' * 30000000).split() }}",
    "{{ ('a\n' * 30000000).splitlines() }}",
    "{{ ('é' * 30000000) | list }}",
    "{{ range(99999) | batch(10 ** 9, 1) | list }}",
    "{{ [1] | batch(10 ** 9, 1) | list }}",
    "{{ ('a' * 10 ** 8) ~ ('b' * 10 ** 8) }}",
    "{{ strftime_now('%c' * 100000000) }}",
    "{{ ('1' * 200000000) | int }}",
    "{{ 'x' | truncate(10 ** 9, true, 'y' * 10 ** 9) }}",
    "{{ cycler(*[1] * 10 ** 9).next() }}",
    "{{ joiner('a' * 10 ** 9)() }}",
    "{% for i in range(9999) %}{{ 'x' * 1000000 }}{% endfor %}",
    DOUBLING % ("'aaaa'", "{% set ns.x = ns.x ~ ns.x %}", ""),
    DOUBLING % ("'aaaa'", "{% set ns.x = ns.x + ns.x %}", ""),
    DOUBLING % ("'aaaa'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}", ""),
    DOUBLING % ("'aaaa'", "{% set ns.x = [ns.x, ns.x] | join %}", ""),
    DOUBLING % ("'aaaa'", "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}", ""),
    DOUBLING % ("[1]", "{% set ns.x = ns.x + ns.x %}", ""),
]  # fmt: skip

# Each wants minutes at least, most of them in one call of Python or of C.
LONG = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "{% for c in 'x' * 1000000 %}{% for d in 'x' * 1000000 %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ ('ß' * 50000000) | title }}",
    "{{ [1] | slice(10 ** 9, 1) | list }}",
    "{{ ([[1] * 1000] * 100000) | sum(start=[]) }}",
    *(DOUBLING % ("[1]", "{% set ns.x = [ns.x, ns.x] %}", show)
      for show in ("{{ ns.x }}", "{{ ns.x | tojson }}", "{{ 'a' ~ ns.x }}")),
    *map(each, [
        "{% if -1 in r %}{% endif %}",
        "{% if r == r[:] %}{% endif %}",
        "{% if r.count(-1) %}{% endif %}",
        "{% if 'b' in t %}{% endif %}",
        "{% set s = t[1:] %}",
        "{% set s = t | title %}",
        "{% set s = r | groupby('real') %}",
        "{% if nothing %}{% endif %}" * 2000,
        "{% set s = i.real.real.real.real %}" * 1000,
    ]),
    LIST + "{{ r | select('in', r) | list }}",
    LIST + "{{ r | map(attribute='" + "real." * 9999 + "real') | list }}",
    TEXT + "{% set l = [t ~ 'a'] * 1000000 %}{{ u in l }}",
    deep(NESTED, "{{ ns.x == ns.y }}"),
    deep(NESTED, "{{ ns.x in [ns.y] }}"),
    deep(TUPLES, "{{ {ns.x: 1} }}"),
    deep(TUPLES, "{{ ns.x in {} }}"),
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
]  # fmt: skip

# Each is refused at once.
REFUSED = [
    "{% for i in range(10 ** 6) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{{ 'a' * 10 ** 99 }}",
    "{{ 'a' * 9000000 }}",
    "{{ (2 ** 9999) ** 9 }}",
]


def peak_bytes(process: subprocess.Popen[bytes]) -> int:
    """Most memory that a running process has held at once."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("source", LARGE)
def test_limits_of_memory(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 9)
    template = ChatTemplate(source, "model.gguf")
    tracemalloc.start()
    with pytest.raises(TokenizerError, match=r"model.gguf: .* needs more than 128 MiB of memory"):
        template.render()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert peak_bytes(template._process) < 160 << 20


def test_memory_of_the_longest_text() -> None:
    template = ChatTemplate("{{ x * n }}", "model.gguf")
    tracemalloc.start()
    assert len(template.render(x="🙂", n=chat_template.MAX_TEXT)) == chat_template.MAX_TEXT
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held + peak_bytes(template._process) < 256 << 20


@pytest.mark.parametrize("source", [*LONG, *REFUSED])
def test_limits_of_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.1 if source in LONG else 9)
    start = time.monotonic()
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template: ") as raised:
        render(source)
    assert ("takes more than 0.1 s" in str(raised.value)) == (source in LONG)
    assert time.monotonic() - start < 30  # 0.2 on a quiet machine


def test_the_limit_of_time_is_below_two_seconds() -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(TokenizerError, match="takes more than"):
        render(LONG[0])
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < 2


LOOPS = "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}{{ n }}"


@pytest.mark.parametrize(("source", "n"), [("{{ ('a' * n) | length }}", 10**10), (LOOPS, 99999)])
def test_a_template_that_failed_renders_again(
    source: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.1)
    template = ChatTemplate(source, "model.gguf")
    assert template.render(n=2) == "2"
    with pytest.raises(TokenizerError):
        template.render(n=n)
    assert template.render(n=3) == "3"


def test_an_interrupted_rendering_leaves_no_answer_behind() -> None:
    template = ChatTemplate(LOOPS, "model.gguf")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            template.render(n=99999)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert template.render(n=3) == "3"


def test_threads_and_forks_get_their_own_answers() -> None:
    template = ChatTemplate("{{ x }}" * 1000, "model.gguf")
    with ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda i: template.render(x=i), range(200))
        assert list(texts) == [str(i) * 1000 for i in range(200)]
    child = os.fork()
    if not child:
        os._exit(template.render(x=1) != "1" * 1000)
    assert template.render(x=2) == "2" * 1000
    assert os.waitpid(child, 0)[1] == 0
    assert template.render(x=3) == "3" * 1000


def test_the_process_ends_with_the_template() -> None:
    template = ChatTemplate("", "model.gguf")
    process = template._process
    assert process.poll() is None
    del template
    assert process.poll() is not None


def test_without_an_interpreter_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TokenizerError, match=r"cannot start /nowhere/python: .*No such file"):
        ChatTemplate("", "model.gguf")
