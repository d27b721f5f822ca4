"""Requantizing a file: formats by the mix, bytes by our encoders, metadata kept, no debris."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model.small_models import written

from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.header import StringArray
from rocmforge.gguf.quants import dequantize, quantize
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.mixes import find_mix, tensor_format
from rocmforge.model.requantize import quantize_gguf
from rocmforge.model.synthetic import make_model

_REPLACED = ("general.file_type", "general.quantization_version")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("requantize") / "f16.gguf", "tiny", "F16", layers=1)


@pytest.mark.parametrize("mix", ["Q8_0", "Q4_K_M", "MXFP4"])
def test_formats_and_bytes_are_those_of_the_mix(source: Path, tmp_path: Path, mix: str) -> None:
    calls: list[tuple[int, int]] = []
    target = quantize_gguf(source, tmp_path / "q.gguf", mix, lambda *c: calls.append(c))
    with GGUFFile(source) as before, GGUFFile(target) as after:
        config = ModelConfig.from_gguf(after)
        assert list(after.tensors) == list(before.tensors)
        assert after.get("general.file_type", int) == find_mix(mix).file_type
        for name, info in after.tensors.items():
            wanted = tensor_format(find_mix(mix), config, name, info.shape)
            assert (name, info.format.name) == (name, wanted)
            weights = dequantize(before.tensor(name), before.tensors[name].format)
            assert np.array_equal(after.tensor(name), quantize(weights, FORMATS[wanted])), name
        assert calls[-1] == (calls[-1][1], sum(info.nbytes for info in after.tensors.values()))


def test_scales_go_into_the_weights(tmp_path: Path) -> None:
    """Unless the matrices stay as they are: then so do the scales."""
    small = written(
        "llama", nvfp4=True, feed_forward_length=128, expert_count=3, expert_used_count=2
    )
    source = small(tmp_path / "nvfp4.gguf")
    with GGUFFile(source) as before:
        for mix in ("F32", "NVFP4"):
            target = quantize_gguf(source, tmp_path / "q.gguf", mix)
            with GGUFFile(target) as after:
                lost = before.tensors.keys() - after.tensors.keys()
                for name in after.tensors:
                    if mix == "NVFP4" or not name.endswith("_exps.weight"):
                        continue
                    stem = name.removesuffix("weight")
                    assert {f"{stem}scale", f"{stem}input_scale"} <= lost
                    scale = before.tensor(f"{stem}scale").view(np.float32)
                    weights = dequantize(before.tensor(name), before.tensors[name].format)
                    wanted = weights * scale.reshape(3, 1, 1)
                    assert np.array_equal(after.tensor(name).view(np.float32), wanted), name
                kept = {name for name in lost if not name.startswith("output.")}
                assert bool(kept) == (mix == "F32")


def test_metadata_is_kept(source: Path, tmp_path: Path) -> None:
    target = quantize_gguf(source, tmp_path / "q.gguf", "Q8_0")
    with GGUFFile(source) as before, GGUFFile(target) as after:
        assert set(after.metadata) == set(before.metadata)
        for key, value in before.metadata.items():
            if key in _REPLACED:
                continue
            other = after.metadata[key]
            assert type(other) is type(value), key
            if isinstance(value, np.ndarray):
                assert isinstance(other, np.ndarray)
                assert other.dtype == value.dtype
            if isinstance(value, np.ndarray | StringArray):
                assert list(other) == list(value), key  # type: ignore[arg-type]
            else:
                assert other == value, key


def test_a_file_can_be_replaced_by_itself(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(source.read_bytes())
    quantize_gguf(path, path, "Q8_0")
    assert path.read_bytes() == quantize_gguf(source, tmp_path / "q.gguf", "Q8_0").read_bytes()


def test_a_failure_leaves_what_was_there(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept.gguf"
    target.write_bytes(b"mine")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_gguf(source, target, "Q8_0", stop)
    with pytest.raises(ValueError, match="mix: got 'Q9'"):
        quantize_gguf(source, target, "Q9")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.gguf"]
    assert target.read_bytes() == b"mine"
