"""Where an engine's memory goes: weights, keys and values, page table, activations, device, host.

    before = device_memory(backend)
    with Engine.from_gguf(path, "hip:0") as engine:
        engine.prefill(engine.add_sequence(), ids)
        print(memory_profile(engine, before).kv.bytes_in_use)

Sizes are those that were asked for. A GPU's allocator rounds up, and its runtime and kernels take
memory too: that is what `MemoryProfile.unaccounted_bytes` shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmforge.engine import Engine
from rocmforge.kv.page_use import PageUse, page_use
from rocmforge.plan.protocols import Backend, ExecutorMemory
from rocmforge.profiling.process_memory import peak_memory_bytes, resident_bytes

NO_DEVICE = "a CPU has no memory of its own: see the host's"
SEVERAL = "the layers lie on several devices: ask each with `device_memory`"
NO_BEFORE = "not looked at before the engine was loaded"
NO_STATUS = "/proc/self/status does not say it"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU's memory at one moment, of all processes.

    Parameters
    ----------
    free, total
        Bytes, as its driver says.
    """

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Keys and values.

    Parameters
    ----------
    pool_bytes
        Of the memory that the pages have so far; on a CPU of all pages, which the system gives as
        they are touched.
    bytes_per_token, bytes_per_token_layer
        Of one token in all layers, and in one.
    table_bytes
        Page table on the host, with the allocator's list, and its copy on the device.
    use
        How the pages are used.
    """

    pool_bytes: int
    bytes_per_token: int
    bytes_per_token_layer: int
    table_bytes: int
    use: PageUse

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the pool has places for: pages · P."""
        return self.use.pages * self.use.page_size

    @property
    def full_bytes(self) -> int:
        """Bytes of all pages, once they have been needed."""
        return self.capacity_tokens * self.bytes_per_token

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the tokens that it holds."""
        return self.use.tokens * self.bytes_per_token

    @property
    def unused_bytes(self) -> int:
        """Bytes of the places in partly filled pages that hold no token."""
        return self.use.unused_slots * self.bytes_per_token

    @property
    def table_overhead(self) -> float:
        """Bytes of the page table over those of the pool."""
        return self.table_bytes / self.pool_bytes


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Where the memory of an engine goes, in bytes; None: `reasons` says why it is not known.

    Parameters
    ----------
    weight_bytes, streamed_bytes
        Packed matrices, and those of them that a GPU reads from the host's memory.
    kv
        Keys and values.
    executor
        Activations, inputs, constants.
    device, device_before
        The GPU's memory now, and before the engine was loaded; None where layers lie on several
        devices.
    host_bytes, host_peak_bytes
        Resident memory of this process, now and at most.
    reasons
        By the name of each field that is None: why.
    """

    weight_bytes: int
    streamed_bytes: int
    kv: KvMemory
    executor: ExecutorMemory
    device: DeviceMemory | None
    device_before: DeviceMemory | None
    host_bytes: int | None
    host_peak_bytes: int
    reasons: dict[str, str]

    @property
    def engine_bytes(self) -> int:
        """Weights on the device, the pool of keys and values, activations, constants, inputs."""
        executor = self.executor
        own = executor.activations + executor.constants + executor.inputs
        weights = self.weight_bytes - self.streamed_bytes
        return weights + self.kv.pool_bytes + own

    @property
    def taken_bytes(self) -> int | None:
        """How much less of the device is free than before; None where that is not known."""
        if self.device is None or self.device_before is None:
            return None
        return self.device_before.free - self.device.free

    @property
    def unaccounted_bytes(self) -> int | None:
        """What of `taken_bytes` is not `engine_bytes`: rounding, kernels, other processes.

        None where `taken_bytes` is.
        """
        taken = self.taken_bytes
        return None if taken is None else taken - self.engine_bytes


def device_memory(backend: Backend[Any]) -> DeviceMemory | None:
    """Ask a GPU's driver for its memory; None of a CPU.

    Parameters
    ----------
    backend
        Of the device, from `rocmforge.devices.open_backend` or `Engine.backend`.

    Raises
    ------
    DeviceError
        The driver does not answer.
    """
    kernels = getattr(backend, "kernels", None)
    return None if kernels is None else DeviceMemory(*kernels.runtime.memory_info())


def memory_profile(engine: Engine, before: DeviceMemory | None = None) -> MemoryProfile:
    """Look at an engine's memory now, with the sequences that it holds at this moment.

    Parameters
    ----------
    engine
        No call of it may run meanwhile.
    before
        The device's memory before the engine was loaded, from `device_memory`.

    Raises
    ------
    DeviceError
        The driver does not answer.
    """
    cache, executor = engine.cache, engine.memory()
    several = len(engine.devices) > 1
    device = None if several else device_memory(engine.backend)
    host = resident_bytes()
    reasons = {}
    if device is None:
        reasons["device"] = reasons["device_before"] = SEVERAL if several else NO_DEVICE
    elif before is None:
        reasons["device_before"] = NO_BEFORE
    if host is None:
        reasons["host_bytes"] = NO_STATUS
    return MemoryProfile(
        weight_bytes=engine.weight_bytes,
        streamed_bytes=engine.streamed_bytes,
        kv=KvMemory(
            pool_bytes=cache.nbytes,
            bytes_per_token=cache.bytes_per_token,
            bytes_per_token_layer=cache.bytes_per_token // engine.config.n_layers,
            table_bytes=cache.table.nbytes + executor.page_table,
            use=page_use(cache.table),
        ),
        executor=executor,
        device=device,
        device_before=before,
        host_bytes=host,
        host_peak_bytes=peak_memory_bytes(),
        reasons=reasons,
    )
