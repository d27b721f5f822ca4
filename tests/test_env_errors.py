"""The environment variables and the error tree: what is accepted, and what messages say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rocmforge import env, errors
from rocmforge.errors import (
    GGUFError,
    ModelError,
    OutOfPagesError,
    ResultFileError,
    RocmforgeError,
    UnsupportedModelError,
)

READERS = {
    "ROCMFORGE_CPU_EXACT": env.cpu_exact,
    "ROCMFORGE_CPU_BF16": env.cpu_bf16,
    "ROCMFORGE_CPU_ISA": env.cpu_isa,
    "ROCMFORGE_DEVICE": env.device,
    "ROCMFORGE_GPU_PACKAGES": env.gpu_packages,
    "ROCMFORGE_THREADS": env.threads,
    "ROCMFORGE_CACHE": env.cache_dir,
    "ROCMFORGE_TUNING": env.tuning,
    "ROCFORGE_TEST_MODEL": env.test_model,
    "ROCMFORGE_TEST_MODEL": env.test_model,
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*READERS, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("ROCMFORGE_CPU_EXACT", None, False),
        ("ROCMFORGE_CPU_EXACT", "", False),
        ("ROCMFORGE_CPU_EXACT", "0", False),
        ("ROCMFORGE_CPU_EXACT", "1", True),
        ("ROCMFORGE_CPU_BF16", None, False),
        ("ROCMFORGE_CPU_BF16", "1", True),
        ("ROCMFORGE_TUNING", None, None),
        ("ROCMFORGE_TUNING", "off", "off"),
        ("ROCMFORGE_CPU_ISA", None, None),
        ("ROCMFORGE_CPU_ISA", "", None),
        ("ROCMFORGE_CPU_ISA", "avx2", "avx2"),
        ("ROCMFORGE_DEVICE", None, "auto"),
        ("ROCMFORGE_DEVICE", "", "auto"),
        ("ROCMFORGE_DEVICE", "hip", "hip"),
        ("ROCMFORGE_DEVICE", "hip:1", "hip:1"),
        ("ROCMFORGE_DEVICE", "cuda:12", "cuda:12"),
        ("ROCMFORGE_GPU_PACKAGES", None, None),
        ("ROCMFORGE_GPU_PACKAGES", " ", None),
        ("ROCMFORGE_GPU_PACKAGES", "none", ()),
        ("ROCMFORGE_GPU_PACKAGES", "hip-python==7.2.*  amdsmi", ("hip-python==7.2.*", "amdsmi")),
        ("ROCMFORGE_THREADS", None, None),
        ("ROCMFORGE_THREADS", "", None),
        ("ROCMFORGE_THREADS", "1", 1),
        ("ROCMFORGE_THREADS", "1024", 1024),
        ("ROCMFORGE_CACHE", "/no-such-folder/x", Path("/no-such-folder/x")),
        ("ROCFORGE_TEST_MODEL", None, None),
        ("ROCFORGE_TEST_MODEL", "", None),
        ("ROCFORGE_TEST_MODEL", "m.gguf", Path("m.gguf")),
        ("ROCMFORGE_TEST_MODEL", "m.gguf", Path("m.gguf")),
    ],
)
def test_what_is_read(
    name: str, value: str | None, wanted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv(name, value)
    assert READERS[name]() == wanted


def test_the_test_model_may_have_two_names_but_not_two_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert env.test_model_name() is None
    monkeypatch.setenv("ROCMFORGE_TEST_MODEL", "a.gguf")
    assert env.test_model_name() == "ROCMFORGE_TEST_MODEL"
    monkeypatch.setenv("ROCFORGE_TEST_MODEL", "a.gguf")
    assert env.test_model() == Path("a.gguf")
    monkeypatch.setenv("ROCFORGE_TEST_MODEL", "b.gguf")
    message = "got ROCFORGE_TEST_MODEL='b.gguf' and ROCMFORGE_TEST_MODEL='a.gguf', wanted one"
    with pytest.raises(ValueError, match=message):
        env.check()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("cpu", ("cpu", None)),
        ("hip", ("hip", None)),
        ("hip:0", ("hip", 0)),
        ("cuda:7", ("cuda", 7)),
    ],
)
def test_a_device_is_split_into_kind_and_number(value: str, wanted: tuple[str, int | None]) -> None:
    assert env.split_device(value) == wanted


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert env.cache_dir() == Path("/somewhere/.cache/rocmforge")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert env.cache_dir() == Path("/caches/rocmforge")
    monkeypatch.setenv("ROCMFORGE_CACHE", "/mine")
    assert env.cache_dir() == Path("/mine")


@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_a_cache_that_is_a_file_is_named(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("ROCMFORGE_CACHE", f"{file}{below}")
    message = f"ROCMFORGE_CACHE: got '{file}{below}', wanted a directory"
    for read in (env.cache_dir, lambda: env.cache_folder("models")):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            read()
        assert f"{file} is no directory" in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = "wanted a directory that can be written"
    monkeypatch.setenv("ROCMFORGE_CACHE", "/proc/nowhere")
    message = rf"ROCMFORGE_CACHE: got '/proc/nowhere', {wanted} \(/proc/nowhere: No such file"
    with pytest.raises(ValueError, match=message):
        env.cache_folder("models")
    monkeypatch.setattr(env.os, "access", lambda path, mode: False)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=rf"got '{tmp_path}', {wanted} .*Permission denied"):
        env.cache_folder("models")
    monkeypatch.delenv("ROCMFORGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=rf"got no value, so '{tmp_path}/rocmforge', {wanted}"):
        env.cache_folder("models")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROCMFORGE_CPU_EXACT", "yes"),
        ("ROCMFORGE_CPU_EXACT", "2"),
        ("ROCMFORGE_CPU_BF16", "on"),
        ("ROCMFORGE_CPU_ISA", "sse"),
        ("ROCMFORGE_CPU_ISA", "AVX2"),
        ("ROCMFORGE_DEVICE", "gpu"),
        ("ROCMFORGE_DEVICE", "HIP"),
        ("ROCMFORGE_DEVICE", "cpu:0"),
        ("ROCMFORGE_DEVICE", "auto:1"),
        ("ROCMFORGE_DEVICE", "hip:"),
        ("ROCMFORGE_DEVICE", "hip:-1"),
        ("ROCMFORGE_DEVICE", "hip:1.0"),
        ("ROCMFORGE_DEVICE", "hip:²"),
        ("ROCMFORGE_DEVICE", "cuda:0:1"),
        ("ROCMFORGE_DEVICE", "cuda:1000"),
        ("ROCMFORGE_DEVICE", ":1"),
        ("ROCMFORGE_GPU_PACKAGES", "--pre hip-python"),
        ("ROCMFORGE_THREADS", "0"),
        ("ROCMFORGE_THREADS", "-1"),
        ("ROCMFORGE_THREADS", "1025"),
        ("ROCMFORGE_THREADS", "2.0"),
        ("ROCMFORGE_THREADS", "two"),
        ("ROCMFORGE_THREADS", "²"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name}: got '{re.escape(value)}', wanted "):
        READERS[name]()


@pytest.mark.parametrize(
    ("index", "variables", "wanted"),
    [
        (1, {}, "1"),
        (1, {"HIP_VISIBLE_DEVICES": "3, 2"}, "2"),
        (0, {"HIP_VISIBLE_DEVICES": "GPU-9d939e7f,1"}, "GPU-9d939e7f"),
        (2, {"HIP_VISIBLE_DEVICES": "3,2"}, "2"),  # there is no such GPU
        (0, {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "4,5"}, "5"),
    ],
)
def test_the_vendors_variables_renumber_gpus(
    index: int,
    variables: dict[str, str],
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert env.visible_gpu(index) == wanted


def variables_of(function: Callable[[], object]) -> set[str]:
    return set(re.findall(r"\b(?:ROCMFORGE|ROCFORGE)_[A-Z0-9_]+", inspect.getdoc(function) or ""))


def test_every_variable_is_documented_and_read_in_one_place(repo: Path) -> None:
    functions = [
        f
        for name, f in vars(env).items()
        if inspect.isfunction(f) and f.__module__ == env.__name__ and not name.startswith("_")
    ]
    documented = set().union(*map(variables_of, functions))
    assert documented == set(READERS)
    for path in (repo / "rocmforge").rglob("*.py"):
        if path.name != "env.py":
            text = path.read_text("utf-8")
            reads = re.findall(r"environ[^\n]*\b(?:ROCMFORGE|ROCFORGE)_|getenv\(", text)
            assert not reads, f"{path} reads the environment itself"
    readme = (repo / "README.md").read_text("utf-8")
    assert set(re.findall(r"\b(?:ROCMFORGE|ROCFORGE)_[A-Z0-9_]+", readme)) <= documented


def test_the_errors_are_one_tree() -> None:
    found = [
        e for e in vars(errors).values() if inspect.isclass(e) and e.__module__ == errors.__name__
    ]
    assert len(found) >= 9
    assert all(issubclass(e, RocmforgeError) for e in found)
    assert issubclass(UnsupportedModelError, ModelError)
    assert not issubclass(RocmforgeError, ValueError)
    assert all(inspect.getdoc(e) for e in found)


@pytest.mark.parametrize(("offset", "where"), [(None, ""), (0, " at byte 0"), (77, " at byte 77")])
def test_gguf_error_says_where(offset: int | None, where: str) -> None:
    error = GGUFError("dir/m.gguf", "version", offset=offset, got=7, wanted="2 or 3")
    assert str(error) == f"dir/m.gguf: version{where}: got 7, wanted 2 or 3"
    assert (error.path, error.what, error.offset) == (Path("dir/m.gguf"), "version", offset)
    assert (error.got, error.wanted) == (7, "2 or 3")


def test_out_of_pages_says_what_to_do() -> None:
    error = OutOfPagesError(wanted=5, free=2, total=8)
    assert (error.wanted, error.free, error.total) == (5, 2, 8)
    assert str(error).startswith("KV cache out of pages: wanted 5, 2 of 8 free; raise ctx")


def test_result_file_error_says_what() -> None:
    error = ResultFileError(Path("r/a.json"), "version", got=9, wanted=2)
    assert str(error) == "r/a.json: version: got 9, wanted 2"
    assert (error.path, error.what, error.got, error.wanted) == (Path("r/a.json"), "version", 9, 2)
