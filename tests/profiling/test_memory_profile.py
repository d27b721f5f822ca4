"""Where the memory of an engine on the CPU goes, against the model's shape."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocmforge.engine import Engine
from rocmforge.model.synthetic import make_model
from rocmforge.plan.protocols import ExecutorMemory
from rocmforge.profiling.memory import device_memory, memory_profile
from rocmforge.profiling.process_memory import peak_memory_bytes, resident_bytes

LAYERS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=LAYERS)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with Engine.from_gguf(model, "cpu", ctx=64, sequences=2, page_size=16) as engine:
        yield engine


def test_keys_and_values_by_the_models_shape(engine: Engine) -> None:
    first, second = engine.add_sequence(), engine.add_sequence()
    engine.prefill(first, list(range(5, 22)))
    engine.prefill(second, [5, 6])
    found = memory_profile(engine)
    config, kv = engine.config, found.kv
    layer = 2 * config.n_kv_heads * config.head_dim * 2
    assert kv.bytes_per_token_layer == layer
    assert kv.bytes_per_token == LAYERS * layer
    assert kv.capacity_tokens == 2 * 64
    assert kv.pool_bytes == 2 * 64 * LAYERS * layer
    assert (kv.use.sequences, kv.use.tokens, kv.use.taken) == (2, 19, 3)
    assert kv.bytes_in_use == 19 * LAYERS * layer
    assert kv.unused_bytes == (15 + 14) * LAYERS * layer
    assert kv.table_bytes == engine.cache.table.nbytes
    assert kv.table_overhead == kv.table_bytes / kv.pool_bytes
    engine.remove_sequence(first)
    assert memory_profile(engine).kv.use.tokens == 2


def test_weights_activations_and_the_host(engine: Engine) -> None:
    before = memory_profile(engine)
    assert before.executor.activations == 0
    engine.prefill(engine.add_sequence(), list(range(5, 22)))
    found = memory_profile(engine)
    assert found.weight_bytes == engine.weight_bytes
    # at least the residual stream of 17 tokens
    assert found.executor.activations >= 17 * engine.config.d_model * 4
    # a float32 cosine and sine of each pair of a head, of 17 positions and their room to 32
    angles = 32 * engine.config.head_dim * 4
    assert found.executor == ExecutorMemory(found.executor.activations, angles, 0, 0, 0)
    assert found.engine_bytes == (
        found.weight_bytes + found.kv.pool_bytes + found.executor.activations + angles
    )
    assert found.host_bytes is not None
    assert found.engine_bytes / 10 < found.host_bytes <= found.host_peak_bytes


def test_a_cpu_has_no_device_memory_and_says_so(engine: Engine) -> None:
    assert device_memory(engine.backend) is None
    found = memory_profile(engine)
    assert found.device is None
    assert set(found.reasons) == {"device", "device_before"}
    assert "host" in found.reasons["device"]
    assert (found.taken_bytes, found.unaccounted_bytes) == (None, None)


def test_memory_of_this_process(tmp_path: Path) -> None:
    before = resident_bytes()
    ballast = mmap.mmap(-1, 50_000_000)  # new pages: an allocator could hand out old ones
    ballast.write(b"x" * len(ballast))
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert after - before > 0.8 * len(ballast)
    assert after <= peak_memory_bytes()
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n", encoding="utf-8")
    assert (peak_memory_bytes(tmp_path), resident_bytes(tmp_path)) == (2 << 20, 1 << 20)
    nowhere = tmp_path / "nowhere"
    assert resident_bytes(nowhere) is None
    assert peak_memory_bytes(nowhere) > 10e6  # of getrusage
