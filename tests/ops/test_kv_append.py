"""kv_append on every instruction set: against a plain cache, every rounding, wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest
from kv.plain_cache import Batch, run_random_operations, slots_of
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.cpu.cache import PagedKVCache
from rocmforge.kv.batch import Slots
from rocmforge.ops import cases, reference

ISAS = instruction_sets()


@pytest.mark.parametrize("isa", ISAS)
def test_random_operations_agree_with_a_plain_cache(isa: str) -> None:
    backend = CpuBackend(2, isa=isa)

    def append(cache: PagedKVCache, layer: int, batch: Batch) -> None:
        slots = Slots(*slots_of(cache, batch))
        if slots.pages.size:  # the backend's own: `ops` takes no q8_0
            backend.kv_append(batch.k, batch.v, cache.k[layer], cache.v[layer], slots)

    run_random_operations(append, examples=20)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.KV_APPEND_CHECKS, ids=str)
def test_kv_append_agrees_with_the_reference(case: cases.KvAppendCase, isa: str) -> None:
    given = case.inputs()
    k, v, *got, slots = given.arguments
    wanted = [array.copy() for array in got]
    ops.kv_append(k, v, *got, slots, CpuBackend(2, isa=isa))
    reference.kv_append(k, v, *wanted, slots)
    for written, array in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(written, array)  # tolerance 0, and NaN where nothing goes
        assert (~np.isnan(array)).sum() == case.bytes // 2 // (4 + array.itemsize)
    assert case.tolerance == 0


def every_rounding() -> NDArray[np.float32]:
    """Each finite half, what lies halfway to the next, and the float32 on either side of that."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (half[:-1] + half[1:]) / 2
    up, down = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    last = np.float32([65519.996, 65520, 65536, 1e30, np.inf, np.nan, 1e-30, 2.0**-25, 2.0**-26])
    every = np.concatenate([half, middle, up, down, last]).astype(np.float32)
    every = np.concatenate([every, -every])
    return np.resize(every, (-(-every.size // 80), 1, 80))


@pytest.mark.parametrize("isa", ISAS)
def test_every_rounding_to_half_is_numpys(isa: str) -> None:
    x = every_rounding()
    n = x.shape[0]
    page, offset = np.divmod(np.arange(n, dtype=np.int32), np.int32(64))
    k_pages = np.zeros((page[-1] + 1, 1, 80, 64), np.float16)
    v_pages = np.zeros((page[-1] + 1, 1, 64, 80), np.float16)
    ops.kv_append(x, x, k_pages, v_pages, Slots(page, offset), CpuBackend(1, isa=isa))
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    np.testing.assert_array_equal(v_pages.reshape(-1, 1, 80)[:n], wanted)
    np.testing.assert_array_equal(k_pages.transpose(0, 3, 1, 2).reshape(-1, 1, 80)[:n], wanted)
    assert np.isinf(wanted).sum() >= 8  # what is too large shows, in attention, as NaN


GOOD = {
    "k": np.zeros((2, 3, 8), np.float32),
    "v": np.zeros((2, 3, 8), np.float32),
    "k_pages": np.zeros((4, 3, 8, 16), np.float16),
    "v_pages": np.zeros((4, 3, 16, 8), np.float16),
    "pages": np.array([0, 3], np.int32),
    "offsets": np.array([15, 0], np.int32),
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", np.zeros((2, 3, 8)), r"k: got float64 \(2, 3, 8\)"),
        ("k", np.zeros((2, 24), "f4"), r"k: got float32 \(2, 24\)"),
        ("k", np.zeros((2, 3, 16), "f4")[..., ::2], "k: got a strided array"),
        ("k", np.zeros((2, 2, 8), "f4"), r"v: got float32 \(2, 3, 8\), wanted float32 \(2, 2, 8\)"),
        ("v", np.zeros((1, 3, 8), "f4"), r"v: got float32 \(1, 3, 8\)"),
        ("k_pages", np.zeros((4, 3, 8, 16), "i2"), "k_pages: got int16"),
        ("k_pages", np.zeros((4, 3, 8, 24), "f2"), r"k_pages: .* P one of \(16, 32, 64\)"),
        ("k_pages", np.zeros((4, 3, 16), "f2"), r"k_pages: got float16 \(4, 3, 16\)"),
        ("k_pages", np.zeros((4, 2, 8, 16), "f2"), r"k_pages: got float16 \(4, 2, 8, 16\)"),
        ("k_pages", np.zeros((4, 3, 8, 32), "f2")[..., ::2], "k_pages: got a strided array"),
        ("v_pages", np.zeros((4, 3, 8, 16), "f2"), r"v_pages: got float16 \(4, 3, 8, 16\)"),
        ("v_pages", np.zeros((4, 3, 16, 8), "f4"), r"v_pages: got float32 .* wanted float16"),
        ("pages", np.array([0, 4], "i4"), "pages: got 0 to 4, wanted 0 to 3"),
        ("pages", np.array([-1, 0], "i4"), "pages: got -1 to 0, wanted 0 to 3"),
        ("pages", np.array([0, 1]), r"pages: got int64 \(2,\), wanted int32"),
        ("pages", np.array([0], "i4"), r"pages: got int32 \(1,\), wanted int32 \(2\)"),
        ("offsets", np.array([0, 16], "i4"), "offsets: got 0 to 16, wanted 0 to 15"),
        ("offsets", np.array([-1, 0], "i4"), "offsets: got -1 to 0, wanted 0 to 15"),
        ("offsets", np.zeros(4, "i4")[::2], "offsets: got a strided array"),
    ],
)
def test_the_door_names_what_is_wrong(name: str, value: object, message: str) -> None:
    given = {**GOOD, name: value}
    slots = Slots(given.pop("pages"), given.pop("offsets"))
    with pytest.raises(ValueError, match=message):
        ops.kv_append(**given, slots=slots, backend=CpuBackend(1))
