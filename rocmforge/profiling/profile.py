"""What one profile holds: where the time of a prompt and of generated tokens went, and why.

Plain data, all of it measured; None is what was not or cannot be measured, and the reason stands
beside it. `run.py` measures it, the command prints it, and the trace, the picture of the roofline
and the report are made from it. All times are seconds of the host's monotonic clock
(`time.perf_counter`) unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rocmforge.profiling.launches import Recommendation
from rocmforge.profiling.memory import MemoryProfile
from rocmforge.profiling.monitor import Monitored
from rocmforge.profiling.run_environment import RunEnvironment
from rocmforge.profiling.timer import Times

VERSION = 1
"""Of the JSON document; a field that changes its meaning raises it."""

Track = Literal["host", "device"]
Bound = Literal["memory", "compute", "launch", "occupancy", "transfer", "none"]
"""What limits a phase; "none": it is far from every limit that was measured."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for.

    Parameters
    ----------
    prompt_tokens, tokens
        Tokens of the prompt, and tokens that were generated behind it.
    target_seconds
        Wanted time to the first token.
    ctx, kv_dtype, page_size, prefill_chunk
        Of the engine.
    threads
        Of the CPU backend; None on a GPU.
    """

    prompt_tokens: int
    tokens: int
    target_seconds: float
    ctx: int
    kv_dtype: str
    page_size: int
    prefill_chunk: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """What ran it.

    Parameters
    ----------
    name
        As the engine names it: ``"cpu"``, ``"hip:0"``, ``"cuda:0"``.
    description
        The product's name, or the CPU's.
    architecture
        ``"gfx1100"``, ``"sm_90"``; on a CPU the instruction set of its kernels.
    compute_units
        Compute units or multiprocessors; on a CPU the threads.
    """

    name: str
    description: str
    architecture: str
    compute_units: int

    @property
    def units(self) -> str:
        """How many threads or compute units, as "1 thread" or "96 compute units"."""
        what = "thread" if self.name == "cpu" else "compute unit"
        return f"{self.compute_units} {what}{'' if self.compute_units == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Model:
    """What was run.

    Parameters
    ----------
    path, architecture
        The file, and the family in it.
    file_bytes, weight_bytes
        Of the file, and of the matrices as they are packed.
    format
        Format of most weights.
    layers
        Blocks of the decoder.
    """

    path: str
    architecture: str
    file_bytes: int
    weight_bytes: int
    format: str
    layers: int


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a time.

    Parameters
    ----------
    name
        Its key, as "host_to_device".
    label
        Its name for readers.
    seconds
        None: not measured.
    reason
        Why it is None, or a remark on the number; empty: there is none.
    """

    name: str
    label: str
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """From a request to its first token.

    Parameters
    ----------
    parts
        In order: load, tokenize, setup, embedding, host_to_device, prefill (the rest of the
        pass), device_to_host, first_token. Load is not part of `seconds`; the others add up to it.
    seconds
        From the prompt's text to the first token: this is what the target judges.
    load_seconds
        Before that: opening the model, once for each process.
    cold_seconds
        The same request as the first one after loading: caches are cold, memory is new.
    dominant
        Name of the longest part without load.
    target_seconds, met
        What was wanted, and whether `seconds` is at most that.
    advice
        What to do, in sentences; none where the target is met and loading is short.
    """

    parts: tuple[Part, ...]
    seconds: float
    load_seconds: float
    cold_seconds: float
    dominant: str
    target_seconds: float
    met: bool
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran.

    Parameters
    ----------
    name
        A GPU's function; on a CPU the function of the op.
    source
        The file: ``"kernels/matmul.hip"``; on a CPU the instruction set.
    blocks, threads
        Of one launch: blocks of the grid, threads of a block; None on a CPU.
    """

    name: str
    source: str
    blocks: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """All calls of one op in a phase, of all layers and passes.

    Parameters
    ----------
    label
        The op's name, as "matmul_qkv".
    calls
        How many.
    seconds
        Of all calls, on a GPU device time. NaN: not measured, as of an op of a graph that was not
        timed alone; `Telemetry.summary` alone gives such, a profile times them.
    share
        Of the phase's op time with `unaccounted_seconds`, 0 … 1.
    nbytes, flops
        What all calls had to move at least, and operations (a multiply-add is two).
    weight_bytes, kv_bytes
        Of those bytes: weights, and keys and values.
    precision
        In which it multiplies: "exact", "half", "bf16" or "int8".
    ideal_seconds
        The least time by the roofline; None: its ceiling was not measured.
    kernels
        That ran.
    """

    label: str
    calls: int
    seconds: float
    share: float
    nbytes: int
    flops: int
    weight_bytes: int
    kv_bytes: int
    precision: str
    ideal_seconds: float | None
    kernels: tuple[Kernel, ...]

    @property
    def bytes_per_second(self) -> float | None:
        """Least bytes over time; None where it took no measurable time."""
        return self.nbytes / self.seconds if self.seconds > 0 else None

    @property
    def flops_per_second(self) -> float | None:
        """Operations over time; None where it took no measurable time."""
        return self.flops / self.seconds if self.seconds > 0 else None

    @property
    def roofline_fraction(self) -> float | None:
        """Least time over time: 1 is the roofline; above 1, caches held what it read."""
        if self.ideal_seconds is None or not self.seconds > 0:
            return None
        return self.ideal_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """Prefill or decode.

    Parameters
    ----------
    name
        "prefill" or "decode".
    tokens, passes
        Tokens that went in, and passes of the model.
    seconds
        Wall time, the choice of tokens and their text included.
    parts
        Of the wall time, in order: prepare, launch, wait (a CPU: compute and dispatch), copy_out,
        sampling, detokenize, rest. They add up to `seconds`.
    device_seconds
        Device time of the passes, copies included; on a CPU the time inside the ops.
    host_to_device_seconds, device_to_host_seconds
        Device time of the copies; None on a CPU, which copies nothing.
    ops
        Longest first.
    unaccounted_seconds
        Of `device_seconds`, what neither an op nor a copy accounts for: gaps between kernels.
        Negative where ops that were timed alone take longer than in the pass: where kernels start
        before the one before has ended, or other work came between.
    ops_from
        How the ops' times were measured, in a sentence.
    plain_seconds
        Wall time of the same passes without observation, in turns with the observed ones.
    launches, graphs
        The host's time for each launch of a kernel, and of a whole graph; None: there were none.
    recommendation
        What to do about it; None on a CPU.
    """

    name: Literal["prefill", "decode"]
    tokens: int
    passes: int
    seconds: float
    parts: tuple[Part, ...]
    device_seconds: float
    host_to_device_seconds: float | None
    device_to_host_seconds: float | None
    ops: tuple[Op, ...]
    unaccounted_seconds: float
    ops_from: str
    plain_seconds: float | None
    launches: Times | None = None
    graphs: Times | None = None
    recommendation: Recommendation | None = None

    def besides_ops(self, on_cpu: bool) -> list[tuple[str, float]]:
        """Name what is no op, with its seconds: copies, and what nothing accounts for."""
        left = self.unaccounted_seconds if abs(self.unaccounted_seconds) >= 1e-9 else 0.0
        gaps = "between the ops" if on_cpu else "no op or copy" if left >= 0 else "ops overlap"
        named = (
            ("inputs to the device", self.host_to_device_seconds),
            ("logits to the host", self.device_to_host_seconds),
            (gaps, left),
        )
        return [(name, seconds) for name, seconds in named if seconds is not None]

    @property
    def tokens_per_second(self) -> float:
        """Tokens over wall time without observation, where that was measured."""
        seconds = self.plain_seconds or self.seconds
        return self.tokens / seconds if seconds > 0 else float("nan")

    @property
    def observer_cost(self) -> float | None:
        """How much longer the observed passes took, as a fraction of the plain ones."""
        return None if not self.plain_seconds else self.seconds / self.plain_seconds - 1


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the device reaches at most, measured in this run.

    Parameters
    ----------
    precision
        Of the products: "exact", "half" or "int8".
    read_bytes_per_second, operations_per_second
        Reads of `working_set` bytes, and products; a multiply-add is two operations.
    least_read
        The least read rate that was measured in this run, over the best, 0 … 1: far below 1 where
        something disturbed the measurements.
    """

    precision: str
    read_bytes_per_second: float
    operations_per_second: float
    working_set: int
    least_read: float = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of time, for a trace.

    Parameters
    ----------
    name
        As "matmul_qkv".
    category
        "request", "phase", "pass", "host", "op" or "copy".
    start, seconds
        From the beginning of the profile.
    track
        Where it ran. The device's own clock is set so that a pass ends when the host has waited
        for it.
    """

    name: str
    category: str
    start: float
    seconds: float
    track: Track


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a phase, or a kernel.

    Parameters
    ----------
    subject
        "prefill", "decode", or a kernel's name.
    bound
        What limits it.
    summary
        One sentence.
    evidence
        Sentences with the numbers that say so.
    advice
        What to try next, in order.
    """

    subject: str
    bound: Bound
    summary: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """All of one run; see the parts.

    Parameters
    ----------
    phases
        Prefill and decode; without decode where only one token was generated.
    ceilings
        For each precision that occurred.
    spans
        In order of their start; the first `spans_left_out` are those that are there.
    spans_left_out
        How many more there were: a long run keeps the first ones.
    verdicts
        One a phase, that of the longer phase first.
    doubts
        Why the verdicts may be wrong: sentences to be read before them.
    remarks
        What a reader should know.
    memory
        While the last sequence had all its tokens.
    monitor
        The device over the run; its samples count from the zero of `spans`. None: not watched.
    """

    version: int
    model: Model
    device: Device
    settings: Settings
    environment: RunEnvironment
    first_token: FirstToken
    phases: tuple[Phase, ...]
    ceilings: tuple[Ceiling, ...]
    spans: tuple[Span, ...]
    spans_left_out: int
    verdicts: tuple[Verdict, ...]
    doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    memory: MemoryProfile | None = None
    monitor: Monitored | None = None

    def phase(self, name: str) -> Phase | None:
        """Return "prefill" or "decode"; None where it did not run."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def row(self) -> dict[str, Any]:
        """Return the few numbers that sum it up, by name with their unit."""
        decode = self.phase("decode")
        prefill = self.phase("prefill")
        return {
            "model": self.model.path,
            "device": self.device.name,
            "ttft_s": self.first_token.seconds,
            "load_s": self.first_token.load_seconds,
            "dominant": self.first_token.dominant,
            "target_met": self.first_token.met,
            "prefill_tokens_per_s": prefill.tokens_per_second if prefill else None,
            "decode_tokens_per_s": decode.tokens_per_second if decode else None,
            "bound": {verdict.subject: verdict.bound for verdict in self.verdicts},
        }

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON takes it, rates and fractions of the ops included."""
        document = asdict(self)
        for phase, shown in zip(self.phases, document["phases"], strict=True):
            shown["tokens_per_second"] = phase.tokens_per_second
            shown["observer_cost"] = phase.observer_cost
            for op, row in zip(phase.ops, shown["ops"], strict=True):
                row |= _rates(op)
        if self.memory is not None:
            kv = self.memory.kv
            document["memory"]["kv"] |= {
                "bytes_in_use": kv.bytes_in_use,
                "unused_bytes": kv.unused_bytes,
                "table_overhead": kv.table_overhead,
                "scatter": kv.use.scatter,
            }
        return document


def _rates(op: Op) -> dict[str, float | None]:
    return {
        "bytes_per_second": op.bytes_per_second,
        "flops_per_second": op.flops_per_second,
        "roofline_fraction": op.roofline_fraction,
    }


def longest(parts: Sequence[Part]) -> str:
    """Return the name of the longest part that was measured; empty of none."""
    measured = [part for part in parts if part.seconds is not None]
    return max(measured, key=lambda part: part.seconds or 0.0).name if measured else ""
