"""Every environment variable that ROCmForge reads: name, type, default, one line of meaning.

Read at the time of the call, never at import, so that a test or a benchmark can set one.
This file knows no other module of the package but the errors.
"""

from __future__ import annotations

import os
from pathlib import Path

CPU_ISAS = ("avx512", "avx2", "portable")
MAX_THREADS = 1024
DEVICES = ("auto", "cpu", "hip", "cuda")


def _choice(name: str, choices: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name, "") or default
    if value not in choices and value != default:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(choices)}")
    return value


def cpu_exact() -> bool:
    """ROCMFORGE_CPU_EXACT (0 | 1, default 0): matmul in float32, no rounding to int8."""
    return _choice("ROCMFORGE_CPU_EXACT", ("0", "1"), "0") == "1"


def cpu_isa() -> str | None:
    """ROCMFORGE_CPU_ISA (avx512 | avx2 | portable): force an instruction set; default: the best."""
    return _choice("ROCMFORGE_CPU_ISA", CPU_ISAS, "") or None


def device() -> str:
    """ROCMFORGE_DEVICE (auto | cpu | hip | cuda, default auto): device where none is named."""
    return _choice("ROCMFORGE_DEVICE", DEVICES, "auto")


def threads() -> int | None:
    """ROCMFORGE_THREADS (positive integer): CPU threads; default: the usable cores."""
    value = os.environ.get("ROCMFORGE_THREADS", "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= MAX_THREADS:
        raise ValueError(f"ROCMFORGE_THREADS: got {value!r}, wanted 1 to {MAX_THREADS}")
    return int(value)


def cache_dir() -> Path:
    """ROCMFORGE_CACHE (path): generated models; default: rocmforge in the user's cache."""
    value = os.environ.get("ROCMFORGE_CACHE", "")
    if value:
        return Path(value)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "rocmforge"


def test_model() -> Path | None:
    """ROCFORGE_TEST_MODEL (path of a GGUF file): for the inference benchmarks; default: none."""
    value = os.environ.get("ROCFORGE_TEST_MODEL", "")
    return Path(value) if value else None
