"""Each command of the documents is understood; the quick ones run, and do what the page says.

What is not run stands in `commands_not_run.NOT_RUN` with the reason and with what covers it. Pages
are README, CONTRIBUTING, docs/ and the READMEs of other folders (`documented_commands.pages`).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asv.commands import make_argparser
from commands_not_run import NOT_RUN
from documented_commands import FENCE, Command, commands, pages, split
from tool_modules import tool_module

from rocmforge import arguments
from rocmforge.bench.cli import COMMANDS, parser_of

REPO = Path(__file__).resolve().parent.parent
FOUND = [
    command
    for page in pages(REPO)
    for command in commands(str(page.relative_to(REPO)), page.read_text("utf-8"))
]
TIMEOUT_S = 120  # of one command; each takes seconds
HAMMER = "a hand tool with a heavy rigid head and a handle"
COMPARE = "rocmforge bench compare --machine cpu-amd-epyc-zen5-2c 5d2bcb2b ce1448d7"
RUN = {
    "rocmforge --help": "usage: rocmforge",
    "rocmforge bench --help": "exit codes:",
    "rocmforge bench baseline list": "sm-90-nvidia-h200",
    "rocmforge bench history --machine cpu-amd-epyc-zen5-2c": r"\d+ of \d+ commits measured",
    "rocmforge bench machine": r"^[\w.-]+$",
    COMPARE: r"PASS \(exit 0\)",
    f"{COMPARE} --bench 'matmul|inference'": "cannot tell.*1.233  1.141 … 1.248",
    "rocmforge chat": HAMMER,
    "rocmforge devices": "^cpu +yes",
    "rocmforge generate 'A hammer is' -n 28": HAMMER,
    "rocmforge generate 'A hammer is' -n 28 --temperature 0.8 --top-p 0.95 --seed 1": r"\w+ \w+",
    "rocmforge generate --prompt '-- is a dash' -n 8": r"\w",
    "rocmforge generate 'A hammer is' -n 8 --json": '"finish_reason": "length"',
    "rocmforge generate model.gguf 'The moon is' -n 64": "TTFT .* ms",
    "rocmforge info": "^runs here +yes",
    "rocmforge info --supported": "^seed_oss ",
    "rocmforge info model.gguf": "^runs here +yes",
    "rocmforge perplexity --text LICENSE --weight-format Q4_K --weight-format Q2_K": "^Q2_K +2.62",
    "rocmforge profile --tools": "^rocprofv3 ",
    "rocmforge profile model.gguf --prompt-tokens 96": "^First token: ",
    "rocmforge profile model.gguf --prompt-tokens 128": "^Decode: ",
    "rocmforge profile model.gguf --prompt-tokens 128 --html profile.html --roofline roofline.svg"
    " --trace profile.trace.json": "^Decode: ",
    "rocmforge tune --reset": "no GPU here|no table of this GPU",
    "tools/make_model.py model.gguf --preset tiny --mix Q4_K_M": "",
}
"""The commands that are run, and what each prints: a pattern; the model is made before the rest."""
MAY_FAIL = {
    "rocmforge tune --reset": "there is no GPU",
    "rocmforge bench history --machine cpu-amd-epyc-zen5-2c": "later results show a regression",
}
"""Commands whose exit code may be 1, and when."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the repository with the model that the documents make."""
    made = tmp_path_factory.mktemp("documented") / "clone"
    cloned = subprocess.run(
        ["git", "clone", "-q", "--shared", REPO, made],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if cloned.returncode:
        pytest.skip(f"not a git repository: {cloned.stderr.strip()}")
    run("tools/make_model.py model.gguf --preset tiny --mix Q4_K_M", made)
    return made


@functools.cache
def run(text: str, folder: Path) -> str:
    """Run a documented command there, with a home of its own; return what it printed."""
    program, *words = shlex.split(text)
    start = ["-m", "rocmforge"] if program == "rocmforge" else [str(REPO / program)]
    own = {"HOME": str(folder.parent), "PATH": os.environ["PATH"], "ROCMFORGE_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env={**own, "PYTHONPATH": str(REPO), "COLUMNS": "200"},
        input="What is a hammer?\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0 or (text in MAY_FAIL and done.returncode == 1), done.stderr
    return done.stdout + done.stderr


def key_of(text: str) -> str | None:
    """The longest key of the table that a command begins with, by whole words."""
    keys = [key for key in NOT_RUN if f"{text} ".startswith(f"{key} ")]
    return max(keys, key=len, default=None)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every parser of the command line, by the words that lead to it."""
    (top,) = (a for a in arguments.parser()._actions if isinstance(a, argparse._SubParsersAction))
    found = {"rocmforge": arguments.parser()}
    found |= {f"rocmforge {name}": one for name, one in top.choices.items()}
    for name in COMMANDS:
        found[f"rocmforge bench {name}"] = parser = parser_of(name)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                inner = {
                    f"rocmforge bench {name} {word}": one for word, one in action.choices.items()
                }
                found |= inner
    return found


PARSERS = parsers()


def problem(command: Command, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with a command as such; None where its program understands it."""
    program, *words = command.words
    if program == "make":
        targets = re.findall(r"^([\w./%-]+):", (REPO / "Makefile").read_text("utf-8"), re.M)
        wanted = [word for word in words if "=" not in word and word not in targets]
        return f"no target {wanted}" if wanted else None
    if command.whole and (refused := refusal(program, words, capsys)):
        return refused
    options = [word.partition("=")[0] for word in until_program(words) if word.startswith("-")]
    if program == "rocmforge":
        at = max((n for n in range(len(words) + 1) if name(words[:n]) in PARSERS), default=0)
        known = set(PARSERS[name(words[:at])]._option_string_actions)
        here = words[at : at + 1]
        if at == 0 and here and here[0] != "…" and not here[0].startswith("-"):
            return f"no command {here[0]}"
        if at == 1 and words[0] == "bench" and here and here[0] not in ("…", "--help"):
            return f"no command bench {here[0]}"
        return missing(options, known)
    if program.startswith(("tools/", "studies/")):
        if not (REPO / program).exists():
            return "no such file"
        if program.endswith(".py"):
            if not options:  # may be the mention of a module
                return None
            return missing(options, set(options_of(program, capsys)))
        return None if os.access(REPO / program, os.X_OK) else "is not executable"
    return None


def refusal(program: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """What the program's own parser says against a whole command."""
    if program not in ("rocmforge", "asv"):
        return None
    try:
        if program == "asv":
            make_argparser()[0].parse_args(words)
        elif words[0] == "bench" and words[1] in COMMANDS:
            parser = parser_of(words[1])
            parse = parser.parse_args if words[1] == "baseline" else parser.parse_intermixed_args
            parse(words[2:])
        elif words[0] != "bench":
            arguments.parser().parse_args(words[: words.index("--")] if "--" in words else words)
    except SystemExit as stopped:
        said = capsys.readouterr().err.strip().splitlines()
        return said[-1].partition("error: ")[2] if stopped.code else None
    return None


def name(words: list[str]) -> str:
    return " ".join(["rocmforge", *words])


def until_program(words: list[str]) -> list[str]:
    """The words before `--`, behind which another program stands; and not an option's own value."""
    stop = words.index("--") if "--" in words else len(words)
    kept = [word for at, word in enumerate(words[:stop]) if words[at - 1] != "--prompt" or not at]
    return [word for word in kept if not re.fullmatch(r"-?[\d.]*", word)]


def missing(options: list[str], known: set[str]) -> str | None:
    lacking = [option for option in options if option not in known]
    return f"no option {', '.join(lacking)}" if lacking else None


def options_of(script: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options that a script's own help names."""
    path = Path(script)
    module: Any = tool_module(path.stem, str(path.parent))
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    return re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out)


@pytest.mark.parametrize("page", sorted({command.page for command in FOUND}))
def test_every_command_is_understood(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    here = [command for command in FOUND if command.page == page]
    said = {command.text: problem(command, capsys) for command in here}
    assert {text: wrong for text, wrong in said.items() if wrong} == {}


def test_every_command_is_run_or_has_a_reason() -> None:
    """A mention without arguments counts as run where a command that begins with it is."""
    unknown = {
        command.text: command.page
        for command in FOUND
        if command.text not in RUN and key_of(command.text) is None
        if not any(one.startswith(f"{command.text} ") for one in RUN)
    }
    assert unknown == {}


def test_the_tables_hold_nothing_that_no_page_has() -> None:
    texts = {command.text for command in FOUND}
    assert sorted(RUN.keys() - texts) == []
    used = {key_of(text) for text in texts - RUN.keys()}
    assert sorted(NOT_RUN.keys() - used) == []


@pytest.mark.parametrize("key", NOT_RUN)
def test_what_covers_a_command_exists(key: str) -> None:
    reason, place = NOT_RUN[key]
    assert reason
    if re.fullmatch(r"no test: .+", place):
        return
    found = re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)", place)
    assert found, f"{place}: wanted file::test_name, or 'no test: ' with a reason"
    assert f"\ndef {found[2]}(" in (REPO / found[1]).read_text("utf-8")


@pytest.mark.parametrize("text", [text for text in RUN if text.startswith("rocmforge")])
def test_a_quick_command_does_what_the_page_says(text: str, folder: Path) -> None:
    assert re.search(RUN[text], run(text, folder), re.M | re.S)


def test_make_help_lists_the_targets() -> None:
    listed = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True)
    found = set(re.findall(r"(?:^|  )make ([\w-]+)", listed.stdout, re.M))
    (phony,) = re.findall(r"^\.PHONY: (.+)$", (REPO / "Makefile").read_text("utf-8"), re.M)
    assert found == {*phony.split()} - {"help"}


def test_files_that_a_profile_is_said_to_write_are_there(folder: Path) -> None:
    (text,) = (text for text in RUN if "--html" in text)
    run(text, folder)
    assert (folder / "profile.html").read_text("utf-8").lower().startswith("<!doctype html>")
    assert "<svg" in (folder / "roofline.svg").read_text("utf-8")
    assert json.loads((folder / "profile.trace.json").read_text("utf-8"))["traceEvents"]


@pytest.mark.parametrize("page", ["README.md", "docs/RUNNING_MODELS.md"])
def test_python_of_a_page_runs(page: str, folder: Path) -> None:
    blocks = [
        one[3] for one in FENCE.finditer((REPO / page).read_text("utf-8")) if one[2] == "python"
    ]
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        assert re.match(r"0 |1 ", done.stdout)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("docs/READING_RESULTS.md", f"{COMPARE} --bench 'matmul|inference'"),
        ("docs/RUNNING_MODELS.md", "rocmforge info"),
    ],
)
def test_an_output_that_a_page_explains_is_what_is_printed(
    page: str, text: str, folder: Path
) -> None:
    """But for the path of the package's file, ends of lines, and how many benchmarks there are."""
    blocks = [one[3] for one in FENCE.finditer((REPO / page).read_text("utf-8"))]
    after = {block.partition("  ")[0].strip(): shown for block, shown in itertools.pairwise(blocks)}
    assert alike(run(text, folder)) == alike(after[text])


def alike(output: str) -> list[str]:
    lines = [re.sub(r"^(file +)/.*/", r"\1", line.rstrip()) for line in output.splitlines()]
    return [re.sub(r"\d+ n/a or not selected", "… n/a", line) for line in lines]


def test_a_wrong_command_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    page = (
        "`rocmforge generte x` and `rocmforge bench compre`, `make bnch`, `tools/nothing.py`\n\n"
        "```\nrocmforge generate --sed 1 x\nrocmforge bench run --profle quick\n"
        "tools/make_model.py m.gguf --presets tiny | rocmforge info --suported # not --this\n```\n"
    )
    said = [problem(command, capsys) for command in commands("page", page)]
    assert said == [
        "unrecognized arguments: --sed",
        "unrecognized arguments: --profle quick",
        "no option --presets",
        "unrecognized arguments: --suported",
        "no command generte",
        "no command bench compre",
        "no target ['bnch']",
        "no such file",
    ]


def test_a_line_of_a_block_that_is_no_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="'frobnicate' is no command"):
        list(commands("page", "```\nmake test\nfrobnicate\n```\n"))
    assert list(commands("page", "```\nfile  demo.gguf\nmake x\n```\n")) == []


def test_the_shell_between_commands_is_its_own() -> None:
    line = ".venv/bin/asv compare --machine $(.venv/bin/rocmforge bench machine) HEAD~1 HEAD > log"
    assert list(split(line)) == [
        ("rocmforge", "bench", "machine"),
        ("asv", "compare", "--machine", "VALUE", "HEAD~1", "HEAD"),
    ]
    assert list(split("a = b")) == []
    assert shutil.which("git")
