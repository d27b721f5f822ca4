"""Any bytes in a repository: subjects, authors, tags, branches and files that are no UTF-8."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("asv")

from dashboard_site import Site, make_site

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.git import (
    ask_git,
    commit_hash,
    committed_files,
    find_commit,
    head,
    known_commits,
    run_git,
)
from rocmforge.bench.history import first_parents

BYTES = b"\xff\xfe m\xfcde"
NAME = os.fsdecode(b"\xff\xfem\xfcde")
SUBJECT = BYTES + b"\x0c\x1b[31m" + "\u2028next\u0085line".encode()


def git(root: Path, *words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["git", *words], cwd=root, input=stdin, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A project whose repository holds what is no text in every place that git has for text."""
    site = make_site(tmp_path_factory.mktemp("bytes"))
    root, newest = site.root, site.commits[-1]
    person = b"<t@example.org> 1700000400 +0000\n"
    stream = b"commit refs/heads/main\nauthor %b %bcommitter %b %bdata %d\n%b\nfrom %b\n" % (
        *(BYTES, person, BYTES, person),
        *(len(SUBJECT), SUBJECT, newest.encode()),
    )
    stream += b'M 100644 inline "results/box/\\377.json"\ndata 1\nx\n'
    git(root, "fast-import", "--quiet", stdin=stream)
    git(root, "update-ref", f"refs/heads/{NAME}", newest)
    tags = (NAME, "results", "one\u2028two\u0085three", "plain")
    for name in tags:  # results is a folder's name too
        git(root, "update-ref", f"refs/tags/{name}", newest)
    git(root, "update-ref", "refs/tags/tree", f"{newest}^{{tree}}")
    signed = ["-c", "user.name=t", "-c", "user.email=t"]
    git(root, *signed, "tag", "-a", "-m", "x", "annotated", site.commits[0])
    return site


def test_the_dashboard_is_published_and_shows_what_can_be_shown(site: Site) -> None:
    site.publish()
    assert "change &lt;2&gt;" in site.text("commits.html")
    tags = site.json("index.json")["tags"]
    assert len(set(tags)) == 5
    assert {"annotated", "plain", "results", "one\u2028two\u0085three"} < set(tags)
    assert tags["annotated"] < tags["plain"] == tags["results"]


def test_a_measured_commit_with_such_a_subject_is_shown(site: Site) -> None:
    from rocmforge.bench.asv_results import read_benchmarks
    from rocmforge.bench.dashboard.machines import load_run, read_machines
    from rocmforge.bench.dashboard.render import Site as Shown
    from rocmforge.bench.dashboard.render import _commits

    newest = git(site.root, "rev-parse", "main").decode()
    benchmarks = read_benchmarks(site.results / "benchmarks.json")
    machines = read_machines(site.results, site.root / "baselines", {}, benchmarks)
    path = machines[0].runs[-1].path
    stored = path.read_text().replace(site.commits[-1], newest)
    renamed = path.with_name(path.name.replace(site.commits[-1][:8], newest[:8]))
    renamed.write_text(stored)
    try:
        machines = read_machines(site.results, site.root / "baselines", {}, benchmarks)
        runs = {m.tag: [load_run(run, benchmarks) for run in m.runs] for m in machines}
    finally:
        renamed.unlink()
    shown = Shown(machines, runs, known_commits(site.root), site.root / "baselines", {})
    subjects = {one["commit"]: one["subject"] for one in _commits(shown)}
    assert subjects[newest] == SUBJECT.decode("utf-8", "replace")
    assert subjects[site.commits[0]] == "change <0>"


def test_every_other_reader_of_git(site: Site) -> None:
    newest = git(site.root, "rev-parse", "main").decode()
    assert head(site.root)[0] == newest
    assert commit_hash(site.root, NAME) == site.commits[-1]
    assert first_parents(NAME, None, site.root) == site.commits
    with pytest.raises(ValueError, match="wanted a commit of this repository"):
        first_parents(f"{NAME}x", None, site.root)
    found = ResultsDirectory(site.results, "box")
    assert found.resolve(NAME, site.root) == site.commits[-1]
    git(site.root, "reset", "--quiet")
    (name,) = committed_files(site.root, "results/*/*.json")
    assert os.fsencode(name) == b"results/box/\xff.json"


def test_no_answer_without_git_or_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit(tmp_path, "HEAD") is None
    assert run_git(tmp_path, "log").returncode != 0
    monkeypatch.setenv("PATH", "")
    assert ask_git(tmp_path, "log") is None
    assert find_commit(None, "a\0b") is None
