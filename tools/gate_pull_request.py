"""Gates a pull request on the machine that it runs on: measures both commits in turns, then judges.

Builds them, runs asv, `tools/check_regressions.py --confirm` and `tools/dashboard.py`, posts what
they wrote. Writes below .asv/ and to --out. Knows no benchmark and no rule of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import bench
import check_regressions
from rich.console import Console

from rocmforge import env
from rocmforge.bench import asv, exits, provenance
from rocmforge.bench.arguments import expression
from rocmforge.bench.dashboard.publish import FIRST_OF_ASV
from rocmforge.bench.files import read_text, write_bytes
from rocmforge.bench.git import find_commit
from rocmforge.bench.machine import register_machine
from rocmforge.errors import ResultFileError
from rocmforge.hardware import detect

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
WORK = Path(".asv") / "gate"
RAW = WORK / "raw"  # asv's own files, which name the interpreters of the builds
BUILDS = Path(".asv") / "confirm"  # which --confirm measures again
PAGES_BRANCH = "gh-pages"
COMMENT, PAGES = "comment.md", "dashboard"
WRITTEN = {COMMENT, PAGES, f"{PAGES}.log", *check_regressions.FILES.values()}
EPILOG = """\
Both commits are built once (a minute or two each, kept in .asv/confirm/builds) and measured in
turns, A B B A, by the benchmarks of the working tree: check the pull request's commit out. What may
be slower is then measured again in turns before it is called a regression. --out, from which an
older report is removed first, gets
  comment.md      for the pull request, below GitHub's limit of a comment
  gate.md, gate.json, gate.junit.xml      of check_regressions.py
  dashboard/      the pages, with the committed history of this kind of machine and both commits

exit codes: those of check_regressions.py
  0  nothing is surely worse           3  nothing measured, most of it under load, or benchmarks
  1  a regression, or a new failure       are missing or not comparable
  2  usage error, a build or asv       4  other hardware
     failed, or publishing did; what was judged lies in --out
  130  interrupted (SIGTERM counts); the rounds that were finished lie in .asv/gate

examples:
  gate_pull_request.py origin/main HEAD --dry-run --bench 'rows.*rmsnorm'
  gate_pull_request.py origin/main HEAD --profile standard --pull-request 17
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    kept = f"what was measured lies in {WORK}"
    return exits.run(parser.prog, lambda: _gate(args, console), kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure two commits in turns, gate the second, publish what came of it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("base", metavar="BASE", help="as git names it")
    parser.add_argument("head", metavar="HEAD", help="as git names it")
    parser.add_argument(
        "--out", type=Path, default=WORK / "report", metavar="DIR", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--profile", choices=bench.PROFILES, default=bench.PROFILES[0], help="(%(default)s)"
    )
    parser.add_argument(
        "--bench", action="append", type=expression, metavar="REGEX", help="as of tools/bench.py"
    )
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=2,
        metavar="N",
        help="turns of both (default: %(default)s)",
    )
    parser.add_argument(
        "--pull-request", type=int, metavar="N", help="post the comment there, by gh"
    )
    parser.add_argument(
        "--deploy", action="store_true", help=f"push the pages to the branch {PAGES_BRANCH}"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="measure and judge, but print what would be posted and pushed, and how",
    )
    return parser


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 20:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 1 to 20")
    return int(text)


def _gate(args: argparse.Namespace, console: Console) -> int:
    os.environ.pop("GIT_DIR", None)  # that of a hook is not that of the builds
    out = args.out.resolve()
    os.chdir(ROOT)
    _clear(out)
    commits = [_commit(args.base), _commit(args.head)]
    if commits[0] == commits[1]:
        raise ValueError(f"BASE and HEAD: got {commits[0][:8]} twice, wanted two commits")
    changed = _checked_out(commits[1])
    if changed:
        console.print("note      the working tree has changes: its benchmarks measure both")
    machine = register_machine(Path.home() / ".asv-machine.json", detect())
    selection = bench.select([chosen.pattern for chosen in args.bench or ()], args.profile)
    named = bench.naming(selection)
    labels = [label for label in bench.labels() if named(label)]
    if not labels:
        raise ValueError(f"--bench: got {', '.join(selection)}, found in no name of a benchmark")
    console.print(f"machine   {machine}\nbenchmarks {len(labels)}")
    bench.prepare_models(labels, console)
    builds = asv.Builds(ROOT, BUILDS, machine)
    pythons = []
    for commit in commits:
        console.print(f"building  {commit[:8]}")
        pythons.append(str(builds.prepare(commit)))
    _measure(commits, pythons, machine, selection, args.rounds, console)
    code = _judge(commits, machine, out, console)
    if not (out / "gate.md").exists():
        return code
    _write_comment(commits, machine, changed, out)
    try:
        _publish(args, commits[1], out, console)
    except ResultFileError as error:
        print(f"publishing: {error}", file=sys.stderr)
        return code or exits.BROKEN
    return code


def _write_comment(commits: Sequence[str], machine: str, changed: bool, out: Path) -> None:
    """Put a title in front of what check_regressions.py wrote."""
    title = f"### Benchmarks of {commits[1][:8]} against {commits[0][:8]} on {machine}"
    title += ", the working tree with changes" if changed else ""
    judged = read_text(out / "gate.md", "what check_regressions.py wrote")
    write_bytes(out / COMMENT, f"{title}\n\n{judged}".encode())


def _clear(out: Path) -> None:
    """Remove an older report, lest it is taken for this one's.

    Raises
    ------
    ValueError
        The folder holds something that no gate wrote.
    """
    if not out.exists():
        return
    found = sorted(out.iterdir()) if out.is_dir() else [out]
    foreign = [path for path in found if path.name not in WRITTEN or not _is_ours(path)]
    if foreign:
        raise ValueError(f"--out: got {foreign[0]}, wanted no folder or one of an older report")
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_ours(path: Path) -> bool:
    """Whether something by the name of a file of ours is a file, or our pages a folder of these."""
    if path.name != PAGES:
        return path.is_file() and not path.is_symlink()
    return path.is_dir() and not path.is_symlink() and (path / FIRST_OF_ASV).exists()


def _checked_out(commit: str) -> bool:
    """Return whether the working tree differs from the commit that it is to be.

    Raises
    ------
    ValueError
        Another commit is checked out.
    """
    here, changed = provenance.head(ROOT)
    if here != commit:
        raise ValueError(
            f"HEAD: got {commit[:8]}, and {str(here)[:8]} is checked out: wanted it checked out, "
            "both are measured with the benchmarks of the working tree"
        )
    return changed


def _commit(name: str) -> str:
    found = find_commit(None, name)
    if found is None:
        raise ValueError(f"commit: got {name!r}, wanted one that git knows (fetch it first)")
    return found


def _measure(
    commits: Sequence[str],
    pythons: Sequence[str],
    machine: str,
    selection: Sequence[str],
    rounds: int,
    console: Console,
) -> None:
    """Run asv on both commits in turns, each round adding its samples; from nothing on.

    The results lie beside copies of the committed ones, for the pages to show their history. What
    fails in one round has failed.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    bench.write_config(ROOT / WORK)
    asv.write_config(ROOT, RAW)
    more = ["--append-samples", "--attribute", "rounds=1"]
    more += [word for pattern in selection for word in ("--bench", pattern)]
    sides = list(zip(commits, pythons, strict=True))
    failed: dict[str, set[tuple[str, int]]] = {commit: set() for commit in commits}
    for number in range(rounds):
        for commit, python in sides if number % 2 == 0 else reversed(sides):
            begin = time.monotonic()
            folder = (WORK / "conditions" / commit).resolve()
            words = asv.run_command(RAW, python, commit, machine, *more)
            log = RAW / "asv.log"
            code = asv.run(words, log, {env.CONDITIONS: str(folder)}, lambda line: None)
            if code not in (0, asv.FAILURES):
                raise ResultFileError(log, "asv run", got=f"exit {code}", wanted="0: see its end")
            measured = RAW / "results"
            failed[commit] |= asv.failures(measured, machine, commit, python)
            asv.keep_results(measured, WORK / "results", machine, commit, python, failed[commit])
            seconds = time.monotonic() - begin
            console.print(f"round {number + 1} of {rounds}: {commit[:8]} in {seconds:.0f} s")


def _judge(commits: Sequence[str], machine: str, out: Path, console: Console) -> int:
    """Let check_regressions.py compare, measure suspects again and write its files."""
    words = [sys.executable, str(TOOLS / "check_regressions.py"), *commits, "--confirm"]
    words += ["--results", str(WORK / "results"), "--machine", machine, "--out", str(out)]
    console.print(f"judging   {shlex.join(words)}")
    with subprocess.Popen(words) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()  # it ends what it measures, and shows what is settled
            process.wait()
            raise


def _publish(args: argparse.Namespace, commit: str, out: Path, console: Console) -> None:
    """Write the pages; post and push, or say how."""
    dashboard = [sys.executable, str(TOOLS / "dashboard.py")]
    config = ["--config", str(WORK / "asv.conf.json"), "--html", str(out / PAGES)]
    _call([*dashboard, *config, "--baselines", str(ROOT / "baselines")], console)
    for file in sorted(out.iterdir()):
        console.print(f"written   {os.path.relpath(file)}")
    number = "N" if args.pull_request is None else str(args.pull_request)
    comment = ["gh", "pr", "comment", number, "--body-file", str(out / COMMENT)]
    if args.pull_request is None or args.dry_run:
        console.print(f"not posted; it would be by: {shlex.join(comment)}")
    else:
        _call(comment, console)
    if args.dry_run or not args.deploy:
        console.print(f"not pushed; --deploy would: {out / PAGES} to branch {PAGES_BRANCH}")
    else:
        _deploy(out / PAGES, commit, console)


def _deploy(html: Path, commit: str, console: Console) -> None:
    """Push the pages as one commit without a parent, touching neither index nor working tree."""
    (html / ".nojekyll").touch()
    index = (WORK / "pages.index").resolve()
    index.unlink(missing_ok=True)
    tree = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(html)}
    _call(["git", "add", "--all", "--force", "."], console, tree, html)
    written = _call(["git", "write-tree"], console, tree)
    name = ("-c", "user.name=gate", "-c", "user.email=gate@localhost")
    message = f"Dashboard with {commit[:8]}"
    made = _call(["git", *name, "commit-tree", written, "-m", message], console)
    _call(["git", "push", "--force", "origin", f"{made}:refs/heads/{PAGES_BRANCH}"], console)


def _call(
    words: Sequence[str],
    console: Console,
    variables: dict[str, str] | None = None,
    folder: Path = ROOT,
) -> str:
    """Run a command; return what it printed, or raise with what it said."""
    console.print(f"running   {shlex.join(words)}")
    git = {"GIT_DIR": str(ROOT / ".git")} if folder != ROOT else {}
    surroundings = {**os.environ, **git, **(variables or {})}
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=surroundings,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise ResultFileError(words[0], "program", got="none", wanted="it installed") from error
    if done.returncode:
        said = f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}"
        raise ResultFileError(words[0], " ".join(words[1:4]), got=said, wanted="exit 0")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
