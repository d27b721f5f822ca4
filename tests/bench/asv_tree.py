"""Builds asv result trees by hand, in the very form that asv 0.6.6 writes them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from rocmforge.bench.cli import main

COLUMNS = [
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    "stats_ci_99_a",
    "stats_ci_99_b",
    "stats_q_25",
    "stats_q_75",
    "stats_number",
    "stats_repeat",
    "samples",
    "profile",
]
A = "a" * 40
B = "b" * 40
RESULT_OF_B = Path("results/box/bbbbbbbb-virtualenv-py3.11.json")
MACHINE = {
    "machine": "box",
    "os": "Linux 6.1.0",
    "arch": "x86_64",
    "cpu": "AMD EPYC",
    "num_cpu": "2",
    "ram": "8000000000",
    "cpu_microarchitecture": "zen4",
    "cpu_isa": "avx512",
}


def report(
    result_file: Path,
    benchmark: str,
    index: int | None,
    error: float | None,
    conditions: dict[str, Any],
    **more: Any,
) -> Path:
    """Append what a process of a benchmark reports beside a result file; return where."""
    document = {
        "version": 2,
        "run": "1",
        "appends": False,
        "benchmark": benchmark,
        "index": index,
        "error": error,
        "median": None,
        "reference": {},
        "conditions": conditions,
        **more,
    }
    path = result_file.with_suffix(".jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")
    return path


class AsvTree:
    """An asv results directory."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.benchmarks: dict[str, Any] = {}

    def benchmark(
        self,
        name: str,
        unit: str = "seconds",
        params: dict[str, list[str]] | None = None,
        **more: Any,
    ) -> None:
        """Declare a benchmark in benchmarks.json."""
        self.benchmarks[name] = {
            "code": "…",
            "name": name,
            "param_names": list(params or {}),
            "params": list((params or {}).values()),
            "type": "track",
            "unit": unit,
            "version": "1",
            **more,
        }
        self._write(self.results / "benchmarks.json", {**self.benchmarks, "version": 2})

    def run(
        self,
        commit: str,
        values: dict[str, Any],
        *,
        samples: dict[str, Any] | None = None,
        version: str = "1",
        environment: str = "virtualenv-py3.11",
        machine: dict[str, str] | None = None,
        date: int = 1_700_000_000_000,
    ) -> Path:
        """Write the results of one commit: a value, or a list in the order of the parameters."""
        fields = MACHINE if machine is None else machine
        rows = {}
        for name, value in values.items():
            kept = (samples or {}).get(name)
            row: list[Any] = [
                value if value is None or isinstance(value, list) else [value],
                self.benchmarks.get(name, {"params": []})["params"],
                version,
                date + 1000,
                0.5,
            ]
            if kept is not None:
                row += [None] * 6 + [kept]
            rows[name] = row
        folder = self.results / fields["machine"]
        path = folder / f"{commit[:8]}-{environment}.json"
        self._write(folder / "machine.json", {**fields, "version": 1})
        self._write(
            path,
            {
                "commit_hash": commit,
                "env_name": environment,
                "date": date,
                "params": {**fields, "python": "3.11"},
                "python": "3.11",
                "requirements": {},
                "env_vars": {},
                "result_columns": COLUMNS,
                "results": rows,
                "durations": {},
                "version": 2,
            },
        )
        return path

    @staticmethod
    def _write(path: Path, data: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")


class Bench:
    """Runs `rocmforge bench` as a user would."""

    def __init__(self, repo: Path, cwd: Path, timeout: float = 60) -> None:
        self.repo = repo
        self.cwd = cwd
        self.timeout = timeout

    def __call__(self, *args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rocmforge", "bench", *map(str, args)]
        environment = {**os.environ, "PYTHONPATH": str(self.repo), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command,
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=self.timeout,
            check=False,
        )


class BenchHere(Bench):
    """Runs it in this process, which has imported it all."""

    def __call__(self, *args: object) -> subprocess.CompletedProcess[str]:
        words = list(map(str, args))
        before = Path.cwd()
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            os.chdir(self.cwd)
            try:
                code = main(words)
            except SystemExit as exit_:
                code = exit_.code
            finally:
                os.chdir(before)
        assert isinstance(code, int)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
