"""`rocmforge bench model`: how fast a model runs here, with the habits of llama-bench.

The one command of `bench` that runs an engine itself, which it imports when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rocmforge import env
from rocmforge.bench.arguments import whole, wholes
from rocmforge.bench.model_rows import FORMS
from rocmforge.env import SPLIT_MODES, SplitMode

if TYPE_CHECKING:
    from rocmforge.devices import Choice

EPILOG = """\
examples:
  rocmforge bench model                        # the demo model that comes with rocmforge
  rocmforge bench model model.gguf
  rocmforge bench model model.gguf -p 128,512 -n 128 -d 0,4096 -b 1,8 -t 1,2
  rocmforge bench model model.gguf --device cpu,cuda -o json > speed.json
  rocmforge bench model model.gguf -ngl 0,10,20,99
  rocmforge bench model model.gguf --device hip:0/hip:1

pp512          a prompt of 512 tokens, of one sequence
tg128          128 tokens generated, one a step, each of them the likeliest
tg128 @ d4096  behind 4096 tokens that the sequence holds already
batch          sequences that are decoded together
tokens/s       median of the repetitions, all sequences together; beside it the least and the most
ms/token       1000 over tokens/s
time / ideal   median time over the ideal time: the least that this device could take, by its read
               rate and its rate of operations, both measured just after the test; 2: twice as long

Lists with commas are combined, each value with each. Each test runs once before, to warm up, which
does not count. Times are of the host, from the call until the logits are there; loading the model
is in none of them. Where other processes took more than a tenth of the CPUs, a line on standard
error says so. What cannot be measured is n/a, with its reason, as on a device that is not
here. With `--device cpu,cuda --split-mode layer,stream`, the CPU has no row for stream, which only
the GPU can run. Where no device is here, the exit code is 1, as it is for the other commands that
run a model. -b is not llama-bench's, which is the tokens of one pass; `rocmforge profile
--prefill-chunk N` times prompts in shorter passes.
"""
_LLAMA_BENCH = {
    ("-pg",): "-p for prompts and -n for tokens, each a test of its own; -n with -d is decoding "
    "behind a prompt",
    ("-ub", "--ubatch-size", "--prefill-chunk"): "nothing here: `rocmforge profile --prefill-chunk "
    "N` times a prompt in shorter passes",
}
"""Options of llama-bench's that are refused, and what is wanted instead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench model`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept="tests that were finished are shown")
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="path of a GGUF file (default: the small demo model that comes with rocmforge)",
    )
    parser.add_argument(
        "-m", "--model", dest="model_option", metavar="FILE", help="the same as MODEL"
    )
    _add_list(parser, "-p", "--n-prompt", 0, [512], "tokens of a prompt; 0: no prompt")
    _add_list(parser, "-n", "--n-gen", 0, [128], "tokens to generate; 0: none")
    _add_list(parser, "-d", "--n-depth", 0, [0], "tokens that a sequence holds before")
    _add_list(parser, "-b", "--batch", 1, [1], "sequences that are decoded together")
    parser.add_argument(
        "-t",
        "--threads",
        type=wholes(1, env.MAX_THREADS),
        default=[None],
        metavar="N,…",
        help="CPU threads (default: the usable cores)",
    )
    parser.add_argument(
        "-r",
        "--repetitions",
        type=whole(1),
        default=5,
        metavar="N",
        help="of each test, behind one that warms up (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMS,
        default=FORMS[0],
        help="form of the rows on standard output (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        type=_devices,
        default=[None],
        metavar="DEVICE,…",
        help="auto, cpu, hip, cuda, or a GPU by its number, as hip:1 (default: auto; see "
        "`rocmforge devices`); hip:0/hip:1: one model on both",
    )
    parser.add_argument(
        "-ngl",
        "--n-gpu-layers",
        "--gpu-layers",
        type=wholes(0),
        default=[None],
        metavar="N,…",
        help="last layers that lie on the GPU, the others on the CPU (default: all)",
    )
    parser.add_argument(
        "-sm",
        "--split-mode",
        type=_split_modes,
        default=[SPLIT_MODES[0]],
        metavar="MODE,…",
        help="how devices share the model: layer, tensor or stream (default: layer)",
    )
    for names, wanted in _LLAMA_BENCH.items():
        parser.add_argument(*names, type=_refused(wanted), help=argparse.SUPPRESS)


def _refused(wanted: str) -> Callable[[str], NoReturn]:
    def refuse(text: str) -> NoReturn:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")

    return refuse


def _add_list(
    parser: argparse.ArgumentParser,
    short: str,
    name: str,
    least: int,
    default: list[int],
    text: str,
) -> None:
    shown = ",".join(map(str, default))
    parser.add_argument(
        short,
        name,
        type=wholes(least),
        default=default,
        metavar="N,…",
        help=f"{text} (default: {shown})",
    )


def _split_modes(text: str) -> list[SplitMode]:
    """Split modes, by their names."""
    found: list[SplitMode] = []
    for name in text.split(","):
        mode = next((mode for mode in SPLIT_MODES if mode == name.strip()), None)
        if mode is None:
            modes = ", ".join(SPLIT_MODES)
            raise argparse.ArgumentTypeError(f"got {name!r}, wanted some of {modes}")
        found.append(mode)
    return found


def _devices(text: str) -> list[str]:
    """Names of devices, each as an engine takes it: of several for one model, with commas."""
    names = [name.strip().replace("/", ",") for name in text.split(",")]
    try:
        for name in names:
            env.split_devices(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def run(args: argparse.Namespace) -> int:
    """Measure each test and write its row; return the exit code."""
    from rocmforge.bench import exits, model_rows
    from rocmforge.demo import demo_model
    from rocmforge.errors import MeasurementError, NoSuchFileError
    from rocmforge.profiling.run_environment import BUSY, Watch
    from rocmforge.speed.measure import speed_tests

    env.check()
    if args.model and args.model_option:
        raise ValueError(f"model: got {args.model} and -m {args.model_option}, wanted one")
    named = args.model or args.model_option
    path = Path(named) if named else demo_model()
    if not os.path.exists(path):
        raise NoSuchFileError(path)
    tests = speed_tests(args.n_prompt, args.n_gen, args.n_depth, args.batch)
    if not tests:
        raise ValueError("-p 0 -n 0: got no test, wanted a prompt or tokens to generate")
    rows: list[tuple[int, dict[str, Any]]] = []
    watch = Watch()
    try:
        for place, row in _measured(args, path, tests):
            print(model_rows.line(args.output, row, not rows), end="", flush=True)
            rows.append((place, row))
    finally:
        if rows:
            rows.sort(key=lambda found: found[0])
            print(model_rows.whole(args.output, [row for _, row in rows]), end="", flush=True)
        others = watch.end().others_share
        timed = any(row["tokens_per_second"] is not None for _, row in rows)
        if timed and others is not None and others > BUSY:
            told = f"other processes used {others:.0%} of the CPUs: the times are too long"
            print(f"{args.prog}: {told}", file=sys.stderr)
    reasons = [row["reason"] for _, row in rows if row["reason"]]
    if not any(row["device_name"] for _, row in rows):
        print(f"{args.prog}: error: {'; '.join(dict.fromkeys(reasons))}", file=sys.stderr)
        return exits.FAILED
    if len(reasons) == len(rows):
        raise MeasurementError(f"{path}: nothing measured: {reasons[0]}")
    return 0


def _measured(
    args: argparse.Namespace, path: Path, tests: list[Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row as it comes, with its place in the order of the tests."""
    from rocmforge.speed.measure import Place, Speed, measure
    from rocmforge.terminal import ProgressBar

    about = _about(path)
    for number, (device, layers, mode, threads, missing) in enumerate(_runs(args, path)):
        if missing:
            for place, test in enumerate(tests):
                there = Place(device or env.device(), gpu_layers=layers)
                row = Speed(test, there, reason=missing).row()
                yield number * len(tests) + place, {**about, **row}
            continue
        with ProgressBar("loading") as loading, ProgressBar("measuring", False) as measuring:
            speeds = measure(
                path, device, threads, tests, args.repetitions, measuring, loading, layers, mode
            )
            for speed in speeds:
                order = number * len(tests) + tests.index(speed.test)
                yield order, {**about, **speed.row()}


def _runs(
    args: argparse.Namespace, path: Path
) -> Iterator[tuple[str | None, int | None, SplitMode, int | None, str | None]]:
    """Each device with each number of layers, split mode and threads; and why one is not there.

    Where no layer is left to the CPU, threads count once. Split modes that are the same there do so
    too. A split mode that a device cannot run is left out where the device runs another one and
    another device of the list runs this one.
    """
    from rocmforge.hardware import oversubscription
    from rocmforge.speed.measure import lies_on_cpu, streams

    usable = len(os.sched_getaffinity(0))
    modes = list(dict.fromkeys(args.split_mode))
    found = {device: _chosen(device) for device in args.device}
    runs = {
        device: [mode for mode in modes if choices and not _why_not(mode, choices)]
        for device, (choices, _) in found.items()
    }
    anywhere = {mode for able in runs.values() for mode in able}
    for device, (choices, missing) in found.items():
        if missing:
            yield device, None, SPLIT_MODES[0], None, missing
            continue
        for mode in modes:
            why = _why_not(mode, choices)
            if why and not (runs[device] and mode in anywhere):
                yield device, None, mode, None, why
        if not runs[device]:
            continue
        choice = choices[0]
        for layers in args.n_gpu_layers:
            if choice.device is None and layers:
                why = f"{layers} layers on a GPU: got {choice.reason}"
                yield device, layers, SPLIT_MODES[0], None, why
                continue
            for mode in runs[device]:
                if mode == "stream" and "layer" in modes and not streams(path, layers, mode):
                    continue  # the same as mode layer
                counts = args.threads if lies_on_cpu(path, device, layers, mode) else [None]
                if counts != args.threads:
                    where = device if layers is None else f"{device} with -ngl {layers}"
                    where += " -sm stream" if mode == "stream" else ""
                    print(
                        f"-t: threads are the CPU's, and change nothing on {where}", file=sys.stderr
                    )
                for threads in counts:
                    if told := oversubscription(threads or 0, usable):
                        print(f"-t: {told}", file=sys.stderr)
                    yield device, layers, mode, threads, None


def _chosen(device: str | None) -> tuple[list[Choice], str | None]:
    """The devices that a name stands for; or none, and why one is not there."""
    from rocmforge.devices import chosen_devices
    from rocmforge.errors import DeviceError

    try:
        return chosen_devices(device), None
    except DeviceError as error:
        return [], str(error)


def _why_not(mode: SplitMode, choices: Sequence[Choice]) -> str | None:
    """Why these devices cannot share a model so; None where they can."""
    several, on_gpu = len(choices) > 1, choices[0].device is not None
    if {"layer": True, "tensor": several, "stream": on_gpu and not several}[mode]:
        return None
    got = ", ".join(choice.name_or_reason for choice in choices)
    wanted = "several GPUs" if mode == "tensor" else "one GPU"
    return f"split mode {mode}: got {got}, wanted {wanted}"


def _about(path: Path) -> dict[str, Any]:
    """Provenance of all rows: the model, the package, the machine."""
    from importlib import metadata

    from rocmforge.bench.git import committed_files, provenance
    from rocmforge.info import read_info

    package = Path(__file__).resolve().parents[2]
    found = provenance(package)
    if not committed_files(package, "__init__.py"):  # installed elsewhere than in its checkout
        found.update(commit=None, uncommitted_changes=None)
    info = read_info(path)
    return {
        "model": info.name or path.stem,
        "model_file": path.name,
        "model_bytes": info.file_bytes,
        "model_architecture": info.architecture,
        "model_parameters": info.parameters,
        "version": metadata.version("rocmforge"),
        **found,
    }
