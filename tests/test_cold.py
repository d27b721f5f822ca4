"""How many bytes count as cold on a CPU: more than all last caches that its threads may use."""

from __future__ import annotations

from pathlib import Path

import pytest

MIB = 1 << 20


def test_every_chiplets_last_cache_counts(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import cold

    for cpu in range(8):
        cache = tmp_path / f"cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        (cache / "size").write_text("32768K\n")
        (cache / "shared_cpu_list").write_text("0-3\n" if cpu < 4 else "4-7\n")
    monkeypatch.setattr(cold, "CPUS", tmp_path)

    def found(cpus: set[int]) -> int:
        monkeypatch.setattr(cold.os, "sched_getaffinity", lambda pid: cpus)
        return cold.cold_bytes.__wrapped__("cpu")

    assert found(set(range(8))) == 4 * 64 * MIB
    assert found({1, 2}) == 4 * 32 * MIB
    assert found({8}) == cold.cold_bytes.__wrapped__("hip") == 512 * MIB  # the system does not tell
