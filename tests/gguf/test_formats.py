"""The format table against the `gguf` package's, and its arithmetic."""

from __future__ import annotations

import dataclasses

import gguf
import pytest

from rocmforge.gguf.formats import (
    FORMATS,
    K_FALLBACK,
    Format,
    format_of_ggml_type,
    ggml_type_name,
)

IN_GGUF = [fmt for fmt in FORMATS.values() if fmt.ggml_type is not None]


def test_names_are_the_ones_promised() -> None:
    assert list(FORMATS) == [
        *["F32", "F16", "BF16"],
        *["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"],
        *["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"],
        *["IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"],
        *["TQ2_0", "TQ1_0", "NVFP4", "MXFP4", "MXFP6_E2M3", "MXFP6_E3M2"],
    ]
    assert all(name == fmt.name for name, fmt in FORMATS.items())


@pytest.mark.parametrize("fmt", IN_GGUF, ids=lambda fmt: fmt.name)
def test_block_agrees_with_the_gguf_package(fmt: Format) -> None:
    kind = gguf.GGMLQuantizationType[fmt.name]
    assert fmt.ggml_type == kind.value
    assert (fmt.block_len, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert format_of_ggml_type(kind.value) is fmt


@pytest.mark.parametrize("name", ["MXFP6_E2M3", "MXFP6_E3M2"])
def test_mxfp6_is_a_scale_and_32_codes_of_6_bits(name: str) -> None:
    fmt = FORMATS[name]
    assert (fmt.block_len, fmt.block_bytes, fmt.ggml_type) == (32, 1 + 32 * 6 // 8, None)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("F32", 32),
        ("F16", 16),
        ("BF16", 16),
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q5_0", 5.5),
        ("Q5_1", 6),
        ("Q8_0", 8.5),
        ("Q2_K", 2.625),
        ("Q3_K", 3.4375),
        ("Q4_K", 4.5),
        ("Q5_K", 5.5),
        ("Q6_K", 6.5625),
        ("IQ4_NL", 4.5),
        ("IQ4_XS", 4.25),
        ("IQ3_S", 3.4375),
        ("IQ3_XXS", 3.0625),
        ("IQ2_S", 2.5625),
        ("IQ2_XS", 2.3125),
        ("IQ2_XXS", 2.0625),
        ("IQ1_M", 1.75),
        ("IQ1_S", 1.5625),
        ("TQ2_0", 2.0625),
        ("TQ1_0", 1.6875),
        ("NVFP4", 4.5),
        ("MXFP4", 4.25),
        ("MXFP6_E2M3", 6.25),
        ("MXFP6_E3M2", 6.25),
    ],
)
def test_bits_of_a_weight(name: str, bits: float) -> None:
    assert FORMATS[name].bits_per_weight == bits


def test_row_bytes_and_nbytes() -> None:
    q4_k = FORMATS["Q4_K"]
    assert q4_k.row_bytes(4096) == 16 * 144
    assert q4_k.row_bytes(0) == 0
    assert q4_k.nbytes((4096, 4096)) == 4096 * 16 * 144
    assert q4_k.nbytes((2, 3, 256)) == 6 * 144
    assert q4_k.nbytes((256,)) == 144
    assert q4_k.nbytes((0, 256)) == 0
    assert FORMATS["F32"].nbytes((7,)) == 28


@pytest.mark.parametrize("columns", [1, 255, 896, -256])
def test_columns_that_do_not_fill_blocks_are_refused(columns: int) -> None:
    with pytest.raises(ValueError, match=rf"Q6_K.*got {columns}.*multiple of 256"):
        FORMATS["Q6_K"].row_bytes(columns)


@pytest.mark.parametrize("shape", [(), (-1, 32), (4, -32)])
def test_shapes_without_meaning_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Q4_0"):
        FORMATS["Q4_0"].nbytes(shape)


@pytest.mark.parametrize("type_id", [-1, 4, 9, 1000])
def test_unknown_type_id_names_what_is_supported(type_id: int) -> None:
    with pytest.raises(ValueError, match=rf"got {type_id}( \(Q8_1\))?, wanted .*12 \(Q4_K\)"):
        format_of_ggml_type(type_id)


def test_every_type_of_the_gguf_package_has_its_name() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert ggml_type_name(kind.value) == f"{kind.value} ({kind.name})"
    assert ggml_type_name(5) == "5"


def test_fallbacks_hold_short_rows_and_at_least_as_many_bits() -> None:
    assert dict(K_FALLBACK) == {
        "Q2_K": "Q4_0",
        "Q3_K": "Q4_0",
        "Q4_K": "Q5_0",
        "Q5_K": "Q5_1",
        "Q6_K": "Q8_0",
        "IQ4_XS": "IQ4_NL",
        "IQ3_S": "IQ4_NL",
        "IQ3_XXS": "IQ4_NL",
        "IQ2_S": "IQ4_NL",
        "IQ2_XS": "IQ4_NL",
        "IQ2_XXS": "IQ4_NL",
        "IQ1_M": "IQ4_NL",
        "IQ1_S": "IQ4_NL",
        "TQ2_0": "Q4_0",
        "TQ1_0": "Q4_0",
        "NVFP4": "IQ4_NL",
    }
    for name, other in K_FALLBACK.items():
        assert FORMATS[other].block_len == 32
        assert FORMATS[other].bits_per_weight >= FORMATS[name].bits_per_weight


def test_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FORMATS["F32"] = FORMATS["F16"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        FORMATS["F32"].block_len = 2  # type: ignore[misc]
