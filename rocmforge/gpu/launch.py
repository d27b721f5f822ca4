"""Kernel launches that are ready to go: made once, enqueued many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.gpu.runtime import Runtime


@dataclass(frozen=True)
class Launch:
    """One kernel over one grid, with its arguments.

    Parameters
    ----------
    name
        The kernel's name, for errors and profiles.
    function
        The runtime's handle.
    grid
        Blocks in x, y and z.
    threads
        Threads of a block.
    arguments
        The packed struct.
    file
        The kernel's file, as "rmsnorm.hip".
    early
        It may start while the launch before it still runs, for its kernel waits for that one by
        itself (kernels/device.h). Only CUDA does it.
    lds_bytes
        LDS of a block, of a kernel that leaves its size to the launch (SHARED_BY_LAUNCH of
        kernels/device.h). Only CUDA's kernels do.
    """

    name: str
    function: Any
    grid: tuple[int, int, int]
    threads: int
    arguments: Arguments
    file: str = ""
    early: bool = False
    lds_bytes: int = 0

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        """Put the kernel on a stream."""
        runtime.launch(
            self.function,
            self.grid,
            self.threads,
            self.arguments,
            stream,
            early=self.early,
            lds_bytes=self.lds_bytes,
        )
