"""Every environment variable that ROCmForge reads: name, type, default, one line of meaning.

Each is read at the time of the call, never at import, so that a test or a benchmark can set one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

CPU_ISAS = ("avx512", "avxvnni", "avx2", "portable")
MAX_THREADS = 1024
DEVICES = ("auto", "cpu", "hip", "cuda")
GPU_KINDS = DEVICES[2:]

SplitMode = Literal["layer", "tensor", "stream"]
"""How a model is shared: between devices, some layers each or a part of every matrix; or a GPU
computes all of it, and the weights of some layers stay in the host's memory."""
SPLIT_MODES: tuple[SplitMode, ...] = get_args(SplitMode)


def _choice(name: str, choices: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name, "") or default
    if value not in choices and value != default:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(choices)}")
    return value


def cpu_exact() -> bool:
    """ROCMFORGE_CPU_EXACT (0 | 1, default 0): matmul in float32, no rounding to int8."""
    return _choice("ROCMFORGE_CPU_EXACT", ("0", "1"), "0") == "1"


def cpu_bf16() -> bool:
    """ROCMFORGE_CPU_BF16 (0 | 1, default 0): matrices that are not quantized, in bfloat16."""
    return _choice("ROCMFORGE_CPU_BF16", ("0", "1"), "0") == "1"


EXACT: Mapping[str, str] = MappingProxyType({"ROCMFORGE_CPU_EXACT": "1", "ROCMFORGE_CPU_BF16": "0"})
"""Variables of a process whose CPU products are to be in float32."""


def cpu_isa() -> str | None:
    """ROCMFORGE_CPU_ISA (avx512 | avxvnni | avx2 | portable): the set; default: the best."""
    return _choice("ROCMFORGE_CPU_ISA", CPU_ISAS, "") or None


def device() -> str:
    """ROCMFORGE_DEVICE (auto | cpu | hip | cuda | hip:1 …, default auto): where none is named."""
    value = os.environ.get("ROCMFORGE_DEVICE", "") or "auto"
    split_device(value, "ROCMFORGE_DEVICE")
    return value


def split_device(value: str, what: str = "device") -> tuple[str, int | None]:
    """Split "hip:1" into kind and index; the index is None where there is none.

    Parameters
    ----------
    value
        One of DEVICES; of the GPUs, also with a colon and the runtime's number of the device.
    what
        What it is called in the error.

    Raises
    ------
    ValueError
        It is none of these.
    """
    kind, colon, index = value.partition(":")
    indexed = kind in GPU_KINDS and index.isascii() and index.isdigit() and len(index) < 4
    if kind not in DEVICES or (colon and not indexed):
        raise ValueError(
            f"{what}: got {value!r}, wanted one of {', '.join(DEVICES)}, "
            "or a GPU with its number, as hip:1"
        )
    return kind, int(index) if colon else None


def split_devices(value: str, what: str = "device") -> list[str]:
    """Split "hip:0,hip:1" into names of devices.

    Parameters
    ----------
    value
        Names with commas between them.
    what
        As of `split_device`.

    Raises
    ------
    ValueError
        One of them is no name of a device.
    """
    names = [name.strip() for name in value.split(",")]
    for name in names:
        split_device(name, what)
    return names


GPU_PACKAGES = "ROCMFORGE_GPU_PACKAGES"


def gpu_packages() -> tuple[str, ...] | None:
    """ROCMFORGE_GPU_PACKAGES (for pip, or none): what GPUs need; default: found by the machine."""
    value = os.environ.get(GPU_PACKAGES, "")
    names = tuple(value.split())
    if any(name.startswith("-") for name in names):
        raise ValueError(
            f"{GPU_PACKAGES}: got {value!r}, wanted packages as pip takes them, separated by "
            "spaces, as in hip-python==7.2.*, or none"
        )
    if not names:
        return None
    return () if names == ("none",) else names


def threads() -> int | None:
    """ROCMFORGE_THREADS (positive integer): CPU threads; default: the usable cores."""
    value = os.environ.get("ROCMFORGE_THREADS", "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= MAX_THREADS:
        raise ValueError(f"ROCMFORGE_THREADS: got {value!r}, wanted 1 to {MAX_THREADS}")
    return int(value)


def cache_dir() -> Path:
    """ROCMFORGE_CACHE (path): models and kernels made here; default: the user's ~/.cache."""
    value = os.environ.get("ROCMFORGE_CACHE", "")
    if value:
        path = Path(value)
        nearest = next((p for p in (path, *path.parents) if os.path.exists(p)), None)
        if nearest is not None and not nearest.is_dir():
            raise ValueError(
                f"ROCMFORGE_CACHE: got {value!r}, wanted a directory, or one that can be made: "
                f"{nearest} is no directory"
            )
        return path
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "rocmforge"


TUNING_OFF = "off"


def tuning() -> Path | str | None:
    """ROCMFORGE_TUNING (off | path): the table of `rocmforge tune`; default: this card's own."""
    value = os.environ.get("ROCMFORGE_TUNING", "")
    if value in ("", TUNING_OFF):
        return value or None
    path = Path(value)
    if not path.is_file():
        raise ValueError(f"ROCMFORGE_TUNING: got {value!r}, wanted off, or a file that exists")
    return path


def cache_folder(name: str) -> Path:
    """Make and return a folder of the cache, to be written to.

    Raises
    ------
    ValueError
        It cannot be made or written: names ROCMFORGE_CACHE, its value and what was wanted.
    """
    folder = cache_dir() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        value = os.environ.get("ROCMFORGE_CACHE", "")
        got = f"{value!r}" if value else f"no value, so {str(folder.parent)!r}"
        raise ValueError(
            f"ROCMFORGE_CACHE: got {got}, wanted a directory that can be written "
            f"({error.filename}: {error.strerror})"
        ) from error
    return folder


TEST_MODEL = ("ROCFORGE_TEST_MODEL", "ROCMFORGE_TEST_MODEL")
"""Two names of one variable."""


def test_model() -> Path | None:
    """ROCFORGE_TEST_MODEL, or ROCMFORGE_TEST_MODEL (path): a GGUF file to measure; default: none.

    Raises
    ------
    ValueError
        Both are set, to different values.
    """
    name = test_model_name()
    return Path(os.environ[name]) if name else None


def test_model_name() -> str | None:
    """Return which of `TEST_MODEL` is set, for messages; errors as `test_model`."""
    found = {name: os.environ[name] for name in TEST_MODEL if os.environ.get(name)}
    if len(set(found.values())) > 1:
        got = " and ".join(f"{name}={value!r}" for name, value in found.items())
        raise ValueError(f"test model: got {got}, wanted one of them, or the same file in both")
    return next(iter(found), None)


GFX_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


def gfx_overrides() -> dict[str, str]:
    """HSA_OVERRIDE_GFX_VERSION (10.3.0 …) and, for one node of the driver, … _VERSION_1, as set.

    They are of AMD's runtime, which takes GPUs for that architecture.
    """
    pattern = re.compile(rf"{GFX_OVERRIDE}(_\d+)?")
    return {name: value for name, value in os.environ.items() if pattern.fullmatch(name) and value}


def rocm_folders() -> list[Path]:
    """ROCM_PATH and ROCM_HOME (paths): where ROCm is, for hip-python; those that are set."""
    values = (os.environ.get(name, "") for name in ("ROCM_PATH", "ROCM_HOME"))
    return [Path(value) for value in values if value]


def visible_gpu(index: int) -> str:
    """Number or name, for the driver, of HIP's GPU `index`.

    HIP_VISIBLE_DEVICES over ROCR_VISIBLE_DEVICES choose and renumber GPUs for the runtime alone.
    """
    shown = str(index)
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        listed = [part.strip() for part in os.environ.get(name, "").split(",")]
        if shown.isdecimal() and int(shown) < len(listed) and listed[int(shown)]:
            shown = listed[int(shown)]
    return shown


READERS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "ROCMFORGE_CPU_EXACT": cpu_exact,
        "ROCMFORGE_CPU_BF16": cpu_bf16,
        "ROCMFORGE_CPU_ISA": cpu_isa,
        "ROCMFORGE_DEVICE": device,
        GPU_PACKAGES: gpu_packages,
        "ROCMFORGE_THREADS": threads,
        "ROCMFORGE_CACHE": cache_dir,
        "ROCMFORGE_TUNING": tuning,
        **dict.fromkeys(TEST_MODEL, test_model),
    }
)
"""Every variable of ours, and the function that reads it."""


def check() -> None:
    """Read every variable that is set; ValueError where one is wrong."""
    for name, read in READERS.items():
        if name in os.environ:
            read()


def unknown() -> dict[str, str]:
    """Return variables that are set and named like ours but read by nothing: name → nearest one."""
    names = [
        name
        for name in sorted(os.environ)
        if name.startswith(("ROCMFORGE_", "ROCFORGE_")) and name not in READERS
    ]
    if not names:
        return {}
    import difflib

    return {name: difflib.get_close_matches(name, READERS, n=1, cutoff=0)[0] for name in names}
