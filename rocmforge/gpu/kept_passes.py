"""The passes that an executor keeps: planned for a class of shapes, and made once for a shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu.batch_shape import BatchShape, room_of
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Build, BuildRecorder
from rocmforge.gpu.dtypes import F32, Place, Step, lifetimes
from rocmforge.gpu.fusion import Fusion, pass_steps, wanted_fusions
from rocmforge.gpu.lowering import Lowering
from rocmforge.gpu.ops.attention_prompt import DEEP_QUERIES
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.passes import CapturedPass, Key, Plan, sampling
from rocmforge.gpu.slot import Slot
from rocmforge.plan.arena import Lifetime, assign
from rocmforge.plan.graph import Graph
from rocmforge.plan.operands import Rotation
from rocmforge.plan.records import Attention

PASSES = 64  # whose launches are kept; a shape has up to four


class KeptPasses:
    """Makes the passes of a graph, and keeps them with the arena in which their tensors lie.

    Parameters
    ----------
    graph
        The forward pass.
    lowering
        The device.
    cache
        Keys and values; passes hold its addresses.
    fused
        Which neighbouring ops become one kernel; None: the rules that were measured as worth it on
        this device, or all.
    slots
        Have inputs and results.
    """

    def __init__(
        self,
        graph: Graph,
        lowering: Lowering,
        cache: DeviceKVCache,
        fused: Collection[Fusion] | None,
        slots: Sequence[Slot],
    ) -> None:
        self.lowering = lowering
        self._cache = cache
        self._runtime = lowering.kernels.runtime
        self._graph = graph
        self._fused = fused
        self._slots = slots
        self._sampling = sampling(graph.result)
        self._received = graph.received
        self._plans: dict[BatchShape, Plan] = {}
        self._kept: OrderedDict[Key, CapturedPass] = OrderedDict()
        self._moves = cache.moves
        self._arena = (0, 0)

    @property
    def arena_bytes(self) -> int:
        """Memory of the arena."""
        return self._arena[1]

    @property
    def outdated(self) -> bool:
        """Whether the cache has moved since the passes were made."""
        return self._moves != self._cache.moves

    def builds(
        self,
        shapes: Iterable[BatchShape],
        constant: Callable[[Any], int],
        table: Callable[[Rotation], tuple[int, int]],
    ) -> list[Build]:
        """Kernels of passes of some shapes; `constant` and `table` as of `Lowering`."""
        recorder = BuildRecorder(self._runtime, self.lowering.kernels.tuning)
        lowering = replace(self.lowering, kernels=recorder, constant=constant, table=table)
        batch = self._slots[0].inputs.addresses()
        for shape in shapes:
            steps = self.steps(shape)
            nowhere = PassMemory(lowering, shape, batch, lambda place: 0, lambda label: 0)
            PassLowering(nowhere).launches(steps)
            if shape.longest >= DEEP_QUERIES:
                deep = replace(nowhere, shape=replace(shape, deep=True))
                attended = [step for step in steps if isinstance(step.op, Attention)]
                PassLowering(deep).launches(attended)
        return recorder.builds

    def get(self, key: Key) -> CapturedPass:
        """Return the pass of a key, built where there is none."""
        if self.outdated:
            self.forget()
            self._moves = self._cache.moves
        kept = self._kept.get(key)
        if kept is None:
            kept = self._build(*key)
            self._kept[key] = kept
            if len(self._kept) > PASSES:
                self._drop(self._kept.popitem(last=False)[1])
        self._kept.move_to_end(key)
        return kept

    def steps(self, room: BatchShape) -> list[Step]:
        """Return the steps of a pass; where it is for logits, the last one chooses the tokens."""
        tuning = self.lowering.kernels.tuning
        fused = wanted_fusions(tuning) if self._fused is None else self._fused
        return pass_steps((*self._graph.ops, *self._sampling), self.lowering, room, fused)

    def unsampled(self, steps: list[Step]) -> list[Step]:
        """The steps without the one that chooses the tokens."""
        return steps[: len(steps) - len(self._sampling)]

    def plan(self, room: BatchShape) -> Plan:
        """Return the steps and the places of tensors of a class of shapes, planned once."""
        if room not in self._plans:
            self._plans[room] = self._planned(room)
        return self._plans[room]

    def _planned(self, room: BatchShape) -> Plan:
        lowering = self.lowering
        steps = self.steps(room)
        held = lifetimes(steps, lambda place: lowering.nbytes(place, room))
        held[self._graph.result, F32].read(len(steps))  # copied to the host after the last step
        for sample in self._sampling:  # its tokens go to the inputs of a pass
            del held[sample.token, F32]
        scratch = lowering.scratch_bytes(steps, room)
        for number, step in enumerate(steps):
            label = step.op.label
            if scratch.get(label):
                held.setdefault(label, Lifetime(scratch[label])).write(number)
        return Plan(steps, *assign(held))

    def reserve_room(self, shape: BatchShape, columns: int) -> None:
        """Give each slot room for result and input; passes that copy to an older place go."""
        width = self._received.columns if self._received else 0
        wanted = 4 * shape.output_rows * columns, 4 * shape.tokens * width
        for slot in self._slots:
            if not slot.has_room(*wanted):
                self.forget()
                slot.make_room(*wanted)

    def forget(self) -> None:
        """Drop all passes: an address that they hold is about to change."""
        while self._kept:
            self._drop(self._kept.popitem()[1])

    def _build(self, shape: BatchShape, chooses: bool, slot: int, chained: bool) -> CapturedPass:
        plan = self.plan(room_of(shape))
        try:
            base = self._reserve(plan.nbytes)
        except OutOfMemoryError:
            self.lowering = replace(self.lowering, unpacks=False)  # slower prompts need less
            self._plans.clear()
            plan = self.plan(room_of(shape))
            base = self._reserve(plan.nbytes)

        chosen = (self._sampling[0].token, F32) if chooses else None
        behind = self._slots[slot - 1].inputs.addresses()  # of the pass that goes on with them

        def address(place: Place) -> int:
            return behind.tokens if place == chosen else base + plan.offsets[place]

        own = self._slots[slot]
        batch = own.inputs.addresses()
        if chooses:
            batch = replace(batch, chosen=own.result(shape.output_rows, 1).ctypes.data)

        def scratch(label: str) -> int:
            return base + plan.offsets[label] if label in plan.offsets else 0

        memory = PassMemory(self.lowering, shape, batch, address, scratch)
        lowering = PassLowering(memory)
        wanted = plan.steps if chooses else self.unsampled(plan.steps)
        steps = [(step, lowering.launches([step])) for step in wanted]
        scores = address((self._graph.result, F32))
        received = address((self._received, F32)) if self._received else 0
        return CapturedPass(steps, scores, received, slot, chained)

    def _reserve(self, nbytes: int) -> int:
        """Address of the arena, at least so large; passes made for a smaller one are dropped."""
        address, size = self._arena
        if size < nbytes:
            self.forget()
            self._arena = (0, 0)
            if address:
                self._runtime.free(address)
            self._arena = (self._runtime.allocate(nbytes), nbytes)
        return self._arena[0]

    def _drop(self, kept: CapturedPass) -> None:
        if kept.graph is not None:
            self._runtime.destroy_graph(kept.graph)

    def releases(self) -> list[Callable[[], None]]:
        """Give up everything; return what gives it back to the device."""
        kept, self._kept = self._kept, OrderedDict()
        (arena, _), self._arena = self._arena, (0, 0)
        releases: list[Callable[[], None]] = [partial(self._drop, one) for one in kept.values()]
        return [*releases, partial(self._runtime.free, arena)] if arena else releases
