"""Where the memory of an engine on a GPU goes: what is named is what the device allocated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.demo import demo_model
from rocmforge.engine import Engine
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.profiling.memory import DeviceMemory, device_memory, memory_profile

pytestmark = pytest.mark.either_wave

LAYERS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=LAYERS)


@pytest.fixture
def allocated(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Bytes of device and of page-locked memory that are held, as the calls say."""
    kind = type(kernels.runtime)
    held = {"device": 0, "pinned": 0}
    sizes: dict[int, int] = {}
    allocate, free = kind.allocate, kind.free
    allocate_pinned, free_pinned = kind.allocate_pinned, kind.free_pinned

    def allocating(self: Runtime, nbytes: int) -> int:
        address = allocate(self, nbytes)
        sizes[address] = nbytes
        held["device"] += nbytes
        return address

    def freeing(self: Runtime, address: int) -> None:
        held["device"] -= sizes.pop(address, 0)
        free(self, address)

    def pinning(self: Runtime, nbytes: int) -> Any:
        held["pinned"] += nbytes
        return allocate_pinned(self, nbytes)

    def unpinning(self: Runtime, memory: Any) -> None:
        held["pinned"] -= memory.nbytes
        free_pinned(self, memory)

    for name, call in (
        ("allocate", allocating),
        ("free", freeing),
        ("allocate_pinned", pinning),
        ("free_pinned", unpinning),
    ):
        monkeypatch.setattr(kind, name, call)
    yield held
    assert held == {"device": 0, "pinned": 0}


def test_all_matrices_share_one_allocation(
    kernels: Kernels, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, sizes = type(kernels.runtime), []
    allocate = kind.allocate

    def allocating(self: Runtime, nbytes: int) -> int:
        sizes.append(nbytes)
        return allocate(self, nbytes)

    monkeypatch.setattr(kind, "allocate", allocating)
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    for weight_format in (None, "Q8_0"):  # as in the file, and quantized anew
        sizes.clear()
        with Engine.from_gguf(model, device, ctx=64, weight_format=weight_format) as engine:
            assert sizes.count(engine.weight_bytes) == 1
            assert engine.weight_bytes > 2 * LAYERS * engine.config.d_model * engine.config.d_ff / 2


def test_what_is_named_is_what_was_allocated(
    kernels: Kernels, model: Path, allocated: dict[str, int]
) -> None:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    before = DeviceMemory(*kernels.runtime.memory_info())
    with Engine.from_gguf(model, device, ctx=64, sequences=2) as engine:
        first = memory_profile(engine, before)
        assert first.executor.activations == 0
        sequence = engine.add_sequence()
        engine.prefill(sequence, list(range(5, 22)))
        engine.decode([sequence], [3])
        found = memory_profile(engine, before)
        # sizes are those that were asked for; a packed matrix counts its padding
        assert found.engine_bytes == pytest.approx(allocated["device"], rel=0.01)
        assert found.executor.pinned == allocated["pinned"]
        assert found.executor.activations > 17 * engine.config.d_model * 4
        assert found.executor.constants > 0
        assert found.executor.page_table == 2 * 4 * 8 * 2  # slots, sequences at once, pages of each
        assert found.kv.table_bytes == engine.cache.table.nbytes + found.executor.page_table
        assert found.kv.use.tokens == 18
        layer = 2 * engine.config.n_kv_heads * engine.config.head_dim * 2
        assert found.kv.bytes_per_token_layer == layer
        assert found.device is not None
        assert found.device == device_memory(engine.backend)
        assert found.device.total == before.total
        assert found.taken_bytes == before.free - found.device.free
        assert found.unaccounted_bytes is not None
        if kernels.runtime.platform == "hip":  # the stand-in rounds each up to 256 bytes
            assert 0 <= found.unaccounted_bytes < 0.05 * found.engine_bytes
        assert found.reasons == {}
        assert set(memory_profile(engine).reasons) == {"device_before"}


def test_a_tied_embedding_is_on_the_device_once(kernels: Kernels) -> None:
    """The demo model's output is its embedding; quantized anew, the rows of the file are kept."""
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with GGUFFile(demo_model()) as file:
        table = file.tensors["token_embd.weight"]
        assert "output.weight" not in file.tensors
    ids = [5, 4000, 17, 5]
    with Engine.from_gguf(demo_model(), device, ctx=32) as engine:
        found = engine.logits(ids)
        assert engine.memory().constants < table.nbytes
    with Engine.from_gguf(demo_model(), device, ctx=32, weight_format="Q8_0") as engine:
        np.testing.assert_array_equal(engine.logits(ids), found)  # Q8_0 is what the file has
        assert engine.memory().constants > table.nbytes
