"""The GGUF reader: what it returns, what it refuses, what it costs.

Checked against files built byte by byte (`gguf_bytes`), against gguf-py's writer and reader, and
on the reference models where those are there.
"""

from __future__ import annotations

import ctypes
import errno
import lzma
import mmap
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import gguf_bytes as b
import numpy as np
import pytest

from rocmforge.errors import GGUFError, NoSuchFileError
from rocmforge.gguf import header
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.header import StringArray, TensorInfo
from rocmforge.gguf.reader import GGUFFile


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.gguf"
    path.write_bytes(b.sample())
    return path


@pytest.fixture(scope="module")
def qwen(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = reference / "vocab" / "ggml-vocab-qwen2.gguf.xz"
    if not packed.is_file():
        pytest.skip(f"no reference data: {packed} does not exist")
    path = tmp_path_factory.mktemp("vocab") / "qwen2.gguf"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


def sparse(path: Path, size: int) -> Path:
    """A file of one F32 tensor "w" that takes `size` bytes, none of them on disk or in memory."""
    header = b.gguf(tensors=[b.tensor("w", [1024, size // 4096], b.F32_TYPE, 0)])
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // 32) * 32 + size)
    return path


def resident(path: Path) -> int:
    """Bytes of this process's mappings of `path` that are in its memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


# --- what it returns


def test_reads_every_scalar_type(sample: Path) -> None:
    with GGUFFile(sample) as file:
        values = {k: v for k, v in file.metadata.items() if k.startswith("one.")}
    assert values == {
        "one.0": 200, "one.1": -100, "one.2": 60000, "one.3": -30000, "one.4": 4_000_000_000,
        "one.5": -2_000_000_000, "one.6": 0.5, "one.7": True, "one.10": 1 << 63,
        "one.11": -(1 << 62), "one.12": 1e300,
    }  # fmt: skip
    kinds = {float: {6, 12}, bool: {7}}
    for key, value in values.items():
        number = int(key.split(".")[1])
        wanted = next((kind for kind, ids in kinds.items() if number in ids), int)
        assert type(value) is wanted, key


def test_reads_every_array_type(sample: Path) -> None:
    dtypes = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8",
              11: "i8", 12: "f8"}  # fmt: skip
    with GGUFFile(sample) as file:
        for kind, code in dtypes.items():
            values = file.get(f"many.{kind}", np.ndarray)
            assert values.dtype == np.dtype(code)
            assert values.tolist() == [file.metadata[f"one.{kind}"]] * 3
            assert not values.flags.writeable
            assert values.flags.aligned


def test_reads_strings_and_nested_arrays(sample: Path) -> None:
    with GGUFFile(sample) as file:
        pass
    tokens = file.get("tokens", StringArray)  # metadata outlives close
    assert list(tokens) == ["a", "", "\udcff\udcc3", "é"]
    assert [tokens[i] for i in range(-4, 4)] == 2 * list(tokens)
    assert tokens[1:] == list(tokens)[1:]
    assert tokens.raw(2) == b"\xff\xc3"
    assert tokens.raw(-1) == "é".encode()
    assert len(tokens) == 4
    assert "é" in tokens
    assert tokens.index("é") == 3
    assert repr(tokens) == "StringArray(['a', '', '\\udcff\\udcc3', …], len=4)"
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"got {index}, wanted -4 to 3"):
            tokens.raw(index)
    assert file.metadata["bad.text"] == "\udc80abc"
    assert list(file.get("empty", StringArray)) == []
    inner, none, last = file.get("nested", list)
    assert none == []
    assert last.tolist() == [1]
    assert list(inner[0]) == ["x"]
    assert inner[1].tolist() == [1, 2]
    assert inner[2].dtype == np.float32
    assert inner[2].size == 0


def test_keeps_the_order_of_the_file_and_is_read_only(sample: Path) -> None:
    with GGUFFile(sample) as file:
        assert next(iter(file.metadata)) == "general.architecture"
        assert list(file.tensors) == ["norm", "gate", "up", "cube", "down"]
        with pytest.raises(TypeError):
            file.metadata["a"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            del file.tensors["norm"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [2, 3])
def test_tensor_infos_and_views(tmp_path: Path, version: int) -> None:
    content = bytearray(b.sample())
    content[4] = version
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with GGUFFile(path) as file:
        assert (file.path, file.version, file.alignment) == (path, version, 64)
        assert file.nbytes == len(content)
        start = file.tensors["norm"].offset
        assert start % 64 == 0
        assert list(file.tensors.values()) == [
            TensorInfo("norm", (5,), FORMATS["F32"], start, 20),
            TensorInfo("gate", (3, 32), FORMATS["Q4_0"], start + 64, 54),
            TensorInfo("up", (2, 64), FORMATS["Q8_0"], start + 128, 136),
            TensorInfo("cube", (4, 3, 2), FORMATS["F16"], start + 320, 48),
            TensorInfo("down", (1, 256), FORMATS["Q4_K"], start + 384, 144),
        ]
        shapes = {
            "norm": (20,),
            "gate": (3, 18),
            "up": (2, 68),
            "cube": (4, 3, 4),
            "down": (1, 144),
        }
        for name, info in file.tensors.items():
            view = file.tensor(name)
            assert view.dtype == np.uint8
            assert view.shape == shapes[name]
            assert view.tobytes() == content[info.offset : info.offset + info.nbytes]
            assert not view.flags.writeable
            assert not view.flags.owndata
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.setflags(write=True)


def test_no_keys_and_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(b.gguf())
    with GGUFFile(str(path)) as file:
        assert (dict(file.metadata), dict(file.tensors), file.alignment) == ({}, {}, 32)


# --- typed access


def test_get_returns_the_type_that_was_asked_for(sample: Path) -> None:
    file = GGUFFile(sample)
    assert file.get("general.architecture", str) == "llama"
    assert file.get("one.7", bool) is True
    assert file.get("one.0", int) == 200
    as_float = file.get("one.0", float)
    assert type(as_float) is float
    assert as_float == 200.0
    assert file.get("absent", int, 7) == 7
    assert file.get("absent", int, None) is None
    assert file.get("one.0", int, 7) == 200


@pytest.mark.parametrize(
    ("key", "kind", "got"),
    [
        ("one.7", int, "bool True"),
        ("one.7", float, "bool True"),
        ("one.0", bool, "int 200"),
        ("one.6", int, "float 0.5"),
        ("general.architecture", int, "str 'llama'"),
        ("tokens", list, "StringArray StringArray(['a', "),
        ("many.0", list, "ndarray array([200, 200, 200], dtype=uint8)"),
        ("nested", np.ndarray, "list ["),
        ("absent", int, "no such key"),
    ],
)
def test_get_refuses_another_type(sample: Path, key: str, kind: type, got: str) -> None:
    file = GGUFFile(sample)
    with pytest.raises(GGUFError) as caught:
        file.get(key, kind)
    assert str(caught.value.got).startswith(got)
    assert caught.value.wanted == kind.__name__
    assert caught.value.path == sample
    assert caught.value.what == f"metadata key {key!r}"
    if key != "absent":
        with pytest.raises(GGUFError, match=re.escape(key)):
            file.get(key, kind, None)


def test_get_refuses_a_kind_that_no_value_has(sample: Path) -> None:
    with pytest.raises(TypeError, match=r"kind of 'one\.0': got .* wanted one of bool"):
        GGUFFile(sample).get("one.0", bytes)


# --- closing and releasing


def test_closed_file_refuses_tensors_and_keeps_the_rest(sample: Path) -> None:
    file = GGUFFile(sample)
    assert file._parts is not None
    data = file._parts[0].data
    file.close()
    file.close()
    assert data.closed
    for use in (file.tensor, file.release):
        with pytest.raises(
            ValueError, match=r"sample\.gguf: got a closed GGUFFile, wanted an open"
        ):
            use("norm")
    assert file.get("many.4", np.ndarray).tolist() == [4_000_000_000] * 3
    assert not mapped(sample)


def descriptors(path: Path) -> int:
    """Open file descriptors of this process for `path`."""
    links = [entry.path for entry in os.scandir("/proc/self/fd")]
    return sum(os.path.realpath(link) == str(path) for link in links)


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_views_outlive_close_and_the_last_one_unmaps(sample: Path) -> None:
    with GGUFFile(sample) as file:
        view = file.tensor("gate")[1:]
        wanted = bytes(view)
    assert mapped(sample)
    assert descriptors(sample) == 1
    assert bytes(view) == wanted
    del view
    assert not mapped(sample)
    assert descriptors(sample) == 0


def test_error_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b.gguf(n_keys=1))
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    assert caught.value.path == path  # alive, with its traceback, while the maps are read
    assert not mapped(path)
    assert descriptors(path) == 0


@pytest.mark.parametrize("method", ["tensor", "release"])
def test_unknown_tensor(sample: Path, method: str) -> None:
    with pytest.raises(GGUFError, match="tensor 'w': got no such tensor, wanted one of the 5"):
        getattr(GGUFFile(sample), method)("w")


def test_opening_touches_no_tensor_page_and_release_gives_them_back(tmp_path: Path) -> None:
    size = 64 << 20
    path = sparse(tmp_path / "sparse.gguf", size)
    slack = 4 << 20  # the kernel maps some pages around one that is touched
    with GGUFFile(path) as file:
        view = file.tensor("w")
        assert view.nbytes == size
        assert resident(path) < slack
        assert int(view[:, ::64].sum()) == 0
        assert resident(path) >= size
        file.release("w")
        assert resident(path) < slack
        assert int(view[-1, -1]) == 0


def test_opening_reads_no_tensor_page_from_disk(tmp_path: Path) -> None:
    size = 256 << 20
    path = sparse(tmp_path / "sparse.gguf", size)
    with GGUFFile(path) as file, path.open("r+b") as second:
        assert file.tensor("w").nbytes == size
        with mmap.mmap(second.fileno(), 0) as pages:
            state = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
            anchor = ctypes.c_char.from_buffer(pages)
            libc = ctypes.CDLL(None, use_errno=True)
            args = (ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(len(pages)), state)
            assert libc.mincore(*args) == 0, os.strerror(ctypes.get_errno())
            del anchor
    in_cache = sum(byte & 1 for byte in state) * mmap.PAGESIZE
    assert in_cache <= 64 << 20, "more than the kernel's own read-ahead behind the header"


def test_release_keeps_what_shares_a_page(tmp_path: Path) -> None:
    rows = 3 * mmap.PAGESIZE // 128
    tensors = [b.tensor("a", [32, rows], b.F32_TYPE, 0), b.tensor("b", [8], b.F32_TYPE, rows * 128)]
    path = tmp_path / "two.gguf"
    path.write_bytes(b.gguf(tensors=tensors, data=os.urandom(rows * 128 + 32)))
    with GGUFFile(path) as file:
        before = {name: file.tensor(name).tobytes() for name in file.tensors}
        for name in file.tensors:
            file.release(name)
        assert {name: file.tensor(name).tobytes() for name in file.tensors} == before


# --- what is no GGUF file


def refused(path: Path) -> GGUFError:
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    return caught.value


def test_refuses_what_is_no_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, link, empty = (tmp_path / name for name in ("fifo", "loop", "empty"))
    os.mkfifo(fifo)
    link.symlink_to(link)
    empty.touch()
    assert refused(fifo).got == "a FIFO, socket or device"
    assert refused(Path("/dev/null")).got == "a FIFO, socket or device"
    assert refused(tmp_path).got == "a directory"
    assert refused(empty).got == "an empty file"
    assert refused(link).got == os.strerror(errno.ELOOP)
    absent = refused(tmp_path / "absent")
    assert isinstance(absent, NoSuchFileError)
    assert str(absent) == f"no such file: {tmp_path}/absent; wanted the path of a GGUF model"
    assert refused(empty / "inside").got == os.strerror(errno.ENOTDIR)
    assert refused(Path("nul\0byte")).got == "embedded null byte"
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert refused(tmp_path / "socket").got == os.strerror(errno.ENXIO)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_refuses_a_file_without_permission(sample: Path) -> None:
    sample.chmod(0)
    assert refused(sample).got == os.strerror(errno.EACCES)


def wide(count: int) -> Iterator[bytes]:
    return (b.tensor(f"t{i}", [8], b.F32_TYPE, 32 * i) for i in range(count))


def test_error_of_an_unknown_type_lists_what_is_supported(tmp_path: Path) -> None:
    path = tmp_path / "q1.gguf"
    path.write_bytes(b.one_tensor([128], 41))
    wanted = str(refused(path).wanted)
    for fmt in FORMATS.values():
        if fmt.ggml_type is not None:
            assert f"{fmt.ggml_type} ({fmt.name})" in wanted


def test_names_in_errors_are_short_and_printable(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b.gguf([b.key(b"\xff\n" * 30_000, 13, bytes(8))]))
    message = str(refused(path))
    assert len(message) < 400
    assert message.encode("ascii", "strict")
    assert "\n" not in message


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda n: b.one_key(b.ARRAY, b.array(b.STRING, [], n)), header.MAX_STRINGS),
        (lambda n: b.one_key(b.ARRAY, b.array(b.ARRAY, [], n)), header.MAX_NESTED_ARRAYS),
        (lambda n: b.one_key(b.ARRAY, b.array(b.BOOL, [], n)), header.MAX_HEADER_BYTES - 49),
        (lambda n: b.gguf(tensors=list(wide(n))), header.MAX_TENSORS),
    ],
    ids=["strings", "nested arrays", "header bytes", "tensors"],
)
def test_a_huge_sparse_file_costs_little(
    tmp_path: Path, build: Callable[[int], bytes], limit: int, over: int
) -> None:
    path = tmp_path / "huge.gguf"
    with path.open("wb") as file:
        file.write(build(limit + over))
        file.truncate(1 << 37)  # reading it would take minutes
    start = time.process_time()
    if over:
        assert str(refused(path).wanted).startswith(f"at most {limit}, ")
    else:
        GGUFFile(path).close()
    assert time.process_time() - start < 5  # 0.5 on a quiet machine


# --- against other programs


def test_reads_what_gguf_py_writes(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    writer.add_uint32("a.u32", 7)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", False)
    writer.add_string("a.text", "Größe")
    writer.add_array("a.names", ["x", "yy", ""])
    writer.add_array("a.numbers", [1.5, 2.5])
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((3, 64), dtype=np.float32)
    packed = gguf.quants.quantize(plain, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("plain", plain)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        assert file.alignment == 128
        assert file.get("general.architecture", str) == "llama"
        assert file.get("a.u32", int) == 7
        assert file.get("a.f64", float) == 0.1
        assert file.get("a.bool", bool) is False
        assert file.get("a.text", str) == "Größe"
        assert list(file.get("a.names", StringArray)) == ["x", "yy", ""]
        assert file.get("a.numbers", np.ndarray).tolist() == [1.5, 2.5]
        assert file.tensors["plain"].shape == file.tensors["packed"].shape == (3, 64)
        assert file.tensors["packed"].format is FORMATS["Q5_1"]
        assert np.array_equal(file.tensor("plain").view(np.float32), plain)
        assert np.array_equal(file.tensor("packed"), packed)


def assert_equals_gguf_py(path: Path) -> int:
    theirs = gguf.GGUFReader(path)
    with GGUFFile(path) as ours:
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, value in ours.metadata.items():
            plain = list(value) if isinstance(value, StringArray | np.ndarray) else value
            assert plain == fields[key].contents(), key
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.offset == tensor.data_offset
            assert info.nbytes == tensor.n_bytes
            assert info.shape == tuple(int(n) for n in tensor.shape[::-1])
            assert info.format.name == tensor.tensor_type.name
            assert np.array_equal(
                ours.tensor(info.name).ravel(), tensor.data.view(np.uint8).ravel()
            )
        return len(ours.tensors)


def test_agrees_with_gguf_py_on_the_reference_models(reference: Path) -> None:
    paths = sorted((reference / "models").glob("*.gguf"))
    assert paths
    for path in paths:
        assert assert_equals_gguf_py(path) > 30


def test_agrees_with_gguf_py_on_a_vocabulary(reference: Path) -> None:
    path = reference / "vocab" / "ggml-vocab-llama-spm.gguf"
    assert assert_equals_gguf_py(path) == 0


def test_opens_a_large_vocabulary_in_half_a_second(qwen: Path) -> None:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        file = GGUFFile(qwen)
        seconds.append(time.process_time() - start)
    tokens = file.get("tokenizer.ggml.tokens", StringArray)
    assert len(tokens) == len(list(tokens)) == 151_936
    assert len(file.get("tokenizer.ggml.merges", StringArray)) == 151_387
    assert file.get("tokenizer.ggml.token_type", np.ndarray).shape == (151_936,)
    assert tokens[151_643] == "<|endoftext|>"
    assert min(seconds) <= 0.5
