"""What `matmul_batch` chooses for a shape: tiles, blocks, ways to share them; nothing runs."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from rocmforge.gpu.arrays import F16, Permuted
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import matmul_batch as op
from rocmforge.gpu.ops.batch_blocks import COUNTERS, NARROW_COST, Sharing, Work, choose_sharing
from rocmforge.gpu.tuning import UNTUNED

ARCHITECTURES = ("gfx1100", "gfx1200", "gfx90a", "sm_80", "sm_90")
OWN, PAIRS = (Sharing.OWN,), (Sharing.PAIRS,)


def kernels_of(architecture: str) -> Any:
    """What a launch is cut by, of a device with 132 compute units."""
    properties = SimpleNamespace(architecture=architecture, compute_units=132)
    return SimpleNamespace(runtime=SimpleNamespace(properties=properties), tuning=UNTUNED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tokens", [*op.TOKENS, 2048])
@pytest.mark.parametrize("name", ["Q4_K", "F16", "F32"])
def test_constants_fit_the_kernel(architecture: str, name: str, tokens: int) -> None:
    for constants in op.tiles(architecture, name, tokens):
        lds = 227 << 10 if constants.launch_lds else 48 << 10
        assert constants.fits(architecture, wave_size(architecture), lds)
        if architecture == "sm_90":  # what kernels/batch_warpgroup.h asserts
            assert constants.ROW_WAVES % 4 == 0
            assert constants.TOKENS % (2 * constants.ROW_WAVES * constants.SPLITS) == 0


def test_hopper_multiplies_up_to_2048_tokens_of_packed_weights() -> None:
    packed, high, dense, floats = (
        DeviceMatrix.at(0, name, 2048, 256) for name in ("Q4_K", "Q6_K", "F16", "F32")
    )
    router = DeviceMatrix.at(0, "F32", 64, 256)
    for architecture, weights, most in (
        ("sm_90", (packed,), 2048),
        ("sm_90", (dense,), 128),
        ("sm_90", (packed, high), 2048),
        ("sm_90", (packed, dense), 128),
        ("sm_90", (floats,), 128),
        ("sm_90", (router,), 2048),
        ("sm_80", (packed,), 128),
        ("gfx1100", (packed,), 64),
    ):
        assert op.runs(architecture, weights, most)
        assert not op.runs(architecture, weights, most + 1)
        assert max(op.sizes(architecture, weights)) == most


def test_numbers_of_tokens_are_cut_like_the_next_size() -> None:
    kernels: Any = kernels_of("sm_90")
    sizes = list(op.sizes("sm_90", [DeviceMatrix.at(0, "Q4_K", 4096, 4096)]))
    for tokens in range(9, 2049, 7):
        size = next(size for size in sizes if size >= tokens)
        for rows, columns in ((22016, 4096), (4096, 11008), (128256, 4096)):
            cut = op._cut(kernels, "Q4_K", [rows], columns, tokens)
            assert cut == op._cut(kernels, "Q4_K", [rows], columns, size)
            assert cut.partial_bytes <= 32 << 20


def test_blocks_are_as_many_as_take_least_time() -> None:
    def blocks(bands: int, steps: int, resident: int, even: bool = True, tiles: int = 1) -> int:
        return op.blocks(Work(bands, steps, tiles, 132, resident, NARROW_COST), even=even)

    assert blocks(16, 32, resident=1) == 8 * 16
    assert blocks(96, 32, resident=3) == 4 * 96
    assert blocks(86, 32, resident=1) == 132
    assert blocks(86, 32, resident=1, even=False) == 3 * 86
    assert blocks(125, 32, resident=1) == 125
    assert blocks(1, 1, resident=2) == 1
    assert blocks(172, 32, resident=2, tiles=2) == 132  # all at once, with fewer blocks than bands
    assert blocks(1002, 32, resident=2) == 1002
    assert blocks(COUNTERS + 1, 32, resident=1) == COUNTERS + 1  # counters for none


def test_a_router_is_shared_by_many_blocks() -> None:
    kernels: Any = kernels_of("sm_90")
    for tokens, parts in ((16, 16), (128, 16), (512, 8)):
        cut = op._cut(kernels, "F32", [128], 2048, tokens)
        assert (cut.constants.rows, cut.bands, cut.blocks) == (64, 2, 2 * parts)


MEASURED = {  # µs on an H200, 2026-11-27: Q4_K, with 64 and 128 tokens a tile, not yet 256
    (12288, 4096, 128): (43.8, 45.5),
    (12288, 4096, 256): (77.7, 75.1),
    (12288, 4096, 512): (141.7, 132.5),
    (22016, 4096, 128): (77.2, 75.0),
    (22016, 4096, 192): (103.4, 125.9),
    (22016, 4096, 256): (141.4, 126.5),
    (22016, 4096, 512): (274.4, 223.9),
    (4096, 4096, 128): (19.2, 25.0),
    (4096, 4096, 256): (29.4, 31.7),
    (4096, 11008, 128): (38.8, 42.3),
    (4096, 11008, 512): (120.3, 115.8),
    (11264, 2048, 256): (42.0, 43.3),
    (11264, 2048, 512): (79.2, 67.3),
    (2048, 5632, 512): (37.3, 38.8),
}


def test_the_chosen_tile_is_nearly_the_fastest_on_the_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    every = op.tiles
    monkeypatch.setattr(op, "tiles", lambda *a: [tile for tile in every(*a) if tile != op.TALL])
    for (rows, columns, tokens), times in MEASURED.items():
        cut = op._cut(kernels_of("sm_90"), "Q4_K", [rows], columns, tokens)
        assert times[cut.constants == op.WIDE] <= 1.06 * min(times)


def test_tall_tiles_are_chosen_where_whole_passes_gained_by_them() -> None:
    """Gate and up of 7B lost by them with 256, 384 and 640 tokens, and gained from 512 on."""
    gate_up, down, several = ([22016], 4096), ([4096], 11008), ([4096] * 3, 4096)
    for tokens, tall in (
        (128, ()),
        (192, ()),
        (256, (down, several)),
        (384, ()),
        (512, (gate_up, down, several)),
        (640, ()),
        (1024, (gate_up, down, several)),
        (1536, (gate_up, down, several)),
        (2048, (gate_up, down, several)),
    ):
        for shape in (gate_up, down, several):
            cut = op._cut(kernels_of("sm_90"), "Q4_K", *shape, tokens)
            assert (cut.constants == op.TALL) == (shape in tall), (tokens, shape)


def test_common_formats_are_compiled_ahead() -> None:
    for architecture in ("gfx1100", "gfx942", "sm_80", "sm_90"):
        listed = [(b.file, dict(b.defines or {})) for b in op.builds(architecture)]
        assert len(listed) == len({str(entry) for entry in listed})
        shapes = ((22016, 4096), (4096, 11008))
        most = 2048 if architecture == "sm_90" else 128
        some = (9, 16, 33, 64, 128, 192, 512, 1024, 2048)
        for tokens, (rows, columns) in itertools.product(some, shapes):
            if tokens > most:
                continue
            cut = op._cut(kernels_of(architecture), "Q4_K", [rows], columns, tokens)
            read = Permuted if op.reads_permuted(architecture, columns) else F16
            macros = {**cut.defines(read(0)), "FORMAT_0": "Q4_K"}
            assert (op.GATE_UP_FILE, macros) in listed
            assert (op.FILE, {**macros, "FORMAT_1": "Q4_K", "FORMAT_2": "Q4_K"}) in listed


@pytest.mark.parametrize(
    ("bands", "count", "possible", "sharing", "places"),
    [
        (8, 8, (Sharing.OWN, Sharing.EVEN), Sharing.OWN, 0),
        (8, 16, (Sharing.OWN, Sharing.EVEN), Sharing.OWN, 16),
        (8, 12, (Sharing.OWN, Sharing.EVEN), Sharing.EVEN, 19),
        (8, 5, (Sharing.EVEN,), Sharing.EVEN, 8),
        (8, 5, (Sharing.EVEN, Sharing.PAIRS), Sharing.PAIRS, 4),
        (8, 12, (Sharing.EVEN, Sharing.PAIRS), Sharing.EVEN, 19),
        (8, 16, (Sharing.EVEN, Sharing.PAIRS), Sharing.EVEN, 23),
        (8, 12, PAIRS, Sharing.PAIRS, 19),
        (8, 16, OWN, Sharing.OWN, 16),
    ],
)
def test_blocks_share_bands_by_the_kernels_that_there_are(
    bands: int, count: int, possible: tuple[Sharing, ...], sharing: Sharing, places: int
) -> None:
    work = Work(bands, 32, 3, 132, 1, NARROW_COST)
    assert choose_sharing(work, count, possible) == sharing
    cut = op._Cut(op.WIDE, bands, 3, count, sharing)
    assert cut.partial_bytes == places * 3 * 4 * op.WIDE.rows * op.WIDE.TOKENS


def test_steps_that_cannot_be_counted_belong_to_bands() -> None:
    work = Work(1 << 12, 1 << 9, 1, 132, 1, NARROW_COST)
    assert choose_sharing(work, 1 << 12, PAIRS) == Sharing.OWN
