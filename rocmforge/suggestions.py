"""What errors advise: what a mistyped name was perhaps meant to be, how to get a longer context."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" with the known name most like `word`; "" if none is like it."""
    import difflib

    by_case = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_case, n=1)
    return f"; did you mean {by_case[close[0]]}?" if close else ""


def longer_context(ctx: int, trained: int) -> str:
    """Say how a context of `ctx` tokens can be longer; `trained`: the most that the model reads."""
    if ctx < trained:
        return f"--ctx N raises that, for this model up to {trained}"
    return "the model was trained for no more"


class Parser(argparse.ArgumentParser):
    """A parser that says what was perhaps meant where it refuses a command or another choice."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Without beginnings of names, which `allow_abbrev` leaves: `-n` is not `-ngl`."""
        found = super()._get_option_tuples(option_string)
        return [match for match in found if option_string.startswith(match[1])]
