"""How fast a GPU runs models and matrix products, as a table and JSON.

Copy bandwidth, GEMV of each format in GB/s, a feed-forward part in two ways, decode and prefill
of models of random weights, and where the time from opening a file to the first token goes. Times
of kernels are device times, those of models are of the engine's own calls. It judges nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rocmforge import ops
from rocmforge.bench.files import write_json
from rocmforge.bench.git import provenance
from rocmforge.devices import default_device, open_backend
from rocmforge.engine import Engine
from rocmforge.errors import RocmforgeError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.random_blocks import RandomBytes, random_blocks
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops.matmul import gate_up_swiglu, matmul
from rocmforge.gpu.ops.quantize import quantize
from rocmforge.gpu.ops.swiglu import swiglu
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.config import ModelConfig
from rocmforge.model.presets import find_preset
from rocmforge.model.synthetic import make_model
from rocmforge.ops import reference
from rocmforge.ops.cases import MatmulCase
from rocmforge.speed.sequences import Sequences, prefill_seconds
from rocmforge.testing import check_close

REPO = Path(__file__).resolve().parent.parent
BROKEN = 2  # exit code
ROUNDS = 7
COPY_BYTES = 2 << 30
COLD_BYTES = 512 << 20  # weights that take turns, so that no cache holds them
GEMV_SHAPES = ((4096, 4096), (22016, 4096), (4096, 11008), (32000, 4096))
FEED_FORWARDS = ("7B", "1.1B")  # presets whose shapes it has, in Q4_K
MODELS = ("7B:Q4_K_M", "7B:Q4_0", "7B:Q6_K", "7B:Q8_0", "8B:Q4_K_M", "1.1B:Q4_K_M")
PROMPTS = (128, 512, 2048)
DECODED = 64  # tokens of one run
DEPTHS = (128, 1024, 4096 - DECODED)  # tokens before the first of them


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; return the exit code."""
    args = _parser().parse_args(argv)
    try:
        report = measure(args.device, args.model, args.commit, not args.models_only)
    except (RocmforgeError, ValueError, OSError) as error:
        print(f"gpu_speed: error: {error}", file=sys.stderr)
        return BROKEN
    if args.json:
        write_json(args.json, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0], allow_abbrev=False
    )
    parser.add_argument("--device", default="auto", help="(default: auto, which must be a GPU)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        type=_preset_and_mix,
        metavar="PRESET:MIX",
        help=f"again for more (default: {', '.join(MODELS)})",
    )
    parser.add_argument(
        "--models-only", action="store_true", help="no copies, no GEMV, no feed-forward parts"
    )
    parser.add_argument("--commit", help="what the tree is, where git is not there to ask")
    parser.add_argument("--json", type=Path, help="write the measurements here")
    return parser


def _preset_and_mix(value: str) -> str:
    if value.count(":") != 1:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted PRESET:MIX, as 7B:Q4_K_M")
    return value


def measure(
    device: str, models: Sequence[str], commit: str | None, kernels: bool
) -> dict[str, Any]:
    """Return the report of a GPU, printing each figure as it comes."""
    choice = default_device(device)
    if choice.device is None:
        raise RocmforgeError(f"device {device!r}: got the CPU ({choice.reason}), wanted a GPU")
    print(choice.reason, flush=True)
    report: dict[str, Any] = {**provenance(REPO), "gpu": choice.device.name}
    if commit is not None:
        report.update(commit=commit, uncommitted_changes=False)
    if kernels:
        backend = open_backend(device)
        runtime = backend.kernels.runtime
        report["copy_gb_per_second"] = _copy_speed(runtime)
        _say("device copy, read + written", report["copy_gb_per_second"], "GB/s")
        report["gemv"] = list(_gemv(backend))
        report["feed_forward"] = list(_feed_forward(backend))
        backend.close()
    report["models"] = [_model(device, *name.split(":")) for name in models or MODELS]
    return report


def _say(what: str, value: float, unit: str) -> None:
    print(f"{what:<64}{value:>12,.1f} {unit}", flush=True)


def _copy_speed(runtime: Runtime) -> float:
    """GB/s read and written by a copy so long that the time of its launch does not count."""
    source, target = runtime.allocate(COPY_BYTES), runtime.allocate(COPY_BYTES)
    runtime.fill(source, 1, COPY_BYTES)
    start, end = runtime.create_event(), runtime.create_event()
    samples = []
    for _ in range(ROUNDS + 1):
        runtime.record_event(start)
        runtime.copy_on_device(target, source, COPY_BYTES)
        runtime.record_event(end)
        runtime.synchronize_event(end)
        samples.append(runtime.elapsed_seconds(start, end))
    runtime.destroy_event(start)
    runtime.destroy_event(end)
    runtime.free(source)
    runtime.free(target)
    return 2 * COPY_BYTES / statistics.median(samples[1:]) / 1e9  # the first one warms up


def _gemv(backend: GpuBackend) -> Iterator[dict[str, Any]]:
    """Time y = W x of every format over weights and activations that no cache holds."""
    runtime = backend.kernels.runtime
    random = np.random.default_rng(0)
    for name in FORMATS:
        _check(backend, name)
        for rows, columns in GEMV_SHAPES:
            one = DeviceMatrix.at(0, name, rows, columns).nbytes
            count = max(2, -(-COLD_BYTES // one))
            memory = runtime.allocate(one * count)
            runtime.copy_to_device(memory, random.integers(0, 256, one, np.uint8))
            for i in range(1, count):
                runtime.copy_on_device(memory + one * i, memory, one)
            floats = random.standard_normal(columns, np.float32)
            own = Q8.nbytes(1, columns) + 4 * columns + 4 * rows
            activations = runtime.allocate(own * count)
            launches = []
            for i in range(count):
                matrix = DeviceMatrix.at(memory + one * i, name, rows, columns)
                rounded = Q8.at(activations + own * i, 1, columns)
                x = activations + own * i + Q8.nbytes(1, columns)
                runtime.copy_to_device(x, floats)
                quantize(backend.kernels, x=x, out=rounded, rows=1, columns=columns).enqueue(
                    runtime
                )
                launches.append(
                    matmul(
                        backend.kernels,
                        x=F32(x) if matrix.dense else rounded,
                        weights=(matrix,),
                        outs=(x + 4 * columns,),
                        biases=(None,),
                        tokens=1,
                        accumulate=False,
                    )
                )
            speed = one / _replayed_seconds(runtime, launches, count) / 1e9
            for address in (memory, activations):
                runtime.free(address)
            _say(f"GEMV {name} {rows}×{columns}", speed, "GB/s")
            yield {"format": name, "rows": rows, "columns": columns, "gb_per_second": speed}


def _check(backend: GpuBackend, name: str) -> None:
    """Refuse to time a format whose products are wrong."""
    case = MatmulCase(1, 160, 4096, name)
    x, matrix = case.inputs()
    got = ops.matmul(x, ops.pack(matrix, backend))
    tolerance = case.tolerance(backend.matmul_precision(name, 1))
    check_close(f"GEMV {name}", got, reference.matmul(x, matrix), tolerance)


def _feed_forward(backend: GpuBackend) -> Iterator[dict[str, Any]]:
    """Time gate, up, SwiGLU and down of one token in two ways, weights in no cache."""
    kernels, runtime = backend.kernels, backend.kernels.runtime
    for preset in FEED_FORWARDS:
        config = find_preset(preset).config
        columns, inner = config.d_model, config.d_ff
        shapes = {"gate": (inner, columns), "up": (inner, columns), "down": (columns, inner)}
        matrices = [_random_matrix(name, *shape) for name, shape in shapes.items()]
        packed = [backend.pack(m.data, m.format, m.columns) for m in matrices]
        backend.finish_packing()
        x = np.random.default_rng(0).standard_normal((1, columns), np.float32)
        gate, up = (reference.matmul(x, m) for m in matrices[:2])
        wanted = reference.matmul(reference.swiglu(gate, up), matrices[2])
        tolerance = 3 * MatmulCase(1, columns, inner, "Q4_K").tolerance("int8")
        one = sum(matrix.nbytes for matrix in packed)
        count = max(2, -(-COLD_BYTES // one))
        memory = runtime.allocate(one * count)
        activations = runtime.allocate(4 * columns + Q8.nbytes(1, columns))
        rounded = Q8.at(activations + 4 * columns, 1, columns)
        runtime.copy_to_device(activations, x)
        quantize(kernels, x=activations, out=rounded, rows=1, columns=columns).enqueue(runtime)
        room = 4 * (columns + 2 * inner) + Q8.nbytes(1, inner)
        scratch = runtime.allocate(room)
        ways: dict[str, list[Launch]] = {}
        for i in range(count):
            own = _copies(runtime, packed, memory + one * i)
            for way, launches in _ways(kernels, own, rounded, scratch).items():
                if i == 0:
                    runtime.fill(scratch, 0xFF, room)
                    for launch in launches:
                        launch.enqueue(runtime)
                    got = np.empty_like(x)
                    runtime.copy_to_host(got, scratch)
                    check_close(f"feed-forward part of {preset}, {way}", got, wanted, tolerance)
                ways.setdefault(way, []).extend(launches)
        for way, launches in ways.items():
            microseconds = 1e6 * _replayed_seconds(runtime, launches, count)
            _say(f"feed-forward of {preset}: {way}", microseconds, "µs")
            yield {"model": preset, "way": way, "microseconds": microseconds}
        for address in (memory, activations, scratch):
            runtime.free(address)


def _random_matrix(name: str, rows: int, columns: int) -> ops.Matrix:
    fmt = FORMATS["Q4_K"]
    blocks = random_blocks(fmt, rows * columns, columns**-0.5, RandomBytes(0, name))
    return ops.Matrix(np.concatenate(list(blocks)).reshape(rows, -1), fmt)


def _copies(runtime: Runtime, matrices: Sequence[DeviceMatrix], address: int) -> list[DeviceMatrix]:
    """The same matrices once more, one after another."""
    found = []
    for matrix in matrices:
        runtime.copy_on_device(address, matrix.codes, matrix.nbytes)
        found.append(DeviceMatrix.at(address, matrix.format, matrix.rows, matrix.columns))
        address += matrix.nbytes
    return found


def _ways(
    kernels: Kernels, matrices: Sequence[DeviceMatrix], x: Q8, out: int
) -> dict[str, list[Launch]]:
    """Launches of a feed-forward part, fused in two ways; what is between lies after `out`."""
    gate, up, down = matrices
    gates = out + 4 * down.rows
    ups = gates + 4 * gate.rows
    mixed = Q8.at(ups + 4 * up.rows, 1, up.rows)
    none = (None, None)
    first = matmul(kernels, x=x, weights=(gate, up), outs=(gates, ups), biases=none, tokens=1)
    between = swiglu(kernels, gate=gates, up=ups, out=mixed, rows=1, columns=up.rows)
    last = matmul(kernels, x=mixed, weights=(down,), outs=(out,), biases=(None,), tokens=1)
    early = gate_up_swiglu(kernels, x=x, gate=gate, up=up, out=mixed, tokens=1)
    return {
        "matmul, swiglu, matmul": [first, between, last],
        "gate_up_swiglu, matmul": [early, last],
    }


def _replayed_seconds(runtime: Runtime, launches: Sequence[Launch], calls: int) -> float:
    """Median device time of one of some calls, whose launches start early as an engine's do."""
    replay = Replay(runtime, [replace(one, early=True) for one in launches], calls)
    try:
        replay.seconds()  # warms up
        return statistics.median(replay.seconds() for _ in range(ROUNDS))
    finally:
        replay.close()


def _model(device: str, preset: str, mix: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder) / f"{preset}-{mix}.gguf", preset, mix)
        cold, warm = _first_tokens(path, device)
        with GGUFFile(path) as file:
            ctx = min(max(DEPTHS) + DECODED, ModelConfig.from_gguf(file).ctx_train)
        with Engine.from_gguf(path, device, ctx=ctx) as engine:
            prefill = {n: _prefill(engine, n) for n in PROMPTS if n <= ctx}
            decode = {n: _decode(engine, n) for n in DEPTHS if n + DECODED <= ctx}
    for length, speed in prefill.items():
        _say(f"{preset} {mix} prefill of {length}", speed, "tokens/s")
    for depth, speed in decode.items():
        _say(f"{preset} {mix} decode at {depth}", speed, "tokens/s")
    for cache, load in (("empty", cold), ("full", warm)):
        for part, seconds in load.items():
            _say(f"{preset} {mix} {part}, {cache} cache", 1e3 * seconds, "ms")
    return {
        "model": f"{preset}-{mix}",
        "prefill_tokens_per_second": {str(k): v for k, v in prefill.items()},
        "decode_tokens_per_second": {str(k): v for k, v in decode.items()},
        "seconds_with_full_compile_cache": warm,
        "seconds_with_empty_compile_cache": cold,
    }


def _first_tokens(path: Path, device: str) -> list[dict[str, float]]:
    """`_first_token` with an empty compile cache of its own, and again with what that left there.

    Kernels are compiled beside the upload; what is left of that after it is told apart. The model
    was just written, so that its file is in memory both times. A cache that the vendor's compiler
    has of its own is left as it is.
    """
    kept = os.environ.get("ROCMFORGE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROCMFORGE_CACHE"] = folder
        try:
            return [_first_token(path, device) for _ in range(2)]
        finally:
            if kept is None:
                del os.environ["ROCMFORGE_CACHE"]
            else:
                os.environ["ROCMFORGE_CACHE"] = kept


def _first_token(path: Path, device: str) -> dict[str, float]:
    """Seconds from opening the file to the first token of a short prompt, split."""
    loaded: list[float] = []
    compiled: list[float] = []
    begin = time.perf_counter()
    engine = Engine.from_gguf(
        path,
        device,
        ctx=512,
        progress=lambda done, total: loaded.append(time.perf_counter()),
        compile_progress=lambda done, total: compiled.append(time.perf_counter()),
    )
    ready = time.perf_counter()
    with engine:
        prefill_seconds(engine, 32)
        first = time.perf_counter()
        prefill_seconds(engine, 32)
        again = time.perf_counter()
    return {
        "open device and file, first tensor": loaded[0] - begin,
        "upload and pack": loaded[-1] - loaded[0],
        "constants, kernels": (compiled or loaded)[-1] - loaded[-1],
        "the rest of loading": ready - (compiled or loaded)[-1],
        "first prompt of 32": first - ready,
        "the same prompt again": again - first,
    }


def _prefill(engine: Engine, length: int) -> float:
    """Median tokens/s of a prompt."""
    return length / statistics.median(prefill_seconds(engine, length) for _ in range(ROUNDS))


def _decode(engine: Engine, depth: int) -> float:
    """Median tokens/s of greedy steps from a depth on, the choice of the token included."""
    with Sequences(engine, depth, room=DECODED) as sequences:
        found = []
        for _ in range(ROUNDS + 2):  # the graphs are made in the first two
            found.append(DECODED / sequences.steps_seconds(DECODED))
            sequences.rewind()
    return statistics.median(found[2:])


if __name__ == "__main__":
    sys.exit(main())
