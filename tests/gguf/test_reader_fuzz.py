"""Hostile GGUF files: each ends in success or in a `GGUFError`, soon and without much memory.

Three kinds: hand-made ones with the exact error wanted, every small damage to one valid file, and
files that hypothesis makes up. All go through the real file and its map.
"""

from __future__ import annotations

import math
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_bytes as b
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmforge.errors import GGUFError
from rocmforge.gguf import header
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.header import StringArray
from rocmforge.gguf.reader import GGUFFile

FUZZ = settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])


class Scratch:
    """One file that is rewritten for every case, and what reading it came to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.size = 0

    def write(self, content: bytes) -> None:
        if len(content) != self.size:
            os.ftruncate(self.descriptor, len(content))
            self.size = len(content)
        os.pwrite(self.descriptor, content, 0)

    def read(self, content: bytes) -> GGUFError | None:
        """Open a file of `content` and read all of it: None, or the GGUFError that it ended in."""
        self.write(content)
        seconds, error = self.attempt()
        if seconds >= 1:  # a pause of the machine or of the garbage collector does not come twice
            seconds, error = self.attempt()
        assert seconds < 1, f"{seconds:.1f} s to end in {error}"
        if error is not None:
            assert error.path == self.path
            assert (error.offset is None) == (content[:4] != b"GGUF")
            assert 0 <= (error.offset or 0) <= len(content)
            assert str(error.got)
            assert str(error.wanted)
            assert str(error).startswith(f"{self.path}: {error.what}")
        return error

    def attempt(self) -> tuple[float, GGUFError | None]:
        """Seconds of processor time, and how it ended."""
        start = time.process_time()
        try:
            with GGUFFile(self.path) as file:
                consume(file)
        except GGUFError as error:
            return time.process_time() - start, error.with_traceback(None)
        return time.process_time() - start, None


def consume(file: GGUFFile) -> None:
    """Touch every value and every byte of every tensor."""
    values: list[Any] = list(file.metadata.values())
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, StringArray):
            for index, text in enumerate(value):
                assert text.encode("utf-8", "surrogateescape") == value.raw(index)
        elif isinstance(value, np.ndarray):
            assert len(value.tolist()) == value.size
            assert value.dtype != np.bool_ or set(value.view(np.uint8).tolist()) <= {0, 1}
        else:
            assert isinstance(value, bool | int | float | str)
    end = 0
    for info in sorted(file.tensors.values(), key=lambda info: info.offset):
        assert end <= info.offset
        assert info.offset % file.alignment == 0
        end = info.offset + info.nbytes
        view = file.tensor(info.name)
        assert view.nbytes == info.nbytes == info.format.nbytes(info.shape)
        assert int(view.sum()) >= 0
        file.release(info.name)
    assert end <= file.nbytes


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    scratch = Scratch(tmp_path_factory.mktemp("fuzz") / "case.gguf")
    yield scratch
    os.close(scratch.descriptor)


# --- hand-made


NO_GGUF = "not a GGUF file: first bytes"
DEEP = b"".join([b.u32(b.ARRAY) + b.u64(1)] * 10_000)
# One key "k" in a file: its value starts at byte 37, behind 24 + 9 + 4 bytes.
# One tensor "w": dimensions at 33, first size at 37, type at 45, offset at 49 (one dimension).
HOSTILE = {
    "of another format": (b"GGML" + b.gguf()[4:], NO_GGUF, None, "b'GGML'", "b'GGUF'"),
    "three bytes": (b"GGU", NO_GGUF, None, "b'GGU'", "b'GGUF'"),
    "version cut": (b"GGUF\3\0", "version", 4, "4 bytes", "at most 2"),
    "counts cut": (b.gguf()[:20], "number of metadata keys", 16, "8 bytes", "at most 4"),
    "version 1": (b.gguf(version=1), "version", 4, "1", "2 or 3, little-endian"),
    "version 0": (b.gguf(version=0), "version", 4, "0", "2 or 3, little-endian"),
    "version 4": (b.gguf(version=4), "version", 4, "4", "2 or 3, little-endian"),
    "big-endian": (b.gguf(version=3 << 24), "version", 4, "3, big-endian", "2 or 3, little-endian"),
    "keys 2^63": (b.gguf(n_keys=1 << 63), "number of metadata keys", 16, str(1 << 63), "at most 0"),
    "tensors 2^64-1": (
        b.gguf(n_tensors=(1 << 64) - 1), "number of tensors", 8, str((1 << 64) - 1), "at most 0",
    ),
    "keys over the limit": (
        b.gguf(n_keys=1 << 15) + bytes(1 << 20), "number of metadata keys", 16, "32768",
        "at most 16384, the reader's limit",
    ),
    "one key too many": (
        b.gguf([b.key("k", b.U16, bytes(2))], n_keys=2), "number of metadata keys", 16, "2",
        "at most 1, which fit into the rest of the file: is it cut short?",
    ),
    "one tensor too many": (
        b.gguf(tensors=[b.tensor("w", [1], 0, 0)], n_tensors=2), "number of tensors", 8, "2",
        "at most 1, which fit into the rest of the file: is it cut short?",
    ),
    "key without a name": (
        b.gguf([b.key("", b.U8, b"\0")]) + bytes(9), "name length of metadata key 0", 24, "0",
        "1 to 65535",
    ),
    "key length 2^64-8": (
        b.gguf([b.u64((1 << 64) - 8) + bytes(16)]), "name length of metadata key 0", 24,
        str((1 << 64) - 8), "1 to 65535",
    ),
    "key longer than the file": (
        b.gguf([b.u64(60_000) + bytes(16)]), "name of metadata key 0", 32, "60000 bytes",
        "at most 16",
    ),
    "key twice": (
        b.gguf([b.key("k", b.U8, b"\0")] * 2), "name of metadata key 1", 46, "'k'",
        "a name not used before",
    ),
    "value type 13": (b.one_key(13, bytes(8)), "type of metadata key 'k'", 33, "13", "0 to 12"),
    "value cut": (
        b.one_key(b.U64, bytes(7)), "value of metadata key 'k'", 37, "8 bytes", "at most 7",
    ),
    "bool 2": (b.one_key(b.BOOL, b"\2"), "bool of metadata key 'k'", 37, "2", "0 or 1"),
    "bool 255 in an array": (
        b.one_key(b.ARRAY, b.array(b.BOOL, [b"\0", b"\1", b"\xff"])),
        "bool of metadata key 'k'", 51, "255", "0 or 1",
    ),
    "string length 2^64-1": (
        b.one_key(b.STRING, b.u64((1 << 64) - 1)), "string of metadata key 'k'", 45,
        f"{(1 << 64) - 1} bytes", "at most 0",
    ),
    "array type 99": (
        b.one_key(b.ARRAY, b.array(99, [])), "type of metadata key 'k'", 37, "99", "0 to 12",
    ),
    "array length 2^63": (
        b.one_key(b.ARRAY, b.array(b.U64, [], 1 << 63)), "value of metadata key 'k'", 49,
        f"{1 << 66} bytes", "at most 0",
    ),
    "array of 2^61 F64": (  # 2^61 * 8 is 0 in 64 bits
        b.one_key(b.ARRAY, b.array(b.F64, [], 1 << 61)), "value of metadata key 'k'", 49,
        f"{1 << 64} bytes", "at most 0",
    ),
    "strings 2^63": (
        b.one_key(b.ARRAY, b.array(b.STRING, [bytes(80)], 1 << 63)),
        "array length of metadata key 'k'", 41, str(1 << 63),
        "at most 10, which fit into the rest of the file: is it cut short?",
    ),
    "string in an array too long": (
        b.one_key(b.ARRAY, b.array(b.STRING, [b.string("ab"), b.u64(5) + b"abc"])),
        "string 1 of metadata key 'k'", 67, "5 bytes", "at most 3",
    ),
    "string lengths cut": (
        b.one_key(b.ARRAY, b.array(b.STRING, [b.string("12345678"), b"1234"], 2)),
        "length of string 1 of metadata key 'k'", 65, "8 bytes", "at most 4",
    ),
    "arrays 2^63": (
        b.one_key(b.ARRAY, b.array(b.ARRAY, [bytes(12)], 1 << 63)),
        "array length of metadata key 'k'", 41, str(1 << 63), "at most 1",
    ),
    "arrays 10,000 deep": (
        b.one_key(b.ARRAY, DEEP), "array type of metadata key 'k'", 37 + 12 * 7, "one more",
        "at most 8 levels of arrays",
    ),
    "alignment 0": (
        b.aligned_to(b.U32, b.u32(0)), "metadata key 'general.alignment'", 53, "0",
        "a power of 2, 8 to 65536",
    ),
    "alignment 48": (
        b.aligned_to(b.U32, b.u32(48)), "metadata key 'general.alignment'", 53, "48",
        "a power of 2",
    ),
    "alignment 2^31": (
        b.aligned_to(b.U32, b.u32(1 << 31)), "metadata key 'general.alignment'", 53, str(1 << 31),
        "a power of 2",
    ),
    "alignment True": (
        b.aligned_to(b.BOOL, b"\1"), "metadata key 'general.alignment'", 53, "True", "a power of 2",
    ),
    "alignment text": (
        b.aligned_to(b.STRING, b.string("32")), "metadata key 'general.alignment'", 53, "'32'",
        "a power of 2",
    ),
    "tensor name too long": (
        b.gguf(tensors=[b.tensor("w" * 1025, [1], 0, 0)], data=bytes(4)),
        "name length of tensor 0", 24, "1025", "1 to 1024",
    ),
    "tensor twice": (
        b.gguf(tensors=[b.tensor("w", [1], 0, 0)] * 2, data=bytes(64)), "name of tensor 1", 65,
        "'w'", "a name not used before",
    ),
    "no dimension": (b.one_tensor([]), "dimensions of tensor 'w'", 33, "0", "1 to 4"),
    "5 dimensions": (b.one_tensor([1] * 5), "dimensions of tensor 'w'", 33, "5", "1 to 4"),
    "size 0": (
        b.one_tensor([32, 0]), "shape of tensor 'w'", 37, "(0, 32)", "1 to 2^63 - 1 elements",
    ),
    "2^64 elements": (  # 0 in 64 bits
        b.one_tensor([1 << 32, 1 << 32]), "shape of tensor 'w'", 37, f"({1 << 32}, {1 << 32})",
        "1 to 2^63 - 1 elements",
    ),
    "2^62 F32": (
        b.one_tensor([1 << 62]), "data of tensor 'w'", 49, f"bytes 64 to {64 + (1 << 64)}",
        "inside 64 (end of what lies in front) to 4160 (end of the file)",
    ),
    "type 41": (
        b.one_tensor([128], 41), "type of tensor 'w'", 45, "41 (Q1_0)",
        "one of 0 (F32), 1 (F16), ",
    ),
    "type 2^32-1": (
        b.one_tensor([256], (1 << 32) - 1), "type of tensor 'w'", 45, "4294967295", "one of 0 ",
    ),
    "part of a block": (
        b.one_tensor([33, 2], b.Q4_0_TYPE), "columns of tensor 'w'", 37, "33",
        "a multiple of 32, a block of Q4_0",
    ),
    "offset not aligned": (
        b.one_tensor([8], offset=8), "offset of tensor 'w'", 49, "8",
        "a multiple of the alignment, 32",
    ),
    "offset 2^64-32": (
        b.one_tensor([8], offset=(1 << 64) - 32), "data of tensor 'w'", 49,
        f"bytes {(1 << 64) + 32} to {(1 << 64) + 64}", "inside 64",
    ),
    "data cut": (
        b.one_tensor([8], data=31), "data of tensor 'w'", 49, "bytes 64 to 96",
        "inside 64 (end of what lies in front) to 95 (end of the file); is the file cut short?",
    ),
    "tensors overlap": (
        b.gguf(tensors=[b.tensor("v", [8], 0, 32), b.tensor("w", [9], 0, 0)], data=bytes(128)),
        "data of tensor 'v'", 49, "bytes 128 to 160",
        "inside 132 (end of what lies in front) to 224 (end of the file)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_a_hostile_file(scratch: Scratch, name: str) -> None:
    content, what, offset, got, wanted = HOSTILE[name]
    tracemalloc.start()
    error = scratch.read(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert error is not None
    assert error.what == what
    assert error.offset == offset
    assert str(error.got) == got
    assert str(error.wanted).startswith(wanted)
    where = "" if offset is None else f" at byte {offset}"
    assert str(error).endswith(f": {what}{where}: got {got}, wanted {error.wanted}")


@pytest.mark.parametrize(
    ("limit", "kind"), [("MAX_STRINGS", b.STRING), ("MAX_NESTED_ARRAYS", b.ARRAY)]
)
def test_limits_hold_for_all_arrays_together(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, limit: str, kind: int
) -> None:
    monkeypatch.setattr(header, limit, 5)
    item = b.string("") if kind == b.STRING else b.array(b.U8, [])
    keys = [b.key(name, b.ARRAY, b.array(kind, [item] * 3)) for name in "vw"]
    error = scratch.read(b.gguf(keys))
    assert error is not None
    assert error.what == "array length of metadata key 'w'"
    assert (error.got, error.wanted) == (3, "at most 2, the reader's limit")


# --- every small damage to a valid file


def flipped(good: bytes, header: int) -> Iterator[tuple[str, bytes]]:
    """Every bit of the header, and every byte of it set to an extreme."""
    case = bytearray(good)
    for at in range(header):
        old = good[at]
        for new in {old ^ 1 << bit for bit in range(8)} | {0, 0xFF} - {old}:
            case[at] = new
            yield f"byte {at} = {new:#x}", bytes(case)
        case[at] = old


def overwritten(good: bytes, header: int) -> Iterator[tuple[str, bytes]]:
    """Every 8 bytes of the header as a count, length or offset that is hard to take."""
    values = (1, 255, 1 << 32, (1 << 61) + 1, 1 << 63, (1 << 64) - 8)
    for at in range(header):
        for value in values:
            yield f"u64 {at} = {value}", good[:at] + b.u64(value) + good[at + 8 :]


def cut(good: bytes, header: int) -> Iterator[tuple[str, bytes]]:
    """Every truncation of the file; every byte of the header taken out, or doubled."""
    for size in range(len(good)):
        yield f"cut to {size}", good[:size]
    for at in range(header):
        yield f"without byte {at}", good[:at] + good[at + 1 :]
        yield f"byte {at} twice", good[: at + 1] + good[at:]


def test_every_small_damage_ends_well(scratch: Scratch) -> None:
    good = b.sample()
    assert scratch.read(good) is None
    with GGUFFile(scratch.path) as file:
        header = min(info.offset for info in file.tensors.values())
    sane, refused = 0, 0
    for damage in (flipped, overwritten, cut):
        for label, case in damage(good, header):
            try:
                error = scratch.read(case)
            except Exception as other:
                raise AssertionError(f"{label}: {other!r}") from other
            sane += error is None
            refused += error is not None
    assert sane + refused > 20_000
    assert sane > 2_000, "flipped letters and numbers must still be read"
    assert refused > 10_000


def test_a_cut_file_is_always_refused(scratch: Scratch) -> None:
    good = b.sample()
    for size in range(len(good)):
        assert scratch.read(good[:size]) is not None, size


# --- made up

VALUES: dict[int, st.SearchStrategy[Any]] = {
    b.F32: st.floats(width=32),
    b.F64: st.floats(),
    b.BOOL: st.booleans(),
    b.STRING: st.binary(max_size=12),
}
for kind, bits in {b.U8: 8, b.U16: 16, b.U32: 32, b.U64: 64}.items():
    VALUES[kind] = st.integers(0, (1 << bits) - 1)
for kind, bits in {b.I8: 8, b.I16: 16, b.I32: 32, b.I64: 64}.items():
    VALUES[kind] = st.integers(-1 << bits - 1, (1 << bits - 1) - 1)
KINDS = st.sampled_from(sorted(VALUES))


def encoded(kind: int, value: Any) -> bytes:
    if kind == b.STRING:
        return b.string(value)
    if kind == b.ARRAY:
        inner, items = value
        return b.array(inner, [encoded(inner, item) for item in items])
    return b.numbers(kind, value)


def plain(value: Any) -> Any:
    """What the reader returned, in the terms of what was written."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, StringArray):
        return [value.raw(i) for i in range(len(value))]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def wanted(kind: int, value: Any) -> Any:
    return [wanted(value[0], item) for item in value[1]] if kind == b.ARRAY else value


@st.composite
def arrays(draw: st.DrawFn, depth: int = 0) -> tuple[int, Any]:
    """(ARRAY, (type of the items, items)), nested up to four deep."""
    if depth < 3 and draw(st.booleans()):
        return b.ARRAY, (b.ARRAY, [v for _, v in draw(st.lists(arrays(depth + 1), max_size=3))])
    kind = draw(KINDS)
    return b.ARRAY, (kind, draw(st.lists(VALUES[kind], max_size=4)))


SCALARS = KINDS.flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))
METADATA = st.dictionaries(st.binary(min_size=1, max_size=20), SCALARS | arrays(), max_size=8)
"""Key to (type, value)."""


@settings(FUZZ, max_examples=500)
@given(METADATA.filter(lambda m: b"general.alignment" not in m), st.sampled_from([2, 3]))
def test_metadata_comes_back_as_written(scratch: Scratch, metadata: Any, version: int) -> None:
    keys = [b.key(name, kind, encoded(kind, value)) for name, (kind, value) in metadata.items()]
    assert scratch.read(b.gguf(keys, version=version)) is None
    with GGUFFile(scratch.path) as file:
        got = {k.encode("utf-8", "surrogateescape"): plain(v) for k, v in file.metadata.items()}
    np.testing.assert_equal(got, {name: wanted(*pair) for name, pair in metadata.items()})


TYPES = [f.ggml_type for f in FORMATS.values() if f.ggml_type is not None]
EXTREMES = st.sampled_from([0, 1, 31, 32, 33, 255, 256, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1])
SIZES = st.one_of(st.sampled_from([1, 2, 32, 256]), EXTREMES, st.integers(0, (1 << 64) - 1))
TENSORS = st.builds(
    b.tensor,
    st.binary(max_size=8),
    st.lists(SIZES, max_size=5),
    st.sampled_from(TYPES) | st.integers(0, 45),
    st.one_of(st.integers(0, 40).map(lambda n: 32 * n), EXTREMES),
)
KEYS = st.builds(
    b.key,
    st.sampled_from([b"general.alignment", b"k"]) | st.binary(max_size=8),
    st.integers(0, 14),
    st.one_of(
        st.binary(max_size=24),
        st.sampled_from([8, 16, 32, 64, 128, 1 << 20]).map(b.u32),
        st.builds(
            b.array, st.integers(0, 14), st.lists(st.binary(max_size=12), max_size=4), EXTREMES
        ),
        st.lists(st.binary(max_size=9).map(b.string), max_size=4).map(
            lambda s: b.array(b.STRING, s)
        ),
    ),
)


@FUZZ
@given(
    st.lists(KEYS, max_size=5),
    st.lists(TENSORS, max_size=4),
    st.none() | EXTREMES,
    st.none() | EXTREMES,
    st.integers(0, 5000),
)
def test_made_up_structures_end_well(
    scratch: Scratch,
    keys: list[bytes],
    tensors: list[bytes],
    n_keys: int | None,
    n_tensors: int | None,
    data: int,
) -> None:
    case = b.gguf(keys, tensors, bytes(data), n_keys=n_keys, n_tensors=n_tensors)
    error = scratch.read(case)
    if error is None:
        with GGUFFile(scratch.path) as file:
            assert len(file.metadata) == (len(keys) if n_keys is None else n_keys)
            assert sum(math.prod(info.shape) for info in file.tensors.values()) <= 8 * len(case)


@FUZZ
@given(
    st.sampled_from([b"", b"GGUF", b"GGUF" + b.u32(3), b"GGUF" + b.u32(2) + b.u64(0) + b.u64(1)]),
    st.binary(max_size=300),
)
def test_random_bytes_end_well(scratch: Scratch, start: bytes, rest: bytes) -> None:
    error = scratch.read(start + rest)
    if len(start) < 8:
        assert error is not None


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, 1400), st.binary(max_size=9), st.integers(0, 9)), max_size=4)
)
def test_several_damages_end_well(scratch: Scratch, damages: list[tuple[int, bytes, int]]) -> None:
    case = b.sample()
    for at, new, gone in damages:
        case = case[:at] + new + case[at + gone :]
    assert scratch.read(case) is not None or case[:4] == b"GGUF"
