"""Joins what a GPU's profiler saw with our ops: one row for each kernel and its resources.

Our kernels are C functions, so that every tool shows them by the name in their file.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rocmforge.gpu.kernel_files import kernels_folder
from rocmforge.profiling import counters
from rocmforge.profiling.readers.records import Dispatch, Recording

_KERNEL = re.compile(r"^KERNEL(?:_[A-Z]+)?\((\w+),", re.MULTILINE)
_VARIANT = re.compile(r"_(prompt|batch|dot4|merge|parts)$")

_Key = tuple[str, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All runs of a kernel that was compiled to the same registers and LDS.

    Parameters
    ----------
    op, file
        Of ours, as "matmul" and "kernels/matmul_prompt.hip"; None: it is none of our kernels.
    kernel
        Its name, as the tool writes it.
    calls
        How often it ran in one run of the program.
    total_ns, mean_ns
        Its time on the device; None: not recorded.
    share
        Of the time of all kernels, 0 … 1.
    vgprs, sgprs, lds_bytes, scratch_bytes
        Registers of a wave, LDS of a block, scratch of a thread; None: the tool does not say, or
        they differ.
    counters
        Mean of a dispatch; None: no value can be trusted.
    """

    op: str | None
    file: str | None
    kernel: str
    calls: int
    total_ns: int | None
    mean_ns: float | None
    share: float | None
    vgprs: int | None
    sgprs: int | None
    lds_bytes: int | None
    scratch_bytes: int | None
    counters: Mapping[str, float | None]


@dataclass
class _Sums:
    calls: int = 0
    total_ns: int = 0
    timed: int = 0
    vgprs: set[int | None] = field(default_factory=set)
    sgprs: set[int | None] = field(default_factory=set)
    lds_bytes: set[int | None] = field(default_factory=set)
    scratch_bytes: set[int | None] = field(default_factory=set)
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def join(
    traces: Sequence[Recording],
    counted: Sequence[Recording],
    architecture: str | None,
    level: str | None,
) -> tuple[list[KernelRow], list[str]]:
    """Return a row for each kernel, longest first, and remarks on counters that cannot be trusted.

    Parameters
    ----------
    traces
        Recordings of one run without counters: calls and times come from them. Empty: they come
        from `counted`, where kernels run one by one.
    counted
        Recordings with counters, each of one run of the same program.
    architecture, level
        The card's, and its performance level, by which counters are judged.
    """
    timing = [*traces] or [*counted[:1]]
    merged = _differ(timing, counted)
    sums: dict[_Key, _Sums] = defaultdict(_Sums)
    for recording in timing:
        _add_times(sums, recording, merged)
    problems: dict[str, tuple[str, int]] = {}
    for recording in counted:
        for dispatch in recording.dispatches:
            own = sums[_key(dispatch, merged)]
            _add_resources(own, dispatch)
            for name, value in dispatch.counters.items():
                why = counters.invalid(name, value, architecture, level) if architecture else None
                own.values[name] += [] if why else [value]
                if why:
                    problems[name] = why, problems.get(name, ("", 0))[1] + 1
    total = sum(one.total_ns for one in sums.values())
    rows = [_row(key[0], one, total) for key, one in sums.items()]
    rows.sort(key=lambda row: (-(row.total_ns or 0), row.kernel, row.vgprs or 0))
    return rows, _remarks(problems)


def returned(recordings: Iterable[Recording]) -> set[str]:
    """Return the counters that some dispatch has a value of."""
    return {
        name
        for recording in recordings
        for dispatch in recording.dispatches
        for name in dispatch.counters
    }


def op_of(kernel: str) -> tuple[str, str] | None:
    """Return the op and the file of a kernel of ours; None: it is another one."""
    file = _files().get(kernel)
    return None if file is None else (_VARIANT.sub("", kernel), f"kernels/{file}")


@functools.cache
def _files() -> dict[str, str]:
    found = {}
    for file in kernels_folder().iterdir():
        if file.name.endswith(".hip"):
            found.update(dict.fromkeys(_KERNEL.findall(file.read_text("utf-8")), file.name))
    return found


def _differ(timing: Sequence[Recording], counted: Sequence[Recording]) -> bool:
    """Whether recordings do not agree on resources, so that kernels have one row for each name."""
    if any(not one.dispatches for one in (*timing, *counted)):
        return True
    timed = {_key(dispatch, False) for one in timing for dispatch in one.dispatches}
    return any(_key(dispatch, False) not in timed for one in counted for dispatch in one.dispatches)


def _key(dispatch: Dispatch, merged: bool) -> _Key:
    if merged:
        return dispatch.kernel, None, None, None
    return dispatch.kernel, dispatch.vgprs, dispatch.sgprs, dispatch.lds_bytes


def _add_times(sums: dict[_Key, _Sums], recording: Recording, merged: bool) -> None:
    for dispatch in recording.dispatches:
        own = sums[_key(dispatch, merged)]
        own.calls += 1
        if dispatch.duration_ns is not None:
            own.total_ns += dispatch.duration_ns
            own.timed += 1
        _add_resources(own, dispatch)
    if not recording.dispatches:
        for total in recording.totals:
            if total.domain == "kernel":
                own = sums[total.name, None, None, None]
                own.calls += total.calls
                own.total_ns += total.total_ns
                own.timed += total.calls


def _add_resources(own: _Sums, dispatch: Dispatch) -> None:
    own.vgprs.add(dispatch.vgprs)
    own.sgprs.add(dispatch.sgprs)
    own.lds_bytes.add(dispatch.lds_bytes)
    own.scratch_bytes.add(dispatch.scratch_bytes)


def _row(kernel: str, own: _Sums, total: int) -> KernelRow:
    known = op_of(kernel)
    return KernelRow(
        op=known[0] if known else None,
        file=known[1] if known else None,
        kernel=kernel,
        calls=own.calls,
        total_ns=own.total_ns if own.timed else None,
        mean_ns=own.total_ns / own.timed if own.timed else None,
        share=own.total_ns / total if own.timed and total else None,
        vgprs=_only(own.vgprs),
        sgprs=_only(own.sgprs),
        lds_bytes=_only(own.lds_bytes),
        scratch_bytes=_only(own.scratch_bytes),
        counters={
            name: sum(values) / len(values) if values else None
            for name, values in own.values.items()
        },
    )


def _only(values: set[int | None]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _remarks(problems: Mapping[str, tuple[str, int]]) -> list[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, (why, count) in problems.items():
        by_reason[why].append(f"{name} ({count} dispatches)")
    return [f"not counted: {', '.join(names)}: {why}" for why, names in by_reason.items()]
