"""Chat templates: what real ones need, what the sandbox refuses."""

from __future__ import annotations

import lzma
import time
from collections import UserList
from pathlib import Path
from types import MappingProxyType

import jinja2.ext
import jinja2.sandbox
import pytest
from tokenizer_vocabularies import bpe_metadata, spm_metadata

from rocmforge.errors import TokenizerError
from rocmforge.text import chat_template
from rocmforge.text.chat_template import ChatTemplate
from rocmforge.text.template_process import to_json
from rocmforge.text.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hé <b>?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "12345"},
]

CHATML = """{%- if messages[0]['role'] == 'system' %}
    {%- set loop_messages = messages[1:] %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] | trim + '<|im_end|>\\n' }}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

INST = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message.role == 'assistant' and not loop.last %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""

TOOLS = """{% macro show(tool) %}{{ tool.name }}({{ tool.args | join(', ') }}){% endmacro %}
{% set ns = namespace(found=false, n=0) %}
{% if tools is not none and tools %}
{% for tool in tools | selectattr('name', 'defined') | list %}
{% set ns.n = ns.n + 1 %}{{ show(tool) }}: {{ tool | tojson }}
{{ tool | tojson(indent=2) }}
{% if ns.n == 2 %}{% break %}{% endif %}
{% endfor %}
{% endif %}
{% for key, value in {'b': 1, 'a': [none, 'x' * 3]}.items() %}{{ key }}={{ value }};{% endfor %}
{{ '%s-%03d' % ('a', 7) }} {{ '{}/{}'.format(1, 'b') }} {{ 'a,b'.split(',')[-1].upper() }}
{{ messages | map(attribute='role') | unique | join('|') }} {{ 2 ** 10 }} {{ range(3) | sum }}"""

TOOL_LIST = [{"name": "f", "args": ["é", "<b>"]}, {"args": []}, {"name": "g", "args": []}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, "model.gguf").render(**variables)


@pytest.mark.parametrize("source", [CHATML, INST, TOOLS])
def test_templates_render_as_in_plain_jinja(source: str) -> None:
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.LoopControlExtension]
    )
    plain.filters["tojson"] = to_json
    variables = {
        "messages": CHAT,
        "tools": TOOL_LIST,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_generation_prompt": True,
    }
    text = render(source, **variables)
    assert len(text) > 50
    assert text == plain.from_string(source).render(**variables)


def test_chatml_by_hand() -> None:
    text = render(CHATML, messages=CHAT[:2], add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHé <b>?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with pytest.raises(TokenizerError, match=r"model.gguf: .*chat_template: roles must alternate"):
        render(CHATML, messages=[CHAT[1], CHAT[1]])


def test_tokenizer_renders_and_encodes() -> None:
    tokenizer = Tokenizer(spm_metadata(**{"tokenizer.chat_template": INST}))
    text = tokenizer.apply_chat_template(CHAT)
    assert text.startswith("<s>[INST] Hé <b>? [/INST]")
    assert "Yes.</s>" in text
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    assert tokenizer.eos_id in ids


def test_generation_prompt_and_missing_tokens() -> None:
    source = "{{ bos_token }}|{{ unk_token }}|{{ tools is none }}|{{ add_generation_prompt }}"
    metadata = bpe_metadata("qwen2", **{"tokenizer.chat_template": source})
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer(metadata)
    assert tokenizer.apply_chat_template(CHAT) == "||True|True"
    assert tokenizer.apply_chat_template(CHAT, add_generation_prompt=False) == "||True|False"
    assert tokenizer.apply_chat_template(CHAT, tools=TOOL_LIST) == "||False|True"


def test_further_variables_reach_the_template() -> None:
    source = "{{ enable_thinking is defined and enable_thinking }}"
    tokenizer = Tokenizer(bpe_metadata("qwen2", **{"tokenizer.chat_template": source}))
    assert tokenizer.apply_chat_template(CHAT) == "False"
    assert tokenizer.apply_chat_template(CHAT, variables={"enable_thinking": True}) == "True"
    with pytest.raises(ValueError, match="variables: got messages, wanted names other than"):
        tokenizer.apply_chat_template(CHAT, variables={"messages": []})


def test_template_of_a_real_file(reference: Path, tmp_path: Path) -> None:
    path = tmp_path / "qwen2.gguf"
    path.write_bytes(lzma.decompress((reference / "vocab/ggml-vocab-qwen2.gguf.xz").read_bytes()))
    assert Tokenizer.from_gguf(path).apply_chat_template(CHAT[1:2]) == (
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
        "<|im_start|>user\nHé <b>?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_missing_template_says_what_to_do() -> None:
    tokenizer = Tokenizer(spm_metadata())
    assert tokenizer.chat_template is None
    with pytest.raises(
        TokenizerError, match=r"chat_template: the file has none; use a model tuned"
    ):
        tokenizer.apply_chat_template(CHAT)


def test_functions_and_blocks() -> None:
    assert render("{% generation %}a{{ 1 }}{% endgeneration %}b") == "a1b"
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{{ {'b': '<é>', 'a': [1, none]} | tojson }}") == '{"b": "<é>", "a": [1, null]}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"
    assert render("{{ x | tojson(sort_keys=true) }}", x={"b": 1, "a": 2}) == '{"a": 2, "b": 1}'
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{{ enable_thinking is defined }}{{ nothing }}") == "False"
    assert (
        render(
            "{% for i in messages if i > 1 %}{{ loop.length }}{{ loop.last }}{% endfor %}",
            messages=[1, 2],
        )
        == "1True"
    )
    source = (
        "{% for i in x recursive %}{{ i[0] }}{% if i[1] %}{{ loop(i[1]) }}{% endif %}{% endfor %}"
    )
    assert render(source, x=[("a", [("b", None)]), ("c", None)]) == "abc"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ {}.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__['os'] }}",
    "{{ strftime_now.__globals__['json'] }}",
    "{{ raise_exception.__code__.co_consts }}",
    "{{ raise_exception.__globals__.jinja2 }}",
    "{{ self.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ ('' | attr('__class__')).__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('x') }}",
    "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
    "{{ [''] | map(attribute='__class__.__mro__') | list | first | first }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages.clear() }}",
    "{% set messages[0].role = 'x' %}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_the_sandbox_holds(source: str) -> None:
    messages = [{"role": "user"}]
    with pytest.raises(TokenizerError):
        render(source, messages=messages)
    assert messages == [{"role": "user"}]


@pytest.mark.parametrize(
    "name",
    ["messages.__class__", "raise_exception.__globals__", "namespace.__init__", "range.__self__"],
)
def test_unsafe_attributes_show_nothing(name: str) -> None:
    assert render("{{ " + name + " }}", messages=[]) == ""


def test_variables() -> None:
    x = MappingProxyType({"a": (1, None, "é\n\udc80🙂"), "b": UserList([True])})
    assert render("{{ x.a[2] }}{{ x.b }}{{ 1.5 }}", x=x) == "é\n\udc80🙂[True]1.5"
    with pytest.raises(TokenizerError, match="its variables: got a bytes, wanted what JSON can"):
        render("", x=b"")


# In the manner of Qwen 3, Llama 3 and Mistral: what they cost a message is in their loops.
CONTENT = """{%- set content = message.content if message.content is string else '' %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip() %}{% endif %}
{%- if loop.index0 > ns.last or (loop.first and message.role != 'tool') %}
{{- '<|im_start|>' + message.role + '\\n' + content | trim }}
{%- else %}{{- content }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.arguments | tojson }}{% endfor %}"""
QWEN = """{%- set ns = namespace(last=messages | length - 1, open=true) %}
{%- for message in messages[::-1] %}
{%- set index = (messages | length - 1) - loop.index0 %}
{%- if ns.open and message.role == 'user' and not (message.content.startswith('<tool_response>')
and message.content.endswith('</tool_response>')) %}
{%- set ns.open = false %}{% set ns.last = index %}{% endif %}
{%- endfor %}{% for message in messages %}""" + CONTENT + "{% endfor %}"  # fmt: skip
LLAMA = """{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' + message['content'] | trim }}
{%- elif 'tool_calls' in message %}{{ message.tool_calls[0].function | tojson }}
{%- endif %}{% endfor %}"""
MISTRAL = """{%- set users = messages[1:] | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('x') }}{% endif %}
{%- set ns.index = ns.index + 1 %}
{{- '[TOOLS]' if tools and message == users[-1] }}{{ message['content'] | trim + eos_token }}
{%- endfor %}"""


@pytest.mark.parametrize("source", [CHATML, QWEN, LLAMA, MISTRAL])
def test_long_chats_stay_within_the_limits(source: str) -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": "x" * 2000} for i in range(2001)]
    text = render(source, messages=chat, tools=TOOL_LIST, eos_token="</s>")
    assert text.count("x" * 2000) == 2001


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "cannot be compiled"),
        ("{{ 'open", "cannot be compiled"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
        ("{{ " + "9" * 10000 + " }}", "cannot be compiled"),
        ("{{ x | nofilter }}", "nofilter"),
        ("{% nosuchtag %}", "nosuchtag"),
        ("{{ x.y.z }}", "'x' is undefined"),
        ("{{ nofunction() }}", "'nofunction' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ messages | tojson(nonsense=1) }}", "nonsense"),
        ("{{ nothing | tojson }}", "JSON"),
        ("{{ x[1:2, 3] }}", "cannot be compiled"),
        ("x" * (chat_template.MAX_SOURCE + 1), "characters, wanted at most"),
    ],
)
def test_errors_are_tokenizer_errors(source: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        render(source, messages=[])
    assert str(caught.value).startswith("model.gguf: tokenizer.chat_template: ")


def test_a_long_message_is_shortened() -> None:
    with pytest.raises(TokenizerError) as error:
        render("{{ raise_exception('x' * 1000000) }}")
    assert len(str(error.value)) < 400
