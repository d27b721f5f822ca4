"""Kernels are compiled while the weights are uploaded: all that an executor needs, begun before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rocmforge.engine import Engine
from rocmforge.errors import CompileError
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.code_cache import CodeCache
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.model.synthetic import make_model
from rocmforge.plan.protocols import Progress

pytestmark = pytest.mark.ahead


def variants(builds: Iterable[Build]) -> set[tuple[str, tuple[Any, ...]]]:
    return {(build.file, tuple(sorted((build.defines or {}).items()))) for build in builds}


@pytest.fixture(scope="session")
def device(kernels: Kernels) -> str:
    """The device of `kernels` as an engine takes it."""
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was begun, packed and prepared, in order."""
    noted: list[tuple[str, Any]] = []
    begin, pack, prepare = Kernels.begin, GpuBackend.pack, Kernels.prepare

    def noting_begin(self: Kernels, builds: Iterable[Build]) -> None:
        given = list(builds)
        noted.append(("begin", variants(given)))
        begin(self, given)

    def noting_pack(self: GpuBackend, *args: Any) -> Any:
        noted.append(("pack", None))
        return pack(self, *args)

    def noting_prepare(
        self: Kernels, builds: Iterable[Build], progress: Progress | None = None
    ) -> None:
        noted.append(("prepare", None))
        prepare(self, builds, progress)

    monkeypatch.setattr(Kernels, "begin", noting_begin)
    monkeypatch.setattr(GpuBackend, "pack", noting_pack)
    monkeypatch.setattr(Kernels, "prepare", noting_prepare)
    return noted


@pytest.mark.parametrize(
    ("preset", "mix", "architecture"),
    [
        ("tiny", "Q4_K_M", "llama"),  # two kinds of layers
        ("tiny", "F16", "qwen2"),  # biases
        ("tiny", "Q8_0", "qwen3"),  # norms of heads
        pytest.param("tiny-moe", "Q4_K_M", "qwen3moe", marks=pytest.mark.slow),
    ],
)
def test_all_that_is_needed_is_begun_before_the_upload(
    device: str,
    told: list[tuple[str, Any]],
    tmp_path: Path,
    preset: str,
    mix: str,
    architecture: str,
) -> None:
    path = make_model(tmp_path / "model.gguf", preset, mix, architecture=architecture)
    with Engine.from_gguf(path, device, ctx=64) as engine:
        steps = [name for name, _ in told]
        assert steps == ["begin", *["pack"] * (len(steps) - 3), "prepare", "begin"]
        (_, ahead), (_, later) = (one for one in told if one[0] == "begin")
        executor = engine._executor
        assert isinstance(executor, GpuExecutor)
        assert variants(executor.builds()) == {name for name in ahead if name[0] != "pack.hip"}
        assert later <= ahead
        assert any(name[0] == "pack.hip" for name in ahead) == (mix != "F16")


def test_a_kernel_that_does_not_compile_ends_the_load(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "model.gguf", "tiny", "Q4_K_M", layers=1)
    compiled, kept = Kernels._compile, CodeCache.get

    def broken(self: Kernels, file: str, defines: Any) -> bytes:
        if file.startswith(("embed", "rmsnorm")):
            raise CompileError(file, "gfx0", [], "planted")
        return compiled(self, file, defines)

    def get(self: CodeCache, name: str) -> bytes | None:
        return None if name.startswith(("embed", "rmsnorm")) else kept(self, name)

    monkeypatch.setattr(Kernels, "_compile", broken)
    monkeypatch.setattr(CodeCache, "get", get)
    with pytest.raises(CompileError, match="planted"):
        Engine.from_gguf(path, device, ctx=64)
