"""Where a pass finds its inputs, and where it leaves its result for the host.

Of a stage of a model, inputs include the activations of the stage before.

Two of them take turns, so that a step can be queued while the one before runs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.gpu.input_block import InputBlock
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime


class Slot:
    """Inputs and result of one pass.

    Parameters
    ----------
    runtime
        The device.
    inputs
        Of its own.

    Attributes
    ----------
    done : Any
        An event, to be recorded behind the pass.
    """

    def __init__(self, runtime: Runtime, inputs: InputBlock) -> None:
        self.inputs = inputs
        self.done = runtime.create_event()
        self._runtime = runtime
        self._result = _Pinned(runtime)
        self._received = _Pinned(runtime)

    def has_room(self, result_bytes: int, received_bytes: int) -> bool:
        """Whether there is room for a result, and for what is received."""
        return self._result.nbytes >= result_bytes and self._received.nbytes >= received_bytes

    def make_room(self, result_bytes: int, received_bytes: int) -> None:
        """Make room for both; addresses change."""
        self._result.grow(result_bytes)
        self._received.grow(received_bytes)

    def result(self, rows: int, columns: int) -> Ints:
        """Page-locked memory (rows, columns), for which there is room."""
        return self._result.words(rows, columns)

    def receive(self, activations: Floats | None) -> Floats | None:
        """Return a copy in page-locked memory, for which there is room; None of None."""
        if activations is None:
            return None
        held = self._received.words(*activations.shape).view(np.float32)
        held[:] = activations
        return held

    @property
    def pinned_bytes(self) -> int:
        """Page-locked memory, without that of the inputs."""
        return self._result.nbytes + self._received.nbytes

    def close(self) -> None:
        """Give everything back. Idempotent."""
        releases = [self.inputs.close, self._result.close, self._received.close]
        done, self.done = self.done, None
        if done is not None:
            releases.append(partial(self._runtime.destroy_event, done))
        release_all(*releases)


class _Pinned:
    """Page-locked memory that grows; what it held is lost then."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._memory: NDArray[np.uint8] | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def grow(self, nbytes: int) -> None:
        if self.nbytes < nbytes:
            self.close()
            self._memory = self._runtime.allocate_pinned(nbytes)

    def words(self, rows: int, columns: int) -> Ints:
        assert self._memory is not None
        words: Ints = self._memory[: 4 * rows * columns].view(np.int32)
        return words.reshape(rows, columns)

    def close(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            self._runtime.free_pinned(memory)


def grow(slots: tuple[Slot, ...], tokens: int, sequences: int) -> None:
    """Give all slots room for a batch; addresses change."""
    for slot in slots:
        slot.inputs.grow(tokens, sequences)


def memory(slots: tuple[Slot, ...]) -> tuple[int, int, int]:
    """Bytes of the inputs on the device, of their page tables, and of page-locked memory."""
    inputs = sum(slot.inputs.nbytes for slot in slots)
    tables = sum(slot.inputs.page_table_bytes for slot in slots)
    return inputs, tables, inputs + sum(slot.pinned_bytes for slot in slots)
