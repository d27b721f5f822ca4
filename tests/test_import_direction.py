"""Data flows down only: parses the imports of the package and fails on one that goes up.

The layers are those of the design. A module may import its own unit (a package, or itself) and
units of lower layers; imports inside functions count as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "rocmforge"

LAYERS = (
    ("errors", "env", "demo", "atomic", "array_types", "quantities", "suggestions"),
    ("hardware", "gguf", "timing", "one_call", "sampling_params"),
    ("kv", "sampling", "text"),
    ("plan",),
    ("cpu", "gpu", "split"),
    ("ops",),
    ("devices", "model"),
    ("generation", "loading", "sequence_passes"),
    ("engine",),
    ("profiling",),
    ("testing", "info", "chat", "terminal", "perplexity", "speed"),
    ("profile_report",),
    ("commands", "info_command", "profile_command", "tune_command"),
    ("arguments",),
    ("cli",),
    ("__main__",),
)
"""Units of rocmforge, lowest layer first; units of one layer do not import each other."""

APART = {"bench": ("atomic", "errors", "env", "hardware", "suggestions", "timing")}
"""Units beside the layers, and all that they may import."""

RUNS_ENGINE = {
    "bench/commands/model.py": ("demo", "devices", "info", "profiling", "speed", "terminal"),
}
"""Modules beside the layers that measure an engine by themselves, and what they may import."""

DOOR = {"bench": "cli"}
"""The one unit of the layers that may import a unit beside them."""

ONLY_IMPORTER = {"hip": "gpu/hip.py", "cuda": "gpu/cuda.py"}
"""Packages of a GPU's maker, and the one module that may import each."""

FRONT_DOOR = ("engine", "errors", "sampling_params", "text")
"""What rocmforge/__init__.py may import under `if TYPE_CHECKING`: it loads these at first use."""

HEIGHT = {unit: height for height, units in enumerate(LAYERS) for unit in units}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + f"{node.module or ''}.{alias.name}"


def wrong_imports(package: Path) -> list[str]:
    """Return a line for each import of the package that the rules forbid."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name == "__init__.py":
            own = ""  # the package itself: below everything
        else:
            own = name.split("/")[0].removesuffix(".py")
            if own not in HEIGHT and own not in APART:
                found.append(f"{name}: the unit {own!r} stands in no layer")
                continue
        tree = ast.parse(path.read_text("utf-8"))
        typed = {line for line, _ in imports(for_types(tree))} if not own else set()
        for line, imported in imports(tree):
            problem = what_is_wrong(name, own, imported, line in typed)
            if problem:
                found.append(f"{name}:{line}: {problem}")
    return found


def for_types(tree: ast.Module) -> ast.Module:
    """What stands in the module's `if TYPE_CHECKING:`."""
    found = [
        statement
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
    ]
    return ast.Module(found, [])


def what_is_wrong(name: str, own: str, imported: str, typed: bool) -> str | None:
    if imported.startswith("."):
        return f"relative import {imported!r}"
    top, _, rest = imported.partition(".")
    if top in ONLY_IMPORTER and name != ONLY_IMPORTER[top]:
        return f"{top!r} may be imported by {ONLY_IMPORTER[top]} only"
    if top != PACKAGE:
        return None
    unit = rest.partition(".")[0]
    if unit == own or not unit:
        return None
    if typed and unit in FRONT_DOOR:
        return None
    if own in APART:
        allowed = (*APART[own], *RUNS_ENGINE.get(name, ()))
        return None if unit in allowed else f"{own!r} must know nothing of {unit!r}"
    if unit in APART:
        if own == DOOR[unit]:
            return None
        return f"{unit!r} stands apart, and {own!r} is of the engine"
    if unit not in HEIGHT:
        return f"{unit!r} is no unit of the layers"
    if not own or HEIGHT[unit] >= HEIGHT[own]:
        return f"{unit!r} does not lie below {own or 'the package'!r}"
    return None


def test_imports_go_down_only(repo: Path) -> None:
    assert wrong_imports(repo / PACKAGE) == []


def test_the_layers_are_the_units_of_the_package(repo: Path) -> None:
    present = {
        path.name.removesuffix(".py")
        for path in (repo / PACKAGE).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert present - {"__init__"} == {*HEIGHT, *APART}


def test_gpu_packages_have_one_importer_in_tools_and_benchmarks_too(repo: Path) -> None:
    for folder in ("tools", "studies", "benchmarks"):
        for path in (repo / folder).rglob("*.py"):
            tops = {n.partition(".")[0] for _, n in imports(ast.parse(path.read_text("utf-8")))}
            assert not tops & {*ONLY_IMPORTER}, path


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        (
            "kv/allocator.py",
            "from rocmforge.engine import Engine",
            "'engine' does not lie below 'kv'",
        ),
        ("gguf/reader.py", "import rocmforge.cli as c", "'cli' does not lie below 'gguf'"),
        ("errors.py", "from rocmforge import env", "'env' does not lie below 'errors'"),
        (
            "cpu/backend.py",
            "def f():\n    from rocmforge import (\n        model,\n    )",
            ":2: 'mod",
        ),
        ("model/decoder.py", "from rocmforge.devices import x", "'devices' does not lie below"),
        ("ops/api.py", "from ..cpu import backend", "relative import '..cpu.backend'"),
        ("kv/page_table.py", "from . import allocator", "relative import '..allocator'"),
        ("__init__.py", "from rocmforge.errors import X", "'errors' does not lie below"),
        ("__init__.py", "if TYPE_CHECKING:\n    import rocmforge.cpu", "'cpu' does not lie below"),
        ("__init__.py", "if X:\n    from rocmforge.engine import E", "'engine' does not lie below"),
        (
            "__init__.py",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import rocmforge.errors",
            "'errors' does not lie below",
        ),
        ("kv/allocator.py", "from rocmforge import Engine", "'Engine' is no unit"),
        (
            "kv/allocator.py",
            "if TYPE_CHECKING:\n    from rocmforge.engine import Engine",
            "'engine' does not lie below 'kv'",
        ),
        ("bench/compare.py", "import rocmforge.model.config", "must know nothing of 'model'"),
        ("bench/compare.py", "from rocmforge.gguf import x", "must know nothing of 'gguf'"),
        ("bench/commands/run.py", "from rocmforge.speed import x", "must know nothing of 'speed'"),
        ("bench/commands/model.py", "import rocmforge.engine", "must know nothing of 'engine'"),
        ("commands.py", "from rocmforge.bench import x", "'bench' stands apart"),
        ("engine.py", "import rocmforge.bench.cli", "'bench' stands apart"),
        ("cli.py", "from rocmforge.nowhere import x", "'nowhere' is no unit"),
        ("cpu/backend.py", "try:\n    from hip import hip\nexcept E:\n    pass", "gpu/hip.py only"),
        ("devices.py", "import cuda.bindings.driver", "gpu/cuda.py only"),
        ("helpers.py", "", "the unit 'helpers' stands in no layer"),
    ],
)
def test_a_planted_import_is_found(name: str, source: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / PACKAGE / name
    path.parent.mkdir(parents=True)
    path.write_text(source)
    (found,) = wrong_imports(tmp_path / PACKAGE)
    assert found.startswith(name)
    assert message in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine.py", "from rocmforge.model.decoder import Decoder\nfrom rocmforge import env"),
        ("kv/page_table.py", "from rocmforge.kv.allocator import x\nimport rocmforge.errors"),
        ("bench/compare.py", "from rocmforge.bench.files import x\nimport rocmforge.hardware"),
        ("bench/commands/model.py", "def f():\n    from rocmforge.speed.measure import measure"),
        ("cli.py", "from rocmforge import errors as wrong, cpu"),
        ("cli.py", "def f():\n    from rocmforge.bench.cli import main"),
        ("__init__.py", "if TYPE_CHECKING:\n    from rocmforge.text.tokenizer import Tokenizer"),
        ("ops/api.py", "import numpy, hipify, rocmforge_other.engine"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / PACKAGE / name
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert wrong_imports(tmp_path / PACKAGE) == []
