"""Documents for tests of hostile files: places in them, copies with one value changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

LLAMA_BENCH: dict[str, Any] = {
    "build_commit": "0c21677e",
    "model_filename": "m.gguf",
    "n_prompt": 512,
    "n_gen": 0,
    "samples_ts": [100.0, 101.0],
    "test_time": "2026-05-01T10:00:00Z",
}
"""One test of llama-bench, as its JSON has it."""


def places(node: Any, items: int, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of everything in a document but itself; of a list, of its first `items`."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node[:items]):
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places(value, items, (*above, key))


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    new = copy.deepcopy(document)
    node = new
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return new
