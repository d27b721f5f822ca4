"""Loads a GGUF model onto its devices: checks the file, packs the weights, makes what runs it.

A model lies on one device, or in stages on several: consecutive layers each, the first ones on the
CPU where `gpu_layers` leaves some to it. Or each of several GPUs has a part of every matrix.
`rocmforge.split` runs both. Or one GPU computes all layers and reads the weights of the first ones
from the host's memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.devices import chosen_devices, likeness, open_chosen
from rocmforge.env import SPLIT_MODES, SplitMode
from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gpu.choose_device import Choice
from rocmforge.gpu.peers import MOST_RANKS
from rocmforge.kv import KvDtype, row_bytes
from rocmforge.kv.page_table import pages_for_context
from rocmforge.kv.windows import held_tokens
from rocmforge.model.config import ModelConfig
from rocmforge.model.decoder import decoder_graph
from rocmforge.model.needs import Needs
from rocmforge.model.shards import Share, cut
from rocmforge.model.stored_matrices import as_stored, stored_format, stored_shape
from rocmforge.model.tensor_shapes import layer_of, tensor_shapes
from rocmforge.model.weights import ModelWeights, load_weights
from rocmforge.plan.graph import Graph
from rocmforge.plan.operands import Embedding
from rocmforge.plan.protocols import (
    Backend,
    Cache,
    Executor,
    MatrixShape,
    Progress,
    StageCache,
)
from rocmforge.split.cache import SplitCache
from rocmforge.split.executor import SplitExecutor
from rocmforge.split.placement import room
from rocmforge.split.tensor import TensorExecutor

if TYPE_CHECKING:  # as in devices.py
    from rocmforge.gpu.backend import GpuBackend
    from rocmforge.gpu.matrix import DeviceMatrix

DEFAULT_CTX = 4096


@dataclass(frozen=True)
class Stage:
    """A device, and the layers of the model that lie on it.

    Parameters
    ----------
    name
        Of the device, as "cpu" or "hip:0".
    backend
        The device, open.
    layers
        Their numbers. The embedding goes with the first layer, the output with the last one. Where
        each GPU has a part of every matrix, all have all layers.
    """

    name: str
    backend: Backend[Any]
    layers: range


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run; see `rocmforge.engine.Engine` for what its parts are."""

    config: ModelConfig
    executor: Executor
    stages: tuple[Stage, ...]
    ctx: int
    weight_bytes: int
    streamed_layers: int = 0
    streamed_bytes: int = 0


@dataclass(frozen=True)
class Options:
    """How to load a model: as of `rocmforge.engine.Engine.from_gguf`."""

    device: str | Sequence[str] | None
    gpu_layers: int | Sequence[int] | None
    split_mode: SplitMode
    ctx: int | None
    threads: int | None
    sequences: int
    kv_dtype: KvDtype
    page_size: int
    whole_cache: bool
    weight_format: str | None


def load(
    path: str | os.PathLike[str],
    options: Options,
    resources: ExitStack,
    progress: Progress | None = None,
    compile_progress: Progress | None = None,
) -> Loaded:
    """Load a model; see `rocmforge.engine.Engine.from_gguf` for arguments and errors.

    `resources` closes the file and gives all memory back.
    """
    name = options.weight_format
    if name is not None and name not in FORMATS:
        raise ValueError(f"weight_format: got {name!r}, wanted one of {', '.join(FORMATS)}")
    if options.split_mode not in SPLIT_MODES:
        modes = ", ".join(SPLIT_MODES[:-1]) + f" or {SPLIT_MODES[-1]}"
        raise ValueError(f"split_mode: got {options.split_mode!r}, wanted {modes}")
    gpus = _open(options, resources)
    file = resources.enter_context(GGUFFile(path))
    config = ModelConfig.from_gguf(file)
    loader = _Loader(options, file, config, context(config, options.ctx))
    free = [backend.free_bytes() for _, backend in gpus]
    rooms = [room(nbytes) for nbytes in free if nbytes is not None]
    try:
        if options.split_mode == "tensor":
            return loader.load_parts(gpus, resources, progress, compile_progress)
        stages = loader.stages(gpus, rooms, resources)
        return loader.load(stages, resources, progress, compile_progress)
    except OutOfMemoryError as error:
        needs = loader.needs()
        advice = {
            "layer": needs.advice,
            "tensor": needs.advice_for_parts,
            "stream": needs.advice_for_stream,
        }
        raise OutOfMemoryError(f"{error}; {advice[options.split_mode](rooms)}") from error


def context(config: ModelConfig, ctx: int | None) -> int:
    """Return the most tokens of a sequence; ValueError where the model was trained for fewer."""
    if ctx is None:
        return min(config.ctx_train, DEFAULT_CTX)
    if not 1 <= ctx <= config.ctx_train:
        raise ValueError(
            f"ctx: got {ctx}, wanted 1 to {config.ctx_train}, what the model was trained for"
        )
    return ctx


def layers_on_gpus(gpu_layers: int | Sequence[int] | None, count: int) -> int:
    """Return how many of a model's layers lie on GPUs; see `rocmforge.engine.Engine.from_gguf`.

    ValueError where those of each GPU are more than the model has.
    """
    if gpu_layers is None or isinstance(gpu_layers, int):
        return count if gpu_layers is None else min(gpu_layers, count)
    if sum(gpu_layers) > count:
        raise ValueError(
            f"gpu_layers: got {list(gpu_layers)}, wanted together at most the model's {count}"
        )
    return sum(gpu_layers)


def layers_off_gpus(path: str | os.PathLike[str], gpu_layers: int | Sequence[int] | None) -> int:
    """Return how many of a file's layers lie on no GPU; None leaves the file unread."""
    if gpu_layers is None:
        return 0
    with GGUFFile(path) as file:
        count = ModelConfig.from_gguf(file).n_layers
    return count - layers_on_gpus(gpu_layers, count)


def _open(options: Options, resources: ExitStack) -> list[tuple[Choice, Backend[Any]]]:
    """Open the devices that were asked for."""
    wanted = options.gpu_layers
    own = list(wanted) if isinstance(wanted, Sequence) else None
    given: Sequence[Any] = [] if wanted is None else own or [wanted]
    for number in given:
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"gpu_layers: got {wanted!r}, wanted integers from 0")
    choices = chosen_devices(options.device)
    if wanted and choices[0].device is None:
        raise DeviceError(f"gpu_layers: got {wanted} and {choices[0].reason}; wanted a GPU, or 0")
    if own is not None and (len(own) != len(choices) or min(own) < 1):
        names = ", ".join(choice.name for choice in choices)
        raise ValueError(
            f"gpu_layers: got {own}, wanted one number for all GPUs, or one from 1 for "
            f"each of {names}"
        )
    if wanted == 0 and options.split_mode != "stream":
        choices = chosen_devices("cpu")
    opened = []
    for choice in choices:
        backend = open_chosen(choice, options.threads)
        resources.callback(backend.close)
        opened.append((choice, backend))
    return opened


class _Loader:
    """One model on its way to its devices."""

    def __init__(self, options: Options, file: GGUFFile, config: ModelConfig, ctx: int) -> None:
        if options.sequences < 1:
            raise ValueError(f"sequences: got {options.sequences}, wanted at least 1")
        self.options = options
        self.file = file
        self.config = config
        self.ctx = ctx
        self.pages = pages_for_context(ctx, options.sequences, options.page_size)
        self.wanted = FORMATS[options.weight_format] if options.weight_format else None
        self.windows = [config.window_size(layer, ctx) for layer in range(config.n_layers)]
        self.weight_bytes = 0
        self.streamed = 0  # first layers whose weights stay in the host's memory
        self.streamed_bytes = 0

    def stages(
        self,
        opened: Sequence[tuple[Choice, Backend[Any]]],
        rooms: Sequence[int],
        resources: ExitStack,
    ) -> tuple[Stage, ...]:
        """Say which layers lie on which device; opens the CPU where layers are left to it."""
        count, on_gpus = self.config.n_layers, self.on_gpus()
        if self.options.split_mode == "stream":
            _check_one_gpu(opened)
            self.streamed = count - on_gpus
            self.needs().check_host(_free_host_bytes())
            return (Stage(opened[0][0].name, opened[0][1], range(count)),)
        if on_gpus in (0, count) and len(opened) == 1:
            choice, backend = opened[0]
            return (Stage(choice.name, backend, range(count)),)
        if on_gpus < len(opened):
            raise ValueError(
                f"device: got {len(opened)} GPUs, and fewer layers for them ({on_gpus}), wanted at "
                "least one for each"
            )
        shares = self.needs().shares(rooms)
        devices = list(opened)
        if on_gpus < count:
            (cpu,) = chosen_devices("cpu")
            devices.insert(0, (cpu, open_chosen(cpu, self.options.threads)))
            resources.callback(devices[0][1].close)
            shares.insert(0, count - on_gpus)
        ends = accumulate(shares)
        return tuple(
            Stage(choice.name, backend, range(end - share, end))
            for (choice, backend), share, end in zip(devices, shares, ends, strict=True)
        )

    def on_gpus(self) -> int:
        """How many of the last layers lie on GPUs; ValueError where those of each are too many."""
        return layers_on_gpus(self.options.gpu_layers, self.config.n_layers)

    def needs(self) -> Needs:
        """What the model takes on GPUs."""
        config, kv_dtype = self.config, self.options.kv_dtype
        each = 2 * config.n_kv_heads * sum(row_bytes(kv_dtype, config.head_dim))
        tokens, sequences = self.pages * self.options.page_size, self.options.sequences
        cached = [each * held_tokens(window, tokens, sequences) for window in self.windows]
        wanted = self.options.gpu_layers
        each_gpu = wanted if isinstance(wanted, Sequence) else self.on_gpus()
        return Needs(config, self.file.tensors, self._nbytes, cached, tokens, each_gpu)

    def _nbytes(self, info: TensorInfo) -> int:
        """Bytes of a tensor as it is packed; a vector's are the file's."""
        matrix = self.wanted is not None and len(info.shape) > 1
        return stored_format(info, self.wanted).nbytes(info.shape) if matrix else info.nbytes

    def load(
        self,
        stages: tuple[Stage, ...],
        resources: ExitStack,
        progress: Progress | None,
        compile_progress: Progress | None,
    ) -> Loaded:
        """Pack the weights, and make caches and executors."""
        config, file, ctx, options = self.config, self.file, self.ctx, self.options
        caches = [self._cache(stage, resources, config) for stage in stages]
        cache: Cache = caches[0]
        if len(stages) > 1:
            cache = SplitCache(caches, self.pages, options.page_size, self.windows)
        if options.whole_cache:
            cache.grow(self.pages)
        backends = {layer: stage.backend for stage in stages for layer in stage.layers}

        def pack(info: TensorInfo, raw: NDArray[np.uint8], factors: Floats | None) -> Any:
            fmt, raw, factors = as_stored(info, self.wanted, raw, factors)
            layer = layer_of(info.name)
            backend = stages[-1].backend if layer is None else backends[layer]
            release = partial(file.release, info.name)
            columns = info.shape[-1]
            if layer is not None and layer < self.streamed:
                gpu = cast("GpuBackend", backend)
                packed = gpu.pack(raw, fmt, columns, release, factors, streamed=True)
                self.streamed_bytes += packed.nbytes
            else:
                packed = backend.pack(raw, fmt, columns, release, factors)
            self.weight_bytes += packed.nbytes
            return packed

        def expect(unpacked: ModelWeights[TensorInfo]) -> None:
            shapes = unpacked.map(lambda info: stored_shape(info, stored_format(info, self.wanted)))
            for stage, own_cache in zip(stages, caches, strict=True):
                self._expect(stage.backend, shapes.stage(stage.layers), own_cache, config)

        weights = load_weights(file, config, pack, progress, expect, ctx)
        executors = []
        for stage, own_cache in zip(stages, caches, strict=True):
            graph = self._graph(weights.stage(stage.layers), config)
            executors.append(stage.backend.executor(graph, own_cache, ctx))
            resources.callback(executors[-1].close)
        executor: Executor = executors[0]
        if isinstance(cache, SplitCache):
            executor = SplitExecutor(executors, [stage.name for stage in stages], cache)
        executor.prepare(compile_progress)
        streamed = self.streamed, self.streamed_bytes
        return Loaded(config, executor, stages, ctx, self.weight_bytes, *streamed)

    def load_parts(
        self,
        opened: Sequence[tuple[Choice, Backend[Any]]],
        resources: ExitStack,
        progress: Progress | None,
        compile_progress: Progress | None,
    ) -> Loaded:
        """Pack a part of each matrix on each GPU, and make caches and executors."""
        from rocmforge.gpu.exchange_time import fastest_group

        self._check_parts(opened)
        config, file, ctx, options = self.config, self.file, self.ctx, self.options
        every, count = range(config.n_layers), len(opened)
        stages = tuple(Stage(choice.name, backend, every) for choice, backend in opened)
        backends = [cast("GpuBackend", stage.backend) for stage in stages]
        tensors = (file.tensors[name] for name in tensor_shapes(config) if name in file.tensors)
        matrices = [info for info in tensors if len(info.shape) > 1]
        formats = [(info, stored_format(info, self.wanted)) for info in matrices]
        shards = cut(config, formats, count)
        configs = [shards.part_config(rank) for rank in range(count)]
        group = fastest_group([backend.kernels for backend in backends])
        resources.callback(group.close)
        pairs = zip(stages, configs, strict=True)
        caches: list[Any] = [self._cache(stage, resources, own) for stage, own in pairs]
        cache = SplitCache(caches, self.pages, options.page_size, self.windows)
        if options.whole_cache:
            cache.grow(self.pages)

        def pack(
            info: TensorInfo, raw: NDArray[np.uint8], factors: Floats | None
        ) -> tuple[DeviceMatrix, ...]:
            fmt, raw, factors = as_stored(info, self.wanted, raw, factors)
            packed = []
            for rank, backend in enumerate(backends):
                own = shards.part_rows(info, raw, fmt, rank)
                columns = shards.part_info(info, rank).shape[-1]
                release = partial(file.release, info.name) if own is raw else None
                packed.append(backend.pack(own, fmt, columns, release, factors))
                self.weight_bytes += packed[-1].nbytes
            return tuple(packed)

        def shapes(info: TensorInfo) -> tuple[MatrixShape, ...]:
            stored = stored_format(info, self.wanted)
            return tuple(
                stored_shape(shards.part_info(info, rank), stored) for rank in range(count)
            )

        def expect(unpacked: ModelWeights[TensorInfo]) -> None:
            of_all = unpacked.map(shapes)
            for rank, backend in enumerate(backends):
                own = shards.part(of_all, rank)
                self._expect(backend, own, caches[rank], configs[rank], shards.share(rank))

        weights = load_weights(file, config, pack, progress, expect, ctx)
        executors = []
        for rank, backend in enumerate(backends):
            graph = self._graph(shards.part(weights, rank), configs[rank], shards.share(rank))
            peers = group.peers[rank]
            executors.append(backend.executor(graph, caches[rank], ctx, peers=peers))
            resources.callback(executors[-1].close)
        executor = TensorExecutor(executors, group, cache)
        executor.prepare(compile_progress)
        return Loaded(config, executor, stages, ctx, self.weight_bytes)

    def _check_parts(self, opened: Sequence[tuple[Choice, Backend[Any]]]) -> None:
        """ValueError where GPUs are too few or too many, or not alike."""
        given, count = self.options.gpu_layers, self.config.n_layers
        if given is not None and (not isinstance(given, int) or given < count):
            raise ValueError(
                f"gpu_layers: got {given} with split mode tensor, wanted none, or all {count}: "
                "every GPU has a part of every layer"
            )
        if not 2 <= len(opened) <= MOST_RANKS:
            raise ValueError(
                f"split mode tensor: got {_names(opened)}, wanted 2 to {MOST_RANKS} GPUs, as "
                "--device hip:0,hip:1"
            )
        gpus = [(choice.kind, choice.device) for choice, _ in opened if choice.device]
        alike = dict.fromkeys(likeness(kind, gpu) for kind, gpu in gpus)
        if len(alike) > 1:  # they would round otherwise
            raise ValueError(
                f"split mode tensor: got {', '.join(alike)}, wanted GPUs that are alike; split "
                "mode layer takes any"
            )

    def _expect(
        self,
        backend: Backend[Any],
        shapes: ModelWeights[MatrixShape],
        cache: Any,
        config: ModelConfig,
        share: Share | None = None,
    ) -> None:
        """Have memory for a device's matrices, and begin to compile what will run them."""
        held = shapes.stage(range(self.streamed, len(shapes.layers)))
        backend.expect(held.matrices())
        graph = self._graph(shapes.different_layers(self.config), config, share)
        backend.compile_ahead(graph, cache, self.ctx)

    def _cache(self, stage: Stage, resources: ExitStack, config: ModelConfig) -> StageCache:
        options = self.options
        shape = (len(stage.layers), config.n_kv_heads, config.head_dim, self.pages)
        windows = self.windows[stage.layers.start : stage.layers.stop]
        cache = stage.backend.cache(*shape, options.page_size, options.kv_dtype, windows)
        resources.callback(cache.close)
        return cache

    def _graph(
        self, weights: ModelWeights[Any], config: ModelConfig, share: Share | None = None
    ) -> Graph:
        table = weights.token_embd
        tied = self.config.tied_output and self.wanted is None
        packed = weights.output if tied else None  # not of a first stage without the output
        embedding = Embedding(self.file.tensor(table.name), table.format, packed)
        return decoder_graph(config, weights, embedding, self.ctx, share)


def _free_host_bytes() -> int:
    """Memory of the host that can be had without pushing anything out."""
    import psutil  # slow to import, and seldom needed

    return int(psutil.virtual_memory().available)


def _check_one_gpu(opened: Sequence[tuple[Choice, Backend[Any]]]) -> None:
    """ValueError where there is none to stream to, or where there are several."""
    if len(opened) != 1 or opened[0][0].device is None:
        raise ValueError(
            f"split mode stream: got {_names(opened)}, wanted one GPU, as --device hip:0"
        )


def _names(opened: Sequence[tuple[Choice, Backend[Any]]]) -> str:
    """Names of devices; of the CPU why it was taken, as that no GPU was found."""
    return ", ".join(choice.name_or_reason for choice, _ in opened)
