"""What an AMD code object says of its kernels: registers, LDS, scratch, spills, argument size.

A code object is an ELF file whose note "AMDGPU" holds a MessagePack map. Source: LLVM's "User Guide
for AMDGPU Backend", code object V3 and later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocmforge.errors import DeviceError

_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_AMDGPU_MACHINE = 224
_SYMBOLS, _NOTE, _DYNAMIC_SYMBOLS = 2, 7, 11  # section types
_FUNCTION = 2  # symbol type
_METADATA_NOTE = 32

# First byte of a value whose length follows: the kind, and struct codes of the length or the value.
_SIZED = {
    0xC4: ("bytes", "B"),
    0xC5: ("bytes", "H"),
    0xC6: ("bytes", "I"),
    0xCA: ("number", "f"),
    0xCB: ("number", "d"),
    0xCC: ("number", "B"),
    0xCD: ("number", "H"),
    0xCE: ("number", "I"),
    0xCF: ("number", "Q"),
    0xD0: ("number", "b"),
    0xD1: ("number", "h"),
    0xD2: ("number", "i"),
    0xD3: ("number", "q"),
    0xD9: ("text", "B"),
    0xDA: ("text", "H"),
    0xDB: ("text", "I"),
    0xDC: ("list", "H"),
    0xDD: ("list", "I"),
    0xDE: ("map", "H"),
    0xDF: ("map", "I"),
}
_SINGLE = {0xC0: None, 0xC2: False, 0xC3: True}
_DAMAGE = (
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes of a compute unit.

    Parameters
    ----------
    name
        The kernel.
    wave_size
        Lanes of a wave.
    block_threads
        Most threads of a block.
    vgprs
        Vector registers of a lane; on gfx90a and gfx942 accumulation registers are among them.
    sgprs
        Scalar registers of a wave.
    vgpr_spills, sgpr_spills
        Registers that did not fit.
    lds_bytes
        LDS of a block.
    scratch_bytes
        Memory of a lane, for spills and arrays that are indexed at run time.
    argument_bytes
        The argument struct.
    code_bytes
        Machine code.
    """

    name: str
    wave_size: int
    block_threads: int
    vgprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    argument_bytes: int
    code_bytes: int


def read_code_object(code: bytes) -> tuple[KernelResources, ...]:
    """Return the kernels of a code object in its order.

    Raises
    ------
    DeviceError
        It is no AMD code object, or is damaged.
    """
    try:
        if not code.startswith(_ELF64_LITTLE_ENDIAN):
            raise ValueError("no 64-bit little-endian ELF file")
        sections = _sections(code)
        sizes = _function_sizes(code, sections)
        kernels = _metadata(code, sections)["amdhsa.kernels"]
        return tuple(_resources(kernel, sizes) for kernel in kernels)
    except _DAMAGE as error:
        raise DeviceError(f"not an AMD code object of {len(code)} bytes: {error!r}") from error


def _resources(kernel: Mapping[str, Any], code_sizes: Mapping[str, int]) -> KernelResources:
    ends = [
        argument[".offset"] + argument[".size"]
        for argument in kernel.get(".args", [])
        if not argument[".value_kind"].startswith("hidden_")
    ]
    return KernelResources(
        name=kernel[".name"],
        wave_size=kernel[".wavefront_size"],
        block_threads=kernel[".max_flat_workgroup_size"],
        vgprs=kernel[".vgpr_count"],
        sgprs=kernel[".sgpr_count"],
        vgpr_spills=kernel.get(".vgpr_spill_count", 0),
        sgpr_spills=kernel.get(".sgpr_spill_count", 0),
        lds_bytes=kernel[".group_segment_fixed_size"],
        scratch_bytes=kernel[".private_segment_fixed_size"],
        argument_bytes=max(ends, default=0),
        code_bytes=code_sizes[kernel[".name"]],
    )


@dataclass(frozen=True)
class _Section:
    kind: int
    content: bytes
    link: int


def _sections(code: bytes) -> list[_Section]:
    machine, *_ = struct.unpack_from("<H", code, 18)
    if machine != _AMDGPU_MACHINE:
        raise ValueError(f"ELF machine {machine}, wanted {_AMDGPU_MACHINE}")
    (start,) = struct.unpack_from("<Q", code, 40)
    entry_bytes, entries = struct.unpack_from("<HH", code, 58)
    sections = []
    for i in range(entries):
        _, kind, _, _, offset, size, link = struct.unpack_from(
            "<IIQQQQI", code, start + i * entry_bytes
        )
        sections.append(_Section(kind, code[offset : offset + size], link))
    return sections


def _function_sizes(code: bytes, sections: list[_Section]) -> dict[str, int]:
    sizes = {}
    for section in sections:
        if section.kind in (_SYMBOLS, _DYNAMIC_SYMBOLS):
            names = sections[section.link].content
            for name, info, _, _, _, size in struct.iter_unpack("<IBBHQQ", section.content):
                if info & 0xF == _FUNCTION:
                    sizes[names[name : names.index(b"\0", name)].decode()] = size
    return sizes


def _metadata(code: bytes, sections: list[_Section]) -> Any:
    for section in sections:
        if section.kind == _NOTE:
            for kind, owner, content in _notes(section.content):
                if kind == _METADATA_NOTE and owner == b"AMDGPU":
                    return _Reader(content).value()
    raise ValueError("no AMDGPU metadata")


def _notes(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(content):
        name_bytes, value_bytes, kind = struct.unpack_from("<III", content, at)
        name = at + 12
        value = name + (name_bytes + 3) // 4 * 4
        yield kind, content[name : name + name_bytes].rstrip(b"\0"), content[value:][:value_bytes]
        at = value + (value_bytes + 3) // 4 * 4


class _Reader:
    """Reads one MessagePack value, as the specification at msgpack.org describes it."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def value(self) -> Any:
        first = self._take(1)[0]
        if first < 0x80 or first >= 0xE0:
            return first if first < 0x80 else first - 0x100
        if first in _SINGLE:
            return _SINGLE[first]
        if first < 0x90:
            return self._collection("map", first & 0xF)
        if first < 0xA0:
            return self._collection("list", first & 0xF)
        if first < 0xC0:
            return self._take(first & 0x1F).decode()
        kind, code = _SIZED[first]
        (number,) = struct.unpack(f">{code}", self._take(struct.calcsize(code)))
        if kind == "number":
            return number
        if kind in ("text", "bytes"):
            taken = self._take(number)
            return taken.decode() if kind == "text" else taken
        return self._collection(kind, number)

    def _collection(self, kind: str, entries: int) -> Any:
        if kind == "list":
            return [self.value() for _ in range(entries)]
        return {self.value(): self.value() for _ in range(entries)}

    def _take(self, nbytes: int) -> bytes:
        end = self._at + nbytes
        if end > len(self._content):
            raise ValueError("the metadata end too early")
        taken = self._content[self._at : end]
        self._at = end
        return taken
