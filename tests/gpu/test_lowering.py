"""What is launched and in which dtypes: told by the architecture alone, with no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.batch_shape import NORMED_ROWS, BatchAddresses, BatchShape, room_of
from rocmforge.gpu.compiler import BuildRecorder
from rocmforge.gpu.dtypes import F16, F32, PERMUTED, Q8, Convert, Place, Step, lower
from rocmforge.gpu.fusion import FUSIONS, Fusion, gpu_rules, pass_steps
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import LEAST_SPACED, Lowering, activation_dtype
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops import matmul_batch
from rocmforge.gpu.ops.attention_prompt import DEEP_TOKENS
from rocmforge.gpu.ops.dot_rows import DOT_TOKENS, reads_f16
from rocmforge.gpu.ops.expert_constants import GROUPED_TOKENS
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.peers import NO_PEERS
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.plan.fused_records import GateUpSwiglu
from rocmforge.plan.fusion import fuse
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Embedding, Tensor
from rocmforge.plan.records import (
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Matmul,
    Rmsnorm,
    Route,
    Swiglu,
)

H, GATE, UP, X = (
    Tensor(name, columns) for name, columns in (("h", 256), ("g", 512), ("u", 512), ("x", 256))
)


def lowering(architecture: str) -> Lowering:
    properties = DeviceProperties(0, "GPU", architecture, 32, 60, 1 << 34, 65536, False)
    runtime: Any = SimpleNamespace(properties=properties, platform="hip")
    pages: Any = None
    return Lowering(BuildRecorder(runtime), pages, 64, id, lambda _: (0, 0))


def feed_forward(gate: str, up: str, down: str) -> list[Op]:
    wide = [DeviceMatrix.at(0, name, 512, 256) for name in (gate, up)]
    narrow = DeviceMatrix.at(0, down, 256, 512)
    return [
        Matmul(H, tuple(wide), (GATE, UP), (None, None)),
        Swiglu(GATE, UP, GATE),
        Matmul(GATE, (narrow,), (X,), (None,), accumulate=True),
    ]


def test_mixed_gate_and_up_are_launched_with_swiglu_between_the_matmuls() -> None:
    """Of dense and quantized gates, too, whose matmuls read x in two dtypes."""
    for gate, up, wanted in (
        ("Q4_K", "Q4_K", ["quantize", "gate_up_swiglu", "matmul"]),
        ("Q4_K", "Q5_K", ["quantize", "matmul", "swiglu", "matmul"]),
        ("Q4_K", "F16", ["quantize", "matmul", "matmul", "swiglu", "matmul"]),
    ):
        shape = BatchShape(3, 3, None, True, 1)
        found = lowering("gfx1100")
        reading = found.reading(shape)
        ops = fuse(feed_forward(gate, up, "Q6_K"), gpu_rules(shape, reading, FUSIONS))
        assert [launch.name for launch in launches(found, shape, ops)] == wanted


def launches(found: Lowering, shape: BatchShape, ops: list[Op]) -> list[Launch]:
    return launches_of(found, shape, lower(ops, found.reading(shape), found.writing(shape)))


def launches_of(found: Lowering, shape: BatchShape, steps: list[Step]) -> list[Launch]:
    memory = PassMemory(found, shape, BatchAddresses(), lambda _: 0, lambda _: 0)
    return PassLowering(memory).launches(steps)


def test_launches_start_early_but_those_behind_a_copy() -> None:
    found = lowering("gfx1100")
    ops = feed_forward("Q4_K", "Q4_K", "Q6_K")
    for rows in (1, 8, 64, 65, 2048):
        shape = BatchShape(rows, rows, None, True, 1)
        assert all(launch.early for launch in launches(found, shape, ops))
    rows = np.zeros((4, 144), np.uint8)
    embed = Embed(Embedding(rows, FORMATS["Q4_K"]), Tensor("x", 256))
    (launch,) = launches(found, BatchShape(1, 1, None, True, 1), [embed])
    assert not launch.early


def test_long_prompts_make_their_weights_float16_first() -> None:
    unpacked = ["quantize", "unpack", "gate_up_swiglu_f16", "unpack", "matmul_f16"]
    packed = ["quantize", "gate_up_swiglu_prompt", "matmul_prompt"]
    dense = ["quantize", "gate_up_swiglu_f16", "matmul_f16"]
    batched = ["quantize", "gate_up_swiglu_batch", "matmul_batch"]
    for architecture, name, tokens, wanted in (
        ("sm_90", "Q4_K", 2048, batched),
        ("sm_90", "Q4_K", 4096, unpacked),
        ("sm_80", "Q4_K", 256, packed),
        ("gfx942", "Q4_K", 257, unpacked),
        ("gfx1100", "Q4_K", 2048, packed),
        ("gfx1100", "F16", 65, dense),
        ("sm_90", "F16", 512, dense),
    ):
        shape = BatchShape(tokens, 1, (tokens - 1,), False, tokens)
        found = lowering(architecture)
        reading, writing = found.reading(shape), found.writing(shape)
        ops = fuse(feed_forward(name, name, name), gpu_rules(shape, reading, FUSIONS))
        made = launches(found, shape, ops)
        assert [launch.name for launch in made] == wanted
        assert all(launch.lds_bytes for launch in made if launch.name.endswith("_f16"))
        steps = lower(ops, reading, writing)
        without = replace(found, unpacks=False)  # there is no memory for it
        names = [launch.name for launch in launches(without, shape, ops)]
        assert names == (packed if wanted == unpacked else wanted)
        if wanted == batched:
            assert found.scratch_bytes(steps, shape) == without.scratch_bytes(steps, shape)
        else:
            both = 2 * 512 * 256 * 2  # gate and up at once
            nbytes = found.scratch_bytes(steps, shape)["gate_up_swiglu"]
            assert nbytes == both if wanted == unpacked else nbytes < both
            assert without.scratch_bytes(steps, shape)["gate_up_swiglu"] < both


def products(formats: Sequence[str], rows: int = 512) -> list[Op]:
    """Products that share activations."""
    outs = tuple(Tensor(f"out {i}", rows) for i in range(len(formats)))
    weights = tuple(DeviceMatrix.at(1 << 20, name, rows, 256) for name in formats)
    return [Matmul(H, weights, outs, (None,) * len(formats))]


@pytest.mark.parametrize(
    ("formats", "rows", "wanted"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 512, ["unpack", "matmul_f16"]),
        (("Q4_K", "F16", "Q6_K"), 512, ["unpack", "matmul_f16"]),
        (("F16", "F16", "F16"), 512, ["matmul_f16"]),
        (("Q4_K",) * 5, 512, ["unpack", "matmul_f16"] * 2),
        (("Q4_K",) * 3, 1 << 20, ["unpack", "matmul_f16"] * 3),  # each of them takes 512 MiB
        (("Q4_K",) * 3, 1 << 22, ["matmul_prompt"] * 3),  # 2 GiB
    ],
    ids=str,
)
def test_long_prompts_multiply_what_shares_activations_in_one_launch(
    formats: Sequence[str], rows: int, wanted: list[str]
) -> None:
    found, ops = lowering("sm_90"), products(formats, rows)
    shape = BatchShape(2100, 1, (2099,), False, 2100)
    steps = lower(ops, found.reading(shape), found.writing(shape))
    made = [one for one in launches_of(found, shape, steps) if one.name != "quantize"]
    assert [one.name for one in made] == wanted
    packed = [0 if name == "F16" else 2 * rows * 256 for name in formats]
    together = [sum(packed[i : i + 3]) for i in range(0, len(packed), 3)]
    most = max(n for n in (*together, *packed, 0) if n <= 1 << 30)
    assert found.scratch_bytes(steps, room_of(shape))[ops[0].label] == most


def assert_held(found: Lowering, op: Any, name: str, rows: list[int], columns: int) -> None:
    """The room of a plan has enough for few tokens, and for both ends of every size of many."""
    weights = (op.gate, op.up) if isinstance(op, GateUpSwiglu) else op.weights
    ends = (tokens for size in range(320, 2049, 64) for tokens in (size - 63, size))
    for tokens in (*range(9, 257), *ends):
        if found.batches(weights, tokens):
            room = room_of(BatchShape(tokens, 1, (tokens - 1,), False, tokens))
            needed = matmul_batch.scratch_bytes(found.kernels, name, rows, columns, tokens)
            assert needed <= found.scratch_bytes([Step(op, (), ())], room)[op.label], tokens


@pytest.mark.parametrize("rows", [1, 128, 136, 192, 256, 300])
def test_the_room_of_a_plan_holds_what_blocks_of_routers_share(rows: int) -> None:
    found, x = lowering("sm_90"), Tensor("x", 2048)
    router, wide = DeviceMatrix.at(0, "F32", rows, 2048), DeviceMatrix.at(0, "Q4_K", 4096, 2048)
    assert_held(found, Matmul(x, (router,), (X,), (None,)), "F32", [rows], 2048)
    assert_held(found, Matmul(x, (router, wide), (X, H), (None,) * 2), "F32", [rows, 4096], 2048)
    assert_held(found, GateUpSwiglu(x, router, router, GATE), "F32", [2 * rows], 2048)


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80", "gfx1100"])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "F16", "F32"])
def test_the_room_of_a_plan_holds_what_blocks_of_its_passes_share(
    architecture: str, name: str
) -> None:
    cache: Any = SimpleNamespace(dtype="f16")
    found = replace(lowering(architecture), cache=cache)
    wide, narrow = DeviceMatrix.at(0, name, 11008, 4096), DeviceMatrix.at(0, name, 4096, 4096)
    square = Tensor("square", 4096)
    ops: list[Op] = [
        GateUpSwiglu(square, wide, wide, Tensor("gated", 11008)),
        Matmul(square, (narrow,) * 3, (square,) * 3, (None,) * 3),
    ]
    assert_held(found, ops[0], name, [2 * 11008], 4096)
    assert_held(found, ops[1], name, [4096] * 3, 4096)
    long = room_of(BatchShape(4096, 1, (4095,), False, 4096))
    without = replace(found, unpacks=False)
    assert not any(without.scratch_bytes([Step(op, (), ()) for op in ops], long).values())


def test_products_that_devices_add_up_by_rows_are_no_batches() -> None:
    weights = (DeviceMatrix.at(0, "Q4_K", 512, 256),)
    alone = lowering("sm_90")
    group = replace(alone, peers=replace(NO_PEERS, ranks=2))
    for rows, expected in ((128, True), (129, False), (512, False)):
        assert alone.batches(weights, rows)
        assert group.batches(weights, rows) == expected


@pytest.mark.parametrize("architecture", ["sm_90", "gfx1100"])
def test_scratch_holds_what_splits_of_a_prompt_leave(architecture: str) -> None:
    """The room of a plan holds it for every shape that shares the plan."""
    heads, head_dim = 4, 64
    cache: Any = SimpleNamespace(
        dtype="f16", windowed=(), page_size=32, pages=lambda _: (0, 0), scales=lambda _: (0, 0)
    )
    found = replace(lowering(architecture), cache=cache, ctx=2 * DEEP_TOKENS)
    op = Attention(H, 0, X, 1.0, heads, head_dim)
    for tokens in (2, 8, 9, 64, 500, 512, 2048):
        for deep in (False, True):
            shape = BatchShape(tokens, 1, (tokens - 1,), False, tokens, deep)
            room = room_of(shape)
            steps = lower([op], found.reading(room), found.writing(room))
            made = launches_of(found, shape, steps)
            (launch,) = [one for one in made if one.name == "attention_prompt"]
            splits = launch.grid[2]
            assert splits > 1 or tokens > 700
            nbytes = 4 * splits * tokens * heads * (head_dim + 2)
            assert splits == 1 or nbytes <= found.scratch_bytes(steps, room)["attention"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "gfx1100"])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16", "MXFP6_E3M2"])
def test_products_of_few_rows_read_what_their_kernels_are_made_for(
    architecture: str, name: str
) -> None:
    for tokens in range(1, 9):
        shape = BatchShape(tokens, tokens, None, True, 1)
        found, room = lowering(architecture), room_of(shape)
        ops = feed_forward(name, name, name)
        ops = fuse(ops, gpu_rules(shape, found.reading(shape), FUSIONS))
        steps = lower(ops, found.reading(room), found.writing(room))
        there = {place for step in steps for place in step.reads + step.writes}
        read: set[str] = set()

        def address(place: Place, there: set[Place] = there, read: set[str] = read) -> int:
            assert place in there, place
            read.add(place[1])
            return 0

        memory = PassMemory(found, shape, BatchAddresses(), address, lambda _: 0)
        PassLowering(memory).launches(steps)
        recorder: Any = found.kernels
        gemvs = [b.defines for b in recorder.builds if b.defines and "LANES" in b.defines]
        halves = reads_f16(architecture, name, tokens)
        assert len(gemvs) == 2
        assert [d["LANES"] == MATRIX_LANES for d in gemvs] == [halves] * 2
        assert read == ({F32, F16} if halves else {F32} if name in DENSE else {F32, Q8})
        assert not halves or {"OUT": "F16"}.items() <= gemvs[0].items()


def experts(
    names: tuple[str, str, str], width: int, count: int, chosen: int, columns: int = 256
) -> list[Op]:
    """A mixture of experts, from its norm to its products."""
    h, x, scores = Tensor("h", columns), Tensor("x", columns), Tensor("scores", count)
    of, shares, hidden, parts = (
        Tensor("experts", chosen),
        Tensor("shares", chosen),
        Tensor("hidden", chosen * width),
        Tensor("parts", chosen * columns),
    )
    gate, up = (DeviceMatrix.at(0, name, count * width, columns) for name in names[:2])
    down = DeviceMatrix.at(0, names[2], count * columns, width)
    return [
        Rmsnorm(h, np.ones(columns, np.float32), 1e-6, x),
        Matmul(x, (DeviceMatrix.at(0, "F32", count, columns),), (scores,), (None,)),
        Route(scores, of, shares, normalized=True),
        ExpertGateUp(x, gate, up, of, count, hidden),
        ExpertMatmul(hidden, down, of, count, parts),
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("architecture", ["sm_90", "gfx942", "gfx1100", "gfx1030"])
@pytest.mark.parametrize(
    ("names", "width", "columns"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 256, 256),
        (("Q4_K", "Q4_K", "F32"), 256, 256),
        (("BF16", "BF16", "F32"), 256, 256),
        (("F16", "F16", "F16"), 48, 256),
        (("Q4_K", "Q5_K", "Q4_K"), 256, 256),
        (("MXFP4", "MXFP4", "MXFP4"), 320, 320),
    ],
)
def test_passes_of_a_plan_read_experts_in_the_dtypes_of_the_plan(
    architecture: str, names: tuple[str, str, str], width: int, columns: int, ranks: int
) -> None:
    """The plan is of the largest shape that shares it."""
    for tokens in (1, 3, 8, 9, 15, 100, 129, 200, 300, 385, 513, 1025):
        for single in (False, True):
            outputs = None if single else (tokens - 1,)
            longest, sequences = (1, tokens) if single else (tokens, 1)
            shape = BatchShape(tokens, sequences, outputs, single, longest)
            peers = replace(NO_PEERS, ranks=ranks)
            found, room = replace(lowering(architecture), peers=peers), room_of(shape)
            ops = experts(names, width, count=128, chosen=8, columns=columns)
            steps = lower(ops, found.reading(room), found.writing(room))
            written = {place for step in steps for place in step.writes}

            def address(place: Place, written: set[Place] = written) -> int:
                assert place in written or place[0].name == "h", place
                return 0

            memory = PassMemory(found, shape, BatchAddresses(), address, lambda _: 0)
            made = PassLowering(memory).launches(steps)
            assert any(launch.name.startswith("expert_matmul") for launch in made)


@pytest.mark.parametrize("fused", [(), FUSIONS])
@pytest.mark.parametrize("down", ["Q4_K", "F16"])
def test_down_projections_may_read_the_chosen_experts_before_they_wait(
    down: str, fused: tuple[Fusion, ...]
) -> None:
    """Their weights are on the way before gate and up have ended; see expert_matmul.hip."""
    for tokens in range(1, GROUPED_TOKENS):
        shape, found = BatchShape(tokens, tokens, None, True, 1), lowering("sm_90")
        ops = experts(("Q4_K", "Q4_K", down), 256, count=128, chosen=8)
        steps = pass_steps(ops, found, shape, fused)
        names = [launch.name for launch in launches_of(found, shape, steps)]
        assert names[names.index("expert_matmul") - 1] in ("expert_gate_up", "quantize")
        assert "expert_gate_up" in names[: names.index("expert_matmul")]


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80", "gfx1100"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_products_of_all_passes_of_a_plan_read_the_same_dtypes(
    architecture: str, ranks: int
) -> None:
    found = replace(lowering(architecture), peers=replace(NO_PEERS, ranks=ranks))
    weights = [
        [DeviceMatrix.at(0, name, rows, columns) for name in names]
        for names in (("Q4_K",), ("Q4_K", "Q6_K"), ("Q6_K",), ("F16",), ("F32",), ("MXFP4",))
        for rows, columns in ((128, 256), (4096, 256), (128, 320 if names == ("MXFP4",) else 256))
    ]
    seen = set()
    for tokens in range(1, 2049):
        room = room_of(BatchShape(tokens, 1, (tokens - 1,), False, tokens)).tokens
        for some in weights:
            for spaced in (False, True):
                dtypes = found.product_dtypes(some, tokens, spaced=spaced)
                same = found.product_dtypes(some, room, spaced=spaced)
                assert dtypes == same, (tokens, room, spaced)
                seen |= {*dtypes}
    assert seen == {F32, F16, Q8} | ({PERMUTED} if architecture == "sm_90" else set())


def test_hopper_reads_what_norms_and_gates_write_without_conversions() -> None:
    found = lowering("sm_90")
    for tokens in (9, 64, 128, 129, 512, 1024, 2048):
        shape = BatchShape(tokens, 1, (tokens - 1,), False, tokens)
        for ops in (
            experts(("Q4_K", "Q4_K", "Q6_K"), 256, count=128, chosen=8),
            experts(("MXFP4", "MXFP4", "MXFP4"), 320, count=32, chosen=4, columns=320),
            feed_forward("Q4_K", "Q4_K", "Q6_K"),
        ):
            steps = pass_steps(ops, found, shape, FUSIONS)
            assert not any(isinstance(step.op, Convert) and step.op.x != H for step in steps)


def test_rows_of_no_whole_128_columns_have_room_between_them_in_long_prompts() -> None:
    found, ops = lowering("sm_90"), experts(("MXFP4",) * 3, 320, 32, 4, columns=320)
    for tokens, wanted in ((LEAST_SPACED - 1, F16), (LEAST_SPACED, PERMUTED), (2048, PERMUTED)):
        shape = BatchShape(tokens, 1, (tokens - 1,), False, tokens)
        norm, *others = pass_steps(ops, found, shape, FUSIONS)
        x = norm.op.writes[0]
        assert norm.writes == ((x, wanted),)
        assert found.nbytes((x, wanted), shape) == tokens * (320 if wanted == F16 else 384) * 2
        read = {place for step in others for place in step.reads if place[0].name == "hidden"}
        assert [dtype for _, dtype in read] == [F16]  # what gate and up wrote for down


def test_the_dtype_of_activations_follows_rows_format_and_architecture() -> None:
    assert activation_dtype("gfx1100", "Q4_0", 8) == Q8
    assert activation_dtype("gfx1100", "F16", 8) == F32
    assert activation_dtype("gfx1100", "Q4_0", 9) == F16
    assert activation_dtype("gfx1030", "Q4_0", 9) == Q8
    assert activation_dtype("gfx1030", "BF16", 9) == F16
    assert activation_dtype("sm_90", "Q4_K", DOT_TOKENS) == Q8
    assert activation_dtype("sm_90", "Q4_K", DOT_TOKENS + 1) == F16
    assert activation_dtype("sm_90", "MXFP6_E3M2", DOT_TOKENS + 1) == F32
    assert NORMED_ROWS <= DOT_TOKENS  # the norms of `matmul_rmsnorm` are Q8
