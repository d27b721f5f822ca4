"""The kernels of a GPU's ceilings: each does all of the work it claims, and nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.errors import DeviceError, MeasurementError
from rocmforge.gpu import cross_compile
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.cross_compile import ARCHITECTURES, compile_build
from rocmforge.gpu.ops import peaks as op
from rocmforge.profiling.roofline import measure_peaks

STEPS = 16


@pytest.mark.parametrize("elements", [1, 3, 255, 4099, 70001])
def test_threads_read_all_elements_in_turn(gpu: Gpu, elements: int) -> None:
    data = np.random.default_rng(elements).integers(0, 2**32, (elements, 4), dtype=np.uint32)
    source, out = gpu.upload(data), gpu.empty(4 * op.blocks(gpu.kernels))
    peak = op.peak_reads(
        gpu.kernels, data=source, nbytes=data.nbytes, word=0, out=out, least=op._LOADS
    )
    gpu.run(peak.launch)
    sums = gpu.download(out, op.blocks(gpu.kernels), np.uint32)
    each = data.sum(axis=1, dtype=np.uint32)
    loads = peak.amount // op.ELEMENT
    assert loads >= elements
    assert loads % (sums.size * peak.launch.threads * 8) == 0
    at = np.arange(loads).reshape(-1, sums.size, peak.launch.threads) % elements
    np.testing.assert_array_equal(sums, each[at].sum(axis=(0, 2), dtype=np.uint32))


@pytest.mark.parametrize("nbytes", [16, 48, 1 << 20])
def test_reads_of_one_word_are_counted(gpu: Gpu, nbytes: int) -> None:
    source, out = gpu.empty(nbytes), gpu.empty(4 * op.blocks(gpu.kernels))
    gpu.runtime.fill(source, 1, nbytes)
    peak = op.peak_reads(
        gpu.kernels, data=source, nbytes=nbytes, word=0x01010101, out=out, least=24
    )
    gpu.run(peak.launch)
    assert op.PeakLaunch.total(gpu.download(out, op.blocks(gpu.kernels), np.uint32)) == peak.wanted
    assert peak.amount >= nbytes


@pytest.mark.parametrize("precision", op.PRECISIONS)
def test_every_product_is_in_the_sum(gpu: Gpu, precision: str) -> None:
    out = gpu.empty(4 * op.blocks(gpu.kernels))
    amounts = []
    for steps in (STEPS, 3 * STEPS):
        peak = op.peak_products(gpu.kernels, precision=precision, out=out, steps=steps)
        gpu.run(peak.launch)
        sums = gpu.download(out, op.blocks(gpu.kernels), np.uint32)
        assert (sums == sums[0]).all()
        assert op.PeakLaunch.total(sums) == peak.wanted
        amounts.append(peak.amount)
    assert amounts[1] == 3 * amounts[0]
    constants = op.choose(gpu.runtime.properties.architecture)
    threads = op.blocks(gpu.kernels) * constants.THREADS
    tile = constants.TILES * 16**3 // gpu.runtime.properties.wave_size
    each = {"f32": constants.CHAINS, "int8": 4 * constants.CHAINS, "f16": tile}[precision]
    assert amounts[0] == 2 * threads * each * STEPS


@pytest.fixture
def backend(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> GpuBackend:
    """A backend that does little on the stand-in, which is slow."""
    if kernels.runtime.properties.name.lower().find("stand") >= 0:
        monkeypatch.setattr(op, "STEPS", dict.fromkeys(op.PRECISIONS, STEPS))
    return GpuBackend(kernels)


@pytest.mark.parametrize("precision", op.PRECISIONS)
def test_a_backend_measures_its_ceilings(backend: GpuBackend, precision: str) -> None:
    measure_peaks(backend, 1 << 16, precision)  # the kernels' code stays on the device
    free = backend.kernels.runtime.memory_info()[0]
    peaks = measure_peaks(backend, 1 << 16, precision)
    print(peaks)
    assert peaks.read_bytes_per_second > 0
    assert peaks.operations_per_second > 0
    assert (peaks.working_set, peaks.precision) == (1 << 16, precision)
    assert backend.kernels.runtime.memory_info()[0] == free


def test_work_left_out_is_an_error(backend: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op.PeakLaunch, "total", staticmethod(lambda out: -1))
    with pytest.raises(MeasurementError, match="peak_f32: got sum -1, wanted "):
        next(backend.operation_rates("f32"))
    with pytest.raises(MeasurementError, match="peak_reads: got sum -1, wanted "):
        next(backend.read_rates(1 << 12))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_of_the_loops_is_in_memory_or_left_out(
    architecture: str, repo: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", f"{repo}/build/cross_compile")
    try:
        cross_compile.clang_version()
    except DeviceError as error:
        pytest.skip(str(error))
    (build,) = op.builds(architecture)
    kernels = {k.resources.name: k for k in compile_build(build, architecture)}
    for name, kernel in kernels.items():
        found = kernel.resources
        assert found.vgpr_spills == found.sgpr_spills == found.scratch_bytes == 0, name
    constants = op.choose(architecture)
    assert kernels["peak_int8"].dot4 == 8 * constants.CHAINS
    assert kernels["peak_reads"].loads_128 == 8
    if architecture != "gfx1030":
        assert kernels["peak_f16"].matrix == 8 * constants.TILES
