"""Every error that ROCmForge raises by its own name, and how messages shorten foreign values.

One small tree: catch `RocmforgeError` to catch them all. Wrong arguments from the caller's own
code raise ValueError or TypeError instead.
"""

from __future__ import annotations

import json
import reprlib
from pathlib import Path

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def brief(value: object) -> str:
    """Return repr(value), shortened: what hostile files hold must not fill a message."""
    return _REPR.repr(value)


def one_line(value: object, limit: int = 700) -> str:
    """Return str(value) as one line that a terminal can show: no control characters, shortened."""
    text = "".join(c if c.isprintable() else " " for c in str(value)[: 4 * limit])
    return shorten(" ".join(text.split()), limit)


def shorten(text: str, limit: int = 256) -> str:
    """Return at most `limit` characters of a text, the last of them … where more were there."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class RocmforgeError(Exception):
    """Root of the tree."""


class GGUFError(RocmforgeError):
    """A GGUF file is truncated, hostile or of a kind that is not supported.

    Parameters
    ----------
    path
        The file.
    what
        The field or thing that is wrong, e.g. ``"string length of key 17"``.
    offset
        Byte offset in the file at which it stands; None where the whole file is meant.
    got, wanted
        What was found and what would have been right.
    """

    def __init__(
        self, path: Path | str, what: str, *, offset: int | None, got: object, wanted: object
    ) -> None:
        self.path = Path(path)
        self.what = what
        self.offset = offset
        self.got = got
        self.wanted = wanted
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{path}: {what}{where}: got {got}, wanted {wanted}")


class NoSuchFileError(GGUFError):
    """There is no file of that name."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, "file", offset=None, got="nothing", wanted="a GGUF file")
        nor = "" if self.path.parent.is_dir() else f", nor a folder {self.path.parent}"
        self.args = (f"no such file: {path}{nor}; wanted the path of a GGUF model",)


class ModelError(RocmforgeError):
    """A model file is readable but does not describe a model that can be run."""


class UnsupportedModelError(ModelError):
    """The architecture, a feature or a tensor format is one that ROCmForge does not run."""


class TokenizerError(RocmforgeError):
    """A vocabulary or chat template is missing, inconsistent or of an unknown kind."""


class TextError(RocmforgeError):
    """A text cannot be read, from a file or from standard input, or is no UTF-8."""


def decoded(data: bytes, where: str) -> str:
    """Return UTF-8 as text; TextError where it is none, which begins with `where`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{where}: byte {error.start}: {error.reason}, wanted UTF-8") from error


class DeviceError(RocmforgeError):
    """A device, its driver or a compiled backend is missing or refuses the request."""


class OutOfMemoryError(DeviceError):
    """A device has too little free memory for what was asked."""


class CompileError(DeviceError):
    """A kernel did not compile: our defect, or a compiler that does not know the architecture.

    Parameters
    ----------
    file
        The kernel file.
    architecture
        What it was compiled for.
    options
        The compiler's options.
    log
        What the compiler said.
    """

    def __init__(self, file: str, architecture: str, options: list[str], log: str) -> None:
        self.file = file
        self.architecture = architecture
        self.options = options
        self.log = log
        super().__init__(
            f"kernel {file} did not compile for {architecture} with {' '.join(options)}:\n{log}"
        )


class OutOfPagesError(RocmforgeError):
    """The paged KV cache has no free page left for what was asked."""

    def __init__(self, wanted: int, free: int, total: int) -> None:
        self.wanted = wanted
        self.free = free
        self.total = total
        super().__init__(
            f"KV cache out of pages: wanted {wanted}, {free} of {total} free; "
            "raise ctx, shorten the prompts or run fewer sequences at once"
        )


class EngineInUseError(RocmforgeError):
    """An engine was called while another call of it ran: it serves one at a time.

    Parameters
    ----------
    wanted, running
        Which call was refused, and which one ran, each with its thread.
    """

    def __init__(self, wanted: str, running: str) -> None:
        self.wanted = wanted
        self.running = running
        super().__init__(
            f"{wanted}: got an engine in use by {running}, wanted one call at a time: "
            "wait until that returns, or give each thread an engine of its own"
        )


def said_of_json(error: Exception) -> str:
    """Say in words what was found instead of JSON, for ``got`` of a `ResultFileError`."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    where = f"line {error.lineno}, column {error.colno}"
    return f"text that is no JSON at {where} ({error.msg[:1].lower()}{error.msg[1:]})"


class ResultFileError(RocmforgeError):
    """A benchmark result or baseline file is missing, broken or of another version."""

    def __init__(self, path: Path | str, what: str, *, got: object, wanted: object) -> None:
        self.path = Path(path)
        self.what = what
        self.got = got
        self.wanted = wanted
        said = (one_line(part) for part in (what, got, wanted))
        super().__init__("{}: {}: got {}, wanted {}".format(path, *said))


class MeasurementError(RocmforgeError):
    """A benchmark measured nothing, or its result was wrong and must not be timed."""


class ProfilerError(RocmforgeError):
    """A profiler of another maker is missing, failed, or took longer than it was given."""
