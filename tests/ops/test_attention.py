"""attention on every instruction set against the float64 reference, and what it must not read.

The cases fill every unused slot of the cache with NaN, so that one read of it is seen.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import AttentionCase, AttentionInputs

ISAS = instruction_sets()

MORE = (
    AttentionCase((19,), (4,), 3, 1, 1, page_size=16),
    AttentionCase((70, 1), (33, 1), 4, 2, 7, page_size=32, dtype="float32"),
    AttentionCase((1100,), (65,), 2, 1, 33, page_size=64),
    AttentionCase((16, 32, 64), (16, 1, 64), 2, 2, 16, page_size=16),
    AttentionCase((70, 33), (40, 1), 4, 2, 320, page_size=32),
    AttentionCase((65,), (65,), 2, 1, 301, page_size=64, dtype="float32"),
    AttentionCase((40,), (9,), 8, 1, 512, page_size=16),
)
"""Head dims below and beside a vector, and above those of GPUs; a long context, lengths that just
fill their pages."""


@functools.cache
def case_data(case: AttentionCase) -> tuple[AttentionInputs, NDArray[np.float64]]:
    given = case.inputs()
    with np.errstate(invalid="ignore"):
        return given, reference.attention(*given.arguments)


def attend(given: AttentionInputs, backend: CpuBackend) -> NDArray[np.float32]:
    return ops.attention(*given.arguments, backend)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.ATTENTION_CHECKS + MORE, ids=str)
def test_attention_agrees_with_the_reference(case: AttentionCase, isa: str) -> None:
    given, wanted = case_data(case)
    one, two = (attend(given, CpuBackend(threads, isa=isa)) for threads in (1, 2))
    assert cases.relative_rms(one, wanted) <= case.tolerance("exact")
    assert np.abs(one - wanted).max() <= 2e-5 * np.abs(wanted).max()
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(1, None, False), (16, None, True), (33, 2.0, False), (64, None, False), (None, 0.7, True)],
)
@pytest.mark.parametrize("case", cases.ATTENTION_CHECKS + MORE, ids=str)
def test_windows_soft_caps_and_sinks(
    case: AttentionCase, window: int | None, softcap: float | None, sinks: bool, isa: str
) -> None:
    given = case.inputs()
    last = np.linspace(-2, 3, case.heads).astype(np.float32) if sinks else None
    with np.errstate(invalid="ignore"):
        wanted = reference.attention(*given.arguments, window, softcap, last)
    outs = []
    for threads in (1, 2):
        out = np.full_like(given.q, np.nan)
        CpuBackend(threads, isa=isa).attention(*given.arguments, out, window, softcap, last)
        outs.append(out)
    assert cases.relative_rms(outs[0], wanted) <= 2 * case.tolerance("exact")
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize("isa", ISAS)
def test_keys_outside_the_window_are_not_read(isa: str) -> None:
    """Their pages may be gone: here they hold NaN."""
    case = AttentionCase((200,), (3,), 4, 2, 32, page_size=16)
    given, out = case.inputs(), np.empty((3, 4, 32), np.float32)
    arguments = given.arguments
    backend = CpuBackend(1, isa=isa)
    backend.attention(*arguments, out, 40)
    given.k_pages[given.page_table[0, :9]] = np.nan  # tokens before 144; the first sees 158
    given.v_pages[given.page_table[0, :9]] = np.nan
    again = np.empty_like(out)
    backend.attention(*arguments, again, 40)
    np.testing.assert_array_equal(out, again)


def test_the_tolerance_would_notice_one_token_more_or_less() -> None:
    case = cases.ATTENTION_CHECKS[2]
    given, wanted = case_data(case)
    shorter = dataclasses.replace(given, lengths=given.lengths - 1)
    error = cases.relative_rms(attend(shorter, CpuBackend(1)), wanted)
    assert error > 100 * case.tolerance("exact")


@pytest.mark.parametrize("isa", ISAS)
def test_a_query_sees_the_same_alone_and_in_its_prompt(isa: str) -> None:
    given, _ = case_data(AttentionCase((40, 70), (40, 3), 8, 1, 128, dtype="float32"))
    backend = CpuBackend(2, isa=isa)
    together = attend(given, backend)
    for position in range(40):
        alone = dataclasses.replace(
            given,
            q=given.q[position : position + 1].copy(),
            page_table=given.page_table[:1].copy(),
            lengths=np.array([position + 1], np.int32),
            starts=np.array([0, 1], np.int32),
        )
        assert cases.relative_rms(attend(alone, backend), together[position : position + 1]) < 2e-6


@pytest.mark.parametrize("isa", ISAS)
def test_a_sequence_without_queries_and_spare_columns_change_nothing(isa: str) -> None:
    case = AttentionCase((65, 7, 130), (1, 1, 1), 6, 2, 80, page_size=64)
    given, wanted = case_data(case)
    padded = np.full((4, given.page_table.shape[1] + 3), -1, np.int32)
    padded[[0, 1, 3], : given.page_table.shape[1]] = given.page_table
    padded[2, 0] = 0
    more = dataclasses.replace(
        given,
        page_table=padded,
        lengths=np.array([65, 7, 5, 130], np.int32),
        starts=np.array([0, 1, 2, 2, 3], np.int32),
    )
    got = attend(more, CpuBackend(2, isa=isa))
    np.testing.assert_array_equal(got, attend(given, CpuBackend(1, isa=isa)))
    assert cases.relative_rms(got, wanted) <= case.tolerance("exact")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [0.0, 1e4], ids=["equal", "huge"])
def test_equal_and_huge_scores(isa: str, size: float) -> None:
    """Equal scores mix all values evenly; scores of ±1e4 must neither overflow nor become NaN."""
    case = AttentionCase((100,), (37,), 4, 2, 32, page_size=16, dtype="float32")
    given, _ = case_data(case)
    given = dataclasses.replace(given, q=given.q * np.float32(size))
    with np.errstate(invalid="ignore"):
        wanted = reference.attention(*given.arguments)
    got = attend(given, CpuBackend(1, isa=isa))
    # At 1e4 a float32 score is off by 1e-3, and so is a weight between two near-equal tokens.
    assert cases.relative_rms(got, wanted) <= (2e-6 if size == 0 else 3e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=["nan", "inf"])
def test_what_is_not_finite_comes_out_as_such(isa: str, bad: float) -> None:
    case = AttentionCase((70,), (40,), 4, 2, 32, page_size=32, dtype="float32")
    given, _ = case_data(case)
    backend = CpuBackend(2, isa=isa)
    clean = attend(given, backend)
    q = given.q.copy()
    q[7, 2, 5] = bad
    got = attend(dataclasses.replace(given, q=q), backend)
    assert not np.isfinite(got[7, 2]).any()
    others = np.ones((40, 4), bool)
    others[7, 2] = False
    np.testing.assert_array_equal(got[others], clean[others])

    # Token 50 of KV head 1: seen by queries 20 and later, those of heads 2 and 3.
    k = given.k_pages.copy()
    k[given.page_table[0, 1], 1, 3, 50 - 32] = bad
    got = attend(dataclasses.replace(given, k_pages=k), backend)
    np.testing.assert_array_equal(got[:, :2], clean[:, :2])
    np.testing.assert_array_equal(got[:20], clean[:20])
    # A score of −∞ is a weight of 0; +∞ has none.
    finite = np.isfinite(got[20:, 2:]).all(-1)
    np.testing.assert_array_equal(finite, bad * given.q[20:, 2:, 3] < 0)


@pytest.mark.parametrize("isa", ISAS)
def test_a_value_that_is_not_finite_reaches_those_who_see_it(isa: str) -> None:
    case = AttentionCase((70,), (40,), 4, 2, 32, page_size=32, dtype="float32")
    given, _ = case_data(case)
    clean = attend(given, CpuBackend(1, isa=isa))
    v = given.v_pages.copy()
    v[given.page_table[0, 1], 1, 50 - 32, 9] = np.nan
    got = attend(dataclasses.replace(given, v_pages=v), CpuBackend(1, isa=isa))
    assert np.isnan(got[20:, 2:, 9]).all()
    others = np.arange(32) != 9
    np.testing.assert_array_equal(got[..., others], clean[..., others])
    np.testing.assert_array_equal(got[:, :2], clean[:, :2])


CASE = AttentionCase((40, 20), (3, 20), 4, 2, 16, page_size=16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((23, 4, 16))}, r"q: got float64 \(23, 4, 16\), wanted float32"),
        ({"q": np.zeros((23, 4), "f4")}, r"q: got float32 \(23, 4\)"),
        ({"q": np.zeros((0, 4, 16), "f4")}, r"q: got float32 \(0, 4, 16\)"),
        ({"q": np.zeros((23, 4, 32), "f4")[..., ::2]}, "q: got a strided array"),
        ({"q": np.zeros((23, 4, 513), "f4")}, "q: got head dim 513, wanted at most 512"),
        ({"q": np.zeros((23, 4, 15), "f4")}, r"k_pages: got float16 \(\d+, 2, 16, 16\)"),
        ({"q": np.zeros((23, 5, 16), "f4")}, "k_pages: got 2 KV heads, wanted a divisor of 5"),
        ({"q": np.zeros((22, 4, 16), "f4")}, r"starts: got \[0, 3, 23\] .* wanted 0 to 22"),
        ({"k_pages": np.zeros((6, 2, 16), "f2")}, r"k_pages: got float16 \(6, 2, 16\)"),
        ({"k_pages": np.zeros((6, 0, 16, 16), "f2")}, r"k_pages: got float16 \(6, 0, 16, 16\)"),
        ({"k_pages": np.zeros((6, 2, 16, 16), "i2")}, "k_pages: got int16"),
        ({"k_pages": np.zeros((6, 2, 16, 16), "f8")}, "k_pages: got float64"),
        ({"k_pages": np.zeros((6, 2, 16, 48), "f2")}, r"k_pages: .* P one of \(16, 32, 64\)"),
        ({"k_pages": np.zeros((6, 2, 16, 32), "f2")[..., ::2]}, "k_pages: got a strided"),
        ({"v_pages": np.zeros((6, 2, 16, 16), "f4")}, r"v_pages: got float32 .* wanted float16"),
        ({"v_pages": np.zeros((5, 2, 16, 16), "f2")}, r"v_pages: got float16 \(5, 2, 16, 16\)"),
        ({"lengths": np.array([40, 20])}, r"lengths: got int64 \(2,\), wanted int32"),
        ({"lengths": np.array([40, 19], "i4")}, r"starts: .* lengths \[40, 19\]"),
        ({"lengths": np.array([2, 20], "i4")}, r"starts: .* lengths \[2, 20\]"),
        ({"lengths": np.array([-1, 20], "i4")}, r"starts: .* lengths \[-1, 20\]"),
        ({"lengths": np.array([49, 20], "i4")}, "page_table: got 3 columns, wanted 4"),
        ({"lengths": np.array([40, 33], "i4")}, "page_table: got -1 to"),
        ({"lengths": np.array([2**31 - 1, 20], "i4")}, "page_table: got 3 columns, wanted"),
        ({"page_table": np.zeros((1, 3), "i4")}, r"page_table: got int32 \(1, 3\)"),
        ({"page_table": np.zeros((2, 3), "i8")}, "page_table: got int64"),
        ({"page_table": np.full((2, 3), 6, "i4")}, "page_table: got 6 to 6, wanted 0 to 5"),
        ({"page_table": np.full((2, 3), -1, "i4")}, "page_table: got -1 to -1, wanted 0 to 5"),
        ({"starts": np.array([0, 23], "i4")}, r"starts: got int32 \(2,\)"),
        ({"starts": np.array([1, 3, 23], "i4")}, r"starts: got \[1, 3, 23\]"),
        ({"starts": np.array([0, 24, 23], "i4")}, r"starts: got \[0, 24, 23\]"),
        ({"starts": np.array([0, 3, 22], "i4")}, r"starts: got \[0, 3, 22\]"),
        ({"q": [[[1.0]]]}, "q: got list, wanted float32"),
    ],
)
def test_the_door_names_what_is_wrong(change: dict[str, object], message: str) -> None:
    given, _ = case_data(CASE)
    assert given.k_pages.shape[0] == 6
    with pytest.raises(ValueError, match=message):
        attend(dataclasses.replace(given, **change), CpuBackend(1))
