"""The CPU backend beside its arithmetic: choice of instruction set and path, threads, fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu import _cpu
from rocmforge.cpu.backend import CpuBackend, available_threads, instruction_sets
from rocmforge.env import CPU_ISAS
from rocmforge.errors import DeviceError
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import Matrix, cases

Q4_0 = FORMATS["Q4_0"]
SHAPES = ((1, 32), (200, 1024), (3, 64), (64, 512), (17, 96))  # tokens, columns


needs_bf16 = pytest.mark.skipif(not _cpu.Kernels("", 1).multiplies_pairs, reason="no AVX512-BF16")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ISA", "EXACT", "BF16"):
        monkeypatch.delenv(f"ROCMFORGE_CPU_{name}", raising=False)
    monkeypatch.delenv("ROCMFORGE_THREADS", raising=False)


def test_instruction_sets_are_best_first_and_end_with_portable() -> None:
    found = instruction_sets()
    assert found == tuple(name for name in CPU_ISAS if name in found)
    assert found[-1] == "portable"
    assert CpuBackend().isa == found[0]


def test_instruction_sets_are_those_of_the_processor() -> None:
    with open("/proc/cpuinfo") as text:
        flags = set(next((line for line in text if line.startswith("flags")), "").split())
    assert ("avx2" in instruction_sets()) == ({"avx2", "fma", "f16c", "bmi2"} <= flags)
    assert ("avxvnni" in instruction_sets()) <= ("avx_vnni" in flags)
    assert ("avx512" in instruction_sets()) <= ({"avx512f", "avx512bw", "avx512_vnni"} <= flags)
    assert _cpu.Kernels("", 1).multiplies_pairs <= ("avx512_bf16" in flags)


@pytest.mark.parametrize("isa", instruction_sets())
def test_an_instruction_set_can_be_forced(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CpuBackend(isa=isa).isa == isa
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", isa)
    assert CpuBackend().isa == isa
    assert CpuBackend(isa="portable").isa == "portable"


def test_an_instruction_set_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"instruction set: got 'neon', wanted one of .*portable"):
        CpuBackend(isa="neon")
    monkeypatch.setattr("rocmforge.cpu.backend.instruction_sets", lambda: ("portable",))
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "avx512")
    with pytest.raises(DeviceError, match="got 'avx512', wanted one of portable on this processor"):
        CpuBackend()


def test_exact_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    x, matrix = cases.MatmulCase(3, 32, 128, "Q8_0").inputs()
    results = [
        ops.matmul(x, ops.pack(matrix, CpuBackend(1, exact=exact))) for exact in (True, False)
    ]
    assert 1e-4 < cases.relative_rms(results[1], results[0]) < cases.TOLERANCES["int8"]
    for variable, wanted in (("1", 0), ("0", 1), ("", 1)):
        monkeypatch.setenv("ROCMFORGE_CPU_EXACT", variable)
        backend = CpuBackend(1)
        assert backend.exact == (wanted == 0)
        np.testing.assert_array_equal(ops.matmul(x, ops.pack(matrix, backend)), results[wanted])
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    assert not CpuBackend(1, exact=False).exact


@needs_bf16
def test_bf16_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not CpuBackend().bf16
    monkeypatch.setenv("ROCMFORGE_CPU_BF16", "1")
    assert CpuBackend().bf16
    assert not CpuBackend(bf16=False).bf16


def test_bf16_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "wanted a processor with AVX512-BF16 and .*, got one that runs .*, and portable"
    with pytest.raises(DeviceError, match=wanted):
        CpuBackend(isa="portable", bf16=True)
    monkeypatch.setenv("ROCMFORGE_CPU_BF16", "1")
    with pytest.raises(ValueError, match=r"exact and bf16 .*: got both, wanted one"):
        CpuBackend(exact=True)


def test_threads_come_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CpuBackend().threads == available_threads() >= 1
    monkeypatch.setenv("ROCMFORGE_THREADS", "5")
    assert CpuBackend().threads == 5
    assert CpuBackend(2).threads == 2


@pytest.mark.parametrize("threads", [0, -1, -(2**31)])
def test_threads_below_one_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads: got {threads}, wanted 1 to 1024"):
        CpuBackend(threads)


@pytest.mark.parametrize(("threads", "error"), [(100_000, "ValueError"), (1000, "DeviceError")])
def test_more_threads_than_can_be_started(threads: int, error: str) -> None:
    """Too many for anyone, or for a process with 1 GB to spend, is an error and not the end.

    In a process of its own, which an error inside a thread library would end.
    """
    code = f"""
import resource
from rocmforge.cpu.backend import CpuBackend
from rocmforge.errors import DeviceError

with open("/proc/self/statm") as text:
    now = int(text.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, now + 2**30))
try:
    CpuBackend({threads})
except (ValueError, DeviceError) as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    assert done.stdout.startswith(f"{error} ")
    assert f"got {threads}" in done.stdout


def test_threads_end_with_their_backend() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/task"))
    backends = [CpuBackend(4) for _ in range(5)]
    assert len(os.listdir("/proc/self/task")) == before + 15
    backends.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == before


def jobs(backend: CpuBackend) -> list[tuple[NDArray[np.float32], ops.Weights]]:
    given = [cases.MatmulCase(tokens, 64, columns, "Q4_0").inputs() for tokens, columns in SHAPES]
    return [(x, ops.pack(matrix, backend)) for x, matrix in given]


def test_python_threads_may_share_a_backend() -> None:
    """Each call waits for the other's: one workspace, one pool."""
    backend = CpuBackend(2, exact=False)
    work = jobs(backend)
    wanted = [ops.matmul(x, w) for x, w in work]
    fresh = CpuBackend(2, exact=False)  # its workspace grows while others wait
    wrong: list[int] = []
    done = []

    def run(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, len(work), 60):
            x, w = work[i]
            got = ops.matmul(x, ops.Weights(fresh, w.packed, w.matrix))
            if not np.array_equal(got, wanted[i]):
                wrong.append(i)
        done.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [0, 1, 2, 3]
    assert wrong == []


def test_a_forked_child_computes_the_same() -> None:
    """A child has none of its parent's threads; in a process of its own, as a hang would hang."""
    code = """
import os
import numpy as np
from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend
from rocmforge.ops import cases

backend = CpuBackend(3, exact=False)
x, matrix = cases.MatmulCase(40, 200, 512, "Q4_K").inputs()
weights = ops.pack(matrix, backend)
wanted = ops.matmul(x, weights)
child = os.fork()
same = np.array_equal(ops.matmul(x, weights), wanted)
if child == 0:
    del weights, backend
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), same)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0 True\n"


def test_the_bindings_read_no_further_than_the_bytes_given() -> None:
    short = np.zeros((2, 18), np.uint8)  # one block a row
    with pytest.raises(ValueError, match="bytes of a row"):
        CpuBackend(1).pack(short, Q4_0, 64)
    with pytest.raises(ValueError, match="bytes of a row"):
        CpuBackend(1).dequantize(short, Q4_0, np.zeros((2, 64), np.float32))
    with pytest.raises(ValueError, match="pack"):
        CpuBackend(1).pack(short, Q4_0, 33)


def packed(floats: NDArray[np.float64], name: str, backend: CpuBackend) -> _cpu.PackedMatrix:
    """Weights of a format as the backend's own calls take them."""
    matrix = Matrix.from_floats(floats.astype(np.float32), name)
    return ops.pack(matrix, backend).packed


def test_the_bindings_check_what_would_be_written_out_of_bounds() -> None:
    backend = CpuBackend(1)
    weights = packed(np.ones((5, 64)), "Q4_0", backend)
    x = np.zeros((3, 64), np.float32)
    good = np.zeros((3, 5), np.float32)
    for arguments, message in (
        ((x, [weights], [np.zeros((2, 5), "f4")]), "out must be"),
        ((x, [weights], [np.zeros((3, 4), "f4")]), "out must be"),
        ((x, [weights], [good], [np.zeros(4, "f4")]), "bias must be"),
        ((x, [weights], [good, good]), "as many outs"),
        ((np.zeros((3, 32), "f4"), [weights], [good]), "columns differ"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.matmul(*arguments)
    other = packed(np.ones((6, 64)), "Q4_0", backend)
    for gate, up in ((weights, other), (other, weights)):
        with pytest.raises(ValueError, match="gate_up_swiglu: out must be"):
            backend.gate_up_swiglu(x, gate, up, "silu", good)
    rows = np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match="rmsnorm: shapes differ"):
        backend.rmsnorm(rows, np.zeros(7, np.float32), 0.0, rows)
    with pytest.raises(ValueError, match="softmax: shapes differ"):
        backend.softmax(rows, np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="swiglu: shapes differ"):
        backend.swiglu(rows, rows, np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="gelu: shapes differ"):
        backend.gelu(rows, np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="softcap: shapes differ"):
        backend.softcap(rows, 1.0, np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="layernorm: shapes differ"):
        backend.layernorm(rows, np.zeros(8, "f4"), np.zeros(7, "f4"), 0.0, rows)
    with pytest.raises(ValueError, match="rope: cos and sin"):
        backend.rope(
            np.zeros((2, 1, 4), "f4"), np.zeros((2, 3), "f4"), np.zeros((2, 3), "f4"), True
        )


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize(
    "formats", [("Q4_0", "Q4_0"), ("Q4_K", "Q6_K"), ("F16", "Q8_0"), ("Q5_K", "BF16")], ids=str
)
def test_gate_and_up_with_swiglu_are_what_the_ops_give(
    isa: str, exact: bool, formats: tuple[str, str]
) -> None:
    backend = CpuBackend(isa=isa, exact=exact)
    rows, columns = 56, 512  # the last tile is half empty
    rng = np.random.default_rng(3)
    gate, up = (packed(rng.standard_normal((rows, columns)), name, backend) for name in formats)
    for tokens in (1, 3, 16, 21, 300):  # 300: two blocks of tokens
        x = rng.standard_normal((tokens, columns), np.float32) / 16
        outs = [np.empty((tokens, rows), np.float32) for _ in range(3)]
        backend.matmul(x, [gate, up], outs[:2])
        wanted = ops.swiglu(outs[0], outs[1], backend)
        guarded = np.full((tokens + 1, rows), np.float32(7))
        backend.gate_up_swiglu(x, gate, up, "silu", guarded[:tokens])
        np.testing.assert_allclose(guarded[:tokens], wanted, rtol=1e-5, atol=1e-6)
        assert (guarded[tokens] == 7).all()


@pytest.mark.parametrize("isa", instruction_sets())
def test_gate_and_up_may_write_over_their_input_and_hide_no_nan(isa: str) -> None:
    backend = CpuBackend(isa=isa)
    rng = np.random.default_rng(4)
    gate, up = (packed(rng.standard_normal((64, 64)), "Q8_0", backend) for _ in range(2))
    for tokens in (1, 16, 40):
        x = rng.standard_normal((tokens, 64), np.float32)
        wanted = np.empty_like(x)
        backend.gate_up_swiglu(x, gate, up, "silu", wanted)
        got = x.copy()
        got[-1, 17] = np.nan
        backend.gate_up_swiglu(got, gate, up, "silu", got)
        np.testing.assert_array_equal(got[:-1], wanted[:-1])
        assert np.isnan(got[-1]).all()


@needs_bf16
def test_gate_and_up_in_bfloat16() -> None:
    backend = CpuBackend(bf16=True)
    rng = np.random.default_rng(5)
    gate, up = (packed(rng.standard_normal((40, 96)), "F32", backend) for _ in range(2))
    x = rng.standard_normal((19, 96), np.float32)
    outs = [np.empty((19, 40), np.float32) for _ in range(3)]
    backend.matmul(x, [gate, up], outs[:2])
    backend.gate_up_swiglu(x, gate, up, "silu", outs[2])
    wanted = ops.swiglu(outs[0], outs[1], backend)
    np.testing.assert_allclose(outs[2], wanted, rtol=1e-5, atol=1e-6)


def test_an_unknown_format_is_named() -> None:
    unknown = type(Q4_0)("Q9_Z", 32, 18, None)
    with pytest.raises(ValueError, match="no CPU kernel for format Q9_Z"):
        CpuBackend(1).pack(np.zeros((1, 18), np.uint8), unknown, 32)


def test_the_kernels_keep_their_names_for_profilers() -> None:
    assert b"multiply_tile" in Path(_cpu.__file__).read_bytes()
