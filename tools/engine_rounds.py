"""One measured round of an engine: prompts, then tokens of all sequences, in tokens per second.

An engine runs in a process of its own: ours and llama-cpp-python's stay loaded and answer each line
of input with a round (this file run as a program), llama.cpp's own programs start anew each time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

OURS = "rocmforge"
REPACKED = "llama.cpp"
PLAIN = "llama.cpp without repacking"
ALL_LAYERS = 999
GPU_REPETITIONS = 4
Round = dict[str, float]  # tokens per second of "prefill" and "decode"; what was not asked lacks


@dataclass(frozen=True)
class Workload:
    """What every engine does in a round; each sequence decodes where its prompt ends.

    Parameters
    ----------
    model, device, threads
        The file, "cpu", "hip" or "cuda", and threads of the CPU.
    prompt, decode
        Tokens that are timed; 0: none of them.
    sequences
        That prefill one after another, and decode side by side.
    depth
        Tokens in front of the prompt, not timed.
    repetitions
        In one round; with more than one the first is not counted. On a GPU that of llama-bench is
        cold, 12 to 40 % too slow on an H200, though it warms up before.
    """

    model: Path
    device: str
    threads: int
    prompt: int
    decode: int
    sequences: int
    depth: int = 0
    repetitions: int = 1

    def speeds(self, start: float, middle: float, end: float) -> Round:
        """Tokens/s of all sequences together, from three readings of the clock in seconds."""
        counts = {"prefill": (self.prompt, middle - start), "decode": (self.decode, end - middle)}
        return {
            phase: self.sequences * tokens / seconds
            for phase, (tokens, seconds) in counts.items()
            if tokens
        }

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return self.depth + self.prompt + self.decode

    @property
    def gpu_layers(self) -> int:
        """How many layers llama.cpp is to keep on a GPU."""
        return 0 if self.device == "cpu" else ALL_LAYERS


class Engine(Protocol):
    """Something that is measured; RuntimeError where it fails."""

    def measure(self, seconds: float | None = None) -> Round:
        """Do the work once, in so many seconds at most."""

    def close(self) -> None:
        """Let go of the model."""


def counted(speeds: Sequence[float]) -> float:
    """Return the median of a round's repetitions: of all but the first where there are more."""
    return statistics.median(speeds[1:] or speeds)


class Worker:
    """An engine that stays loaded, in a process of this file.

    Parameters
    ----------
    name
        OURS, REPACKED or PLAIN.
    work
        What to do.
    python
        Interpreter that has the engine.
    """

    def __init__(self, name: str, work: Workload, python: str) -> None:
        self._name = name
        command = [python, __file__, name, *(str(value) for value in asdict(work).values())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if name == OURS else subprocess.DEVNULL,  # llama.cpp logs there
                text=True,
            )
        except OSError as error:
            raise RuntimeError(f"{name}: {python}: {error.strerror}") from error

    def measure(self, seconds: float | None = None) -> Round:
        """Ask for a round and wait for it."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError(f"{self._name}: no pipe to its process")
        late = threading.Event()
        watch = threading.Timer(seconds or 0, lambda: (late.set(), self._process.kill()))
        if seconds is not None:
            watch.start()
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if late.is_set():
            raise RuntimeError(f"{self._name}: took more than the {seconds:.0f} s that were left")
        if not line:
            raise RuntimeError(self._ended())
        result: Round = json.loads(line)
        return result

    def _ended(self) -> str:
        hint = "" if self._name == OURS else "; llama.cpp may not know this model"
        return f"{self._name}: its process ended with exit code {self._process.wait()}{hint}"

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


class LlamaBench:
    """llama.cpp's own program, loading the model anew for each half of a round.

    Parameters
    ----------
    program
        Path of llama-bench, of 2025 or later: it has to know ``--n-depth``.
    work
        What to do, with one sequence.
    options
        Further options for it, as ``-fa 1``.

    Attributes
    ----------
    build : dict
        What it says of itself: commit, number, GPU; empty before the first round.
    """

    def __init__(self, program: Path, work: Workload, options: Sequence[str] = ()) -> None:
        self._command = [*_llama_command(program, work), "-r", str(work.repetitions), "-o", "json"]
        self._command += options
        self._work = work
        self.build: dict[str, Any] = {}

    def measure(self, seconds: float | None = None) -> Round:
        """Run it for the prompt, then for the tokens that follow one."""
        work, limit = self._work, _deadline(seconds)
        result = {}
        if work.prompt:
            result["prefill"] = self._run(
                limit, "-p", str(work.prompt), "-n", "0", depth=work.depth
            )
        if work.decode:
            depth = work.depth + work.prompt
            result["decode"] = self._run(limit, "-p", "0", "-n", str(work.decode), depth=depth)
        return result

    def _run(self, limit: float, *arguments: str, depth: int) -> float:
        def samples(said: str) -> list[float]:
            (row,) = json.loads(said)
            known = ("build_commit", "build_number", "gpu_info")
            self.build = {name: row[name] for name in known if name in row}
            return [float(speed) for speed in row["samples_ts"]]

        command = [*self._command, *arguments, *(["-d", str(depth)] if depth else [])]
        return _speed(command, limit, samples, self._work.repetitions)

    def close(self) -> None:
        """Nothing is kept between rounds."""


class BatchedBench:
    """llama.cpp's llama-batched-bench: decode of several sequences, loading the model each time.

    Parameters
    ----------
    program
        Its path.
    work
        What to do, with no prompt: the depth is what it calls one.
    """

    def __init__(self, program: Path, work: Workload) -> None:
        room = -(-work.context // 256) * 256  # what llama.cpp rounds a sequence's context to
        self._command = [*_llama_command(program, work), "-c", str(work.sequences * room)]
        self._command += ["-npp", str(work.depth), "-ntg", str(work.decode), "-npl"]
        self._command += [",".join([str(work.sequences)] * work.repetitions)]
        self._command += ["--output-format", "jsonl"]
        self._work = work

    def measure(self, seconds: float | None = None) -> Round:
        """Run it."""

        def samples(said: str) -> list[float]:
            lines = (line.strip() for line in said.splitlines())
            rows = [json.loads(line) for line in lines if line.startswith("{")]
            return [float(row["speed_tg"]) for row in rows]

        limit = _deadline(seconds)
        return {"decode": _speed(self._command, limit, samples, self._work.repetitions)}

    def close(self) -> None:
        """Nothing is kept between rounds."""


def _llama_command(program: Path, work: Workload) -> list[str]:
    command = [str(program), "-m", str(work.model), "-t", str(work.threads)]
    return [*command, "-ngl", str(work.gpu_layers)]


def _deadline(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def _speed(
    command: Sequence[str],
    limit: float,
    samples: Callable[[str], list[float]],
    repetitions: int,
) -> float:
    """Run a program of llama.cpp; return the speed that counts of those in what it prints."""
    left = None if limit == float("inf") else max(0.0, limit - time.monotonic())
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{command[0]}: took more than the {left:.0f} s that were left"
        ) from error
    try:
        if done.returncode:
            raise ValueError(f"exit code {done.returncode}")
        speeds = samples(done.stdout)
        if len(speeds) != repetitions:
            raise ValueError(f"{len(speeds)} repetitions instead of {repetitions}")
        speed = counted(speeds)
        if not speed > 0:
            raise ValueError(f"{speed} tokens/s")
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(
            f"{shlex.join(command)}: got {error}, wanted one result in JSON ({said})"
        ) from error
    return speed


def _serve(name: str, work: Workload) -> None:
    """Load the model, then answer each line of input with one measured round."""
    ids = [7 + (index * 37) % 241 for index in range(work.context)]
    if name == OURS:
        measure = _rocmforge(work, ids)
    else:
        measure = _llama_cpp(work, ids[: work.prompt], repack=name == REPACKED)
    for _ in sys.stdin:
        rounds = [measure() for _ in range(work.repetitions)]
        speeds = {phase: counted([one[phase] for one in rounds]) for phase in rounds[0]}
        print(json.dumps(speeds), flush=True)


def _rocmforge(work: Workload, ids: list[int]) -> Callable[[], Round]:
    from rocmforge.engine import Engine as Rocmforge
    from rocmforge.sampling import Sampler, SamplingParams

    greedy = Sampler(SamplingParams()).draw()
    draws = [greedy] * work.sequences
    engine = Rocmforge.from_gguf(
        work.model, work.device, threads=work.threads, ctx=work.context, sequences=work.sequences
    )
    sequences = [engine.add_sequence(work.context) for _ in range(work.sequences)]
    for sequence in sequences:
        if work.depth:
            engine.prefill(sequence, ids[: work.depth])
            engine.cache.table.mark(sequence)

    def measure() -> Round:
        tokens = ids[: work.sequences]
        start = time.perf_counter()
        if work.prompt:
            tokens = [engine.prefill_token(s, ids[: work.prompt], greedy) for s in sequences]
        middle = time.perf_counter()
        for left in reversed(range(work.decode)):  # each step but the last announces the next
            tokens = engine.decode_tokens(sequences, tokens, draws, draws if left else None)
        end = time.perf_counter()
        for sequence in sequences:
            engine.cache.table.truncate(sequence, work.depth)
        return work.speeds(start, middle, end)

    return measure


def _llama_cpp(work: Workload, ids: list[int], repack: bool) -> Callable[[], Round]:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.use_extra_bufts = repack
    model_params.n_gpu_layers = work.gpu_layers
    model = llama_cpp.llama_model_load_from_file(str(work.model).encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = work.sequences
    params.n_ctx = work.sequences * (work.prompt + work.decode + 32)
    room = max(512, work.sequences)
    params.n_batch = params.n_ubatch = room
    params.n_threads = params.n_threads_batch = work.threads
    context: Any = llama_cpp.llama_init_from_model(model, params) if model else None
    if not context:
        raise SystemExit(f"llama.cpp does not load {work.model}")
    batch = llama_cpp.llama_batch_init(room, 0, 1)

    def run(tokens: list[tuple[int, int, int, bool]]) -> None:
        """Run (id, position, sequence, whether its logits are wanted) of each token."""
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        if llama_cpp.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    def prefill(sequence: int) -> None:
        last = len(ids) - 1
        tokens = [(token, at, sequence, at == last) for at, token in enumerate(ids)]
        for first in range(0, len(tokens), room):
            run(tokens[first : first + room])

    def measure() -> Round:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        start = time.perf_counter()
        for sequence in range(work.sequences):
            prefill(sequence)
        middle = time.perf_counter()
        for index in range(work.decode):
            token, at = ids[index % len(ids)], work.prompt + index
            run([(token, at, sequence, True) for sequence in range(work.sequences)])
        end = time.perf_counter()
        return work.speeds(start, middle, end)

    return measure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Answer each line of input with a round.", allow_abbrev=False
    )
    parser.add_argument("name", choices=(OURS, REPACKED, PLAIN))
    parser.add_argument("model", type=Path)
    parser.add_argument("device")
    for count in ("threads", "prompt", "decode", "sequences", "depth", "repetitions"):
        parser.add_argument(count, type=int)
    arguments = vars(parser.parse_args())
    _serve(arguments.pop("name"), Workload(**arguments))
