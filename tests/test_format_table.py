"""Every other list of formats holds what `gguf.formats` has: C++ sources, compiled module, GPU,
mixes, the command line and the cases of the ops."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rocmforge import arguments
from rocmforge.cpu import _cpu
from rocmforge.cpu.backend import DENSE_FORMATS
from rocmforge.gguf.formats import FORMATS, PLAIN_FORMATS, Format
from rocmforge.gguf.random_blocks import RandomBytes, random_blocks
from rocmforge.gpu.matrix import DENSE, LAYOUTS
from rocmforge.model.mixes import find_mix, mix_names
from rocmforge.ops import cases

IN_FILES = [fmt for fmt in FORMATS.values() if fmt.ggml_type is not None]
BLOCKS = [fmt for fmt in FORMATS.values() if fmt.name not in PLAIN_FORMATS]


def test_plain_formats_are_not_quantized() -> None:
    assert PLAIN_FORMATS == ("F32", "F16", "BF16")


def test_cpp_lists_every_format_once(repo: Path) -> None:
    header = (repo / "rocmforge/cpu/format.h").read_text()
    assert sorted(re.findall(r"\bX\((\w+)\)", header)) == sorted(FORMATS)


def test_cpp_takes_for_quantized_what_python_does(repo: Path) -> None:
    header = (repo / "rocmforge/cpu/format.h").read_text()
    quantized = header.partition("QUANTIZED_FORMATS(X)")[2].partition("#define")[0]
    expected = [name for name in FORMATS if name not in DENSE_FORMATS]
    assert re.findall(r"\bX\((\w+)\)", quantized) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_the_compiled_module_has_it_by_its_name(name: str) -> None:
    assert _cpu.Kernels("", 1).empty(name, 16, 256, False).format == name


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_the_block_in_c_has_its_size(fmt: Format, repo: Path) -> None:
    header = "".join((repo / "kernels" / f).read_text() for f in ("blocks.h", "grid_blocks.h"))
    sizes = re.findall(rf"static_assert\(sizeof\({fmt.name}\) == (\d+)", header)
    assert sizes == [str(fmt.block_bytes)]
    struct = re.search(rf"struct {fmt.name}(?: : (\w+)(?:<\d+>)?)? \{{(.*?)\n\}};", header, re.S)
    assert struct
    base = re.search(rf"struct {struct[1]} \{{(.*?)\n\}};", header, re.S)
    columns = re.search(r"kColumns = (\d+)", struct[2] + (base[1] if base else ""))
    assert columns
    assert int(columns[1]) == fmt.block_len


def test_every_format_has_one_layout_on_gpus() -> None:
    assert sorted([*LAYOUTS, *DENSE]) == sorted(FORMATS)


@pytest.mark.parametrize("fmt", IN_FILES, ids=lambda fmt: fmt.name)
def test_what_a_file_can_hold_has_a_mix_and_random_blocks(fmt: Format) -> None:
    assert fmt.name in {find_mix(name).base for name in mix_names()}
    blocks = np.concatenate([*random_blocks(fmt, 512, 1.0, RandomBytes(0, "w"))])
    assert len(blocks) == fmt.row_bytes(512)


def test_cases_and_command_line_have_every_format() -> None:
    assert cases.MATMUL_CHECKS.keys() == FORMATS.keys()
    assert {case.format for case in cases.DEQUANTIZE_CHECKS} >= set(FORMATS)
    parsed = arguments.parser().parse_args(
        ["perplexity", *(f"--weight-format={name}" for name in FORMATS)]
    )
    assert parsed.weight_format == list(FORMATS)
