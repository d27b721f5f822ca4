"""The inference engine: a GGUF model on a device, fed with token ids.

`loading.py` opens the file and packs its weights; `sequence_passes.py` runs prefill and decode;
`model/decoder.py` says what a pass computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any

from rocmforge.env import SplitMode
from rocmforge.errors import EngineInUseError
from rocmforge.generation import Generation
from rocmforge.kv import KvDtype
from rocmforge.loading import Options, load
from rocmforge.model.config import ModelConfig
from rocmforge.one_call import one_call
from rocmforge.plan.observation import Observer
from rocmforge.plan.protocols import Backend, Executor, ExecutorMemory, Progress
from rocmforge.sampling import SamplingParams
from rocmforge.sampling_params import is_integer
from rocmforge.sequence_passes import SequencePasses
from rocmforge.text.tokenizer import Tokenizer


class Engine(SequencePasses):
    """A loaded model with its KV cache. Made by `Engine.from_gguf`.

    A prompt that has run before runs whole again, so that it can be timed again and again.
    `add_prompt`, and `generate` with `share_prefixes`, take over what earlier ones left.

    Threads may use it in turn. A call while another one runs raises EngineInUseError; `release`
    alone is allowed at any time.

    An interrupt (Ctrl-C) at any moment loses no page: each is free, with a sequence, or kept for
    prompts that begin alike. End the sequences of the call that was interrupted: what they hold is
    not known.

    Attributes
    ----------
    config : ModelConfig
        The model's shape.
    backend : Backend
        The device's ops; of several devices, those of the last one, which has the output.
    cache : Cache
        Keys and values of all sequences.
    ctx : int
        Most tokens of one sequence.
    weight_bytes : int
        Memory of the packed weight matrices.
    streamed_layers : int
        How many of the first layers have their weights in the host's memory, from where the GPU
        that computes them reads them.
    streamed_bytes : int
        What these take of `weight_bytes`.
    """

    def __init__(
        self,
        resources: ExitStack,
        config: ModelConfig,
        executor: Executor,
        backend: Backend[Any],
        ctx: int,
        weight_bytes: int,
        devices: Sequence[str] = (),
        streamed_layers: int = 0,
        streamed_bytes: int = 0,
        prefill_chunk: int | None = None,
    ) -> None:
        super().__init__(executor, ctx, config.vocab_size, prefill_chunk)
        self._resources = resources
        self.config = config
        self.backend = backend
        self._devices = tuple(devices)
        self.weight_bytes = weight_bytes
        self.streamed_layers = streamed_layers
        self.streamed_bytes = streamed_bytes

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        device: str | Sequence[str] | None = None,
        *,
        gpu_layers: int | Sequence[int] | None = None,
        split_mode: SplitMode = "layer",
        ctx: int | None = None,
        threads: int | None = None,
        sequences: int = 1,
        kv_dtype: KvDtype = "f16",
        page_size: int = 32,
        prefill_chunk: int | None = None,
        whole_cache: bool = False,
        weight_format: str | None = None,
        progress: Progress | None = None,
        compile_progress: Progress | None = None,
    ) -> Engine:
        """Load a model.

        Parameters
        ----------
        path
            GGUF file of one of the architectures in `rocmforge.model.architectures`.
        device
            "auto", "cpu", "hip", "cuda", or a GPU with its number, as "hip:1"; None:
            `ROCMFORGE_DEVICE`, else "auto": the best GPU, or the CPU where there is none. Several
            GPUs, as "hip:0,hip:1" or ["hip:0", "hip:1"], share the model: see `split_mode`.
        gpu_layers
            So many of the last layers, and the output, lie on the GPU or GPUs, the others on the
            CPU: for a model that does not fit. 0: all on the CPU; as many as the model has, or
            more: all on GPUs, as without it (None). A list has the number of each GPU. For split
            mode "stream" see there.
        split_mode
            How devices share the model. "layer": each has some layers, in proportion to its
            free memory, the first GPU the first ones; they work one after another. "tensor": each
            has a part of every matrix and some of the heads; they work at the same time and sum
            after each attention and feed-forward part. It wants GPUs that are alike. "stream": one
            GPU computes all layers; the weights of those that `gpu_layers` leaves out stay in the
            host's memory, which is page-locked, and are read over the bus in every pass.
        ctx
            Most tokens of one sequence; None: the trained context, at most 4096.
        threads
            CPU threads; None: `ROCMFORGE_THREADS`, else the cores that this process may run on.
        sequences
            The KV cache has pages for `sequences` · `ctx` tokens, which any number of sequences
            share. Their memory is taken as they fill: on a GPU that of 512 tokens, then twice as
            much each time, unless `whole_cache` is set.
        kv_dtype
            Type of stored keys and values; "q8_0" takes half the memory of "f16", and so does
            "fp8_e4m3", which is less accurate and for GPUs only.
        page_size
            Tokens in a page of the KV cache: 16, 32 or 64.
        prefill_chunk
            Run at most so many tokens of a prompt in one pass: fewer take less memory for
            activations, and more time. None, or more than the device's own number: that one, 512
            on the CPU and 512 to 2,048 on a GPU, by its memory.
        whole_cache
            Take the memory of the whole cache while loading, on a GPU: what does not fit is an
            error then, and no measurement waits for it.
        weight_format
            Quantize the matrices anew to this format (a key of `FORMATS`) while loading, to see
            what a format costs; embedding rows stay as they are. A format becomes its
            `K_FALLBACK` where its blocks do not fit the columns. None: as in the file.
        progress
            Called with bytes loaded and bytes to load.
        compile_progress
            Called, on a GPU, with kernel files compiled and to compile.

        Raises
        ------
        GGUFError, ModelError
            The file is broken, or not a model that can be run, or not split so.
        DeviceError
            The device is missing, or the CPU where `gpu_layers` wants a GPU.
        OutOfMemoryError
            The model does not fit. It says how much is missing, and the `gpu_layers` that fit.
        TypeError
            `ctx`, `threads`, `sequences`, `page_size` or `prefill_chunk` is no integer.
        ValueError
            An argument is out of range; there are more GPUs than layers for them; `ctx` is above
            what the model was trained for.
        """
        prefill_chunk = _optional("prefill_chunk", prefill_chunk)
        if prefill_chunk is not None and prefill_chunk < 1:
            raise ValueError(f"prefill_chunk: got {prefill_chunk}, wanted at least 1")
        options = Options(
            device=device,
            gpu_layers=gpu_layers,
            split_mode=split_mode,
            ctx=_optional("ctx", ctx),
            threads=_optional("threads", threads),
            sequences=_integer("sequences", sequences),
            kv_dtype=kv_dtype,
            page_size=_integer("page_size", page_size),
            whole_cache=whole_cache,
            weight_format=weight_format,
        )
        with ExitStack() as resources:
            made = load(path, options, resources, progress, compile_progress)
            backend = made.stages[-1].backend
            names = tuple(stage.name for stage in made.stages) if len(made.stages) > 1 else ()
            return cls(
                resources.pop_all(),
                made.config,
                made.executor,
                backend,
                made.ctx,
                made.weight_bytes,
                names,
                made.streamed_layers,
                made.streamed_bytes,
                prefill_chunk,
            )

    def __enter__(self) -> Engine:
        """Return the engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine; what ends the block is not hidden by a call that still runs."""
        with suppress(*([] if error is None else [EngineInUseError])):
            self.close()

    @property
    def devices(self) -> tuple[str, ...]:
        """Where the model lies, first layers first: ("cpu",) or ("hip",); ("cpu", "hip:0")."""
        return self._devices or (self.backend.name,)

    @one_call
    def close(self) -> None:
        """Close the model's file and give the device's memory back; on the CPU it goes with the
        engine object.
        """
        self._resources.close()

    def memory(self) -> ExecutorMemory:
        """Return what is held besides `weight_bytes` and the cache: activations, inputs, constants.

        See `rocmforge.profiling.memory.memory_profile` for all of it.
        """
        return self._executor.memory()

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Tell an observer of each pass of `prefill`, `decode` and `logits` in a `with` block.

        Observed passes take a little longer: on a CPU a stamp is taken around each op, on a GPU an
        event is recorded after each step of a prompt.
        """
        self._executor.observer = observer
        try:
            yield
        finally:
            self._executor.observer = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        share_prefixes: bool = False,
    ) -> Generation:
        """Continue one or many prompts, streaming.

        Parameters
        ----------
        prompts
            Token ids of each prompt, 1 to `ctx` of them.
        params
            How to sample; one for all or one for each; None: greedy, 128 tokens.
        tokenizer
            The model's. With it tokens carry text, the model's end tokens end a continuation,
            and stop strings work; without it only `max_tokens` and `stop_ids` do.
        share_prefixes
            Where a prompt begins like an earlier one, do not run that beginning again. Earlier ones
            are those of calls with `share_prefixes`, of this call too. Whole pages of `page_size`
            tokens are shared, so a shorter common beginning gains nothing. The tokens are the same.
            `stats.cached_tokens` counts what did not run. See `add_prompt`. Without it each prompt
            runs whole, as a measurement wants it.

        Returns
        -------
        Generation
            An iterator of `GeneratedToken`, whose `stats` hold the timings. Prompts for which
            the KV cache has no room yet wait until others have ended.

        Raises
        ------
        ValueError
            A prompt is empty, too long or holds an id that is not in the vocabulary; stop strings
            without a tokenizer; another number of params than prompts.
        """
        if params is None:
            params = SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"params: got {len(each)}, wanted one, or {len(prompts)}")
        if tokenizer is None and any(p.stop for p in each):
            raise ValueError("stop: got stop strings but no tokenizer, wanted both")
        checked = [self._tokens(prompt, room=self.ctx).tolist() for prompt in prompts]
        add = self.add_prompt if share_prefixes else None
        return Generation(self, checked, each, tokenizer, add)


def _integer(name: str, number: int) -> int:
    """Return a number as Python's own; TypeError where it is no integer."""
    if not is_integer(number):
        raise TypeError(f"{name}: got {number!r}, wanted an integer")
    return int(number)


def _optional(name: str, number: int | None) -> int | None:
    return None if number is None else _integer(name, number)
