"""What `make bench` runs: the benchmarks on this machine for HEAD, judged, shown and published.

Makes the model, calls asv and `rocmforge.bench`, prints a table. Writes below .asv/, to the model
cache and to asv's own ~/.asv-machine.json; elsewhere only when told to save a baseline. Knows no
benchmark: benchmarks/quick.txt and standard.txt say which ones a profile has.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress
from rich.text import Text

from rocmforge import env
from rocmforge.bench import asv, exits, provenance
from rocmforge.bench.arguments import expression
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import baseline_path, load_baseline, refuse_smaller, save_baseline
from rocmforge.bench.compare import Comparison, compare
from rocmforge.bench.dashboard.publish import publish
from rocmforge.bench.machine import register_machine
from rocmforge.bench.noise import known_noise
from rocmforge.bench.results import Result, ResultSet, Status
from rocmforge.bench.run_environment import (
    OTHERS_LIMIT,
    forget,
    marked_share,
    refusal,
    with_environments,
)
from rocmforge.bench.tables import (
    LEGEND,
    MARK_LEGEND,
    NARROW_LEGEND,
    WIDE,
    counts_line,
    headline,
    missing_line,
    noise_line,
    results_table,
    summary_line,
)
from rocmforge.cpu.backend import instruction_sets
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import detect
from rocmforge.model.weights import Progress as Report

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for `benchmarks`; the installed rocmforge keeps its precedence

FAILED = 1
PROFILES = ("quick", "standard", "full")
NO_GPU = r"^(?!.*'gpu')"
PROGRESS = re.compile(r"(\[ *\d|·)(?!.*=====)|asv: error|\s*[\w.]*Error: ")  # of asv's output
PLAIN_WIDTH = 200  # columns, where the output is no terminal and COLUMNS does not say
EPILOG = """\
Results go to .asv/results, which git ignores, under this machine's hardware tag: a run never
changes what is committed in results/ and baselines/. Copies of the committed results join it, so
that the dashboard in .asv/html shows their history too. To compare commits that you measured:
  .venv/bin/asv --config .asv/asv.conf.json compare COMMIT COMMIT
`asv run` without --config measures in an environment of its own and writes to results/.

A slower number than the committed baseline is shown but is no failure: one run on a busy machine
proves nothing. --gate makes it one.

Each process also leaves in .asv/conditions what surrounded it. A benchmark is marked where other
work took more of the CPU time than --max-load, or something throttled; where more than half of the
timed ones are marked, --gate, --save-baseline and --save-results refuse the run.

exit codes:
  0  measured (and, with --gate, nothing worse than the baseline)
  1  a benchmark failed or gave a wrong result; with --gate also a regression
  2  usage error; no git or no commit; asv or a file is broken
  3  nothing measured; with --gate also no baseline of this hardware, or one with benchmarks that
     are missing now (a regression is 1 all the same); with --gate or --save-… also: most was
     measured under load or throttling
  4  with --gate: the baseline is of other hardware
  130  interrupted

environment: ROCFORGE_TEST_MODEL (a GGUF file to use in place of the generated model),
ROCMFORGE_CACHE (where generated models lie), ROCMFORGE_THREADS
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    begin = time.monotonic()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PLAIN_WIDTH

    def work() -> int:
        code = _bench(args, console)
        console.print(f"total     {time.monotonic() - begin:.0f} s")
        return code

    kept = "suites that were finished are kept in .asv/results (quick is measured in one go)"
    return exits.run(parser.prog, work, kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Benchmark HEAD on this machine and compare it with the committed baseline.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=PROFILES[0],
        help="those of benchmarks/quick.txt or standard.txt, or all (default: %(default)s)",
    )
    parser.add_argument(
        "--bench",
        action="append",
        type=expression,
        metavar="REGEX",
        help="only benchmarks in whose name(parameters) this is found, slow ones and large models "
        "included; may be repeated",
    )
    parser.add_argument(
        "--max-load",
        type=_percent,
        default=OTHERS_LIMIT,
        metavar="PERCENT",
        help=f"CPU time of other work that marks a benchmark (default: {100 * OTHERS_LIMIT:.0f})",
    )
    parser.add_argument(
        "--gate", action="store_true", help="fail on a regression against the committed baseline"
    )
    parser.add_argument(
        "--save-baseline",
        action="store_true",
        help="write baselines/<hardware tag>/baseline.json from this run (clean tree only)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="with --save-baseline: though the older one has benchmarks that this run has not",
    )
    parser.add_argument(
        "--save-results",
        action="store_true",
        help="copy asv's own result file to results/<hardware tag>/ (clean tree only)",
    )
    return parser


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 0 to 100")
    return value / 100


def _bench(args: argparse.Namespace, console: Console) -> int:
    commit, dirty = head(ROOT)
    saving = args.save_baseline or args.save_results
    if dirty and saving:
        raise ValueError(
            "the working tree has changes: commit them before --save-baseline or --save-results"
        )
    _check_environment()
    selection = select([chosen.pattern for chosen in args.bench or ()], args.profile)
    selected = _selected(selection)
    if not selected:
        raise ValueError(
            f"--bench: got {', '.join(selection)}, found in no name of a benchmark with its "
            "parameters, as matmul.Quantized.time_matmul('Q4_K', 1, 'cpu')"
        )
    work = ROOT / ".asv"
    write_config(work)
    prepare_models(list(selected), console)
    hardware = detect()
    tag = register_machine(Path.home() / ".asv-machine.json", hardware)
    console.print(f"commit    {commit[:8]}{' with uncommitted changes' if dirty else ''}")
    console.print(f"machine   {tag}")
    log = work / "bench.log"
    surroundings = work / "conditions" / commit
    forget(surroundings, selected.values())
    whole = args.profile == PROFILES[0] and not args.bench
    batches = [selection] if whole else by_suite(selection, selected)
    log.unlink(missing_ok=True)
    for number, batch in enumerate(batches, 1):
        if len(batches) > 1:
            console.print(f"suite     {number} of {len(batches)}")
        _run_asv(work, tag, commit, batch, log, surroundings, console)
    results = _load(work / "results", tag, commit, selection, surroundings, args.max_load)
    local = baseline_path(work / "baselines", hardware)
    save_baseline(local, dataclasses.replace(results, uncommitted_changes=dirty))
    committed = baseline_path(ROOT / "baselines", hardware)
    comparison = _compare(committed, results, selection)
    mismatches = comparison.mismatches if comparison else ()
    judged = None if mismatches else comparison
    _print_results(results.results, judged, console)
    marked, timed = marked_share(results.results)
    if marked:
        console.print(MARK_LEGEND)
    _publish(work, log, console)
    failed = [r.label for r in results.results if r.status is Status.FAILED]
    if failed:
        console.print(f"failed    {'; '.join(failed)}: see {_relative(log)}", style="bold red")
    verdict = f"none of {tag} is committed: --profile full --save-baseline stores one"
    if comparison is not None:
        verdict = f"{_relative(committed)}: {counts_line(comparison)}"
    if mismatches:
        verdict = f"{_relative(committed)}: not compared: {'; '.join(map(str, mismatches))}"
    if dirty:
        console.print("note      recorded under the commit, but the tree has changes on top of it")
    if marked:
        reasons = [f"{r.label}: {r.marked}" for r in results.results if r.marked]
        console.print(f"note      {marked} of {timed} timed benchmarks are marked: {reasons[0]}")
    console.print(f"baseline  {verdict}")
    if mismatches:
        console.print(
            "          it is of another machine: --profile full --save-baseline stores this one's"
        )
    elif comparison is not None and not args.gate:
        console.print(
            "          shown only: other work on the machine moves times; --gate makes it fail"
        )
    console.print(f"results   {_relative(work / 'results' / tag)}")
    console.print(f"          what surrounded each process: {_relative(surroundings)}")
    console.print(f"as JSON   {_relative(local)}")
    preview = f"{_relative(Path(sys.executable))} -m asv --config {_relative(work)}/asv.conf.json"
    console.print(f"dashboard {_relative(work / 'html')}; to see it: {preview} preview")
    refused = refusal(results.results) if args.gate or saving else None
    if refused and not failed:
        raise MeasurementError(refused)
    if refused:
        console.print(f"refused   {refused}")
    if args.save_baseline and not refused:
        if committed.exists() and not args.replace:
            refuse_smaller(committed, results)
        save_baseline(committed, results)
        console.print(f"saved     {_relative(committed)}")
    if args.save_results and not refused:
        kept = asv.keep_results(work / "results", ROOT / "results", tag, commit, sys.executable)
        console.print(f"saved     {_relative(kept)}")
    if failed:
        return FAILED
    if args.gate:
        if comparison is None:
            raise MeasurementError(f"--gate: no baseline {_relative(committed)} to compare with")
        missing = missing_line(comparison)
        if missing:
            console.print(f"note      {missing}")
        console.print(f"gate      {summary_line(comparison)}")
        return comparison.outcome.exit_code
    return 0


def _print_results(
    results: Sequence[Result], comparison: Comparison | None, console: Console
) -> None:
    """Print the headline, the noise of the run, and every benchmark."""
    narrow = console.width < WIDE
    first, noise = headline(results), noise_line(results)
    if first is not None:
        console.print()
        console.print(first)
    if noise is not None:
        console.print(f"noise     {noise}")
    console.print()
    console.print(results_table(results, comparison, narrow))
    console.print(f"\n{NARROW_LEGEND if narrow else LEGEND}")


def _check_environment() -> None:
    """Say what is wrong in the environment before any process of a benchmark would, each by itself.

    Raises
    ------
    ValueError
        A variable's value is none of those that it may have, or makes other kernels run than those
        whose results are kept.
    """
    env.threads()
    env.device()
    best, isa = instruction_sets()[0], env.cpu_isa()
    differs = {
        f"ROCMFORGE_CPU_ISA={isa}": isa not in (None, best),
        "ROCMFORGE_CPU_EXACT=1": env.cpu_exact(),
        "ROCMFORGE_CPU_BF16=1": env.cpu_bf16(),
    }
    others = [setting for setting, does in differs.items() if does]
    if others:
        raise ValueError(
            f"environment: got {', '.join(others)}, wanted none: results are kept as those with "
            f"{best}; matmul.InstructionSet measures the others"
        )
    model = env.test_model()
    if model is not None and not model.is_file():
        raise ValueError(f"ROCFORGE_TEST_MODEL: got {model}, wanted a GGUF file")


def head(root: Path) -> tuple[str, bool]:
    """Return the hash of HEAD, and whether the tree differs from it.

    Raises
    ------
    ValueError
        git is missing, this is no repository, or it has no commit: asv records per commit.
    """
    if shutil.which("git") is None:
        raise ValueError("git is not installed: asv records its results per commit")
    commit, changed = provenance.head(root)
    if commit is None:
        raise ValueError(
            f"{root} is no git repository with a commit: asv records its results per commit; "
            "clone the repository, or run git init and git commit"
        )
    return commit, changed


def select(chosen: Sequence[str] | None, profile: str) -> list[str]:
    """Return the expressions for asv: those chosen, or those of a profile."""
    from benchmarks.common import MODELS, USER_MODEL, has_device

    gpu = has_device("gpu")
    if chosen:
        return list(chosen)
    if profile == "full":
        return [".*" if gpu else NO_GPU]
    model = USER_MODEL.stem if USER_MODEL else MODELS[0]
    lines = (ROOT / "benchmarks" / f"{profile}.txt").read_text(encoding="utf-8").splitlines()
    return [
        line.replace("<device>", "'(cpu|gpu)'" if gpu else "'cpu'").replace(
            "<model>", re.escape(model)
        )
        for line in lines
        if line and not line.startswith("#")
    ]


def labels() -> dict[str, tuple[str, int | None]]:
    """Every benchmark with its parameters, as asv writes and `--bench` searches it.

    Returns
    -------
    Label to the name without parameters and the index of the parameters, None without any.
    """
    from asv_runner.discovery import disc_benchmarks

    found: dict[str, tuple[str, int | None]] = {}
    for benchmark in disc_benchmarks(str(ROOT / "benchmarks")):
        if not benchmark.params:
            found[benchmark.name] = benchmark.name, None
            continue
        for index, params in enumerate(itertools.product(*benchmark.params)):
            found[f"{benchmark.name}({', '.join(params)})"] = benchmark.name, index
    return found


def by_suite(selection: Sequence[str], selected: Iterable[str]) -> list[list[str]]:
    """Split a selection into one for each suite: asv writes what it measured when it ends."""
    suites = dict.fromkeys(label.partition(".")[0] for label in selected)
    return [[rf"^(?={suite}\.).*?(?:{line})" for line in selection] for suite in suites]


def naming(selection: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a label is selected: any expression is found in it, as asv searches."""
    expressions = [re.compile(pattern) for pattern in selection]
    return lambda label: any(expression.search(label) for expression in expressions)


def _selected(selection: Sequence[str]) -> dict[str, tuple[str, int | None]]:
    named = naming(selection)
    return {label: benchmark for label, benchmark in labels().items() if named(label)}


def write_config(work: Path) -> None:
    """Write asv's configuration with everything below `work`, and copy the committed results in."""
    asv.write_config(ROOT, work)
    for name in provenance.committed_files(ROOT, "results/*/*.json"):
        source, target = ROOT / name, work / name
        if source.exists() and not target.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)


def prepare_models(selected: Sequence[str], console: Console) -> None:
    """Make the models that the labels name, and the logits that they are checked against."""
    from benchmarks.common import CHECK_IDS, GENERATED, MODELS, model_path

    from rocmforge.model.synthetic import cached_model
    from rocmforge.testing import cached_reference_logits

    for name in MODELS:
        if not any(repr(name) in label for label in selected):
            continue
        if name in GENERATED:
            with _bar(f"making model {name}", console) as report:
                cached_model(*GENERATED[name], progress=report)
        path = model_path(name)
        console.print(f"model     {path} ({path.stat().st_size / 1e6:.0f} MB)")
        with console.status("its reference logits by numpy (once; some seconds a gigabyte)"):
            cached_reference_logits(path, CHECK_IDS)


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Report]:
    with Progress("{task.description}", BarColumn(), DownloadColumn(), console=console) as progress:
        task = progress.add_task(title, total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield report


def _run_asv(
    work: Path,
    tag: str,
    commit: str,
    selection: Sequence[str],
    log: Path,
    surroundings: Path,
    console: Console,
) -> None:
    """Run the benchmarks; progress to the terminal, everything to the log."""
    more = [word for pattern in selection for word in ("--bench", pattern)]
    command = asv.run_command(work, sys.executable, commit, tag, *asv.FORKED, *more)

    def show(line: str) -> None:
        if PROGRESS.match(line):
            console.print(Text(line.rstrip()))

    begin = time.time()
    code = asv.run(command, log, {env.CONDITIONS: str(surroundings.resolve())}, show)
    name = asv.result_file(tag, commit, asv.asv_environment_name(sys.executable))
    written = work / "results" / name
    fresh = written.exists() and written.stat().st_mtime >= begin
    if code not in (0, asv.FAILURES) or not fresh:
        raise ResultFileError(
            log, "asv run", got=f"exit {code}", wanted="results; the log says why"
        )


def _load(
    folder: Path,
    tag: str,
    commit: str,
    selection: Sequence[str],
    surroundings: Path,
    max_load: float,
) -> ResultSet:
    """Read the records that the selection names, with the conditions of their processes.

    Those of other runs of the commit are left out.
    """
    results = ResultsDirectory(folder, tag).load(commit, asv.asv_environment_name(sys.executable))
    named = naming(selection)
    known = with_environments(results.results, surroundings, max_load)
    # asv names the environment, and Python too, after the interpreter's path
    here = detect().python_version
    return dataclasses.replace(
        results,
        results=tuple(result for result in known if named(result.label)),
        environment="existing",
        hardware=dataclasses.replace(results.hardware, python_version=here),
    )


def _compare(committed: Path, results: ResultSet, selection: Sequence[str]) -> Comparison | None:
    """Compare with the baseline of this hardware, by the noise known of it; None: there is none.

    What the baseline has and the selection does not name is left out.
    """
    if not committed.exists():
        return None
    noise = known_noise(ROOT / "baselines", results.hardware)
    own = asv.read_thresholds(ROOT / "asv.conf.json")
    before = load_baseline(committed)
    named = naming(selection)
    before = dataclasses.replace(
        before, results=tuple(result for result in before.results if named(result.label))
    )
    return compare(before, results, noise=noise, thresholds=own)


def _publish(work: Path, log: Path, console: Console) -> None:
    config, baselines = work / "asv.conf.json", ROOT / "baselines"
    publish(config, work / "results", work / "html", baselines, log, console.print)


def _relative(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
