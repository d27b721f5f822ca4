"""Each rule for a bottleneck: on data that shows it, and on data that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rocmforge.profiling.bottleneck import phase_verdict
from rocmforge.profiling.counter_rules import Counted, counted, kernel_verdict, run_verdict
from rocmforge.profiling.profile import Bound, Ceiling, Device, Kernel, Op, Part, Phase
from rocmforge.profiling.readers.records import Copy, Dispatch, Recording

GPU = Device("hip:0", "a card", "gfx1100", compute_units=96)
CPU = Device("cpu", "a CPU", "avx512", compute_units=2)
CEILINGS = (
    Ceiling("int8", 1e12, 100e12, 1 << 30),
    Ceiling("exact", 1e12, 20e12, 1 << 30),
)


def op(**changes: Any) -> Op:
    """A second of work that moves 20 % of what memory gives and computes 10 % of what it can."""
    plain = Op(
        label="matmul_qkv",
        calls=10,
        seconds=1.0,
        share=1.0,
        nbytes=int(0.2e12),
        flops=int(10e12),
        weight_bytes=0,
        kv_bytes=0,
        precision="int8",
        ideal_seconds=0.2,
        kernels=(Kernel("multiply_rows", "kernels/matmul.hip", 4096, 128),),
    )
    return replace(plain, **changes)


def phase(
    *ops: Op, device: float = 1.0, seconds: float = 1.05, copies: float = 0.0, **parts: float
) -> Phase:
    parts = {"launch": 0.05, "wait": 0.95, **parts}
    return Phase(
        name="decode",
        tokens=10,
        passes=10,
        seconds=seconds,
        parts=tuple(Part(name, name, took) for name, took in parts.items()),
        device_seconds=device,
        host_to_device_seconds=copies,
        device_to_host_seconds=0.0,
        ops=ops or (op(),),
        unaccounted_seconds=device - copies - sum(one.seconds for one in ops or (op(),)),
        ops_from="",
        plain_seconds=None,
    )


NOTHING = phase()
FEW = (Kernel("multiply_rows", "kernels/matmul.hip", 48, 128),)  # half of the 96 units


@pytest.mark.parametrize(
    ("bound", "shown", "not_shown"),
    [
        ("memory", phase(op(nbytes=int(0.41e12))), phase(op(nbytes=int(0.39e12)))),
        ("compute", phase(op(flops=int(41e12))), phase(op(flops=int(39e12)))),
        (
            "compute",  # more of the products than of the reads
            phase(op(flops=int(70e12), nbytes=int(0.6e12))),
            phase(op(flops=int(60e12), nbytes=int(0.7e12))),
        ),
        ("launch", phase(seconds=1.5), phase(seconds=1.4)),  # the device is idle
        ("launch", phase(device=1.5, seconds=1.6), phase(device=1.4, seconds=1.5)),  # gaps
        ("launch", phase(launch=0.81, wait=0.19), phase(launch=0.79, wait=0.21)),
        (
            "transfer",
            phase(copies=0.5, device=1.5, seconds=1.6),
            phase(copies=0.4, device=1.4, seconds=1.5),
        ),
        ("occupancy", phase(op(kernels=FEW)), phase(op(kernels=(replace(FEW[0], blocks=49),)))),
        (
            "occupancy",  # no unit works in half of the time, but one
            phase(
                op(seconds=0.51, kernels=(replace(FEW[0], blocks=1),), nbytes=0), op(seconds=0.49)
            ),
            phase(
                op(seconds=0.49, kernels=(replace(FEW[0], blocks=1),), nbytes=0), op(seconds=0.51)
            ),
        ),
        ("none", NOTHING, phase(op(nbytes=int(0.5e12)))),
    ],
)
def test_a_phases_rule_holds_where_it_is_shown_and_not_elsewhere(
    bound: Bound, shown: Phase, not_shown: Phase
) -> None:
    assert phase_verdict(shown, CEILINGS, GPU).bound == bound
    assert phase_verdict(not_shown, CEILINGS, GPU).bound != bound


def test_what_keeps_the_device_waiting_comes_before_its_kernels() -> None:
    fast = op(nbytes=int(0.9e12))
    assert phase_verdict(phase(fast), CEILINGS, GPU).bound == "memory"
    assert phase_verdict(phase(fast, seconds=2.0), CEILINGS, GPU).bound == "launch"
    copying = phase(fast, copies=1.0, device=2.0, seconds=2.1)
    assert phase_verdict(copying, CEILINGS, GPU).bound == "transfer"


def test_the_evidence_has_the_numbers_and_the_advice_the_op() -> None:
    found = phase_verdict(phase(op(nbytes=int(0.625e12), ideal_seconds=0.625)), CEILINGS, GPU)
    told = " ".join(found.evidence)
    assert "625 GB/s, 62%" in told
    assert "10% of what it reaches" in told
    assert "4.8% of the wall time" in told
    assert "matmul_qkv reaches 62% of the roofline" in told
    assert "matmul_qkv" in found.advice[-1]
    assert found.summary.startswith("Decode is memory-bound")


def test_a_share_just_below_the_limit_is_not_shown_as_the_limit() -> None:
    verdict = phase_verdict(phase(op(nbytes=int(0.398e12))), CEILINGS, GPU)
    assert verdict.bound == "none"
    assert "39.8% of what this device reads" in " ".join(verdict.evidence)
    nearer = phase_verdict(phase(op(nbytes=int(0.3999e12))), CEILINGS, GPU)
    assert "39.9% of what this device reads" in " ".join(nearer.evidence)


def test_of_two_limits_near_each_other_the_higher_is_seen() -> None:
    close = phase(op(nbytes=int(0.611e12), flops=int(61.3e12)))
    verdict = phase_verdict(close, CEILINGS, GPU)
    told = " ".join(verdict.evidence)
    assert verdict.bound == "compute"
    assert "61.1% of what this device reads" in told
    assert "61.3% of what it reaches" in told


@pytest.mark.parametrize(
    ("device", "tool"), [("cuda:0", "ncu"), ("hip:0", "rocprofv3"), ("cpu", "perf")]
)
def test_the_advice_names_the_profiler_of_the_device(device: str, tool: str) -> None:
    without = phase(op(kernels=()), seconds=1.0, launch=0.0, wait=0.0)
    verdict = phase_verdict(without, CEILINGS, replace(GPU, name=device))
    assert verdict.bound == "none"
    assert f"{tool}`" in verdict.advice[0] or f"--with {tool} " in verdict.advice[0]


@pytest.mark.parametrize(("cpus", "told"), [(2, False), (8, True), (None, False)])
def test_more_threads_are_advised_where_there_are_cpus(cpus: int | None, told: bool) -> None:
    one = phase(op(flops=int(90e12), kernels=()), launch=0.0, wait=0.0)
    verdict = phase_verdict(one, CEILINGS, CPU, cpus)
    assert verdict.bound == "compute"
    assert any("more threads" in sentence for sentence in verdict.advice) == told


def test_a_verdict_that_may_be_wrong_says_so() -> None:
    one = phase(op(nbytes=int(0.9e12)))
    assert "is perhaps memory-bound" in phase_verdict(one, CEILINGS, GPU, sure=False).summary


def test_without_ceilings_neither_memory_nor_compute_is_said() -> None:
    verdict = phase_verdict(phase(op(nbytes=int(9e12), flops=int(9e15))), (), GPU)
    assert verdict.bound == "none"
    assert "GB/s" not in " ".join(verdict.evidence)


def test_a_precision_without_a_ceiling_counts_no_products() -> None:
    plain = phase(op(precision="bf16", flops=int(90e12)))
    assert phase_verdict(plain, CEILINGS, GPU).bound == "none"
    assert phase_verdict(phase(op(flops=int(90e12))), CEILINGS, GPU).bound == "compute"


@pytest.mark.parametrize(("seconds", "bound"), [(1.5, "launch"), (1.2, "memory")])
def test_a_cpu_is_launch_bound_where_the_time_is_outside_its_ops(
    seconds: float, bound: Bound
) -> None:
    one = phase(op(nbytes=int(0.9e12), kernels=()), seconds=seconds, launch=0.0, wait=0.0)
    verdict = phase_verdict(one, CEILINGS, CPU)
    assert verdict.bound == bound
    assert "compute units" not in " ".join(verdict.evidence)


@pytest.mark.parametrize(
    ("bound", "shown", "not_shown"),
    [
        ("memory", Counted(of_peak=0.6), Counted(of_peak=0.59)),
        ("memory", Counted(memory_stalled=0.3), Counted(memory_stalled=0.29)),
        (
            "memory",
            Counted(memory_busy=0.6, alu_busy=0.5),
            Counted(memory_busy=0.59, alu_busy=0.5),
        ),
        ("memory", Counted(waiting=0.5, l2_hits=0.49), Counted(waiting=0.5, l2_hits=0.51)),
        ("memory", Counted(waiting=0.5, l2_hits=0.49), Counted(waiting=0.49, l2_hits=0.49)),
        ("compute", Counted(alu_busy=0.6), Counted(alu_busy=0.59)),
        ("compute", Counted(alu_busy=0.7), Counted(alu_busy=0.7, of_peak=0.8)),
        ("occupancy", Counted(occupancy=0.24), Counted(occupancy=0.25)),
        ("occupancy", Counted(occupancy=0.1), Counted(occupancy=0.1, alu_busy=0.9)),
        ("none", Counted(), Counted(alu_busy=0.9)),
    ],
)
def test_a_counters_rule_holds_where_it_is_shown_and_not_elsewhere(
    bound: Bound, shown: Counted, not_shown: Counted
) -> None:
    assert kernel_verdict("multiply_rows", shown).bound == bound
    assert kernel_verdict("multiply_rows", not_shown).bound != bound


@pytest.mark.parametrize(
    ("counters", "wanted"),
    [
        ({"L2CacheHit": 75.0}, {"l2_hits": 0.75}),
        ({"TCC_HIT_sum": 30.0, "TCC_MISS_sum": 10.0}, {"l2_hits": 0.75}),
        ({"GL2C_HIT_sum": 1.0, "GL2C_MISS_sum": 3.0}, {"l2_hits": 0.25}),
        ({"TCC_HIT_sum": 0.0, "TCC_MISS_sum": 0.0}, {}),
        ({"FETCH_SIZE": 1000.0, "WRITE_SIZE": 24.0}, {"bandwidth": 2**20 / 1e-3}),
        ({"FETCH_SIZE": 1024.0, "WRITE_SIZE": None}, {"bandwidth": 2**20 / 1e-3}),
        ({"SQ_WAIT_ANY": 30.0, "SQ_WAVE_CYCLES": 60.0}, {"waiting": 0.5}),
        ({"SQ_WAIT_ANY": 30.0, "SQ_WAVE_CYCLES": 0.0}, {}),
        ({"WAVE_DEP_WAIT": 40.0}, {"waiting": 0.4}),
        ({"VALUBusy": 20.0, "MfmaUtil": 65.0}, {"alu_busy": 0.65}),
        ({"MemUnitStalled": 1.0, "WriteUnitStalled": 33.0}, {"memory_stalled": 0.33}),
        ({"MemUnitBusy": 12.0, "OccupancyPercent": 50.0}, {"memory_busy": 0.12, "occupancy": 0.5}),
        ({"LDSBankConflict": 11.0}, {"lds_conflicts": 0.11}),
        ({"VALUBusy": None, "SQ_WAVES": 8.0}, {}),
    ],
)
def test_shares_come_from_whichever_counters_are_there(
    counters: dict[str, float | None], wanted: dict[str, float]
) -> None:
    found = counted(counters, seconds=1e-3)
    for name in Counted.__slots__:
        assert getattr(found, name) == pytest.approx(wanted.get(name)), name


def test_bandwidth_is_set_beside_the_peak_where_both_are_known() -> None:
    counters = {"FETCH_SIZE": 1024.0}
    assert counted(counters, 1e-3, 4 * 2**20 / 1e-3).of_peak == pytest.approx(0.25)
    assert counted(counters, None, 1e12) == Counted()


def test_what_was_counted_is_told() -> None:
    found = kernel_verdict("multiply_rows", Counted(1.5e12, 0.7, 0.2, lds_conflicts=0.3))
    told = " ".join(found.evidence)
    assert "1.5e+03 GB/s" in told
    assert "20% of the requests to L2 are hits" in told
    assert any("Most requests miss L2" in line for line in found.advice)
    assert any("Pad the rows in LDS" in line for line in found.advice)
    few = kernel_verdict("multiply_rows", Counted(of_peak=0.7, l2_hits=0.9, lds_conflicts=0.05))
    assert len(few.advice) == 1


def dispatches(*times: tuple[int, int]) -> tuple[Dispatch, ...]:
    return tuple(Dispatch("k", start, end) for start, end in times)


@pytest.mark.parametrize(
    ("kernels", "copies", "bound"),
    [
        ([(0, 35), (65, 100)], [], "launch"),
        ([(0, 36), (65, 100)], [], "none"),
        ([(65, 100), (0, 36), (10, 30)], [], "none"),  # out of order, one in another
        ([(0, 20), (10, 50), (90, 100)], [], "launch"),
        ([(0, 100)], [(0, 30)], "transfer"),
        ([(0, 100)], [(0, 29)], "none"),
        ([(0, 100)], [(0, 20), (0, 20)], "none"),  # two copies at once take the time of one
        ([(1000, 1100)], [(0, 900), (1090, 3000)], "none"),  # weights come before, results behind
        ([(1000, 1100)], [(0, 900), (990, 1030)], "transfer"),
        ([(7, 7)], [], "none"),
    ],
)
def test_a_runs_gaps_and_copies(
    kernels: list[tuple[int, int]], copies: list[tuple[int, int]], bound: Bound
) -> None:
    copied = tuple(Copy("host_to_device", start, end) for start, end in copies)
    verdict = run_verdict(Recording("rocprofv3", dispatches=dispatches(*kernels), copies=copied))
    assert verdict is not None
    assert verdict.bound == bound


def test_a_run_without_times_has_no_verdict() -> None:
    assert run_verdict(Recording("rocprofv3", dispatches=(Dispatch("k"),))) is None
