"""Writes synthetic GGUF models: a preset's shape, random weights in any format or mix, a tokenizer.

Everything streams to disk, so that memory stays at some megabytes whatever the model's size, and
everything follows from the seed. Shapes, mixes, blocks and vocabulary come from the modules beside
this one, which puts the file together.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from rocmforge import env
from rocmforge.array_types import Bytes
from rocmforge.atomic import sweep, whole_file
from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.random_blocks import RandomBytes, normal, random_blocks
from rocmforge.gguf.writer import pad, write_header
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import ModelConfig
from rocmforge.model.mixes import Mix, find_mix, mix_format, tensor_format
from rocmforge.model.presets import Preset, find_preset, llama3_freq_factors
from rocmforge.model.synthetic_vocab import MetadataValue, vocabulary_metadata
from rocmforge.model.tensor_shapes import tensor_shapes
from rocmforge.plan.protocols import Progress

_HEADER_RESERVE = 32 << 20
_SOURCES = (
    "architectures.py",
    "mixes.py",
    "presets.py",
    "synthetic.py",
    "synthetic_vocab.py",
    "../gguf/random_blocks.py",
    "../gguf/writer.py",
)


@dataclass(frozen=True)
class ModelPlan:
    """A model to be written.

    Parameters
    ----------
    preset
        Its shape.
    mix
        How its matrices are stored.
    tensors
        Name to shape, numpy order, and format, in the order of the file.
    """

    preset: Preset
    mix: Mix
    tensors: Mapping[str, tuple[tuple[int, ...], Format]]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(fmt.nbytes(shape) for shape, fmt in self.tensors.values())

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Tensors by format of those whose columns do not fill the blocks of the mix's format."""
        return Counter(
            fmt.name
            for name, (shape, fmt) in self.tensors.items()
            if fmt.name != mix_format(self.mix, self.preset.config, name, shape)
        )

    @property
    def weights(self) -> int:
        """Weights in all tensors."""
        return sum(int(np.prod(shape)) for shape, _ in self.tensors.values())


def plan_model(
    preset: str, mix: str, *, layers: int | None = None, architecture: str | None = None
) -> ModelPlan:
    """Return what `make_model` would write, without writing it.

    Parameters
    ----------
    preset, layers, architecture
        As in `presets.find_preset`.
    mix
        As in `mixes.find_mix`.

    Raises
    ------
    ValueError
        One of the names is unknown, or `layers` is out of range.
    """
    return _plan(find_preset(preset, layers=layers, architecture=architecture), find_mix(mix))


def make_model(
    path: str | os.PathLike[str],
    preset: str,
    mix: str,
    *,
    seed: int = 0,
    layers: int | None = None,
    architecture: str | None = None,
    rope_scaling: Mapping[str, bool | int | float | str] | None = None,
    rope_factor: float | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a GGUF model of random weights, which any GGUF engine loads.

    Matrices have standard deviation 1 / √columns, so that activations keep their size from
    layer to layer; an untied embedding has 1. Norm weights are near 1. The file appears under
    its name only when it is complete.

    Parameters
    ----------
    path
        File to write; an existing one is replaced.
    preset, layers, architecture
        The shape, as in `presets.find_preset`.
    mix
        Formats, as in `mixes.find_mix`.
    seed
        Not negative; the same arguments give the same bytes.
    rope_scaling
        Written as ``<architecture>.rope.scaling.<key>``, e.g. ``{"type": "yarn", "factor": 4.0,
        "original_context_length": 512}``.
    rope_factor
        Adds the tensor ``rope_freqs.weight`` with this Llama 3 factor; by default the preset's.
    progress
        Called with the bytes written and the bytes to write.

    Returns
    -------
    The path.

    Raises
    ------
    ValueError
        A name is unknown, a number is out of range, rotary factors are asked of an architecture
        without them, the directory is missing, or the disk has too little room.
    """
    if seed < 0:
        raise ValueError(f"seed: got {seed}, wanted 0 or more")
    shape = find_preset(preset, layers=layers, architecture=architecture)
    if rope_factor is not None:
        shape = _with_rope_factor(shape, rope_factor)
    plan = _plan(shape, find_mix(mix))
    target = Path(path)
    sweep(target)  # what a killed run left may be all that is in the way
    _check_room(target.parent, plan.nbytes + _HEADER_RESERVE)
    metadata = _metadata(plan, rope_scaling or {})
    with whole_file(target) as out:
        _write_header(Path(out.name), plan, metadata)
        out.seek(0, os.SEEK_END)
        _write_tensors(out, plan, seed, progress)
    return target


def cached_model(
    preset: str,
    mix: str,
    seed: int = 0,
    *,
    layers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the path of a model in the cache, made at the first call.

    The name carries a hash of the generator's source, so that another revision of it makes
    another file. Processes that race for the same model each write a file of their own and the
    last rename wins; both are the same bytes.

    Parameters
    ----------
    preset, mix, seed, layers, progress
        As in `make_model`.

    Returns
    -------
    ``<cache>/models/<preset>[-<layers>L]-<mix>-<seed>-<revision>.gguf``.

    Raises
    ------
    ValueError
        As in `make_model`; or the cache cannot be written.
    """
    plan_model(preset, mix, layers=layers)  # a wrong name must not make a directory
    cut = "" if layers is None else f"-{layers}L"
    name = f"{preset}{cut}-{mix}-{seed}-{_revision()}.gguf"
    path = env.cache_dir() / "models" / name
    if os.path.isfile(path):  # False, not an error, where the cache cannot be read
        return path
    env.cache_folder("models")
    return make_model(path, preset, mix, seed=seed, layers=layers, progress=progress)


@functools.cache
def _revision() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:10]


def _with_rope_factor(preset: Preset, factor: float) -> Preset:
    if not ARCHITECTURES[preset.config.architecture].rope_factors:
        raise ValueError(
            f"rope_factor: got {factor} for {preset.config.architecture}, "
            "wanted none; only llama has frequency factors"
        )
    if not 1.0 <= factor <= 1e6:
        raise ValueError(f"rope_factor: got {factor}, wanted a number from 1 to 1e6")
    return Preset(preset.name, preset.describes, preset.config, preset.vocabulary, factor)


def _plan(preset: Preset, mix: Mix) -> ModelPlan:
    shapes = tensor_shapes(preset.config, ("rope_freqs.weight",) if preset.rope_factor else ())
    tensors = {
        name: (shape, FORMATS[tensor_format(mix, preset.config, name, shape)])
        for name, shape in shapes.items()
    }
    return ModelPlan(preset, mix, tensors)


def _check_room(directory: Path, wanted: int) -> None:
    if not directory.is_dir():
        raise ValueError(f"directory of the model: got {directory}, wanted one that exists")
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise ValueError(
            f"{directory}: got {_decimal(free)} free, wanted {_decimal(wanted)} for the model"
        )


def _decimal(nbytes: int) -> str:
    """Return bytes in the unit in which tools for disks count them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes / 1e3:.1f} kB"


def _metadata(
    plan: ModelPlan, rope_scaling: Mapping[str, bool | int | float | str]
) -> dict[str, MetadataValue]:
    config = plan.preset.config
    keys: dict[str, MetadataValue] = {
        "general.type": "model",
        "general.name": f"synthetic {plan.preset.name} {plan.mix.name}",
        "general.description": f"random weights in the shape of {plan.preset.describes}",
        "general.file_type": plan.mix.file_type,
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
    }
    arch = {**_config_metadata(config), **{f"rope.scaling.{k}": v for k, v in rope_scaling.items()}}
    keys.update({f"{config.architecture}.{key}": value for key, value in arch.items()})
    keys.update(vocabulary_metadata(plan.preset.vocabulary, config.vocab_size))
    return keys


def _config_metadata(config: ModelConfig) -> dict[str, MetadataValue]:
    extra: dict[str, MetadataValue] = {}
    if config.experts is not None:
        extra["expert_count"] = config.experts.count
        extra["expert_used_count"] = config.experts.used
        extra["expert_feed_forward_length"] = config.d_ff
    if config.window is not None:
        extra["attention.sliding_window"] = config.window.size
    if config.rope.scaling != "none":
        extra["rope.scaling.type"] = config.rope.scaling
        extra["rope.scaling.factor"] = config.rope.factor
        extra["rope.scaling.original_context_length"] = config.rope.original_ctx
    norm = "layer_norm_epsilon" if config.row.layer_norms else "layer_norm_rms_epsilon"
    return {
        **extra,
        "block_count": config.n_layers,
        "context_length": config.ctx_train,
        "embedding_length": config.d_model,
        "feed_forward_length": config.d_ff,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.{norm}": config.norm_eps,
        "rope.dimension_count": config.rope.dim,
        "rope.freq_base": config.rope.base,
    }


def _write_header(path: Path, plan: ModelPlan, metadata: Mapping[str, MetadataValue]) -> None:
    writer = gguf.GGUFWriter(None, plan.preset.config.architecture)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    write_header(path, writer, ((name, *rest) for name, rest in plan.tensors.items()))


def _write_tensors(out: BinaryIO, plan: ModelPlan, seed: int, progress: Progress | None) -> None:
    total, done = plan.nbytes, 0
    out.seek(0, os.SEEK_END)
    pad(out)
    for name, (shape, fmt) in plan.tensors.items():
        for chunk in _tensor_bytes(plan.preset, name, shape, fmt, seed):
            out.write(chunk.data)
            done += chunk.nbytes
            if progress is not None:
                progress(done, total)
        pad(out)


def _tensor_bytes(
    preset: Preset, name: str, shape: tuple[int, ...], fmt: Format, seed: int
) -> Iterator[Bytes]:
    source = RandomBytes(seed, name)
    if len(shape) >= 2 and not name.endswith(".bias"):
        untied = name == "token_embd.weight" and not preset.config.tied_output
        std = 1.0 if untied else shape[-1] ** -0.5
        yield from random_blocks(fmt, math.prod(shape), std, source)
        return
    if name == "rope_freqs.weight" and preset.rope_factor is not None:
        vector = llama3_freq_factors(preset.config.rope, preset.rope_factor)
    elif name.endswith(".bias"):
        vector = 0.1 * normal(source, math.prod(shape))
    else:
        vector = 1.0 + 0.1 * normal(source, shape[0])
    yield vector.astype("<f4").view(np.uint8)
