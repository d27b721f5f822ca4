"""Which test made which call of hip-python first, as the stand-in counted it.

It reads the names from gpu/hip.py, where they are attributes and strings.
"""

from __future__ import annotations

import ast
from ctypes import CDLL
from pathlib import Path

from rocmforge.gpu import hip


def used_names() -> set[str]:
    """Names of hip-python's functions in gpu/hip.py; enums and structs are no calls."""
    tree = ast.parse(Path(hip.__file__).read_text("utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    found = {
        name: getattr(module, name, None)
        for name in names
        for module in hip._bindings()
        if name.startswith("hiprtc" if module.__name__.endswith("rtc") else "hip")
        and hasattr(module, name)
    }
    return {name for name, value in found.items() if not isinstance(value, type)}


class HipCalls:
    """Counts of the stand-in, seen test by test.

    Parameters
    ----------
    standin
        Its libraries by name; empty as long as they are not loaded.
    """

    def __init__(self, standin: dict[str, CDLL]) -> None:
        self._standin = standin
        self.names = used_names()
        self.first_caller: dict[str, str] = {}
        """Name of a call → the first test that made it."""
        self._counts = dict.fromkeys(self.names, 0)

    def note(self, test: str | None) -> None:
        """Credit a test with the calls since the last time; None: nobody."""
        if not self._standin:
            return
        for name in self.names - self.first_caller.keys():
            count = self._count(name)
            if test is not None and count > self._counts[name]:
                self.first_caller[name] = test
            self._counts[name] = count

    def _count(self, name: str) -> int:
        if name.startswith("hiprtc"):
            return int(self._standin["hiprtc"].standin_rtc_calls(name.encode()))
        return int(self._standin["amdhip64"].standin_calls(name.encode()))
