"""`from rocmforge import Engine, SamplingParams, Tokenizer` and the errors, loaded at first use."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rocmforge
from rocmforge import errors

CLASSES = {
    "Engine": "rocmforge.engine",
    "SamplingParams": "rocmforge.sampling_params",
    "Tokenizer": "rocmforge.text.tokenizer",
}
ERRORS = [
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
]


def test_it_offers_the_classes_and_every_error() -> None:
    assert rocmforge.__all__ == sorted([*CLASSES, *ERRORS])
    assert {*rocmforge.__all__} <= {*dir(rocmforge)}


@pytest.mark.parametrize("name", [*CLASSES, *ERRORS])
def test_each_is_the_class_of_its_module(name: str) -> None:
    found = getattr(rocmforge, name)
    assert (found.__name__, found.__module__) == (name, CLASSES.get(name, "rocmforge.errors"))


def test_type_checkers_see_the_same_names(repo: Path) -> None:
    tree = ast.parse((repo / "rocmforge" / "__init__.py").read_text("utf-8"))
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocmforge.")
        for alias in node.names
    ]
    assert sorted(imported) == rocmforge.__all__


def test_importing_the_package_loads_no_other_module_of_it_and_no_numpy() -> None:
    code = """
import sys
import rocmforge
print([name for name in sys.modules if name.startswith("rocmforge.") or name == "numpy"])
from rocmforge import RocmforgeError, SamplingParams
print("numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rocmforge' has no attribute 'Engin'"):
        _ = rocmforge.Engin
    with pytest.raises(ImportError, match="cannot import name 'Engin' from 'rocmforge'"):
        exec("from rocmforge import Engin")
