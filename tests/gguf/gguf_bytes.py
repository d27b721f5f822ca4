"""Builds GGUF files byte by byte, right or wrong, for the reader's tests.

It knows the layout and nothing of the reader: counts and offsets are written as they are told.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f",
    BOOL: "?", U64: "Q", I64: "q", F64: "d",
}  # fmt: skip
F32_TYPE, F16_TYPE, Q4_0_TYPE, Q8_0_TYPE, Q4_K_TYPE = 0, 1, 2, 8, 12


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def numbers(kind: int, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{CODES[kind]}", *values)


def array(kind: int, items: Sequence[bytes], count: int | None = None) -> bytes:
    """Array type, length (`count` where it should lie), items."""
    return u32(kind) + u64(len(items) if count is None else count) + b"".join(items)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + u32(kind) + value


def tensor(name: str | bytes, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    """One tensor record; `dims` in GGUF's order, columns first."""
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Header, padding, data; `n_keys` and `n_tensors` where they should lie."""
    header = b"GGUF" + u32(version)
    header += u64(len(tensors) if n_tensors is None else n_tensors)
    header += u64(len(keys) if n_keys is None else n_keys)
    header += b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % alignment if data else 0) + data


def one_key(kind: int, value: bytes) -> bytes:
    return gguf([key("k", kind, value)])


def one_tensor(dims: list[int], type_id: int = 0, offset: int = 0, data: int = 4096) -> bytes:
    return gguf(tensors=[tensor("w", dims, type_id, offset)], data=bytes(data))


def aligned_to(kind: int, value: bytes) -> bytes:
    return gguf([key("general.alignment", kind, value)])


def sample() -> bytes:
    """Return a valid file: every value type, alone and in arrays, nested arrays, five tensors."""
    singles = {
        U8: 200, I8: -100, U16: 60000, I16: -30000, U32: 4_000_000_000, I32: -2_000_000_000,
        F32: 0.5, BOOL: True, U64: 1 << 63, I64: -(1 << 62), F64: 1e300,
    }  # fmt: skip
    keys = [key("general.architecture", STRING, string("llama"))]
    keys += [key(f"one.{kind}", kind, numbers(kind, v)) for kind, v in singles.items()]
    keys += [
        key(f"many.{kind}", ARRAY, array(kind, [numbers(kind, v)] * 3))
        for kind, v in singles.items()
    ]
    nested = array(ARRAY, [array(STRING, [string("x")]), array(U8, [b"\1", b"\2"]), array(F32, [])])
    keys += [
        key("general.alignment", U32, u32(64)),
        key(
            "tokens",
            ARRAY,
            array(STRING, [string("a"), string(""), string(b"\xff\xc3"), string("é")]),
        ),
        key("bad.text", STRING, string(b"\x80abc")),
        key("nested", ARRAY, array(ARRAY, [nested, array(ARRAY, []), array(I16, [b"\1\0"])])),
        key("empty", ARRAY, array(STRING, [])),
    ]
    tensors = [
        tensor("norm", [5], F32_TYPE, 0),
        tensor("gate", [32, 3], Q4_0_TYPE, 64),
        tensor("up", [64, 2], Q8_0_TYPE, 128),
        tensor("cube", [2, 3, 4], F16_TYPE, 320),
        tensor("down", [256, 1], Q4_K_TYPE, 384),
    ]
    data = bytes(i * 7 % 256 for i in range(384 + 144))
    return gguf(keys, tensors, data, alignment=64)
