"""What a model takes of its devices: the parts of every matrix, and what cannot be cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model.small_models import written

from rocmforge.errors import OutOfMemoryError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.needs import EMBEDDING, Needs
from rocmforge.model.synthetic import make_model
from rocmforge.quantities import human_size


def untied(path: Path) -> Path:
    return make_model(path, "tiny", "F16", layers=3)


CACHED = 1000  # of each layer


def needs_of(path: Path, on_gpus: int) -> tuple[Needs, int, int]:
    """Of a model of three layers, the bytes of its embedding and of all tensors."""
    with GGUFFile(path) as file:
        tensors = dict(file.tensors)
        config = ModelConfig.from_gguf(file)
    used = sum(info.nbytes for name, info in tensors.items() if name != "output_norm.weight")
    cached = [CACHED] * 3
    found = Needs(config, tensors, lambda info: info.nbytes, cached, 64, on_gpus)
    return found, tensors[EMBEDDING].nbytes, used


@pytest.mark.parametrize("make", [untied, written("gemma2", block_count=3)])
def test_each_of_several_gpus_has_the_whole_embedding(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    needs, embedding, used = needs_of(make(tmp_path / "m.gguf"), 3)
    each = (used - embedding + 3 * CACHED) // 2 + embedding
    assert f"takes about {human_size(each)} on each of 2 GPUs" in needs.advice_for_parts([7, 9])
    assert "the least room was 7 bytes" in needs.advice_for_parts([7, 9])


@pytest.mark.parametrize("make", [untied, written("gemma2", block_count=3)])
def test_a_gpu_has_all_but_the_weights_that_are_streamed(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path / "m.gguf")
    whole, _, used = needs_of(path, 3)
    none, _, _ = needs_of(path, 0)
    assert f"tokens take {human_size(used + 3 * CACHED)}, for which" in whole.advice_for_stream(
        [used + 3 * CACHED]
    )
    layers = (used - int(none._weights()[1]) + 3 * CACHED) // 3
    told = none.advice_for_stream([used])
    assert "0 of 3 layers, the embedding, the output, and keys and values of 64" in told
    assert f"take {human_size(used - 3 * layers + 3 * CACHED)}" in told
    assert "gpu_layers=2 (--gpu-layers 2)" in whole.advice_for_stream([used - layers + 3 * CACHED])
    assert whole.advice_for_stream([5]).endswith("wanted a smaller context")
    assert whole.advice([used]).endswith(
        "(--gpu-layers 2) has room, or gpu_layers=2 (--gpu-layers 2) with split_mode=stream "
        "(--split-mode stream)"
    )
    assert "wanted a smaller context, or the CPU (device cpu), or gpu_layers=0" in whole.advice(
        [used - 3 * layers + 3 * CACHED]
    )
    for rooms in ([5], [9, 9]):
        assert whole.advice(rooms).endswith("or the CPU (device cpu)")
    none.check_host(3 * layers)
    with pytest.raises(OutOfMemoryError, match=r"of 3 layers; gpu_layers=1 .* or more"):
        none.check_host(3 * layers - 1)
    whole.check_host(0)
