"""Fixtures that more than one test file uses: the repository, the reference data, standard input.

It also says what the processes of `pytest -n` share out: groups.py's groups. After the run it says
why tests were skipped, a line for each reason.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from groups import HIP_RUNTIME, group_of

# Tests mean the CPU where they name no device, also beside a GPU or its stand-in.
os.environ["ROCMFORGE_DEVICE"] = "cpu"

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis sets no deadline: on a busy machine an example may take long.
with suppress(ImportError):  # `make check` runs a few tests without hypothesis
    from hypothesis import settings

    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")

# NumPy's threads, of which each process of `pytest -n` would have as many as there are cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent
# Engines keep their kernels where tests/standin keeps those that tests compile alone.
os.environ.setdefault("ROCMFORGE_CACHE", str(REPO / "build" / "standin"))
REFERENCE = REPO.parent / "shared" / "reference"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == HIP_RUNTIME[-1])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {' '.join(reason.split())}")


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory of models, logits and vocabularies made by llama.cpp; skips where it is absent."""
    if not REFERENCE.is_dir():
        pytest.skip(f"no reference data: {REFERENCE} does not exist")
    return REFERENCE


@pytest.fixture
def pass_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass that `forward` runs on the CPU from now on, as a list that grows."""
    from rocmforge.cpu.executor import HostExecutor

    sizes: list[int] = []
    forward = HostExecutor.forward

    def counted(self: HostExecutor, tokens: Any, *rest: Any) -> Any:
        sizes.append(tokens.size)
        return forward(self, tokens, *rest)

    monkeypatch.setattr(HostExecutor, "forward", counted)
    return sizes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model of two layers, in a file of the module's own."""
    from rocmforge.model.synthetic import make_model

    return str(make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=2))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that makes some bytes the standard input."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))

    return pipe


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_THREADS", "1")
