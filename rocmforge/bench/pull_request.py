"""Measures two commits interleaved, gates the second, posts and pushes the report.

Writes below .asv/ and to --out.
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

from rich.console import Console

from rocmforge.bench import asv, exits, project
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.commands.ci import PAGES_BRANCH, WORK
from rocmforge.bench.dashboard.publish import FIRST_OF_ASV, publish
from rocmforge.bench.defaults import BASELINES, FILES
from rocmforge.bench.files import read_text, write_bytes
from rocmforge.bench.git import commit_hash
from rocmforge.bench.head import plain_console
from rocmforge.bench.judging import judge, read_pair, save, saved_line, write_reports
from rocmforge.bench.machine import register_here
from rocmforge.bench.remeasure import WORK as BUILDS
from rocmforge.bench.remeasure import confirmed
from rocmforge.bench.tables import print_comparison
from rocmforge.errors import ResultFileError

RAW = WORK / "raw"  # asv's own files, which name the interpreters of the builds
COMMENT, PAGES = "comment.md", "dashboard"
WRITTEN = {COMMENT, PAGES, f"{PAGES}.log", *FILES.values()}


def gate(args: argparse.Namespace) -> int:
    """Measure, judge and publish; return the exit code."""
    os.environ.pop("GIT_DIR", None)  # that of a hook is not that of the builds
    root, console = project.root(), plain_console()
    out = args.out.resolve()
    _clear(out)
    commits = commit_hash(root, args.before), commit_hash(root, args.after)
    if commits[0] == commits[1]:
        raise ValueError(f"BEFORE and AFTER: got {commits[0][:8]} twice, wanted two commits")
    changed = _checked_out(root, commits[1])
    if changed:
        console.print("note      the working tree has changes: its benchmarks measure both")
    machine = register_here()
    selection, chosen = project.choose(root, args.bench, args.profile)
    console.print(f"machine   {machine}\nbenchmarks {len(chosen)}")
    project.preparation(root).prepare_models(list(chosen), console)
    builds = asv.Builds(root, BUILDS, machine)
    pythons = []
    for commit in commits:
        console.print(f"building  {commit[:8]}")
        pythons.append(str(builds.prepare(commit)))
    _measure(commits, pythons, machine, selection, args.rounds, console)
    code = _judge(commits, machine, args.max_load, out, console)
    title = f"### Benchmarks of {commits[1][:8]} against {commits[0][:8]} on {machine}"
    title += ", the working tree with changes" if changed else ""
    judged = read_text(out / FILES["markdown"], "the comparison")
    write_bytes(out / COMMENT, f"{title}\n\n{judged}".encode())
    try:
        _publish(args, root, commits[1], out, console)
    except ResultFileError as error:
        print(f"publishing: {error}", file=sys.stderr)
        return code or exits.BROKEN
    return code


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


def _checked_out(root: Path, commit: str) -> bool:
    """Return whether the working tree differs from the commit that it is to be.

    Raises
    ------
    ValueError
        Another commit is checked out.
    """
    here, changed = project.head(root)
    if here != commit:
        raise ValueError(
            f"AFTER: got {commit[:8]}, and {here[:8]} is checked out: wanted it checked out, "
            "both are measured with the benchmarks of the working tree"
        )
    return changed


def _measure(
    commits: Sequence[str],
    pythons: Sequence[str],
    machine: str,
    selection: Sequence[str],
    rounds: int,
    console: Console,
) -> None:
    """Run asv on both commits alternately, from nothing on; each round adds its samples.

    The results lie beside copies of the committed ones, for the pages to show their history. What
    fails in one round has failed.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    project.write_config(Path.cwd(), WORK)
    asv.write_config(Path.cwd(), RAW)
    more = ["--append-samples", "--attribute", "rounds=1", *project.options(selection)]
    sides = list(zip(commits, pythons, strict=True))
    failed: dict[str, set[tuple[str, int]]] = {commit: set() for commit in commits}
    for number in range(rounds):
        for commit, python in sides if number % 2 == 0 else reversed(sides):
            begin = time.monotonic()
            words = asv.run_command(RAW, python, commit, machine, *more)
            log = RAW / "asv.log"
            code = asv.run(words, log, lambda line: None)
            if code not in (0, asv.FAILURES):
                raise ResultFileError(log, "asv run", got=f"exit {code}", wanted="0: see its end")
            measured = RAW / "results"
            failed[commit] |= asv.failures(measured, machine, commit, python)
            asv.keep_results(measured, WORK / "results", machine, commit, python, failed[commit])
            seconds = time.monotonic() - begin
            console.print(f"round {number + 1} of {rounds}: {commit[:8]} in {seconds:.0f} s")


def _judge(
    commits: tuple[str, str], machine: str, max_load: float, out: Path, console: Console
) -> int:
    """Compare, measure suspects again, show and write what came of it; return the exit code."""
    console.print(f"judging   {commits[1][:8]} by {commits[0][:8]}")
    results = ResultsDirectory(WORK / "results", machine)
    before, after = read_pair(results, *commits, max_load)
    comparison = confirmed(judge(before, after), after)
    print_comparison(comparison)
    print(saved_line(save(comparison, "ci")))
    write_reports(comparison, out)
    return comparison.outcome.exit_code


def _publish(
    args: argparse.Namespace, root: Path, commit: str, out: Path, console: Console
) -> None:
    """Write the pages; post and push, or say how."""
    config, log = WORK / "asv.conf.json", out / f"{PAGES}.log"
    publish(config, WORK / "results", out / PAGES, BASELINES, log, console.print)
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
        _deploy(root, out / PAGES, commit, console)


def _deploy(root: Path, html: Path, commit: str, console: Console) -> None:
    """Push the pages as one commit without a parent, touching neither index nor working tree."""
    (html / ".nojekyll").touch()
    index = (WORK / "pages.index").resolve()
    index.unlink(missing_ok=True)
    tree = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(html)}
    there = {"GIT_DIR": str(root / ".git"), **tree}
    _call(["git", "add", "--all", "--force", "."], console, there, html)
    written = _call(["git", "write-tree"], console, tree)
    name = ("-c", "user.name=gate", "-c", "user.email=gate@localhost")
    message = f"Dashboard with {commit[:8]}"
    made = _call(["git", *name, "commit-tree", written, "-m", message], console)
    _call(["git", "push", "--force", "origin", f"{made}:refs/heads/{PAGES_BRANCH}"], console)


def _call(
    words: Sequence[str],
    console: Console,
    variables: dict[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run a command; return what it printed, or raise with what it said."""
    console.print(f"running   {shlex.join(words)}")
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(variables or {})},
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
