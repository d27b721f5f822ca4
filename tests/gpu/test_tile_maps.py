"""Fragment maps of kernels/tile.h against the instructions as their makers document them.

Each instruction is emulated lane by lane, from where its document says that an element of A, B and
D stands; what tile.h loads and reads out must give A · Bᵀ. No GPU is needed.
"""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

Place = tuple[int, int]  # lane and element


@dataclass(frozen=True)
class Unit:
    """One instruction, or several side by side, as documented.

    `a(i, k)`, `b(k, j)`, `d(i, j)`: where A[i][k], B[k][j] and D[i][j] stand; `repeats`: lanes from
    here on must hold what the lanes before hold.
    """

    name: str
    lanes: int
    halves: int
    values: int
    repeats: int = 0

    def a(self, i: int, k: int) -> Place:
        raise NotImplementedError

    def b(self, k: int, j: int) -> Place:
        raise NotImplementedError

    def d(self, i: int, j: int) -> Place:
        raise NotImplementedError


class WmmaGfx11(Unit):
    """AMD matrix instruction calculator, RDNA3, v_wmma_f32_16x16x16_f16, wave32.

    A[i][k]: register k / 2, half k % 2, lanes i and i + 16; B[k][j] alike;
    D[i][j]: register i / 2, lane j + 16 (i % 2).
    """

    def a(self, i: int, k: int) -> Place:
        return i, k

    def b(self, k: int, j: int) -> Place:
        return j, k

    def d(self, i: int, j: int) -> Place:
        return j + 16 * (i % 2), i // 2


class WmmaGfx12(Unit):
    """The same for RDNA4.

    A[i][k]: lane i + 16 (k / 4 % 2), register 2 (k / 8) + k % 4 / 2, half k % 2; B[k][j] alike;
    D[i][j]: register i % 8, lane j + 16 (i / 8).
    """

    def a(self, i: int, k: int) -> Place:
        return i + 16 * (k // 4 % 2), 4 * (k // 8) + k % 4

    def b(self, k: int, j: int) -> Place:
        return self.a(j, k)

    def d(self, i: int, j: int) -> Place:
        return j + 16 * (i // 8), i % 8


class Mfma(Unit):
    """The same for CDNA2 and CDNA3, v_mfma_f32_16x16x16_f16.

    A[i][k]: lane i + 16 (k / 4), register k % 4 / 2, half k % 2; B[k][j] alike;
    D[i][j]: register i % 4, lane j + 16 (i / 4).
    """

    def a(self, i: int, k: int) -> Place:
        return i + 16 * (k // 4), k % 4

    def b(self, k: int, j: int) -> Place:
        return self.a(j, k)

    def d(self, i: int, j: int) -> Place:
        return j + 16 * (i // 4), i % 4


class MmaSync(Unit):
    """PTX ISA, mma.m16n8k16 with .f16, for columns 0 to 7 and, with registers of its own, 8 to 15.

    groupID = lane / 4, t = lane % 4. A: row groupID for a0 a1 a4 a5, else groupID + 8; column
    2t + (i & 1), and 8 more from a4 on. B: row 2t + (i & 1), and 8 more from b2 on; column groupID.
    D: row groupID for c0 c1, else groupID + 8; column 2t + (i & 1).
    """

    def a(self, i: int, k: int) -> Place:
        return 4 * (i % 8) + k % 8 // 2, k % 2 + 2 * (i // 8) + 4 * (k // 8)

    def b(self, k: int, j: int) -> Place:
        return 4 * (j % 8) + k % 8 // 2, k % 2 + 2 * (k // 8) + 4 * (j // 8)

    def d(self, i: int, j: int) -> Place:
        return 4 * (i % 8) + j % 8 // 2, j % 2 + 2 * (i // 8) + 4 * (j // 8)


UNITS = (
    WmmaGfx11("wmma_gfx11", 32, 16, 8, repeats=16),
    WmmaGfx12("wmma_gfx12", 32, 8, 8),
    Mfma("mfma", 64, 4, 4),
    MmaSync("mma_sync", 32, 8, 8),
)


@pytest.fixture(scope="module")
def maps(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The maps, compiled for the host."""
    library = tmp_path_factory.mktemp("maps") / "maps.so"
    source = Path(__file__).with_name("tile_maps.cpp")
    flags = ["-std=c++17", "-DROCMFORGE_HOST", "-DWAVE=32", "-shared", "-fPIC", "-Wall", "-Werror"]
    command = ["g++", *flags, f"-I{repo / 'kernels'}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def read(
    maps: ctypes.CDLL, name: str, lanes: int, halves: int, values: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Line and k of A's and of B's elements (lanes, halves, 4), and row and column of sums."""
    operands = np.full((lanes, halves, 4), -1, np.int32)
    sums = np.full((lanes, values, 2), -1, np.int32)
    getattr(maps, name)(
        *(a.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)) for a in (operands, sums))
    )
    return operands, sums


def product(unit: Unit, held_a: NDArray[np.float64], held_b: NDArray[np.float64]) -> NDArray:
    """What the instruction leaves in (lanes, values), given what the lanes hold of A and B."""
    a = np.array([[held_a[unit.a(i, k)] for k in range(16)] for i in range(16)])
    b = np.array([[held_b[unit.b(k, j)] for j in range(16)] for k in range(16)])
    d = a @ b
    result = np.full((unit.lanes, unit.values), np.nan)
    for i in range(16):
        for j in range(16):
            result[unit.d(i, j)] = d[i, j]
    return result


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_instruction_on_these_fragments_gives_the_product(
    maps: ctypes.CDLL, unit: Unit
) -> None:
    operands, sums = read(maps, unit.name, unit.lanes, unit.halves, unit.values)
    random = np.random.default_rng(7)
    a, b = random.integers(-9, 9, (2, 16, 16)).astype(np.float64)  # A[m][k], B[n][k]
    held_a = a[operands[..., 0], operands[..., 1]]
    held_b = b[operands[..., 2], operands[..., 3]]
    result = product(unit, held_a, held_b)
    wanted = (a @ b.T)[sums[..., 0], sums[..., 1]]
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_operands_made_in_registers_give_the_product(maps: ctypes.CDLL, unit: Unit) -> None:
    shares = np.full((2, unit.lanes, unit.halves, 3), -1, np.int32)
    pointers = [share.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)) for share in shares]
    assert getattr(maps, unit.name + "_share")(*pointers) == unit.halves
    random = np.random.default_rng(8)
    operands = random.integers(-9, 9, (2, 16, 16)).astype(np.float64)  # A[m][k], B[n][k]
    held = np.full((2, unit.lanes, unit.halves), np.nan)
    for which, share in enumerate(shares):
        for lane in range(unit.lanes):
            for element, line, k in share[lane]:
                held[which, lane, element] = operands[which, line, k]
    assert not np.isnan(held).any()
    _, sums = read(maps, unit.name, unit.lanes, unit.halves, unit.values)
    wanted = (operands[0] @ operands[1].T)[sums[..., 0], sums[..., 1]]
    np.testing.assert_array_equal(product(unit, *held), wanted)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_element_is_held(maps: ctypes.CDLL, unit: Unit) -> None:
    operands, sums = read(maps, unit.name, unit.lanes, unit.halves, unit.values)
    copies = 2 if unit.repeats else 1
    for first in (0, 2):
        places, counts = np.unique(
            operands[..., first : first + 2].reshape(-1, 2), axis=0, return_counts=True
        )
        assert len(places) == 256
        assert set(counts) == {copies}
    assert len(np.unique(sums.reshape(-1, 2), axis=0)) == 256
    if unit.repeats:
        np.testing.assert_array_equal(operands[: unit.repeats], operands[unit.repeats :])


def test_lanes_without_a_matrix_unit_share_out_the_sums(maps: ctypes.CDLL) -> None:
    _, sums = read(maps, "dot", 32, 1, 8)
    assert len(np.unique(sums.reshape(-1, 2), axis=0)) == 256
