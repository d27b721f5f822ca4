"""What profilers of other makers measured, in one form whatever the tool and its version.

Times are integers of nanoseconds on the tool's own clock. None is what the file does not say; it is
never a zero that was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sizes = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel.

    Parameters
    ----------
    kernel
        Its name, as the tool writes it, without ``.kd`` at its end.
    start_ns, end_ns
        On the device.
    agent
        The device, as the tool names it.
    queue, stream, dispatch_id
        As the tool counts them.
    grid, workgroup
        Threads of the whole launch and of one block, in x, y, z.
    threads, block_threads
        The same as one number, where the tool gives only x * y * z.
    lds_bytes, scratch_bytes
        Of a block, and of a thread.
    vgprs, accum_vgprs, sgprs
        Registers of a wave.
    counters
        Values by name.
    more
        Columns that have no field here, by the tool's name.
    """

    kernel: str
    start_ns: int | None = None
    end_ns: int | None = None
    agent: str | None = None
    queue: str | None = None
    stream: str | None = None
    dispatch_id: int | None = None
    grid: Sizes | None = None
    workgroup: Sizes | None = None
    threads: int | None = None
    block_threads: int | None = None
    lds_bytes: int | None = None
    scratch_bytes: int | None = None
    vgprs: int | None = None
    accum_vgprs: int | None = None
    sgprs: int | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int | None:
        """Its time on the device; None where the file has no times."""
        if self.start_ns is None or self.end_ns is None:
            return None
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Total:
    """What a tool has added up for one kernel, API function or kind of copy.

    Parameters
    ----------
    domain
        ``"kernel"``, ``"copy"``, or the API's name as the tool writes it.
    name
        Of the kernel or function.
    calls, total_ns
        How often, and how long together.
    least_ns, most_ns
        The shortest and the longest of them.
    """

    domain: str
    name: str
    calls: int
    total_ns: int
    least_ns: int | None = None
    most_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of memory.

    Parameters
    ----------
    direction
        ``"host_to_device"``, ``"device_to_host"``, ``"device_to_device"`` or ``"host_to_host"``;
        else as the tool writes it.
    start_ns, end_ns
        When it ran.
    nbytes
        How much it copied.
    """

    direction: str
    start_ns: int | None = None
    end_ns: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an API by the host, or a region that the program has marked.

    Parameters
    ----------
    domain
        As the tool writes it: ``"HIP_RUNTIME_API"``, ``"HSA_API"``, ``"MARKER"``.
    function
        Its name.
    start_ns, end_ns
        On the host's clock.
    thread
        That made it.
    nbytes
        Of memory that it allocated.
    """

    domain: str
    function: str
    start_ns: int
    end_ns: int
    thread: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """A processor that the tool saw.

    Parameters
    ----------
    name
        ``"gfx1100"``, or the CPU's name.
    kind
        ``"gpu"`` or ``"cpu"``; None: the file does not say.
    properties
        What else the file says, by the tool's names.
    """

    name: str
    kind: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardReading:
    """What rocm-smi or amd-smi says of one card at one moment.

    Parameters
    ----------
    card
        Its number, as the tool counts.
    name
        What the maker calls it.
    time
        When it was read, as the tool writes it.
    utilization_percent, memory_activity_percent
        Of the time, in which the compute units and the memory controller were busy.
    memory_total, memory_used
        Bytes of the card's own memory.
    temperatures_c
        By sensor: ``"edge"``, ``"hotspot"``, ``"memory"``; others by the tool's names. In °C.
    power_w
        Of the package, in watts.
    clocks_mhz
        By clock: ``"core"``, ``"memory"``; others by the tool's names. In MHz.
    performance_level
        ``"auto"``, ``"high"``, ``"stable_peak"`` ….
    """

    card: int
    name: str | None = None
    time: str | None = None
    utilization_percent: float | None = None
    memory_activity_percent: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    power_w: float | None = None
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    performance_level: str | None = None


@dataclass(frozen=True)
class Recording:
    """All that was read of one run.

    Parameters
    ----------
    tool, version
        Who wrote it, and its version or that of its file's form, as far as the file says.
    dispatches, totals, copies, calls, agents, readings
        In the file's order. Where a file has single runs, totals are not repeated from them.
    remarks
        What a user should know: a form that is not known, columns that were absent, what could not
        be read.
    partial
        Some of the input could not be read; `remarks` says which.
    """

    tool: str
    version: str | None = None
    dispatches: tuple[Dispatch, ...] = ()
    totals: tuple[Total, ...] = ()
    copies: tuple[Copy, ...] = ()
    calls: tuple[Call, ...] = ()
    agents: tuple[Agent, ...] = ()
    readings: tuple[CardReading, ...] = ()
    remarks: tuple[str, ...] = ()
    partial: bool = False
