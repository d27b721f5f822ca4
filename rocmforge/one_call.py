"""Refuses a call of an engine while another call of it runs: two threads would mix up their tokens.

A call is noted with its frame while it runs. An interrupt (Ctrl-C) may leave a note behind; so a
note counts only while its frame is on the stack of a thread, and nothing stays shut. It knows of
the engine only where the notes are.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rocmforge.errors import EngineInUseError

Calls = dict[object, tuple[str, FrameType]]
"""Calls that run, or were refused and are about to leave, in the order of their coming."""


class Guarded(Protocol):
    """What has methods of which one at a time may run."""

    _calls: Calls


Self = TypeVar("Self", bound=Guarded)
P = ParamSpec("P")
R = TypeVar("R")


def one_call(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Make a method raise EngineInUseError while another one with this decorator runs."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        calls, mine = self._calls, object()
        try:
            calls[mine] = name, sys._getframe()
            if len(calls) > 1 and (running := _running_before(mine, calls)):
                owner, thread = type(self).__name__, _thread(threading.get_ident())
                raise EngineInUseError(f"{owner}.{name} in {thread}", f"{owner}.{running}")
            return method(self, *args, **kwargs)
        finally:
            calls.pop(mine, None)

    return call


def _running_before(mine: object, calls: Calls) -> str | None:
    """Which call that came before mine runs, and where; notes of those that do not are removed."""
    for note, (name, frame) in calls.copy().items():
        if note is mine:
            return None
        thread = _thread_running(frame)
        if thread is not None:
            return f"{name} in {_thread(thread)}"
        calls.pop(note, None)
    return None


def _thread_running(frame: FrameType) -> int | None:
    """Which thread has a frame on its stack."""
    for thread, top in sys._current_frames().items():
        at: FrameType | None = top
        while at is not None:
            back = at.f_back
            # A generator that has left its stack since then hides what was below it.
            if at is frame or (back is None and at.f_code.co_flags & CO_GENERATOR):
                return thread
            at = back
    return None


def _thread(identity: int) -> str:
    names = (t.name for t in threading.enumerate() if t.ident == identity)
    return f"thread {next(names, identity)!r}"
