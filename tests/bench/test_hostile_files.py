"""Every file that is read to judge a run, broken in every way we know: never a pass, never a crash.

Each is broken alone in a tree that passes otherwise, and the command that reads it is called as the
command line calls it: exit 2, 3 or 4, one line that names the file, no traceback.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import AsvTree, report
from documents import LLAMA_BENCH, changed, places
from slow_parameters import others_slow

from rocmforge.bench import upkeep
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.cli import main
from rocmforge.errors import ResultFileError
from rocmforge.hardware import detect

pytest.importorskip("asv")

NAN = float("nan")
A, B = "a" * 40, "b" * 40
LABEL = "m.track_ms(1)"
HERE = detect()


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it lies, who reads it, and where its version stands."""

    path: str
    command: str
    arguments: tuple[str, ...]
    version: tuple[str, ...] = ("version",)


BOTH = ("aaaa", "bbbb")
KINDS = {
    "result": Kind("results/box/bbbbbbbb-env.json", "compare", BOTH),
    "benchmarks": Kind("results/benchmarks.json", "compare", BOTH),
    "machine": Kind("results/box/machine.json", "compare", BOTH),
    "baseline": Kind(
        "old.json", "compare", ("--baseline", "old.json", "bbbb"), ("metadata", "schema_version")
    ),
    "noise": Kind("noise.json", "compare", (*BOTH, "--noise", "noise.json")),
    "conditions": Kind("results/box/bbbbbbbb-env.jsonl", "compare", BOTH),
    "settings": Kind("asv.conf.json", "compare", BOTH),
    "llama-bench": Kind(
        "llama.json", "baseline", ("import", "llama.json", "--out", "out.json"), ()
    ),
    "refreshed": Kind(
        "old.json",
        "baseline",
        ("refresh", "--commit", "bbbb", "--out", "old.json"),
        ("metadata", "schema_version"),
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every command of KINDS exits with 0."""
    monkeypatch.setattr(upkeep, "detect", lambda: HERE)
    monkeypatch.chdir(tmp_path)
    tree = AsvTree(tmp_path / "results")
    tree.benchmark("m.track_ms", "ms", {"n": ["1", "2"]})
    nine = [[1 + i / 1000 for i in range(9)]] * 2
    for commit, date in ((A, 1_700_000_000_000), (B, 1_700_000_100_000)):
        written = tree.run(
            commit,
            {"m.track_ms": [1.004] * 2},
            samples={"m.track_ms": nine},
            environment="env",
            date=date,
        )
    save_baseline(tmp_path / "old.json", ResultsDirectory(tree.results).load(A))
    quiet = {"unit": "ms", "version": "1", "medians": [1.0, 1.01], "marked": 0}
    write(tmp_path / "noise.json", {"version": 1, "benchmarks": {LABEL: quiet}})
    card = {"throttle": ["power cap"], "utilization_before": 0.01, "other_processes": 1}
    gpus = [{"device": "cuda:0", **card}]
    shares = {"others_share": 0.01, "quota_throttled_share": 0.0, "gpus": gpus}
    rates = {"read_gb_per_second": [40.0, 41.0], "square_roots_per_ns": [1.0]}
    report(written, "m.track_ms", 0, 1e-4, shares, median=1.004, reference=rates)
    write(tmp_path / "asv.conf.json", {"version": 1, "regressions_thresholds": {".*": 0.1}})
    write(tmp_path / "llama.json", [LLAMA_BENCH])
    return tmp_path


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = KINDS[request.param]
    return found


Refused = Callable[[Kind], str]


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Call the command; check that it refuses; return what it said."""

    def check(kind: Kind) -> str:
        code = main([kind.command, *kind.arguments])
        shown = capsys.readouterr()
        assert code in (2, 3, 4), f"exit {code}: {shown.out}"
        assert shown.err.count("\n") <= 1, shown.err
        assert len(shown.err) < 3000
        said: str = shown.err or shown.out
        assert Path(kind.path).name in said, said
        return said

    return check


def test_whole_files_pass(folder: Path, kind: Kind) -> None:
    assert main([kind.command, *kind.arguments]) == 0


def test_truncated_anywhere(folder: Path, kind: Kind, refused: Refused) -> None:
    path = folder / kind.path
    whole = path.read_bytes().rstrip()
    first = 1 if path.suffix == ".jsonl" else 0  # an empty one has no reports
    for length in [*range(first, len(whole), max(1, len(whole) // 40)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(kind)


CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "blank": b" \n",
    "no JSON": b"# a comment\n",
    "a page": b"<html><body>502 Bad Gateway</body></html>",
    "null": b"null",
    "true": b"true",
    "number": b"3",
    "NaN": b"NaN",
    "string": b'"x"',
    "list": b"[]",
    "lists": b"[[], {}, null]",
    "other list": b'[{"a": 1}]',
    "deep lists": b"[" * 100_000,
    "closed deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep in place": b'{"version": 1, "baselines": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no UTF-8": b'{"version": "\xff\xfe\xc3\x28"}',
    "UTF-16": '{"version": 1}'.encode("utf-16"),
    "BOM": b"\xef\xbb\xbf{}",
    "zeros": bytes(4096),
    "binary": bytes(range(256)) * 16,
    "long number": b'{"version": ' + b"9" * 10_000 + b"}",
    "long string": b'{"version": "' + b"x" * 100_000 + b'"}',
    "control characters": b'{"version": "\\u001b[31m\\n\\n\\u0000"}',
    "half a character": b'{"version": "\\ud800", "baselines": {"\\ud800": 1}}',
}


@pytest.mark.parametrize("content", CONTENTS)
def test_other_content(folder: Path, kind: Kind, refused: Refused, content: str) -> None:
    (folder / kind.path).write_bytes(CONTENTS[content])
    if not CONTENTS[content] and kind.path.endswith(".jsonl"):  # a full disk left it so: no reports
        assert main([kind.command, *kind.arguments]) == 0
        return
    said = refused(kind)
    assert "\x1b" not in said


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", [_a_folder, _a_pipe, _a_loop, _a_device])
def test_no_file_at_all(
    folder: Path, kind: Kind, refused: Refused, place: Callable[[Path], None]
) -> None:
    place(folder / kind.path)
    refused(kind)


def test_a_file_that_is_gone(folder: Path, kind: Kind, refused: Refused) -> None:
    (folder / kind.path).unlink()
    if kind in (KINDS["conditions"], KINDS["settings"]):
        assert main([kind.command, *kind.arguments]) == 0  # nobody has to have it
    elif kind is KINDS["result"]:
        assert main([kind.command, *kind.arguments]) == 2  # no such commit
    else:
        refused(kind)


@pytest.mark.parametrize("value", [0, 99, -1, "1", "2", None, True, 1.5, [], {}, NAN])
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.version])
def test_another_version(folder: Path, name: str, refused: Refused, value: Any) -> None:
    kind = KINDS[name]
    path = folder / kind.path
    document = json.loads(path.read_text(encoding="utf-8"))
    node = document
    for key in kind.version[:-1]:
        node = node[key]
    node[kind.version[-1]] = value
    write(path, document)
    refused(kind)
    del node[kind.version[-1]]
    write(path, document)
    refused(kind)


def test_a_key_twice(folder: Path, kind: Kind, refused: Refused) -> None:
    path = folder / kind.path
    text = path.read_text(encoding="utf-8").rstrip()
    tail = text[-2:] if text.endswith("}]") else text[-1:]
    first = text[text.index('"') : text.index(":")]
    path.write_text(f"{text[: -len(tail)]}, {first}: null{tail}", encoding="utf-8")
    said = refused(kind)
    assert "twice" in said or "Duplicate" in said


VALUES = {
    "NaN": NAN,
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "null": None,
    "negative": -1,
    "huge": 10**400,
    "large": 1e308,
    "true": True,
    "text": "x",
    "list": [],
    "object": {},
    "nested": {"a": [{"a": None}]},
}


JUDGED = {
    "result": ("results", "m.track_ms"),
    "baseline": ("baselines", LABEL, "metrics"),
    "noise": ("benchmarks", LABEL, "medians"),
    "llama-bench": (0, "samples_ts"),
}
NUMBERS = {**JUDGED, "conditions": ("conditions",)}
NO_NUMBER = ("NaN", "Infinity", "-Infinity", "true", "object", "nested")


def is_judged(kind: Kind, place: tuple[Any, ...]) -> bool:
    """Whether what lies at a place of a file takes part in a verdict."""
    (name,) = (name for name, known in KINDS.items() if known is kind)
    above = NUMBERS.get(name)
    return above is not None and len(place) > len(above) and place[: len(above)] == above


ALIKE = {"-Infinity", "large", "true", "list", "nested", "negative"}
"""Values that take the way of another one: of a number, of a container, of what is too large."""


@pytest.mark.parametrize("value", others_slow(VALUES, VALUES.keys() - ALIKE))
def test_nonsense_in_any_place_is_judged_or_refused_and_never_a_crash(
    folder: Path, kind: Kind, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    path = folder / kind.path
    document = json.loads(path.read_text(encoding="utf-8"))
    refusals = 0
    for place in places(document, 2):
        write(path, changed(document, place, VALUES[value]))
        (folder / "out.json").unlink(missing_ok=True)
        code = main([kind.command, *kind.arguments])
        said = capsys.readouterr().err
        assert code in (0, 1, 2, 3, 4), place
        assert code or value not in NO_NUMBER or not is_judged(kind, place), place
        if code == 2:
            refusals += 1
            assert path.name in said, (place, said)
            assert said.count("\n") == 1, (place, said)
    assert refusals


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "negative", "huge"])
@pytest.mark.parametrize("name", JUDGED)
def test_numbers_that_are_none_make_no_pass(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    """Where every number that is judged is nonsense. asv writes null for what failed: exit 1."""
    kind = KINDS[name]
    path = folder / kind.path
    document = json.loads(path.read_text(encoding="utf-8"))

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(one) for key, one in node.items()}
        if isinstance(node, list):
            return [filled(one) for one in node]
        return VALUES[value] if isinstance(node, (int, float)) else node

    node = document
    for key in JUDGED[name]:
        node = node[key]
    write(path, changed(document, JUDGED[name], filled(node)))
    code = main([kind.command, *kind.arguments])
    failed = name == "result" and value == "null"
    assert code in ((1,) if failed else (2, 3)), capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda rows: {"m.track_milliseconds": rows["m.track_ms"]}, "renamed to m.track_milli"),
        (lambda rows: {"m.track_ms": _with_params(rows, [["1", "3"]])}, "missing"),
        (lambda rows: {"m.track_ms": _with_params(rows, [["3", "4"]])}, "missing"),
        (lambda rows: {}, "nothing measured on both sides"),
    ],
)
def test_what_was_renamed_or_has_other_parameters_makes_no_pass(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    hint: str,
) -> None:
    path = folder / KINDS["result"].path
    document = json.loads(path.read_text(encoding="utf-8"))
    document["results"] = change(document["results"])
    write(path, document)
    if document["results"] and "m.track_ms" not in document["results"]:  # asv's list follows
        listed = path.parent.parent / "benchmarks.json"
        known = json.loads(listed.read_text(encoding="utf-8"))
        write(listed, {name: entry for name, entry in known.items() if name != "m.track_ms"})
    for arguments in (BOTH, ("--baseline", "old.json", "bbbb")):
        assert main(["compare", *arguments]) == 3
        assert hint in capsys.readouterr().out


def _with_params(rows: dict[str, Any], params: list[list[str]]) -> list[Any]:
    row: list[Any] = list(rows["m.track_ms"])
    row[1] = params
    return row


@pytest.mark.parametrize("commit", ["b" * 8 + "/../../x", "b" * 39, "b" * 41, "b" * 39 + "X"])
def test_a_commit_that_is_no_hash_names_no_folder(folder: Path, commit: str) -> None:
    path = folder / KINDS["result"].path
    document = json.loads(path.read_text(encoding="utf-8"))
    write(path, {**document, "commit_hash": commit})
    with pytest.raises(ResultFileError, match="commit_hash: got"):
        ResultsDirectory(folder / "results").load("bbbbbbbb")


def test_a_baseline_of_other_hardware_is_4(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ResultsDirectory(folder / "results").load(A)
    other = replace(results.hardware, cpu_count=64)
    save_baseline(folder / "old.json", replace(results, hardware=other))
    assert main(["compare", "--baseline", "old.json", "bbbb"]) == 4
    assert "hardware differs: cpu_count: 64 → 2" in capsys.readouterr().out
