"""Where a pass finds its inputs, and where it leaves its result for the host.

Two of them take turns, so that a step can be queued while the one before runs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Ints
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
        self._result: NDArray[np.uint8] | None = None  # page-locked

    @property
    def result_bytes(self) -> int:
        """Room for a result."""
        return 0 if self._result is None else self._result.nbytes

    def grow_result(self, nbytes: int) -> None:
        """Make room for a result; its address changes."""
        self._free_result()
        self._result = self._runtime.allocate_pinned(nbytes)

    def result(self, rows: int, columns: int) -> Ints:
        """Page-locked memory (rows, columns), for which there is room."""
        assert self._result is not None
        words: Ints = self._result[: 4 * rows * columns].view(np.int32)
        return words.reshape(rows, columns)

    def close(self) -> None:
        """Give everything back. Idempotent."""
        releases = [self.inputs.close, self._free_result]
        done, self.done = self.done, None
        if done is not None:
            releases.append(partial(self._runtime.destroy_event, done))
        release_all(*releases)

    def _free_result(self) -> None:
        result, self._result = self._result, None
        if result is not None:
            self._runtime.free_pinned(result)


def grow(slots: tuple[Slot, ...], tokens: int, sequences: int) -> None:
    """Give all slots room for a batch; addresses change."""
    for slot in slots:
        slot.inputs.grow(tokens, sequences)


def memory(slots: tuple[Slot, ...]) -> tuple[int, int, int]:
    """Bytes of the inputs on the device, of their page tables, and of page-locked memory."""
    inputs = sum(slot.inputs.nbytes for slot in slots)
    tables = sum(slot.inputs.page_table_bytes for slot in slots)
    return inputs, tables, inputs + sum(slot.result_bytes for slot in slots)
