"""A small project with results to publish: two machines, three commits, names that are markup."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_tree import MACHINE, AsvTree, report

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.dashboard.publish import publish

SCRIPT = "<script>document.title='harmed'</script>"
IMAGE = "<img src=x onerror=\"document.title='harmed'\">"
HARMFUL = f"suite.time_{SCRIPT}"
BOX = {**MACHINE, "cpu": f"AMD {IMAGE}", IMAGE: "a field"}
GPU_BOX = {**MACHINE, "machine": "sm-90-card", "gpu": "NVIDIA Card", "gfx": "sm_90"}
CPU_ONLY = ["'cpu'", "'gpu'"]
NAN = float("nan")


@dataclass
class Site:
    """A repository with results and baselines, and where its pages go."""

    root: Path
    commits: list[str]

    @property
    def html(self) -> Path:
        return self.root / "pages" / "html"

    @property
    def results(self) -> Path:
        return self.root / "results"

    def publish(self) -> Path:
        lines: list[str] = []
        config, log = self.root / "asv.conf.json", self.root / "log"
        page = publish(config, self.results, self.html, self.root / "baselines", log, lines.append)
        self.said = lines
        return page

    def text(self, name: str = "index.html") -> str:
        return (self.html / name).read_text("utf-8")

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))


def commits_in(root: Path, count: int) -> list[str]:
    """Make a repository of empty commits; return the hashes, oldest first."""
    stream = "".join(
        f"commit refs/heads/main\ncommitter t <t@example.org> {1_700_000_000 + 100 * at} +0000\n"
        f"data {9 + len(str(at))}\nchange <{at}>\n\n"
        for at in range(count)
    )
    for command in (["init", "-q", "-b", "main", "."], ["fast-import", "--quiet"]):
        subprocess.run(["git", *command], cwd=root, input=stream.encode(), check=True)
    listed = subprocess.run(
        ["git", "rev-list", "--reverse", "main"], cwd=root, capture_output=True, check=True
    )
    return listed.stdout.decode().split()


def make_site(root: Path, gpu_speed: Path | None = None) -> Site:
    """Write the project; `gpu_speed` is a report to stand beside the GPU's baseline."""
    commits = commits_in(root, 3)
    (root / "asv.conf.json").write_text(
        '{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"], // a comment\n'
        ' "show_commit_url": "#", "regressions_thresholds": {".*": 0.1}}'
    )
    tree = AsvTree(root / "results")
    models = {"model": ["'1.1B-Q4_0'"], "tokens": ["128", "512"], "device": CPU_ONLY}
    ttft, prefill = (
        f"inference.Prompt.track_{name}" for name in ("ttft_ms", "prefill_tokens_per_second")
    )
    roofline = "roofline.Matmul.track_inverse_roofline_fraction"
    formats = {"format": ["'Q4_0'", "'Q6_K'"], "tokens": ["1"], "device": CPU_ONLY}
    tree.benchmark(ttft, "ms", models)
    tree.benchmark(prefill, "tokens/s", models, direction="higher")
    tree.benchmark(roofline, "times ideal", formats)
    tree.benchmark("rope.time_rope", pretty_name=f"rope {IMAGE}")
    tree.benchmark("never.time_measured")
    tree.benchmark(HARMFUL)
    spread = [1 + i / 1000 for i in range(-4, 5)]
    for number, commit in enumerate(commits):
        slow = 1.3 if number == 2 else 1.0
        values = {
            ttft: [100.0 * slow, NAN, 400.0, NAN],
            prefill: [900.0, NAN, 800.0 * (1.5 if number == 2 else 1.0), NAN],
            roofline: [1.25, NAN, 2.0, NAN],
            "rope.time_rope": 0.002,
            HARMFUL: 0.001 * slow,
        }
        samples = {
            name: [
                None if value != value else [value * x for x in spread]
                for value in (found if isinstance(found, list) else [found])
            ]
            for name, found in values.items()
        }
        date = 1_700_000_000_000 + 100_000 * number
        written = tree.run(commit, values, samples=samples, machine=BOX, date=date)
        said = {"others_share": 0.9 if number == 2 else 0.01, "load_average": 1.5}
        report(written, "rope.time_rope", None, None, {**said, "versions": {"numpy": "2.0"}})
    on_gpu = {prefill: [None, 15_000.0, None, 20_000.0], roofline: [NAN, 1.6, NAN, 0.9]}
    tree.run(commits[2], on_gpu, machine=GPU_BOX)
    first = ResultsDirectory(root / "results", "box").load(commits[0])
    save_baseline(root / "baselines" / "box" / "baseline.json", first)
    if gpu_speed:
        (root / "baselines" / "sm-90-card").mkdir()
        shutil.copyfile(gpu_speed, root / "baselines" / "sm-90-card" / "gpu_speed.json")
    return Site(root, commits)


def samples(values: dict[str, Any]) -> dict[str, Any]:
    """Eleven samples of each value, a thousandth of it apart, as `AsvTree.run` takes them."""
    listed = {name: of if isinstance(of, list) else [of] for name, of in values.items()}
    spread = [1 + at / 1000 for at in range(-5, 6)]
    return {name: [[x * by for by in spread] for x in of] for name, of in listed.items()}
