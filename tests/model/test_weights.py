"""Loading weights: every tensor accounted for, shapes and formats checked, pages released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import BASE, write_gguf
from numpy.typing import NDArray

from rocmforge.errors import ModelError
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.quants import dequantize
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.model.tensor_shapes import tensor_shapes
from rocmforge.model.weights import ModelWeights, load_weights

Arrays = dict[str, NDArray[np.float32]]


class Recorder(GGUFFile):
    """A file that notes which tensors were released."""

    released: list[str]

    def release(self, name: str) -> None:
        self.released.append(name)
        super().release(name)


def pack(
    info: TensorInfo, data: NDArray[np.uint8], factors: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    return np.array(dequantize(data, info.format))


def arrays(tmp_path: Path, architecture: str = "llama", **changes: Any) -> Arrays:
    """Return random tensors for the small model of `gguf_files`, plus the config they follow."""
    probe = write_gguf(tmp_path / "probe.gguf", architecture=architecture)
    with GGUFFile(probe) as file:
        config = replace(ModelConfig.from_gguf(file), **changes)
    rng = np.random.default_rng(0)
    shapes = tensor_shapes(config)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def load(
    path: Path, tensors: Arrays, architecture: str = "llama"
) -> ModelWeights[NDArray[np.float32]]:
    write_gguf(path, architecture=architecture, tensors=tensors)
    with GGUFFile(path) as file:
        return load_weights(file, ModelConfig.from_gguf(file), pack)


def test_names_and_shapes_of_a_layer(tmp_path: Path) -> None:
    probe = write_gguf(tmp_path / "probe.gguf", architecture="qwen2")
    with GGUFFile(probe) as file:
        config = replace(ModelConfig.from_gguf(file), qk_norm="head", tied_output=False)
    shapes = tensor_shapes(config, ["rope_freqs.weight"])
    assert {name[6:]: shape for name, shape in shapes.items() if name.startswith("blk.1.")} == {
        "attn_norm.weight": (64,),
        "attn_q.weight": (64, 64),
        "attn_q.bias": (64,),
        "attn_k.weight": (32, 64),
        "attn_k.bias": (32,),
        "attn_v.weight": (32, 64),
        "attn_v.bias": (32,),
        "attn_q_norm.weight": (16,),
        "attn_k_norm.weight": (16,),
        "attn_output.weight": (64, 64),
        "ffn_norm.weight": (64,),
        "ffn_gate.weight": (96, 64),
        "ffn_up.weight": (96, 64),
        "ffn_down.weight": (64, 96),
    }
    assert [name for name in shapes if not name.startswith("blk.")] == [
        "token_embd.weight",
        "rope_freqs.weight",
        "output_norm.weight",
        "output.weight",
    ]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_arrives_in_its_place(tmp_path: Path, architecture: str, tied: bool) -> None:
    tensors = arrays(tmp_path, architecture, tied_output=tied)
    weights = load(tmp_path / "model.gguf", tensors, architecture)
    found = {"token_embd.weight": tensors["token_embd.weight"]}  # stays in the file
    assert weights.token_embd.name == "token_embd.weight"
    found["output_norm.weight"] = weights.output_norm
    found["token_embd.weight" if tied else "output.weight"] = weights.output
    for index, layer in enumerate(weights.layers):
        for name, value in vars(layer).items():
            if value is not None and name != "index":
                part = name.removesuffix("_bias")
                kind = "bias" if part != name else "weight"
                found[f"blk.{index}.{part}.{kind}"] = value
    assert found.keys() == tensors.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)


def test_progress_and_release_cover_what_was_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=arrays(tmp_path, tied_output=False))
    seen: list[tuple[int, int]] = []
    with Recorder(path) as file:
        file.released = []
        load_weights(file, ModelConfig.from_gguf(file), pack, lambda a, b: seen.append((a, b)))
        assert sorted(file.released) == sorted(file.tensors.keys() - {"token_embd.weight"})
        total = sum(file.tensors[name].nbytes for name in file.released)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


def test_missing_unknown_and_misshapen_tensors_are_listed_together(tmp_path: Path) -> None:
    tensors = arrays(tmp_path)
    del tensors["blk.1.ffn_up.weight"]
    tensors["blk.0.attn_sinks.weight"] = np.zeros(4, "f4")
    tensors["blk.0.ffn_norm.weight"] = np.zeros(63, "f4")
    with pytest.raises(ModelError) as error:
        load(tmp_path / "model.gguf", tensors)
    assert "missing tensors: blk.1.ffn_up.weight;" in str(error.value)
    assert "unknown tensors: blk.0.attn_sinks.weight;" in str(error.value)
    assert "blk.0.ffn_norm.weight (got (63,), wanted (64,))" in str(error.value)


def test_a_long_list_says_how_many_more(tmp_path: Path) -> None:
    tensors = arrays(tmp_path)
    lacking = {name: array for name, array in tensors.items() if not name.startswith("blk.")}
    with pytest.raises(ModelError, match=r"missing tensors: blk\.0.* and 6 more$"):
        load(tmp_path / "model.gguf", lacking)


@pytest.mark.parametrize("name", ["attn_q.bias", "attn_v.bias"])
def test_one_missing_bias_of_many_is_an_error(tmp_path: Path, name: str) -> None:
    tensors = arrays(tmp_path, biases=("attn_q", "attn_k", "attn_v"))
    del tensors[f"blk.1.{name}"]
    with pytest.raises(ModelError, match=rf"missing tensors: blk\.1\.{name}$"):
        load(tmp_path / "model.gguf", tensors)


def test_half_precision_vectors_become_float32(tmp_path: Path) -> None:
    tensors = arrays(tmp_path)
    norm = tensors["output_norm.weight"].astype(np.float16)
    mixed: dict[str, NDArray[np.generic]] = {**tensors, "output_norm.weight": norm}
    path = write_gguf(tmp_path / "m.gguf", tensors=mixed)
    with GGUFFile(path) as file:
        weights = load_weights(file, ModelConfig.from_gguf(file), pack)
    assert weights.output_norm.dtype == np.float32
    assert weights.output_norm.flags.owndata
    np.testing.assert_array_equal(weights.output_norm, norm.astype(np.float32))


def test_a_quantized_vector_is_refused(tmp_path: Path) -> None:
    tensors = arrays(tmp_path)
    kind = gguf.GGMLQuantizationType.Q8_0
    stored = {**tensors, "output_norm.weight": np.zeros(68, np.uint8)}
    path = write_gguf(tmp_path / "m.gguf", tensors=stored, formats={"output_norm.weight": kind})
    with GGUFFile(path) as file, pytest.raises(ModelError, match=r"F16, BF16: output_norm.*Q8_0"):
        load_weights(file, ModelConfig.from_gguf(file), pack)


def test_scales_beside_matrices(tmp_path: Path) -> None:
    """Handed over with the matrices of NVFP4; of others, or of other shapes, they are refused."""
    tensors: dict[str, NDArray[Any]] = {**arrays(tmp_path)}
    name = "blk.1.attn_output"
    tensors[f"{name}.weight"] = np.zeros((64, 36), np.uint8)
    formats = {f"{name}.weight": gguf.GGMLQuantizationType.NVFP4}

    def factors(**beside: float | list[float]) -> dict[str, NDArray[np.float32] | None]:
        given = {key: np.array(value, "f4", ndmin=1) for key, value in beside.items()}
        path = write_gguf(tmp_path / "m.gguf", tensors=tensors | given, formats=formats)
        with GGUFFile(path) as file:
            found: dict[str, NDArray[np.float32] | None] = {}
            config = ModelConfig.from_gguf(file)
            load_weights(file, config, lambda info, _, own: found.update({info.name: own}))
        return found

    def beside(**kinds: float | list[float]) -> dict[str, NDArray[np.float32] | None]:
        return factors(**{f"{name}.{kind}": value for kind, value in kinds.items()})

    found = beside(scale=0.25, input_scale=3.0)
    assert found.pop(f"{name}.weight") == np.float32(0.25)
    assert set(found.values()) == {None}
    with pytest.raises(ModelError, match=rf"{name}\.scale \(got \(2,\), wanted \(1,\)\)"):
        beside(scale=[1.0, 2.0])
    for bad in (np.nan, np.inf, -129.0):
        with pytest.raises(ModelError, match=rf"{name}\.scale: got values from .* to 128"):
            beside(scale=bad)
    for other in ("blk.0.attn_output.scale", "token_embd.scale", f"{name}.other_scale"):
        with pytest.raises(ModelError, match=rf"unknown tensors: {other}$"):
            factors(**{other: 1.0})


def test_frequency_factors(tmp_path: Path) -> None:
    head_dim = BASE["embedding_length"] // BASE["attention.head_count"]
    factors = np.linspace(1, 8, head_dim // 2, dtype=np.float32)
    tensors = arrays(tmp_path) | {"rope_freqs.weight": factors}
    loaded = load(tmp_path / "model.gguf", tensors).rope_freqs
    assert loaded is not None
    np.testing.assert_array_equal(loaded, factors)
    for bad in (0.0, np.nan, np.inf):
        tensors["rope_freqs.weight"] = np.full_like(factors, bad)
        with pytest.raises(ModelError, match=r"rope_freqs\.weight: got values"):
            load(tmp_path / "model.gguf", tensors)
    qwen = arrays(tmp_path, "qwen2") | {"rope_freqs.weight": factors}
    with pytest.raises(ModelError, match=r"unknown tensors: rope_freqs\.weight"):
        load(tmp_path / "model.gguf", qwen, "qwen2")


def test_models_written_by_llama_cpp_load_totally(reference: Path) -> None:
    paths = sorted((reference / "models").glob("*.gguf"))
    assert paths
    for path in paths:
        with GGUFFile(path) as file:
            config = ModelConfig.from_gguf(file)
            weights = load_weights(file, config, lambda info, data, _: (info.shape, data.shape))
            assert len(weights.layers) == config.n_layers == 4
            assert weights.output[0] == (2048, 256)
