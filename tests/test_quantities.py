"""How bytes, counts, times and rates are written."""

from __future__ import annotations

import pytest

from rocmforge.quantities import number_text, time_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0 µs"),
        (1.234e-9, "0.00123 µs"),
        (42e-6, "42 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),  # and not 1e+03 µs
        (-999.6e-6, "-1 ms"),
        (0.1234, "123 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (1234.5, "1234 s"),
    ],
)
def test_a_time_has_three_digits_and_no_exponent(seconds: float | None, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (999.96, "1000"), (1234.5, "1234"), (23821.4, "23821")]
)
def test_a_number_has_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert number_text(value) == text
