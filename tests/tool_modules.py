"""For tests of the scripts under tools/ and studies/: a script as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path += [str(REPO / folder) for folder in ("studies", "tools")]  # they import each other


def tool_module(name: str, folder: str = "tools") -> Any:
    """Return <folder>/<name>.py, loaded anew."""
    path = REPO / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tool_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module
