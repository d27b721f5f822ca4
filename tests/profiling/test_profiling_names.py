"""The names that `rocmforge.profiling` offers, loaded at first use."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from rocmforge import profiling


@pytest.mark.parametrize("name", profiling.__all__)
def test_each_is_what_its_module_defines_and_has_a_docstring(name: str) -> None:
    found = getattr(profiling, name)
    assert found.__name__ == name
    assert found.__module__.startswith("rocmforge.profiling.")
    assert (inspect.getdoc(found) or "").strip()


def test_type_checkers_see_the_same_names(repo: Path) -> None:
    tree = ast.parse((repo / "rocmforge/profiling/__init__.py").read_text("utf-8"))
    imported = [
        (alias.name, node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocmforge.")
        for alias in node.names
    ]
    assert sorted(name for name, _ in imported) == profiling.__all__ == sorted(profiling.__all__)
    for name, module in imported:
        assert getattr(profiling, name).__module__ == module


def test_no_name_hides_a_module(repo: Path) -> None:
    modules = {path.stem for path in (repo / "rocmforge/profiling").iterdir()}
    assert not modules & {*profiling.__all__}
    assert {*profiling.__all__} <= {*dir(profiling)}


def test_importing_it_loads_nothing_else() -> None:
    code = """
import sys
import rocmforge.profiling
print([n for n in sys.modules if n.startswith("rocmforge.") or n == "numpy"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['rocmforge.profiling']"]


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'rocmforge\.profiling' has no attribute 'Tmer'"):
        _ = profiling.Tmer
