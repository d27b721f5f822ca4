"""What a stream of text holds back: an end that may become a stop string or a mark.

It is shown once the next piece says that it does not.
"""

from __future__ import annotations


def beginning_at_end(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that begins `mark` and is not all of it."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
