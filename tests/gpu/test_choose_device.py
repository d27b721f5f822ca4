"""Which GPU is chosen among many, and what is said of it."""

from __future__ import annotations

import pytest

from rocmforge.errors import DeviceError
from rocmforge.gpu import cross_compile
from rocmforge.gpu.choose_device import SUPPORTED, check_architecture, choose_device, supported
from rocmforge.gpu.compiler import Build
from rocmforge.gpu.cross_compile import ARCHITECTURES, FURTHER
from rocmforge.gpu.runtime import DeviceProperties


def gpu(
    index: int, architecture: str, units: int, *, integrated: bool = False, name: str = "card"
) -> DeviceProperties:
    return DeviceProperties(
        index=index,
        name=name,
        architecture=architecture,
        wave_size=32,
        compute_units=units,
        memory_bytes=24 << 30,
        shared_bytes=65536,
        integrated=integrated,
    )


APU = gpu(0, "gfx1036", 2, integrated=True, name="Graphics")
BIG_APU = gpu(0, "gfx1151", 40, integrated=True, name="8060S")
SMALL = gpu(1, "gfx1102", 32, name="RX 7600")
LARGE = gpu(2, "gfx1100", 96, name="RX 7900 XTX")
TWIN = gpu(3, "gfx1100", 96, name="RX 7900 XTX")
OLD = gpu(4, "gfx803", 64, name="RX 580")
H200 = gpu(0, "sm_90", 132, name="H200")
MAXWELL = gpu(1, "sm_52", 24, name="GTX 980")


@pytest.mark.parametrize(
    ("hip", "cuda", "kind", "wanted"),
    [
        ([APU, SMALL], [], "auto", ("hip", SMALL)),
        ([BIG_APU, SMALL], [], "auto", ("hip", SMALL)),
        ([APU], [], "auto", ("hip", APU)),
        ([APU], [H200], "auto", ("cuda", H200)),
        ([SMALL], [H200], "auto", ("hip", SMALL)),
        ([SMALL, LARGE, TWIN], [], "auto", ("hip", LARGE)),
        ([TWIN, LARGE], [], "hip", ("hip", TWIN)),
        ([OLD, APU], [], "auto", ("hip", APU)),
        ([OLD, SMALL], [H200], "cuda", ("cuda", H200)),
        ([OLD], [MAXWELL], "auto", ("cpu", None)),
        ([], [], "auto", ("cpu", None)),
        ([LARGE], [], "cpu", ("cpu", None)),
    ],
)
def test_the_choice(
    hip: list[DeviceProperties],
    cuda: list[DeviceProperties],
    kind: str,
    wanted: tuple[str, DeviceProperties | None],
) -> None:
    choice = choose_device({"hip": hip, "cuda": cuda}, kind)
    assert (choice.kind, choice.device) == wanted


def test_the_reason_names_every_other_card() -> None:
    found = {"hip": [APU, SMALL, LARGE, TWIN, OLD], "cuda": [H200]}
    assert choose_device(found).reason == (
        "hip:2 RX 7900 XTX (gfx1100, 96 compute units, 24 GiB): hip:0 Graphics is integrated; "
        "hip:1 RX 7600 has 32 compute units; hip:3 RX 7900 XTX is its equal; "
        "hip:4 RX 580 is gfx803, which is not supported; cuda:0 H200 is cuda, and hip comes first"
    )
    assert choose_device({"cuda": [H200]}).reason.endswith("24 GiB): the only GPU")
    assert choose_device({}).reason == "the CPU: no GPU was found"
    assert "RX 580 (gfx803, 64 compute units, 24 GiB): its architecture is not supported" in (
        choose_device({"hip": [OLD]}).reason
    )


def test_a_device_by_its_number() -> None:
    found = {"hip": [APU, SMALL, LARGE]}
    choice = choose_device(found, "hip", 0)
    assert choice.device is APU
    assert choice.reason.endswith("it was asked for")


@pytest.mark.parametrize(
    ("kind", "index", "message"),
    [
        ("hip", 7, r"device 'hip:7' is not there; of this kind there are: hip:4 RX 580"),
        ("cuda", 0, r"device 'cuda:0' is not there; of this kind there are: none"),
        ("hip", 4, r"hip:4 RX 580 .*gfx803.*not supported, wanted gfx906 to gfx950"),
        ("hip", None, r"device 'hip': hip:4 RX 580 .*not supported, wanted gfx906 to gfx950"),
        ("cuda", None, r"device 'cuda': no such GPU was found"),
    ],
)
def test_what_cannot_be_had_is_named(kind: str, index: int | None, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        choose_device({"hip": [OLD]}, kind, index)


def test_an_unsupported_nvidia_card_names_what_is() -> None:
    with pytest.raises(DeviceError, match=r"GTX 980 .*wanted sm_80 \(Ampere\) or later"):
        choose_device({"cuda": [MAXWELL]}, "cuda")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *FURTHER])
def test_what_the_kernels_compile_for_is_supported(architecture: str) -> None:
    assert supported("hip", gpu(0, architecture, 1))


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("hip", "gfx1100x"),
        ("hip", "gfx1170"),
        ("hip", "gfx1250"),
        ("hip", "gfx900"),
        ("hip", "sm_90"),
        ("cuda", "sm_75"),
        ("cuda", "gfx1100"),
    ],
)
def test_others_are_not(kind: str, architecture: str) -> None:
    assert set(SUPPORTED) == {"hip", "cuda"}
    assert not supported(kind, gpu(0, architecture, 1))


@pytest.mark.parametrize("architecture", ["gfx1250", "gfx1251"])
def test_an_architecture_without_kernels_is_refused_with_its_reason(architecture: str) -> None:
    card = gpu(0, architecture, 256, name="MI450")
    reason = rf"MI450 \({architecture}, .*: its architecture is not supported: matrix units"
    with pytest.raises(DeviceError, match=reason):
        choose_device({"hip": [card]}, "hip")
    with pytest.raises(DeviceError, match=f"{architecture}: not supported: matrix units"):
        check_architecture("hip", architecture)


@pytest.mark.parametrize("architecture", ["gfx803", "gfx1310", "gfx", "sm_90"])
def test_an_unknown_architecture_is_refused_by_name(architecture: str) -> None:
    with pytest.raises(
        DeviceError, match=f"{architecture}: not supported, wanted gfx906 to gfx950"
    ):
        check_architecture("hip", architecture)
    with pytest.raises(DeviceError, match=f"architecture {architecture}: not supported"):
        cross_compile.compile_build(Build("rmsnorm.hip", {}), architecture)
