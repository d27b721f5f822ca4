"""What suites of benchmarks keep between calls, out of the way of a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def nothing_prepared(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Empty the caches of functions in some modules, now and at the end."""
    caches = [v for m in modules for v in vars(m).values() if hasattr(v, "cache_clear")]
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
