"""How bytes, counts, times and rates are written, in terminals and reports."""

from __future__ import annotations

import math


def human_size(nbytes: float) -> str:
    """Return bytes in the largest unit that leaves at least 1, e.g. ``"1.5 KiB"``."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def human_count(n: int) -> str:
    """Return a count with three digits or so, e.g. ``"1.24 G"``."""
    for thousands, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if n >= thousands:
            return f"{n / thousands:.2f}{unit}"
    return str(n)


def number_text(value: float) -> str:
    """Return a number with four digits, or all before the point, as 23820."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def time_text(seconds: float | None) -> str:
    """Return a time with three digits, as "1.23 ms"; None or NaN: a dash."""
    if seconds is None or math.isnan(seconds):
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        value = seconds * factor
        if abs(value) >= 0.9995:  # three digits of it are at least 1
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def rate_text(rate: float | None) -> str:
    """Return a rate in 10⁹ a second, three digits or all before the point; None or NaN: nothing."""
    if rate is None or math.isnan(rate):
        return ""
    giga = rate / 1e9
    return f"{giga:.0f}" if giga >= 100 else f"{giga:.3g}"
