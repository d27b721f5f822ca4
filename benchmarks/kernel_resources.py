"""Resources of the GPU kernels on each AMD architecture: registers, LDS, waves, loads, size.

clang 19 compiles them, so that any machine notices a kernel that takes more registers, begins to
spill, leaves a SIMD unit with fewer waves or loads in smaller pieces; without clang 19 everything
shows n/a. Nothing is timed and no GPU is needed.
"""

from __future__ import annotations

import functools
from typing import Any

from rocmforge.errors import DeviceError

FILES = (
    "add_experts.hip",
    "add_experts_rmsnorm.hip",
    "add_scale.hip",
    "all_gather.hip",
    "all_reduce.hip",
    "all_reduce_chunks.hip",
    "argmax.hip",
    "attention.hip",
    "attention_prompt.hip",
    "embed.hip",
    "expert_gate_up.hip",
    "expert_gate_up_batch.hip",
    "expert_matmul.hip",
    "expert_matmul_batch.hip",
    "gate_up_swiglu.hip",
    "gate_up_swiglu_batch.hip",
    "group_experts.hip",
    "kv_append.hip",
    "layernorm.hip",
    "matmul.hip",
    "matmul_batch.hip",
    "matmul_dot4.hip",
    "matmul_f16.hip",
    "matmul_prompt.hip",
    "matmul_rmsnorm.hip",
    "quantize.hip",
    "reduce_rmsnorm.hip",
    "rmsnorm.hip",
    "rmsnorm_route.hip",
    "rope.hip",
    "rope_attention.hip",
    "rope_kv_append.hip",
    "route.hip",
    "sample.hip",
    "softcap.hip",
    "softmax.hip",
    "swiglu.hip",
    "unpack.hip",
)
ARCHITECTURES = ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx90a", "gfx942")


@functools.cache
def compiled(file: str, architecture: str) -> tuple[Any, ...]:
    """Compile the hot kernels of a file; NotImplementedError where that cannot be done here."""
    try:
        from rocmforge.gpu.cross_compile import all_builds, clang_version, compile_builds

        clang_version()
    except (DeviceError, ImportError) as error:  # commits before the GPU backend
        raise NotImplementedError(str(error)) from error
    builds = [b for b in all_builds(architecture) if b.file == file and b.hot]
    if not builds:
        raise NotImplementedError(f"{file} has no hot kernel for {architecture}")
    targets = [(build, architecture) for build in builds]
    return tuple(kernel for _, found in compile_builds(targets) for kernel in found)


def kernels(file: str, architecture: str) -> tuple[Any, ...]:
    """Return the resources of `compiled` kernels."""
    return tuple(kernel.resources for kernel in compiled(file, architecture))


@functools.cache
def load_width(file: str, architecture: str) -> float:
    """Return `bytes_per_load` of the hot kernels; NotImplementedError as `compiled`."""
    found = compiled(file, architecture)
    try:
        from rocmforge.gpu.cross_compile import bytes_per_load
    except ImportError as error:  # commits before it
        raise NotImplementedError(str(error)) from error
    width = bytes_per_load(found)
    if width is None:
        raise NotImplementedError(f"{file} loads nothing on {architecture}")
    return width


class KernelResources:
    """Over all forms of a kernel file that run for every token or prompt."""

    params = (FILES, ARCHITECTURES)
    param_names = ("file", "architecture")
    timeout = 300

    def setup(self, file: str, architecture: str) -> None:
        kernels(file, architecture)

    def track_vgprs(self, file: str, architecture: str) -> int:
        """Vector registers of the kernel that takes most."""
        return max(found.vgprs for found in kernels(file, architecture))

    def track_lds_bytes(self, file: str, architecture: str) -> int:
        """LDS of a block, of the kernel that takes most, without what a launch adds."""
        return max(found.lds_bytes for found in kernels(file, architecture))

    def track_spilled_registers(self, file: str, architecture: str) -> int:
        """Registers that did not fit, of all kernels together."""
        return sum(found.vgpr_spills + found.sgpr_spills for found in kernels(file, architecture))

    def track_code_bytes(self, file: str, architecture: str) -> int:
        """Machine code of all kernels together."""
        return sum(found.code_bytes for found in kernels(file, architecture))

    def track_occupancy(self, file: str, architecture: str) -> int:
        """Waves that a SIMD unit holds at once, of the kernel with fewest."""
        return min(found.occupancy for found in compiled(file, architecture))

    track_vgprs.unit = "registers"  # type: ignore[attr-defined]
    track_lds_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_spilled_registers.unit = "registers"  # type: ignore[attr-defined]
    track_code_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_occupancy.unit = "waves"  # type: ignore[attr-defined]
    track_occupancy.direction = "higher"  # type: ignore[attr-defined]


class Loads:
    """Over all forms of a kernel file that run for every token or prompt."""

    params = (FILES, ARCHITECTURES)
    param_names = ("file", "architecture")
    timeout = 300

    def setup(self, file: str, architecture: str) -> None:
        load_width(file, architecture)

    def track_bytes_per_load(self, file: str, architecture: str) -> float:
        """Bytes that a lane gets with one load from memory, on average; 16 is the most."""
        return load_width(file, architecture)

    track_bytes_per_load.unit = "bytes/load"  # type: ignore[attr-defined]
    track_bytes_per_load.direction = "higher"  # type: ignore[attr-defined]
