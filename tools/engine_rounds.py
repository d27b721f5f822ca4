"""One measured round of an engine: prompts, then tokens of all sequences, in tokens per second.

An engine runs in a process of its own: ours and llama-cpp-python's stay loaded and answer each line
of input with a round (this file run as a program), llama-bench starts anew each time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

OURS = "rocmforge"
REPACKED = "llama.cpp"
PLAIN = "llama.cpp without repacking"
ALL_LAYERS = 999
REPETITIONS = 4  # of llama-bench
Round = tuple[float, float]  # prefill and decode tokens per second


@dataclass(frozen=True)
class Workload:
    """What every engine does in a round; each sequence decodes where its prompt ends."""

    model: Path
    device: str
    threads: int
    prompt: int
    decode: int
    sequences: int

    def speeds(self, start: float, middle: float, end: float) -> Round:
        """Tokens/s of all sequences together, from three readings of the clock in seconds."""
        prefill = self.prompt / (middle - start)
        return self.sequences * prefill, self.sequences * self.decode / (end - middle)

    @property
    def gpu_layers(self) -> int:
        """How many layers llama.cpp is to keep on a GPU."""
        return 0 if self.device == "cpu" else ALL_LAYERS


class Engine(Protocol):
    """Something that is measured; RuntimeError where it fails."""

    def measure(self) -> Round:
        """Do the work once."""

    def close(self) -> None:
        """Let go of the model."""


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
        command = [python, __file__, name, str(work.model), work.device]
        counts = work.threads, work.prompt, work.decode, work.sequences
        command += map(str, counts)
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

    def measure(self) -> Round:
        """Ask for a round and wait for it."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError(f"{self._name}: no pipe to its process")
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(self._ended()) from None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._ended())
        prefill, decode = json.loads(line)
        return prefill, decode

    def _ended(self) -> str:
        hint = "" if self._name == OURS else "; llama.cpp may not know this model"
        return f"{self._name}: its process ended with exit code {self._process.wait()}{hint}"

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


class LlamaBench:
    """llama.cpp's own program, loading the model anew for each half of a round.

    Its first repetition is cold, 12 to 40 % too slow on an H200, though it warms up before. So it
    repeats each half `REPETITIONS` times, and the median of all but the first counts.

    Parameters
    ----------
    program
        Path of llama-bench, of 2025 or later: it has to know ``--n-depth``.
    work
        What to do, with one sequence.
    options
        Further options for it, as ``-fa 1``.
    """

    def __init__(self, program: Path, work: Workload, options: Sequence[str] = ()) -> None:
        self._command = [str(program), "-m", str(work.model), "-t", str(work.threads)]
        self._command += [
            "-ngl",
            str(work.gpu_layers),
            "-r",
            str(REPETITIONS),
            "-o",
            "json",
            *options,
        ]
        self._work = work

    def measure(self) -> Round:
        """Run it for the prompt, then for the tokens that follow one."""
        prompt, decode = str(self._work.prompt), str(self._work.decode)
        return (
            self._run("-p", prompt, "-n", "0"),
            self._run("-p", "0", "-n", decode, "-d", prompt),
        )

    def _run(self, *arguments: str) -> float:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RuntimeError(f"{command[0]}: {error.strerror}") from error
        try:
            if done.returncode:
                raise ValueError(f"exit code {done.returncode}")
            (row,) = json.loads(done.stdout)
            speeds = [float(speed) for speed in row["samples_ts"]]
            if len(speeds) != REPETITIONS:
                raise ValueError(f"{len(speeds)} repetitions instead of {REPETITIONS}")
            speed = statistics.median(speeds[1:])
            if not speed > 0:
                raise ValueError(f"{speed} tokens/s")
        except (ValueError, KeyError, TypeError) as error:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(
                f"{shlex.join(command)}: got {error}, wanted one result in JSON ({said})"
            ) from error
        return speed

    def close(self) -> None:
        """Nothing is kept between rounds."""


def _serve(name: str, work: Workload) -> None:
    """Load the model, then answer each line of input with one measured round."""
    ids = [7 + (index * 37) % 241 for index in range(work.prompt)]
    if name == OURS:
        measure = _rocmforge(work, ids)
    else:
        measure = _llama_cpp(work, ids, repack=name == REPACKED)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)


def _rocmforge(work: Workload, ids: list[int]) -> Callable[[], Round]:
    from rocmforge.engine import Engine as Rocmforge

    context = work.prompt + work.decode
    engine = Rocmforge.from_gguf(
        work.model, work.device, threads=work.threads, ctx=context, sequences=work.sequences
    )

    def measure() -> Round:
        sequences = [engine.add_sequence(context) for _ in range(work.sequences)]
        start = time.perf_counter()
        for sequence in sequences:
            engine.prefill(sequence, ids)
        middle = time.perf_counter()
        for index in range(work.decode):
            engine.decode(sequences, [ids[index % len(ids)]] * work.sequences)
        end = time.perf_counter()
        for sequence in sequences:
            engine.remove_sequence(sequence)
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
    for count in ("threads", "prompt", "decode", "sequences"):
        parser.add_argument(count, type=int)
    arguments = vars(parser.parse_args())
    _serve(arguments.pop("name"), Workload(**arguments))
