"""What is published: asv's pages changed, ours written, and nothing half there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")

from dashboard_site import HARMFUL, SCRIPT, Site, make_site

from rocmforge.bench.asv_results import BenchmarkInfo, read_benchmarks
from rocmforge.bench.cli import main
from rocmforge.bench.dashboard import publish as module
from rocmforge.bench.dashboard import vendored
from rocmforge.bench.dashboard.asv_pages import adapt
from rocmforge.bench.dashboard.machines import read_machines
from rocmforge.bench.dashboard.speeds import speeds
from rocmforge.bench.dashboard.vendored import use_vendored
from rocmforge.bench.results import Direction
from rocmforge.errors import ResultFileError


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Site:
    report = repo / "baselines" / "sm-90-nvidia-h200" / "gpu_speed.json"
    made = make_site(tmp_path_factory.mktemp("site"), report)
    made.publish()
    return made


def row_of(text: str, *words: str) -> str:
    """The one table row that has all of the words, without tags."""
    rows = [
        re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", r)) for r in re.findall("(?s)<tr.*?</tr>", text)
    ]
    found = [row for row in rows if all(word in row for word in words)]
    assert len(found) == 1, found
    return found[0]


def drawn(site: Site, name: str) -> Any:
    """What a page loads as its data."""
    called, _, content = site.text(f"data/{name}.js").partition(",")
    assert called == f'rocmforge.data("{name}"'
    return json.loads(content.rstrip().removesuffix(");"))


def test_no_page_loads_anything_from_elsewhere(site: Site) -> None:
    for page in site.html.rglob("*.html"):
        text = page.read_text("utf-8")
        assert "integrity" not in text
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"([^\"]+)", text)
        assert not [address for address in loaded if "//" in address]
        assert not [a for a in loaded if not (site.html / a).exists()], page


def test_an_address_that_is_not_vendored_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<script src="https://example.org/new.js"></script>')
    with pytest.raises(ResultFileError, match=r"got https://example\.org/new\.js"):
        use_vendored(tmp_path)


def test_so_is_one_in_a_style_sheet(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import '//example.org/a.css';")
    with pytest.raises(ResultFileError, match=r"a\.css: what it loads: got //example\.org/a\.css"):
        use_vendored(tmp_path)


def test_the_summary_stands_in_front_and_asvs_page_behind_it(site: Site) -> None:
    assert "ROCmForge" in site.text("index.html")
    asv = site.text("asv.html")
    assert '<a href="index.html">Overview</a>' in asv
    assert "index.html#" not in site.text("regressions.xml")


def test_throughputs_say_their_direction_and_a_rise_is_no_regression(site: Site) -> None:
    benchmarks = site.json("index.json")["benchmarks"]
    prefill = "inference.Prompt.track_prefill_tokens_per_second"
    assert benchmarks[prefill]["unit"] == "tokens/s, higher is better"
    assert benchmarks[prefill]["direction"] == "higher"
    assert benchmarks["rope.time_rope"]["unit"] == "seconds"
    listed = [row[0] for row in site.json("regressions.json")["regressions"]]
    assert [name for name in listed if "ttft" in name]
    assert not [name for name in listed if "per_second" in name]


def test_the_projects_own_settings_name_every_metric_that_is_better_higher(repo: Path) -> None:
    from rocmforge.bench.asv import read_config

    first = read_config(repo / "asv.conf.json")["regressions_first_commits"]
    null = [re.compile(name) for name, commit in first.items() if commit is None]
    known = read_benchmarks(repo / "results" / "benchmarks.json")
    for name, info in known.items():
        left_out = any(one.match(name) for one in null)
        assert left_out == (info.direction is Direction.HIGHER), name


def test_markup_in_names_and_machines_is_shown_not_run(site: Site) -> None:
    text = site.text()
    assert "<script>document" not in text
    assert "<img" not in text
    assert "AMD &lt;img src=x" in text
    data = "".join(path.read_text("utf-8") for path in (site.html / "data").rglob("*.js"))
    assert SCRIPT.replace("<", "\\u003c") in data
    assert "<" not in data
    index = site.json("index.json")
    assert HARMFUL not in index["benchmarks"]
    assert "<" not in "".join(
        [*index["machines"]["box"].keys(), *index["machines"]["box"].values()]
    )
    assert index["params"] == {"machine": ["box", "sm-90-card"], "branch": ["HEAD"]}
    assert "<" not in index["benchmarks"]["rope.time_rope"]["pretty_name"]
    assert f"asv's pages go without 1 names that hold markup: {HARMFUL}" in site.said
    assert "change &lt;2&gt;" in site.text("commits.html")


def test_what_nothing_measured_is_not_asked_of_asv(site: Site) -> None:
    assert "never.time_measured" not in site.json("index.json")["benchmarks"]


def test_what_one_machine_never_measured_is_a_graph_without_values(site: Site) -> None:
    graphs = [p for p in site.html.rglob("*track_ttft_ms.json") if "summary" not in p.parts]
    contents = {("box" in str(path)): json.loads(path.read_text()) for path in graphs}
    assert len(contents[True]) == 3
    ((_, value),) = contents[False]
    assert value is None


def test_speeds_have_value_unit_direction_commit_and_machine(site: Site) -> None:
    (row,) = (
        row
        for row in drawn(site, "models")
        if (row["tag"], row["phase"], row["setting"], row["device"])
        == ("box", "TTFT", "prompt of 128", "cpu")
    )
    assert (row["model"], row["format"]) == ("1.1B", "Q4_0")
    assert (row["value"], row["unit"], row["direction"]) == (130.0, "ms", "lower")
    assert (row["low"], row["high"]) == (129.48, 130.52)
    assert (row["commit"], row["date"][:10]) == (site.commits[2], "2023-11-14")
    assert row["source"] == "newest run"


def test_a_gpus_report_and_its_results_of_asv_stand_side_by_side(site: Site) -> None:
    rows = [row for row in drawn(site, "models") if row["tag"] == "sm-90-card"]
    assert 20_000.0 in [row["value"] for row in rows if row["device"] == "gpu"]
    reported = [row for row in rows if row["source"] == "gpu_speed.json"]
    assert ("7B", "Q8_0") in {(row["model"], row["format"]) for row in reported}
    assert "NVIDIA Card" in site.text()


def test_without_a_gpus_report_its_place_says_so(tmp_path: Path) -> None:
    alone = make_site(tmp_path)
    alone.html.mkdir(parents=True)  # an empty folder is no obstacle
    alone.publish()
    assert alone.text().count("<dt>GPU speeds</dt><dd>n/a</dd>") == 2
    assert "gpu_speed.json" not in alone.text("data/models.js")


def test_the_overview_counts_what_changed(site: Site) -> None:
    text = site.text()
    assert text.count("2 regression, 1 improved, 1 cannot tell.") == 2
    assert "There is nothing to compare with." in text
    assert "<small>cpu, newest run, " in text
    assert "No baseline for this machine yet" in text


def test_conditions_say_what_was_recorded(site: Site) -> None:
    box, card = drawn(site, "conditions")["machines"]
    first, _, newest = box["runs"]
    assert (first["load"], newest["load"]) == ([1.0, 1.0, 1.0], [90.0, 90.0, 90.0])
    assert (newest["marked"], newest["timed"], first["marked"]) == (1, 8, 0)
    assert newest["gpu_clock"] is None
    assert card["runs"][0]["load"] is None
    said = {field: columns for field, *columns in box["said"]}
    assert box["sides"] == ["newest run", "one before", "baseline"]
    assert said["marked"] == ["1 of 8 timed ones", "0 of 8 timed ones", "0 of 8 timed ones"]
    assert "numpy 2.0" in said["versions"][0]
    assert "GPU clock" not in said
    assert box["marks"] == [["rope.time_rope", "other work took 90 % of the CPU time"]]


def test_the_roofline_has_a_point_for_each_format(site: Site) -> None:
    machines = drawn(site, "roofline")["machines"]
    assert {
        (machine["tag"], one["device"], one["what"], one["work"], one["value"])
        for machine in machines
        for one in machine["shares"]
    } == {
        ("box", "cpu", "Q4_0", "matmul, 1 token", 0.8),
        ("box", "cpu", "Q6_K", "matmul, 1 token", 0.5),
        ("sm-90-card", "gpu", "Q4_0", "matmul, 1 token", 0.625),
        ("sm-90-card", "gpu", "Q6_K", "matmul, 1 token", 1.11111),
    }


def test_every_measured_commit_has_a_place_that_asv_links_to(site: Site) -> None:
    assert site.json("index.json")["show_commit_url"] == "commits.html#"
    text = site.text("commits.html")
    for commit in site.commits:
        assert f'<tr id="{commit}">' in text
        assert f'<code id="{commit[:8]}">' in text
    assert "box, sm-90-card" in row_of(text, site.commits[2][:8])


def test_a_publish_that_fails_leaves_the_older_pages(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.text()

    def broken(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(module, "write_pages", broken)
    with pytest.raises(OSError, match="the disk is full"):
        site.publish()
    assert site.text() == before
    assert [path.name for path in site.html.parent.iterdir()] == ["html"]


def test_a_killed_publish_leaves_the_older_pages_and_the_next_one_clears_up(tmp_path: Path) -> None:
    made = make_site(tmp_path)
    older = made.html.parent / "older"
    older.mkdir(parents=True)
    (older / module.FIRST_OF_ASV).write_text("older")
    older.rename(made.html)
    code = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from dashboard_site import Site
from rocmforge.bench.dashboard import publish
publish._run_asv = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Site(Path(sys.argv[1]), []).publish()
"""
    words = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert made.text(module.FIRST_OF_ASV) == "older"
    assert len(list(made.html.parent.iterdir())) == 2
    made.publish()
    assert [path.name for path in made.html.parent.iterdir()] == ["html"]


def test_a_name_is_no_expression(tmp_path: Path) -> None:
    names = {name: BenchmarkInfo("x", Direction.HIGHER, ()) for name in ("m.track_[x", "m.y(z")}
    module._write_config({}, tmp_path, tmp_path, tmp_path, names)
    settings = json.loads((tmp_path / "asv.conf.json").read_text())
    for name, pattern in zip(names, settings["regressions_first_commits"], strict=True):
        assert re.match(pattern, f"{name}('Q4_0')@main")
        assert not re.match(pattern, f"{name}s")


def test_asvs_failure_names_the_log(tmp_path: Path) -> None:
    made = make_site(tmp_path)
    (tmp_path / "results" / "box" / "machine.json").write_text('{"version": 1}')
    said = r"log: asv publish: got exit 1, wanted 0; it said last: KeyError: 'machine'"
    with pytest.raises(ResultFileError, match=said):
        made.publish()
    assert "Traceback" in (tmp_path / "log").read_text()
    assert not made.html.exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("repo", "nowhere", "repo: got nowhere, wanted a folder that is a git repository"),
        ("branches", [], "branches: got none, wanted at least one"),
        ("branches", ["HEAD", "none"], "branches: got none, wanted one that git knows"),
        ("regressions_first_commits", {"(": None}, r"of '\(': got missing \), .*an expression"),
        ("regressions_first_commits", {".*": "none"}, "of '.*': got none, wanted one that git"),
        ("regressions_thresholds", {".*": 0}, "of '.*': got 0, wanted a number above 0"),
    ],
)
def test_broken_settings_are_named_before_asv_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, message: str
) -> None:
    made = make_site(tmp_path)
    monkeypatch.setattr(module, "_run_asv", lambda *_: pytest.fail("asv ran"))
    config = tmp_path / "asv.conf.json"
    config.write_text(json.dumps({"version": 1, "project": "tiny", key: value}))
    with pytest.raises(ResultFileError, match=rf"asv\.conf\.json: {key}.*{message}|{message}"):
        made.publish()
    assert not made.html.parent.exists()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    made = make_site(tmp_path)
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*log'"):
        made.publish()


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    made = make_site(tmp_path)
    made.html.mkdir(parents=True)
    (made.html / "thesis.txt").touch()
    with pytest.raises(ValueError, match="which has other files, wanted an older dashboard"):
        made.publish()
    assert (made.html / "thesis.txt").exists()


def test_another_asv_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<html><head></head></html>")
    with pytest.raises(ResultFileError, match=r"got no <li id=.*>, wanted that of asv 0\.6\.6"):
        adapt(tmp_path, {})


def test_a_report_that_lacks_something_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "baselines" / "sm-90-card"
    folder.mkdir(parents=True)
    report = {"gpu": "NVIDIA Card", "commit": None, "date": "2026-11-20"}
    (folder / "gpu_speed.json").write_text(json.dumps(report))
    (machine,) = read_machines(tmp_path / "none", folder.parent, {}, {})
    with pytest.raises(ResultFileError, match=r"sm-90-card/gpu_speed\.json: report: got KeyError"):
        speeds(machine)
    (folder / "gpu_speed.json").write_text(json.dumps({"models": []}))
    with pytest.raises(ResultFileError, match=r"gpu_speed\.json: commit: got nothing"):
        read_machines(tmp_path / "none", folder.parent, {}, {})


def test_the_committed_results_and_baselines_are_published(
    repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repo)
    html = tmp_path / "html"
    assert main(["dashboard", "--html", str(html)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("asv publishes ")
    assert said[-1].startswith("published ")
    text = (html / "index.html").read_text("utf-8")
    for folder in (repo / "baselines").iterdir():
        assert folder.name in text or not (folder / "baseline.json").exists()
    assert "× llama.cpp" in text


def test_a_results_folder_that_is_not_there_is_named(
    repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repo)
    log = tmp_path / "dashboard.log"
    log.write_text("of somebody else")
    arguments = ["--results", str(tmp_path / "none"), "--html", str(tmp_path / "html")]
    assert main(["dashboard", *arguments]) == 2
    assert "none/benchmarks.json: file: got none" in capsys.readouterr().err
    assert log.read_text() == "of somebody else"


def test_every_vendored_address_is_one_of_asvs_page(repo: Path) -> None:
    import asv

    page = (Path(asv.__file__).parent / "www" / "index.html").read_text("utf-8")
    assert set(re.findall(r"(?:src|href)=\"(https://[^\"]+\.(?:js|css))\"", page)) == {
        *vendored.VENDORED
    }
