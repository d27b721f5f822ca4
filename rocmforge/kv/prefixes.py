"""Full pages that later prompts find by the tokens in them and before them, so as to share them.

What a page holds follows from all tokens of its sequence from position 0 to its last one. A digest
of these names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from numpy import int64
from numpy.typing import NDArray


class _Kept(NamedTuple):
    page: int
    used: int  # rises with each use


class Prefixes:
    """Pages by the digests of what they hold. None of them may be written.

    Each change of a page is one step, so that an interrupt (Ctrl-C) leaves it either known or not.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, _Kept] = {}
        self._clock = itertools.count()

    def pages(self) -> list[int]:
        """All pages that can be found."""
        return [kept.page for kept in self._kept.values()]

    def find(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest known beginning of some digests."""
        known = itertools.takewhile(self._kept.__contains__, digests)
        return [self._kept[digest].page for digest in known]

    def add(self, digests: Sequence[bytes], pages: Sequence[int]) -> None:
        """Let pages be found. A digest that is known keeps its page, which is used now."""
        # The first page is used last: without it those behind it are of no use.
        for digest, page in reversed(list(zip(digests, pages, strict=True))):
            known = self._kept.get(digest, _Kept(page, 0)).page
            self._kept[digest] = _Kept(known, next(self._clock))

    def idle(self, held: Collection[int]) -> list[bytes]:
        """Digests of the pages that are not in `held`, the least recently used first."""
        idle = [(kept.used, digest) for digest, kept in self._kept.items() if kept.page not in held]
        return [digest for _, digest in sorted(idle)]

    def forget(self, digests: Sequence[bytes]) -> None:
        """Let pages not be found any more."""
        for digest in digests:
            del self._kept[digest]


def digests(tokens: NDArray[int64], page_size: int) -> list[bytes]:
    """One digest for each full page of a text: SHA-256 of that before it and the page's tokens."""
    import hashlib  # not before it is needed: a start would wait for it

    found = [b""]
    for end in range(page_size, tokens.size + 1, page_size):
        page = tokens[end - page_size : end].tobytes()
        found.append(hashlib.sha256(found[-1] + page).digest())
    return found[1:]
