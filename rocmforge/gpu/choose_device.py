"""Which GPU a model runs on where nobody says so, and why: a pure function of what was found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocmforge.errors import DeviceError
from rocmforge.gpu.runtime import DeviceProperties

Found = Mapping[str, Sequence[DeviceProperties]]
"""Devices by kind, "hip" and "cuda"."""

SUPPORTED = {
    "hip": (
        r"gfx(90[68a]|94[012]|950|101[0-3]|103[0-6]|110[0-3]|115[0-3]|120[01])",
        "gfx906 to gfx950 (Instinct), gfx101x, gfx103x, gfx110x, gfx115x or gfx120x (Radeon)",
    ),
    "cuda": (r"sm_(8\d|9\d|1\d\d)", "sm_80 (Ampere) or later"),
}
"""Of each kind, the architectures that the kernels compile for: as a pattern and in words. Waves,
dot products and matrix units of others are not in kernels/device.h and kernels/tile.h."""

_WITHOUT_KERNELS = {
    r"gfx125\d": "matrix units whose tiles are 16 × 16 × 32, which kernels/tile.h has no code for",
}
"""Of AMD's architectures that are known but not supported, what stands against them."""


@dataclass(frozen=True)
class Choice:
    """A device and why it was chosen.

    Parameters
    ----------
    kind
        "cpu", "hip" or "cuda".
    device
        The GPU; None for the CPU.
    reason
        A sentence for people.
    """

    kind: str
    device: DeviceProperties | None
    reason: str

    @property
    def name(self) -> str:
        """What users call it: "cpu", or a GPU with its number, as "hip:1"."""
        return self.kind if self.device is None else f"{self.kind}:{self.device.index}"

    @property
    def name_or_reason(self) -> str:
        """A GPU's name; of the CPU why it was chosen, as that no GPU was found."""
        return self.reason if self.device is None else self.name


def supported(kind: str, device: DeviceProperties) -> bool:
    """Whether the kernels compile for a GPU's architecture."""
    return why_unsupported(kind, device.architecture) is None


def why_unsupported(kind: str, architecture: str) -> str | None:
    """Say why the kernels do not compile for an architecture; None where they do."""
    pattern, words = SUPPORTED[kind]
    if re.fullmatch(pattern, architecture):
        return None
    for known, reason in _WITHOUT_KERNELS.items():
        if re.fullmatch(known, architecture):
            return f"not supported: {reason}; wanted {words}"
    return f"not supported, wanted {words}"


def check_architecture(kind: str, architecture: str) -> None:
    """Raise DeviceError where the kernels do not compile for an architecture."""
    why_not = why_unsupported(kind, architecture)
    if why_not:
        raise DeviceError(f"architecture {architecture}: {why_not}")


def choose_device(found: Found, kind: str = "auto", index: int | None = None) -> Choice:
    """Choose among the devices of a machine.

    Discrete GPUs come before integrated ones, then AMD's before NVIDIA's, then more compute units,
    then the lower number. "auto" falls back on the CPU where there is no supported GPU.

    Parameters
    ----------
    found
        What the runtimes list; a kind that is not there may be missing.
    kind
        "auto", "cpu", "hip" or "cuda".
    index
        The runtime's number of the device; None: the best of its kind.

    Raises
    ------
    DeviceError
        The GPU that was asked for is not there, or its architecture is not supported.
    """
    if kind == "cpu":
        return Choice("cpu", None, "the CPU, which was asked for")
    if index is not None:
        return _named(found, kind, index)
    kinds = tuple(SUPPORTED) if kind == "auto" else (kind,)
    every = [(name, device) for name in kinds for device in found.get(name, ())]
    usable = [(name, device) for name, device in every if supported(name, device)]
    if not usable:
        return _none_usable(kind, every)
    name, best = min(
        usable, key=lambda at: (at[1].integrated, kinds.index(at[0]), -at[1].compute_units)
    )
    others = [at for at in every if at != (name, best)]
    return Choice(name, best, _sentence(name, best, others))


def describe(kind: str, device: DeviceProperties) -> str:
    """Name a GPU with what tells it from others, as hip:1 Radeon RX 7900 XTX (gfx1100, …)."""
    return (
        f"{kind}:{device.index} {device.name} ({device.architecture}, "
        f"{device.compute_units} compute units, {device.memory_bytes / 2**30:.0f} GiB)"
    )


def _named(found: Found, kind: str, index: int) -> Choice:
    for device in found.get(kind, ()):
        if device.index == index:
            if not supported(kind, device):
                raise DeviceError(f"device {describe(kind, device)}: {_unsupported(kind, device)}")
            return Choice(kind, device, f"{describe(kind, device)}: it was asked for")
    there = ", ".join(describe(kind, device) for device in found.get(kind, ())) or "none"
    raise DeviceError(f"device '{kind}:{index}' is not there; of this kind there are: {there}")


def _none_usable(kind: str, every: Sequence[tuple[str, DeviceProperties]]) -> Choice:
    unsupported = "; ".join(f"{describe(*at)}: {_unsupported(*at)}" for at in every)
    if kind == "auto":
        return Choice("cpu", None, f"the CPU: {unsupported or 'no GPU was found'}")
    raise DeviceError(f"device {kind!r}: {unsupported or 'no such GPU was found'}")


def _unsupported(kind: str, device: DeviceProperties) -> str:
    return f"its architecture is {why_unsupported(kind, device.architecture)}"


def _sentence(
    kind: str, best: DeviceProperties, others: Sequence[tuple[str, DeviceProperties]]
) -> str:
    if not others:
        return f"{describe(kind, best)}: the only GPU"
    aside = "; ".join(
        f"{name}:{device.index} {device.name} {_why_not(name, device, kind, best)}"
        for name, device in others
    )
    return f"{describe(kind, best)}: {aside}"


def _why_not(name: str, device: DeviceProperties, kind: str, best: DeviceProperties) -> str:
    if not supported(name, device):
        return f"is {device.architecture}, which is not supported"
    if device.integrated and not best.integrated:
        return "is integrated"
    if name != kind:
        return f"is {name}, and {kind} comes first"
    if device.compute_units < best.compute_units:
        return f"has {device.compute_units} compute units"
    return "is its equal"
