"""Wrong arguments and variables: one exit code, told at once, before any library is waited for."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocmforge.cli import main

HEAVY = ("numpy", "jinja2", "tokenizers", "rocmforge.engine", "gguf")
REPORTING = f"""
import atexit, sys
atexit.register(lambda: print(sorted(set(sys.modules) & set({HEAVY})), file=sys.stderr))
from rocmforge.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("chat --help", 0),
        ("--version", 0),
        ("generate x --nonsense", 2),
        ("generate x -n abc", 2),
        ("generate x -n 0", 2),
        ("generate x --temperature -1", 2),
        ("generate x --top-p 0", 2),
        ("generate x --stop=", 2),
        ("generate x --ctx 0", 2),
        ("generate x --threads 0", 2),
        ("generate x --threads 1025", 2),
        ("generate x --device tpu", 2),
        ("chat --min-p 2", 2),
        ("perplexity --window 3", 2),
        ("ROCMFORGE_DEVICE=xyz devices", 2),
        ("ROCMFORGE_THREADS=0 generate x", 2),
        ("ROCMFORGE_CPU_ISA=sse info", 2),
        ("ROCMFORGE_CACHE=/dev/null info", 2),
        ("generate /nowhere/model.gguf x", 1),
        ("generate --prompt-file /nowhere/text", 1),
        ("perplexity --text /nowhere/text", 1),
    ],
)
def test_exit_codes_are_one_table_and_cost_no_import(arguments: str, code: int) -> None:
    words = arguments.split()
    variables = dict(word.split("=") for word in words if word.startswith("ROCMFORGE_"))
    words = [word for word in words if not word.startswith("ROCMFORGE_")]
    done = subprocess.run(
        [sys.executable, "-c", REPORTING, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    *said, loaded = done.stderr.splitlines()
    assert done.returncode == code, said
    assert loaded == "[]"
    assert "[Errno" not in done.stderr
    assert not said or "error: " in said[-1]
    assert all(name in said[-1] for name in variables)


def test_a_generation_imports_only_what_it_needs() -> None:
    """The rest takes 130 ms: `gguf` and what it imports, GPUs' modules, other commands' modules."""
    code = """
import sys
import numpy
own = {*sys.modules}  # numpy 1 loads all of itself
from rocmforge.cli import main
main(["generate", "The", "-n", "1", "--device", "cpu"])
unneeded = {"gguf", "yaml", "importlib.metadata", "psutil", "rocmforge.gpu.backend"}
unneeded |= {"difflib", "numpy.random", "secrets", "rocmforge.info", "rocmforge.perplexity"}
print(sorted(unneeded & {*sys.modules} - own), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_variable_that_nothing_reads_is_named_with_its_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_DEVCE", "cpu")
    monkeypatch.setenv("ROCMFORGE_TEST_MODELS", "m.gguf")
    assert main(["info", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["supported"]
    assert captured.err.splitlines() == [
        f"rocmforge: warning: {name} is set, and nothing reads it; wanted {nearest}?"
        for name, nearest in (
            ("ROCMFORGE_DEVCE", "ROCMFORGE_DEVICE"),
            ("ROCMFORGE_TEST_MODELS", "ROCMFORGE_TEST_MODEL"),
        )
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["A hammer is"],
        ["--prompt", "A hammer is"],
        ["MODEL", "--prompt=A hammer is"],
        ["-"],
        ["MODEL", "-"],
        ["MODEL", "-n", "4", "-"],
        ["--prompt-file", "-"],
    ],
)
def test_the_ways_to_give_a_prompt(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(Path(__file__).parent.parent / "rocmforge" / "demo" / "demo.gguf")
    text = io.TextIOWrapper(io.BytesIO(b"A hammer is\n"), "utf-8")
    monkeypatch.setattr(sys, "stdin", text)
    arguments = [model if argument == "MODEL" else argument for argument in arguments]
    assert main(["generate", "-n", "4", "--threads", "1", *arguments]) == 0
    assert capsys.readouterr().out == " a hand tool\n"


def test_options_may_not_be_abbreviated(capsys: pytest.CaptureFixture[str], repo: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--temp", "1", "x"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --temp" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["profile", "-n", "4"])  # which has -ngl, and no -n
    assert ended.value.code == 2
    assert "unrecognized arguments: -n; did" in capsys.readouterr().err
    for path in (p for f in ("tools", "studies", "rocmforge") for p in (repo / f).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and is_parser(node.func):
                keywords = {keyword.arg: keyword.value for keyword in node.keywords}
                off = keywords.get("allow_abbrev")
                assert isinstance(off, ast.Constant), f"{path}:{node.lineno}"
                assert off.value is False


def is_parser(function: Any) -> bool:
    """Whether a call of it makes an argument parser."""
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in ("ArgumentParser", "add_parser")


def test_text_that_the_context_has_no_room_for_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["generate", "A hammer is", "--ignore-eos", "--threads", "1", "--ctx", "16"]
    assert main([*argv, "-n", "100"]) == 0
    said = capsys.readouterr().err.splitlines()
    (remark,) = said[1:]
    assert remark.startswith("ended at the end of the context of 16 tokens; --ctx N raises that")
    assert main([*argv, "-n", "4"]) == 0
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_no_driver_is_said_once(kind: str) -> None:
    """In a process of its own, which has no stand-in of a driver."""
    command = [sys.executable, "-m", "rocmforge", "generate", "x", "--device", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert kind in done.stderr
    assert "b'" not in done.stderr
    for words in ("driver", "libamdhip64.so", "not there"):
        assert done.stderr.count(words) <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "hello", "world"], "no such model: hello; a prompt of several words wants"),
        (["generate", "a", "b", "c"], "unrecognized arguments: c; a prompt of several words wants"),
        (["generate", "x", "--temprature", "1"], "--temprature 1; did you mean --temperature?"),
        (["generate", "a prompt", "m.gguf"], "no such model: a prompt; the model comes first"),
        (["generate", "a/b", "-n", "4", os.devnull + "/m.gguf"], "a/b; the model comes first"),
        (["generate", "hello", __file__], "no such model: hello; the model comes first"),
        (["generate", "a", "b", "m.gguf"], "unrecognized arguments: m.gguf; the model comes first"),
        (["generate", "m.gguf", "b", "c.gguf"], "c.gguf; a prompt of several words wants quotes"),
        (["genrate", "x"], "; did you mean generate?"),
        (["bench", "comprae"], "; did you mean compare?"),
        (["bench", "baseline", "lst"], "; did you mean list?"),
        (["perplexity", "--weight-format", "q4k"], "; did you mean Q4_K?"),
        (["info", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (
            ["generate", "--prompt-file", os.devnull],
            f"prompt: got an empty text in {os.devnull}, wanted a",
        ),
    ],
)
def test_what_was_perhaps_meant_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("model", ["mymodle", "my.gguf"])
@pytest.mark.parametrize("prompt", [["a quoted prompt"], ["--prompt", "word"], ["-"]])
def test_quotes_are_wanted_only_where_there_may_be_none(
    model: str, prompt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", model, *prompt]) == 1
    wanted = f"rocmforge: error: no such file: {model}; wanted the path of a GGUF model\n"
    assert capsys.readouterr().err == wanted


def test_text_may_begin_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "-x", "--stop", "-y", "-n", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["generated_tokens"] == 1


def test_a_misspelt_variable_is_named_by_the_benchmarks_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_THREAD", "1")
    with pytest.raises(SystemExit):
        main(["bench", "run", "--help"])
    said = "ROCMFORGE_THREAD is set, and nothing reads it; wanted ROCMFORGE_THREADS?"
    assert said in capsys.readouterr().err
